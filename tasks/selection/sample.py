"""`-t selection:sample`: dialogues that the project writes itself, in memory, the same ones everywhere.

4,000 training, 400 validation and 400 test examples with 20 candidates each, for demos, tests and first experiments
without a download. See `grammar` for what a dialogue is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parlai.core.opt import Opt
from parlai.tasks.selection.grammar import Dialogue, write_dialogues
from parlai.tasks.selection.teacher import CHOICES, SelectionTeacher
from parlai.utils.data import DatatypeHelper

__all__ = ["DIALOGUES", "SEED", "SampleTeacher", "sample_dialogues"]

DIALOGUES = {"train": 1000, "valid": 100, "test": 100}
SEED = 1  # published scores are those of this seed


def sample_dialogues(split: str, *, seed: int = SEED) -> Iterator[Dialogue]:
    """The dialogues of "train", "valid" or "test"."""
    return write_dialogues(split, DIALOGUES[split], seed=seed)


class SampleTeacher(SelectionTeacher):
    """The persona goes before the first utterance, as in ConvAI2."""

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        opt = opt.copy()
        opt["datatype"] = DatatypeHelper.strip_stream(opt["datatype"])  # it is in memory anyway
        opt["datafile"] = DatatypeHelper.fold(opt["datatype"])
        super().__init__(opt, shared)

    def setup_data(self, datafile: str) -> Iterator[tuple[dict[str, Any], bool]]:
        for dialogue in sample_dialogues(datafile):
            before = "".join(f"your persona: {fact}\n" for fact in dialogue.persona)
            for number, turn in enumerate(dialogue.turns):
                message = {
                    "text": before + turn.text,
                    "labels": [turn.label.text],
                    CHOICES: [candidate.text for candidate in turn.candidates],
                }
                yield message, number == 0
                before = ""
