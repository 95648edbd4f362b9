"""What tests of teachers share that is no fixture."""

from __future__ import annotations

TRAINING = ["train", "train:stream"]


def questions(*numbers: int) -> list[str]:
    return [f"question {n}" for n in numbers]


def clones_of(teacher, count: int = 4):
    """A BatchWorld's: (rounds) -> the messages of so many batches."""
    clones = [teacher.clone() for _ in range(count)]
    return lambda rounds: [[clone.act() for clone in clones] for _ in range(rounds)]
