"""Converts ParlAI's examples to pairs of context and response, with negatives from other conversations."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parlai.agents.ranker.dialogue.history import EARLIER
from parlai.agents.ranker.dialogue.listed import InBatchSource
from parlai.core.message import Message

from polyencoder.data.example import Example
from polyencoder.data.seeded_random import SeededRandom
from polyencoder.pretraining.corpus import WINDOW, PairExample, other_response
from polyencoder.training.callbacks import Callback


class ResponseSource(InBatchSource):
    """The responses of the examples."""

    def problem(self, obs: Message) -> str | None:
        return "has no label, which is the response that pre-training needs" if "label_choice" not in obs else None


@dataclass(frozen=True, slots=True)
class EpisodeExample(Example):
    """A task's example and its conversation."""

    episode: int = 0


class ResponseBuffer(Callback):
    """Recent responses to draw negatives from; each replaces a random one of `WINDOW`, as tasks may be unshuffled."""

    name = "said"

    def __init__(self) -> None:
        self._window: list[tuple[int, str]] = []

    def add(self, examples: Sequence[EpisodeExample], draws: SeededRandom) -> None:
        """Adds the responses of these examples."""
        for one in examples:
            if len(self._window) < WINDOW:
                self._window.append((one.episode, one.label))
            else:
                self._window[draws.below(WINDOW)] = one.episode, one.label

    def pair(self, one: EpisodeExample, draws: SeededRandom) -> PairExample:
        """Pairs an example with a response of another conversation."""
        key = draws.below(2**53)  # drawn first, so that it does not depend on the buffer
        other = other_response(one.episode, one.label, self._window, draws)
        return PairExample(one.turns, one.label, other=other, key=key)

    def clear(self) -> None:
        self._window.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"episodes": [episode for episode, _ in self._window], "responses": [text for _, text in self._window]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._window = list(zip(state["episodes"], state["responses"], strict=True))


def beginning_of(obs: Message) -> int:
    """A number for the conversation that begins with this message, equal in each epoch and in resumed runs."""
    first = next(iter(obs.get(EARLIER, ())), obs)
    return zlib.crc32(str(first.get("text", "")).encode("utf-8", "replace"))
