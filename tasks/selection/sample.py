"""`-t selection:sample`: synthetic dialogues, generated in memory, identical on every machine.

4,000 training, 400 validation and 400 test examples with 20 candidates each, for demos, tests and first experiments
without a download. `grammar` describes the dialogues.
"""

from __future__ import annotations

from collections.abc import Iterator

from parlai.tasks.selection.epochs import Episode
from parlai.tasks.selection.grammar import Dialogue, write_dialogues
from parlai.tasks.selection.teacher import SelectionTeacher

from polyencoder.data.epochs import InMemory, Source
from polyencoder.data.example import Example

DIALOGUES = {"train": 1000, "valid": 100, "test": 100}
SEED = 1  # published scores are for this seed


def sample_dialogues(split: str) -> Iterator[Dialogue]:
    """The dialogues of "train", "valid" or "test"."""
    return write_dialogues(split, DIALOGUES[split], seed=SEED)


class SampleTeacher(SelectionTeacher):
    """The persona goes before the first utterance, as in ConvAI2."""

    def open_source(self, split: str) -> Source[Episode]:
        return InMemory(map(_build_episode, sample_dialogues(split)), size=len)  # also for :stream


def _build_episode(dialogue: Dialogue) -> Episode:
    before = [f"your persona: {fact}" for fact in dialogue.persona]
    return [
        Example([*(before * (number == 0)), turn.text], turn.label.text, [reply.text for reply in turn.candidates])
        for number, turn in enumerate(dialogue.turns)
    ]
