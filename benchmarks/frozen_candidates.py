"""Measures what training the side of contexts alone gains, in an index that stays as it was before training.

    python -m benchmarks.frozen_candidates --datapath ../shared/data --json

An encoder's index has the replies of `--tested` moments in DailyDialog's conversations. Each row searches it for the
reply of each moment: by the last turn alone, by the whole conversation, and by models trained for `--updates` updates
on other conversations, of which `--freeze-candidates` keeps the candidates' vectors. The last row trains both sides,
and therefore needs a new index.

With `--foreign ENCODER` the index holds that encoder's vectors instead, and `--backbone` is trained to search them: the
rows are searches by the foreign encoder itself, by the untrained backbone behind the regression that it starts with,
and by the trained one.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import argument_parser, machine, minilm_folder, print_report, use_threads
from benchmarks.search.texts import dialogues
from polyencoder.index import Candidate, Fingerprints, Hit, build_index, open_index
from polyencoder.ranker.ranker import Ranker
from polyencoder.training import TrainSettings, train_ranker
from polyencoder.training.start import starting_ranker

TOP_K = 10
BATCH = 32
Parts = dict[str, list[tuple[list[str], str]]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--datapath", type=Path, default=Path("../shared/data"), help="ParlAI's data folder")
    parser.add_argument("--backbone", help="a sentence encoder (default: MiniLM)")
    parser.add_argument("--foreign", help="a sentence encoder of which training sees the candidates' vectors alone")
    parser.add_argument("--tested", type=int, default=1000, help="contexts that are searched for")
    parser.add_argument("--updates", type=int, default=48, help="of 32 examples each")
    parser.add_argument("--codes", type=int, default=16, help="of the poly-encoder")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    tested, updates = (50, 2) if flags.quick else (flags.tested, flags.updates)
    encoder = str(flags.backbone or minilm_folder())
    parts = pairs(flags.datapath, tested=tested, trained=updates * BATCH)
    run = {"updates": updates, "codes": flags.codes, "seed": flags.seed}
    with tempfile.TemporaryDirectory() as folder:
        if flags.foreign:
            rows = measure_foreign(encoder, flags.foreign, parts, Path(folder), **run)
        else:
            rows = measure(encoder, parts, Path(folder), **run)
    best = {row["system"]: row["recall1"] for row in rows}
    report = {
        "benchmark": "frozen_candidates",
        "machine": machine(),
        "settings": {
            "encoder": encoder,
            "foreign": flags.foreign,
            "tested": tested,
            "updates": updates,
            "batch": BATCH,
            "seed": flags.seed,
        },
        "rows": rows,
        "summary": {"gained": best["contexts trained"] - best["whole conversation"]},
    }
    print_report(report, as_json=flags.json)


def pairs(datapath: Path, *, tested: int, trained: int) -> Parts:
    """(turns, reply) of conversations, each in one part: `test`, `valid` (a tenth as many as `train`) and `train`."""
    conversations = [dialogue["turns"] for dialogue in dialogues(datapath)]
    random.Random(0).shuffle(conversations)
    parts: Parts = {"test": [], "valid": [], "train": []}
    for place, turns in enumerate(conversations):
        part = {0: "test", 1: "valid"}.get(place % 10, "train")
        parts[part] += [(turns[:n], turns[n]) for n in range(2, len(turns))]
    counts = {"test": tested, "valid": max(20, trained // 10), "train": trained}
    return {part: random.Random(1).sample(found, min(counts[part], len(found))) for part, found in parts.items()}


def measure(encoder: str, parts: Parts, folder: Path, *, updates: int, codes: int, seed: int) -> list[dict[str, Any]]:
    """The rows of the report: recall of the right reply among all that are indexed, in percent."""
    _write(parts, folder)
    before, test = Ranker.load(encoder), parts["test"]
    replies = list(dict.fromkeys(reply for _, reply in test))
    index = before.index(replies, folder / "index")

    def row(system: str, ranker: Ranker, *, turns: int | None = None, where: Any = index) -> dict[str, Any]:
        contexts = [context if turns is None else context[-turns:] for context, _ in test]
        found = ranker.search_many(contexts, where, top_k=TOP_K, keep_turns=True)
        return _row(system, found, test, replies=len(replies))

    def trained(name: str, **settings: Any) -> Ranker:
        given = _settings(encoder, folder, name, updates=updates, seed=seed)
        return Ranker.load(train_ranker(TrainSettings(**given, **settings)).out)

    def rows() -> Iterator[dict[str, Any]]:
        yield row("last turn", before, turns=1)
        yield row("whole conversation", before)
        frozen: dict[str, Any] = {"freeze_candidates": True, "candidates_of": str(folder / "index")}
        yield row("contexts trained", trained("contexts", architecture="bi", **frozen))
        name = f"contexts trained, poly-{codes}"
        yield row(name, trained("poly", architecture="poly", n_codes=codes, **frozen))
        both = trained("both", architecture="bi")
        yield row("both sides trained, indexed again", both, where=both.index(replies, folder / "again"))

    return list(rows())


def measure_foreign(
    encoder: str, foreign: str, parts: Parts, folder: Path, *, updates: int, codes: int, seed: int
) -> list[dict[str, Any]]:
    """The same for the vectors of a foreign encoder, of all parts' replies; those of the tests are searched."""
    _write(parts, folder)
    theirs, test = Ranker.load(foreign), parts["test"]
    replies = {reply: part for part in ("train", "valid", "test") for _, reply in parts[part]}
    vectors = theirs.encode_candidates([*replies]).cpu().numpy()
    records = (
        Candidate(None, text, {"part": replies[text]}, "", one) for text, one in zip(replies, vectors, strict=True)
    )
    build_index(folder / "index", records, Fingerprints("foreign"))
    index = open_index(folder / "index")

    def row(system: str, ranker: Ranker, *, turns: int | None = None) -> dict[str, Any]:
        encoded = ranker.encode_contexts([context if turns is None else context[-turns:] for context, _ in test])
        found = index.search(encoded, top_k=TOP_K, filter={"part": "test"})
        return _row(system, found, test, replies=index.count({"part": "test"}))

    def settings(architecture: str, **more: Any) -> TrainSettings:
        given = _settings(encoder, folder, architecture, updates=updates, seed=seed)
        given |= {"freeze_candidates": True, "candidates_of": str(folder / "index"), "architecture": architecture}
        return TrainSettings(**given, **more)

    def rows() -> Iterator[dict[str, Any]]:
        yield row("last turn", theirs, turns=1)
        yield row("whole conversation", theirs)
        before = starting_ranker(settings("bi"))
        yield row("regression, last turn", before, turns=1)
        yield row("regression, whole conversation", before)
        yield row("contexts trained", Ranker.load(train_ranker(settings("bi")).out))
        poly = train_ranker(settings("poly", n_codes=codes)) if codes else None
        if poly is not None:
            yield row(f"contexts trained, poly-{codes}", Ranker.load(poly.out))

    return list(rows())


def _write(parts: Parts, folder: Path) -> None:
    for part in ("train", "valid"):
        lines = (json.dumps({"context": turns, "response": reply}) for turns, reply in parts[part])
        (folder / f"{part}.jsonl").write_text("\n".join(lines), encoding="utf-8")


def _settings(encoder: str, folder: Path, name: str, *, updates: int, seed: int) -> dict[str, Any]:
    files = {part: str(folder / f"{part}.jsonl") for part in ("train", "valid")}
    run = {"max_updates": updates, "seed": seed, "batch_size": BATCH, "learning_rate": 1e-4}
    return {**files, **run, "out": str(folder / name), "backbone": encoder}


def _row(
    system: str, found: Sequence[Sequence[Hit]], test: Sequence[tuple[list[str], str]], *, replies: int
) -> dict[str, Any]:
    labels = [reply for _, reply in test]
    at = {
        k: sum(label in [hit.text for hit in hits[:k]] for label, hits in zip(labels, found, strict=True))
        for k in (1, TOP_K)
    }
    return {"system": system, "replies": replies} | {f"recall{k}": 100 * n / len(test) for k, n in at.items()}


if __name__ == "__main__":
    main()
