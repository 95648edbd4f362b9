"""Measures article search as `polyencoder evaluate --beir` does: an untrained encoder beside BM25 (bm25s).

    python -m benchmarks.retrieval --datapath ../shared/data --json

StarSpace's article search, as a BEIR folder (`--out` keeps it, with both runs): of each Wikipedia article of the test
and the validation file one sentence is taken out. Those of the test file are the queries, and the article that a
sentence was taken from is its only relevant document. BM25 has Anserini's settings: k1 0.9, b 0.4, stop words.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.common import argument_parser, machine, minilm_folder, print_report, use_threads
from benchmarks.search.texts import articles
from polyencoder.data.contexts import read_queries
from polyencoder.data.trec import read_qrels, write_run
from polyencoder.evaluation.retrieval import evaluate_retrieval, evaluate_run
from polyencoder.index import candidates_from
from polyencoder.ranker.ranker import Ranker

DEPTH = 1000


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--datapath", type=Path, default=Path("../shared/data"), help="ParlAI's data folder")
    parser.add_argument("--backbone", help="a sentence encoder (default: MiniLM)")
    parser.add_argument("--out", type=Path, help="keep the folder and the runs here")
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    if find_spec("bm25s") is None:
        raise SystemExit("BM25 is bm25s': pip install bm25s")
    with ExitStack() as stack:
        folder = flags.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_folder(flags.datapath, folder, most=100 if flags.quick else None)
        rows = measure(str(flags.backbone or minilm_folder()), folder)
    report = {
        "benchmark": "retrieval",
        "machine": machine(),
        "settings": {"quick": flags.quick, "depth": DEPTH},
        "rows": rows,
        "summary": {row["system"]: row["nDCG@10"] for row in rows},
    }
    print_report(report, as_json=flags.json)


def make_folder(datapath: Path, folder: Path, *, most: int | None) -> None:
    """Writes the BEIR folder, of at most so many articles of each file; articles have at least four sentences."""
    rng = random.Random(0)
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    corpus, queries, qrels = [], [], ["query-id\tcorpus-id\tscore"]
    for part in ("test", "valid"):
        for number, sentences in enumerate(islice(articles(datapath, part), most)):
            query = sentences.pop(rng.randrange(1, len(sentences)))
            corpus.append(json.dumps({"_id": f"{part}{number}", "title": "", "text": " ".join(sentences)}))
            if part == "test":
                queries.append(json.dumps({"_id": f"q{number}", "text": query}))
                qrels.append(f"q{number}\t{part}{number}\t1")
    for name, found in (("corpus.jsonl", corpus), ("queries.jsonl", queries), ("qrels/test.tsv", qrels)):
        (folder / name).write_text("\n".join(found) + "\n", encoding="utf-8")


def measure(encoder: str, folder: Path) -> list[dict[str, Any]]:
    """The rows of the report, and both runs in the folder: `encoder.trec` and `bm25.trec`."""
    queries, qrels = read_queries(str(folder / "queries.jsonl")), read_qrels(folder / "qrels" / "test.tsv")
    ranker = Ranker.load(encoder)
    index = ranker.index(candidates_from(str(folder / "corpus.jsonl")))
    bm25 = _bm25(folder / "corpus.jsonl", {id_: turns[0] for id_, turns in queries.items()})
    report = evaluate_retrieval(ranker, queries, qrels, index=index, depth=min(DEPTH, len(index)), compare=bm25)
    write_run(folder / "encoder.trec", report.run)
    write_run(folder / "bm25.trec", bm25, name="bm25")
    common = {"documents": len(index), "queries": report.queries}
    intervals = {f"{name} 95%": list(ends) for name, ends in report.intervals.items()}
    ps = {f"{name} p": p for name, p in (report.p or {}).items()}
    return [
        {"system": "encoder", **common, **report.measured.means, **intervals, **ps},
        {"system": "BM25", **common, **evaluate_run(bm25, qrels).measured.means},
    ]


def _bm25(corpus: Path, queries: dict[str, str]) -> dict[str, dict[str, float]]:
    import bm25s

    documents = list(candidates_from(str(corpus)))
    quiet: dict[str, Any] = {"show_progress": False}
    index = bm25s.BM25(k1=0.9, b=0.4)
    index.index(bm25s.tokenize([one.text for one in documents], stopwords="en", **quiet), **quiet)
    asked = bm25s.tokenize(list(queries.values()), stopwords="en", **quiet)
    places, scores = index.retrieve(asked, k=min(DEPTH, len(documents)), n_threads=1, **quiet)
    return {
        query: {str(documents[place].id): float(score) for place, score in zip(own, of_own, strict=True)}
        for query, own, of_own in zip(queries, places, scores, strict=True)
    }


if __name__ == "__main__":
    main()
