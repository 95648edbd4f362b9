"""The dialogue so far as the turns that a ConveRT reads whole."""

from __future__ import annotations

from typing import Any

from parlai.agents.ranker.examples import MESSAGE_TURNS
from parlai.agents.ranker.history import RankerHistory
from parlai.core.message import Message
from parlai.core.opt import Opt

__all__ = ["ConvertHistory"]


class ConvertHistory(RankerHistory):
    """ParlAI's messages have a turn in each line, unless they bring their turns; a reply is one turn."""

    def __init__(self, opt: Opt, **others: Any) -> None:
        super().__init__(opt, **others)
        self._whole: dict[str, list[str]] = {}  # the turns of a text whose lines are not its turns

    def reset(self) -> None:
        super().reset()
        self._whole = {}

    def add_reply(self, text: str) -> None:
        self._whole[text] = [text]
        super().add_reply(text)

    def update_history(self, obs: Message, temp_history: str | None = None) -> None:
        if turns := obs.get(MESSAGE_TURNS):
            self._whole[obs["text"]] = list(turns)
        super().update_history(obs, temp_history)

    def turns(self) -> list[str]:
        return [turn for text in super().turns() for turn in self._whole.get(text) or text.split("\n")]
