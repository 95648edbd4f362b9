"""Reads ConvAI2's validation examples for benchmarks without agents."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from benchmarks.agents import CONVAI2, teacher_of
from polyencoder.data.example import Example


def validation_examples(datapath: str, count: int | None = None) -> list[Example]:
    """The first `count` of the official validation examples, or all 7,801, each with its 20 candidates.

    A context consists of the persona, as one turn, and the earlier turns, as in `-t selection:convai2`.
    """
    teacher = teacher_of(CONVAI2, datatype="valid", datapath=datapath)

    def examples() -> Iterator[Example]:
        turns: list[str] = []
        while not teacher.epoch_done():
            message = teacher.act()
            turns.append(message["text"])
            label = message["eval_labels"][0]
            yield Example(list(turns), label, list(message["label_candidates"]))
            turns = [] if message["episode_done"] else [*turns, label]

    return list(islice(examples(), count))
