"""Makes training pairs from public dialogues, in place of Reddit:

    python -m benchmarks.reproduce.conversations --datapath ../shared/data --out FOLDER

writes `train.jsonl`, `valid.jsonl` and `some.jsonl` (20,000 of the training pairs). Every turn but the first is a
response, with up to eleven earlier turns as its context. Duplicate dialogues are dropped, and one dialogue in a hundred
is held out. Reddit is left out, because these models are evaluated on it.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from polyencoder.data.readers import iter_records
from polyencoder.storage.files import atomic_write

FILES = (
    "conversations/schema_guided.jsonl.gz",
    "conversations/topical_chat.jsonl.gz",
    "conversations/taskmaster4.jsonl.gz",
    "dailydialog/dialogues.jsonl.gz",
)
TURNS = 11  # of a context: the last one and ten before it
SAMPLE_SIZE = 20_000
HELD_OUT = 0.01


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datapath", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, required=True)
    flags = parser.parse_args(arguments)
    draw = random.Random(0)
    dialogues = sorted(set(_iter_dialogues(flags.datapath)))
    draw.shuffle(dialogues)
    held_out = max(1, round(HELD_OUT * len(dialogues)))
    train = [pair for turns in dialogues[held_out:] for pair in _iter_pairs(turns)]
    draw.shuffle(train)
    valid = [pair for turns in dialogues[:held_out] for pair in _iter_pairs(turns)]
    for name, pairs in {"valid": valid, "test": valid, "some": train[:SAMPLE_SIZE], "train": train}.items():
        _write(flags.out / f"{name}.jsonl", pairs)
    print(json.dumps({"train": len(train), "valid": len(valid)}))


def _iter_dialogues(datapath: Path) -> Iterator[tuple[str, ...]]:
    for file in FILES:
        for _, record in iter_records(datapath / file):
            turns = tuple(" ".join(turn.split()) for turn in record["turns"])
            if len(turns := tuple(turn for turn in turns if turn)) > 1:
                yield turns


def _iter_pairs(turns: Sequence[str]) -> Iterator[dict[str, Any]]:
    for i in range(1, len(turns)):
        yield {"context": list(turns[max(0, i - TURNS) : i]), "response": turns[i]}


def _write(path: Path, pairs: Iterable[dict[str, Any]]) -> None:
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs)


if __name__ == "__main__":
    main()
