"""Measures what training the side of contexts alone gains, in an index that stays as it was before training.

    python -m benchmarks.frozen_candidates --datapath ../shared/data --json

An encoder's index has the replies of `--tested` moments in DailyDialog's conversations. Each row searches it for the
reply of each moment: by the last turn alone, by the whole conversation, and by models trained for `--updates` updates
on other conversations, of which `--freeze-candidates` keeps the candidates' vectors. The last row trains both sides,
and therefore needs a new index.
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
from polyencoder.ranker.ranker import Ranker
from polyencoder.training import TrainSettings, train_ranker

TOP_K = 10
BATCH = 32


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--datapath", type=Path, default=Path("../shared/data"), help="ParlAI's data folder")
    parser.add_argument("--backbone", help="a sentence encoder (default: MiniLM)")
    parser.add_argument("--tested", type=int, default=1000, help="contexts that are searched for")
    parser.add_argument("--updates", type=int, default=48, help="of 32 examples each")
    parser.add_argument("--codes", type=int, default=16, help="of the poly-encoder")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    tested, updates = (50, 2) if flags.quick else (flags.tested, flags.updates)
    encoder = str(flags.backbone or minilm_folder())
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(
            encoder,
            pairs(flags.datapath, tested=tested, trained=updates * BATCH),
            Path(folder),
            updates=updates,
            codes=flags.codes,
            seed=flags.seed,
        )
    best = {row["system"]: row["recall1"] for row in rows}
    report = {
        "benchmark": "frozen_candidates",
        "machine": machine(),
        "settings": {"encoder": encoder, "tested": tested, "updates": updates, "batch": BATCH, "seed": flags.seed},
        "rows": rows,
        "summary": {"gained": best["contexts trained"] - best["whole conversation"]},
    }
    print_report(report, as_json=flags.json)


def pairs(datapath: Path, *, tested: int, trained: int) -> dict[str, list[tuple[list[str], str]]]:
    """(turns, reply) of conversations, each in one part: `test`, `valid` (a tenth as many as `train`) and `train`."""
    conversations = list(dialogues(datapath))
    random.Random(0).shuffle(conversations)
    parts: dict[str, list[tuple[list[str], str]]] = {"test": [], "valid": [], "train": []}
    for place, turns in enumerate(conversations):
        part = {0: "test", 1: "valid"}.get(place % 10, "train")
        parts[part] += [(turns[:n], turns[n]) for n in range(2, len(turns))]
    counts = {"test": tested, "valid": max(20, trained // 10), "train": trained}
    return {part: random.Random(1).sample(found, min(counts[part], len(found))) for part, found in parts.items()}


def measure(
    encoder: str,
    parts: dict[str, list[tuple[list[str], str]]],
    folder: Path,
    *,
    updates: int,
    codes: int,
    seed: int,
) -> list[dict[str, Any]]:
    """The rows of the report: recall of the right reply among all that are indexed, in percent."""
    for part in ("train", "valid"):
        lines = (json.dumps({"context": turns, "response": reply}) for turns, reply in parts[part])
        (folder / f"{part}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    before, test = Ranker.load(encoder), parts["test"]
    replies = list(dict.fromkeys(reply for _, reply in test))
    index = before.index(replies, folder / "index")

    def row(system: str, ranker: Ranker, *, turns: int | None = None, where: Any = index) -> dict[str, Any]:
        contexts = [context if turns is None else context[-turns:] for context, _ in test]
        found = ranker.search_many(contexts, where, top_k=TOP_K, keep_turns=True)
        labels = [reply for _, reply in test]
        at = {
            k: sum(label in [hit.text for hit in hits[:k]] for label, hits in zip(labels, found, strict=True))
            for k in (1, TOP_K)
        }
        return {"system": system, "replies": len(replies)} | {f"recall{k}": 100 * n / len(test) for k, n in at.items()}

    def trained(name: str, **settings: Any) -> Ranker:
        settings |= {part: str(folder / f"{part}.jsonl") for part in ("train", "valid")}
        settings |= {"out": str(folder / name), "backbone": encoder, "max_updates": updates, "seed": seed}
        settings |= {"batch_size": BATCH, "learning_rate": 1e-4}
        report = train_ranker(TrainSettings(**settings))
        return Ranker.load(report.out)

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


if __name__ == "__main__":
    main()
