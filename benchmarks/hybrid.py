"""Measures searches by words, by vectors, and by both: nDCG@10, recall@10 and @100, processor milliseconds of a query.

    python -m benchmarks.hybrid --datapath ../shared/data --threads 1 --json
    python -m benchmarks.hybrid --datapath ../shared/data --threads 1 --tasks --rows 100000 1000000 --json

Four tasks, each with `--queries` queries, among `--candidates`; all but the last have one right candidate for each:

- wiki: a sentence that was taken out of a Wikipedia article finds the article (StarSpace's article search);
- dstc7: a dialogue of DSTC7's validation file finds its next utterance;
- dailydialog: a dialogue of DailyDialog's test part finds its next utterance;
- banking77: a question of BANKING77's test part finds the training questions of its intent.

The fusion "weight" is fitted to the first half of the queries, and all systems are measured on the second. The fusion
"score" is for approximate searches: "nearest list" reads the nearest of four lists for each code (FAISS's ivf-flat with
`effort` 1), and "score" adds what words find.

The model is an untrained sentence encoder (`--backbone`), a poly-encoder of it (`--poly`: 16 random codes, or the means
of the latest 16 turns), or `--model`, a ranker; it reads the last turn, or with `--turns all` the whole dialogue. Words
are always those of the turns that hybrid searches take.

`--rows` measures the time of a search among this number of texts (`benchmarks.hybrid_time`), by at most 50
queries, without an encoder.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import hybrid_time
from benchmarks.common import argument_parser, machine, minilm_folder, print_report, use_threads
from benchmarks.search.texts import articles, dialogues, file_of
from polyencoder.calibration.weight import fit_weight, observe_hybrid
from polyencoder.data.example import Example
from polyencoder.data.readers import records
from polyencoder.index.folder import FolderIndex
from polyencoder.index.searcher import Searcher
from polyencoder.ranker.ranker import Ranker

TOP_K = 100
SYSTEMS: dict[str, dict[str, Any]] = {
    "words": {"words_only": True},
    "vectors": {},
    "rrf": {"hybrid": True},
    "weight": {"hybrid": True, "fusion": "weight"},
}
APPROXIMATE: dict[str, dict[str, Any]] = {
    "nearest list": {"effort": 1},
    "score": {"effort": 1, "hybrid": True, "fusion": "score"},
}
CODES = 16
LISTS = 4
_AT_ONCE = 50


class Query(NamedTuple):
    turns: list[str]
    right: frozenset[str]
    """The texts of its right candidates."""


Read = Callable[[Path], tuple[list[Query], Iterator[str]]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--datapath", type=Path, default=Path("../shared/data"), help="ParlAI's data folder")
    parser.add_argument("--tasks", nargs="*", default=[*TASKS], choices=TASKS)
    parser.add_argument("--queries", type=int, default=600)
    parser.add_argument("--candidates", type=int, default=5000)
    parser.add_argument("--backbone", help="a sentence encoder (default: MiniLM)")
    parser.add_argument("--poly", choices=["codes", "turns"], help="context vectors of a poly-encoder of it")
    parser.add_argument("--model", help="a ranker instead, as of Ranker.load")
    parser.add_argument("--turns", default="last", choices=["last", "all"], help="of a dialogue, for the model")
    parser.add_argument("--rows", nargs="*", type=int, default=[], help="number of texts to time searches among")
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    torch.manual_seed(0)  # codes, drawn vectors
    queries, candidates = (60, 500) if flags.quick else (flags.queries, flags.candidates)
    rows: list[dict[str, Any]] = []
    for count in flags.rows:
        with tempfile.TemporaryDirectory() as folder:
            rows += hybrid_time.measure(flags.datapath, count, Path(folder), queries=min(queries, 50))
    if flags.tasks:
        ranker = _ranker(flags)
    for task in flags.tasks:
        found, texts = read(task, flags.datapath, queries=queries, candidates=candidates)
        rows += measure(task, found, texts, ranker, last=flags.turns == "last")
    report = {
        "benchmark": "hybrid",
        "machine": machine(),
        "settings": {"poly": flags.poly, "turns": flags.turns, "quick": flags.quick},
        "rows": rows,
        "summary": {f"{row['task']} {row['system']}": row["nDCG@10"] for row in rows if "task" in row},
    }
    print_report(report, as_json=flags.json)


def _ranker(flags: argparse.Namespace) -> Ranker:
    backbone = flags.backbone or str(minilm_folder())
    if flags.poly and not flags.model:
        return Ranker.from_backbone(backbone, "poly", context_vectors=flags.poly, n_codes=CODES)
    return Ranker.load(flags.model or backbone)


def read(task: str, datapath: Path, *, queries: int, candidates: int) -> tuple[list[Query], list[str]]:
    """The queries of a task and its candidates: the right ones, and others up to this number."""
    found, others = TASKS[task](datapath)
    found = random.Random(0).sample(found, min(queries, len(found)))
    texts = dict.fromkeys(sorted(text for query in found for text in query.right))
    for text in others:
        if len(texts) >= candidates:
            break
        texts.setdefault(text)
    return found, [*texts]


def measure(
    task: str, queries: Sequence[Query], texts: Sequence[str], ranker: Ranker, *, last: bool
) -> list[dict[str, Any]]:
    """A row of the report for each system."""
    with tempfile.TemporaryDirectory() as folder:
        index = ranker.index(texts, Path(folder) / "index", words=True)
        assert isinstance(index, FolderIndex)
        with contextlib.closing(index):
            return _measure(task, queries, ranker, index, last=last)


def _measure(
    task: str, queries: Sequence[Query], ranker: Ranker, index: FolderIndex, *, last: bool
) -> list[dict[str, Any]]:
    fitting, queries = queries[: len(queries) // 2], queries[len(queries) // 2 :]
    own = [query.turns[-1:] if last else query.turns for query in queries]
    examples = [_example(query) for query in fitting]

    def both(contexts: Sequence[Sequence[str]]) -> Sequence[Sequence[Any]]:
        read = [turns[-1:] if last else turns for turns in contexts]
        return index.scaled(ranker.encode_contexts(read), texts=[*map(list, contexts)])

    weight = fit_weight(observe_hybrid(both, examples)).weight
    rows = []
    for system, options in (SYSTEMS | APPROXIMATE).items():
        if system == "weight":
            options = {**options, "vector_weight": weight}
        if system in APPROXIMATE and not index.approximates:
            index.build_faiss("ivf-flat", nlist=min(LISTS, len(index)))
        searcher = Searcher(ranker, index, top_k=TOP_K, **options)
        found: list[list[bool]] = []
        seconds = 0.0
        for first in range(0, len(queries), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            encoded = ranker.encode_contexts(own[some])
            start = time.process_time()
            hits = searcher.find(encoded, [query.turns for query in queries[some]])
            seconds += time.process_time() - start
            found += [_right(query, one) for query, one in zip(queries[some], hits, strict=True)]
        both_ways = [*zip(found, queries, strict=True)]
        rows.append(
            {
                "task": task,
                "system": system,
                "queries": len(queries),
                "candidates": len(index),
                "nDCG@10": sum(_ndcg(right, query) for right, query in both_ways) / len(queries),
                "recall@10": sum(sum(right[:10]) / len(query.right) for right, query in both_ways) / len(queries),
                "recall@100": sum(sum(right) / len(query.right) for right, query in both_ways) / len(queries),
                "ms": 1000 * seconds / len(queries),
                **({"weight": weight} if system == "weight" else {}),
            }
        )
    return rows


def _example(query: Query) -> Example:
    label, *others = sorted(query.right)
    return Example(query.turns, label, labels=dict.fromkeys([label, *others], 1.0))


def _right(query: Query, hits: Sequence[Any]) -> list[bool]:
    """Whether each of the first hits is right."""
    return [hit.text in query.right for hit in hits[:TOP_K]]


def _ndcg(right: Sequence[bool], query: Query) -> float:
    gains = [1 / math.log2(place + 2) for place in range(10)]
    found = sum(gain for gain, is_right in zip(gains, right, strict=False) if is_right)
    return found / sum(gains[: len(query.right)])


def _wiki(datapath: Path) -> tuple[list[Query], Iterator[str]]:
    rng, queries = random.Random(0), []
    for sentences in articles(datapath, "test"):
        query = sentences.pop(rng.randrange(1, len(sentences)))
        queries.append(Query([query], frozenset([" ".join(sentences)])))
    others = (" ".join(sentences) for split in ("valid", "train") for sentences in articles(datapath, split))
    return queries, others


def _dstc7(datapath: Path) -> tuple[list[Query], Iterator[str]]:
    found = [dialogue for _, dialogue in records(file_of(datapath, "dstc7/ubuntu_dev_subtask_1.json*"))]
    queries = [
        Query(
            [one["utterance"] for one in dialogue["messages-so-far"]],
            frozenset([dialogue["options-for-correct-answers"][0]["utterance"]]),
        )
        for dialogue in found
    ]
    return queries, (option["utterance"] for dialogue in found for option in dialogue["options-for-next"])


def _dailydialog(datapath: Path) -> tuple[list[Query], Iterator[str]]:
    found = [*dialogues(datapath)]
    queries = [
        Query(one["turns"][:place], frozenset([one["turns"][place]]))
        for one in found
        if one["split"] == "test"
        for place in range(2, len(one["turns"]))
    ]
    return queries, (turn for one in found if one["split"] != "test" for turn in one["turns"][1:])


def _banking77(datapath: Path) -> tuple[list[Query], Iterator[str]]:
    questions: dict[str, list[tuple[str, str]]] = {}
    for part in ("train", "test"):
        rows = records(file_of(datapath, f"banking77/{part}.csv*"))
        questions[part] = [(row["text"].strip(), row["category"]) for _, row in rows]
    of_intent: dict[str, set[str]] = {}
    for text, intent in questions["train"][::4]:  # a quarter: 2,500 texts
        of_intent.setdefault(intent, set()).add(text)
    return [Query([text], frozenset(of_intent[intent])) for text, intent in questions["test"]], iter(())


TASKS: dict[str, Read] = {"wiki": _wiki, "dstc7": _dstc7, "dailydialog": _dailydialog, "banking77": _banking77}


if __name__ == "__main__":
    main()
