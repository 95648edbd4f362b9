"""`--objective` on graded judgements: the same updates with each, and the nDCG@10 of a search of the whole collection.

    python -m benchmarks.objectives --cranfield FOLDER --json

Cranfield (Cleverdon, 1967): 1,400 abstracts and 225 questions, whose answers were graded; all abstracts were judged.
FOLDER has `cran.all.1400`, `cran.qry` and `cranqrel` (http://ir.dcs.gla.ac.uk/resources/test_collections/cran/). A
complete answer has the label 4, a reference of minimum interest 1; for `bce`, which reads probabilities, these numbers
are divided by 4.

Questions are split in two halves: a model trained on one is tested on the other, so that each question is tested once.
An example has up to `RIGHT` abstracts of the best grades and, with the label 0, `WRONG` of the first `AMONG` other ones
that the untrained encoder finds. The side of questions is trained, a bi-encoder's, so that the vectors of abstracts
stay. p is that of a paired randomisation test against `softmax`.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import argument_parser, machine, minilm_folder, print_report, use_threads
from polyencoder.data.example import Example
from polyencoder.evaluation.retrieval import evaluate_run
from polyencoder.evaluation.runs import search_run
from polyencoder.evaluation.significance import bootstrap_intervals, randomisation_test
from polyencoder.index import Candidate
from polyencoder.ranker.ranker import Ranker
from polyencoder.training import TrainSettings, train_ranker

OBJECTIVES = ("softmax", "ranknet", "lambdaloss", "listnet", "bce", "mse")
MEASURE = "nDCG@10"
RIGHT, WRONG, AMONG = 4, 4, 30
BATCH = 8

Qrels = dict[str, dict[str, int]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--cranfield", type=Path, required=True, help="the folder of the collection's files")
    parser.add_argument("--backbone", help="a sentence encoder (default: MiniLM)")
    parser.add_argument("--updates", type=int, default=14, help="of 8 questions each")
    parser.add_argument("--seeds", type=int, default=1, help="splits of the questions, and orders of training")
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    updates, seeds = (2, 1) if flags.quick else (flags.updates, flags.seeds)
    encoder = str(flags.backbone or minilm_folder())
    rows = measure(encoder, flags.cranfield, updates=updates, seeds=seeds, learning_rate=flags.learning_rate)
    report = {
        "benchmark": "objectives",
        "machine": machine(),
        "settings": {"encoder": encoder, "updates": updates, "seeds": seeds, "learning_rate": flags.learning_rate},
        "rows": rows,
        "summary": {row["objective"]: row[MEASURE] for row in rows},
    }
    print_report(report, as_json=flags.json)


def measure(encoder: str, folder: Path, *, updates: int, seeds: int, learning_rate: float) -> list[dict[str, Any]]:
    """The rows of the report."""
    documents = {id_: text for id_, text in _texts(folder / "cran.all.1400") if text}
    queries = {str(place): [text] for place, (_, text) in enumerate(_texts(folder / "cran.qry"), 1)}  # qrels count them
    qrels = read_grades(folder / "cranqrel", documents)
    plain = Ranker.from_backbone(encoder, "bi")
    index = plain.index(Candidate(id_, text) for id_, text in documents.items())
    found = search_run(plain, index, queries, depth=100)
    rows, first = [], None
    for objective in ("untrained", *OBJECTIVES):
        runs = []
        for seed in range(seeds):
            if objective == "untrained":
                runs.append(found)
                continue
            run: dict[str, dict[str, float]] = {}
            mixed = random.Random(seed).sample(sorted(qrels), len(qrels))
            halves = [mixed[::2], mixed[1::2]]
            for train, test in (halves, halves[::-1]):
                examples = [
                    _example(id_, queries, documents, qrels, found, seed=seed, most=4 if objective == "bce" else 1)
                    for id_ in train
                ]
                trained = _trained(encoder, examples, objective, updates=updates, seed=seed, rate=learning_rate)
                run |= search_run(trained, index, {id_: queries[id_] for id_ in test}, depth=100)
            runs.append(run)
        measured = [evaluate_run(run, qrels, measures=[MEASURE]).measured.by_query for run in runs]
        values = np.array([[own[query][MEASURE] for query in sorted(qrels)] for own in measured])
        rows.append({"objective": objective, **statistics(values, first)})
        first = values if objective == "softmax" else first
        print(rows[-1], file=sys.stderr)
    return rows


def statistics(values: np.ndarray[Any, Any], first: np.ndarray[Any, Any] | None) -> dict[str, Any]:
    """The mean, by seed too, its interval over the questions, and p against `first`, of values [seeds, questions].

    A question's value is its mean over the seeds.
    """
    own = values.mean(axis=0)[:, None]
    ((low, high),) = bootstrap_intervals(own).tolist()
    p = None if first is None else randomisation_test(own, first.mean(axis=0)[:, None]).item()
    return {MEASURE: values.mean().item(), "by_seed": values.mean(axis=1).tolist(), "95%": [low, high], "p": p}


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """The id and the text (field W) of each record of a file in SMART's format."""
    for record in ("\n" + path.read_text(encoding="latin-1")).split("\n.I ")[1:]:
        id_, _, rest = record.partition("\n")
        yield id_.strip().lstrip("0"), " ".join(rest.partition(".W\n")[2].split())


def read_grades(path: Path, documents: Mapping[str, str]) -> Qrels:
    """The labels of each question's abstracts: 4 for a complete answer (Cleverdon's code 1) to 1."""
    qrels: Qrels = {}
    for line in path.read_text().splitlines():
        query, document, code = line.split()
        if document in documents and 1 <= int(code) <= 4:
            own = qrels.setdefault(query, {})
            own[document] = max(own.get(document, 0), 5 - int(code))
    return qrels


def _example(
    id_: str,
    queries: Mapping[str, list[str]],
    documents: Mapping[str, str],
    qrels: Qrels,
    found: Mapping[str, Mapping[str, float]],
    *,
    seed: int,
    most: int,
) -> Example:
    right = sorted(qrels[id_], key=lambda document: -qrels[id_][document])[:RIGHT]
    wrong = [document for document in found[id_] if document not in qrels[id_]][:AMONG]
    wrong = random.Random(f"{seed} {id_}").sample(wrong, WRONG)
    numbers = [qrels[id_].get(document, 0) / most for document in (*right, *wrong)]
    return Example.graded(queries[id_], [documents[one] for one in (*right, *wrong)], numbers)


def _trained(encoder: str, examples: list[Example], objective: str, *, updates: int, seed: int, rate: float) -> Ranker:
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {"train": "cranfield", "out": f"{folder}/trained", "backbone": encoder}
        settings |= {"architecture": "bi", "candidates": "inline", "objective": objective, "batch_size": BATCH}
        settings |= {"max_updates": updates, "learning_rate": rate, "seed": seed, "freeze_candidates": True}
        settings |= {"evaluations": BATCH / len(examples) / updates, "patience": None}  # one, at the end
        train_ranker(TrainSettings(**settings), train=examples, valid=examples[:BATCH])
        return Ranker.load(f"{folder}/trained")


if __name__ == "__main__":
    main()
