"""The dialogue history as turns."""

from __future__ import annotations

import re
from typing import Any

from parlai.core.message import Message
from parlai.core.opt import Opt
from parlai.core.torch_agent import History

from polyencoder.text import lines_of, persona_lines

__all__ = ["EARLIER", "EPOCH_EXAMPLES", "MESSAGE_TURNS", "RankerHistory"]


LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class RankerHistory(History):
    """ParlAI's history without its own copy of the token ids.

    It keeps `--history-size` messages, the most that these utterances can need, and the persona lines of those before
    them; the text encoder counts utterances.
    """

    def __init__(self, opt: Opt, **others: Any) -> None:
        super().__init__(opt, **others)
        self._personas: list[str] = []
        self._keeps_replies = opt.get("use_reply", "label") != "none"
        self._interactive = bool(opt.get("interactive_mode"))

    def parse(self, text: str) -> list[int]:
        return []  # the ids of a turn are made, and remembered, by the text encoder

    def reset(self) -> None:
        super().reset()
        self._personas = []

    def _update_strings(self, text: str) -> None:
        before = self.history_strings[:]
        super()._update_strings(text)
        for dropped in before[: len(before) + 1 - len(self.history_strings)]:
            self._personas += persona_lines(dropped.split("\n"))

    def update_history(self, obs: Message, temp_history: str | None = None) -> None:
        """Add what was said; a resumed run's first message of a conversation brings what was said before."""
        for message in obs.get(EARLIER, ()):
            super().update_history(message)
            if self._keeps_replies:
                self.add_reply(message["labels"][0])
        if self._interactive and obs.get("text"):  # typed text may hold lone surrogates
            obs = Message({**obs, "text": LONE_SURROGATES.sub("\ufffd", obs["text"])})
        super().update_history(obs, temp_history)

    def turns(self) -> list[str]:
        """The messages so far, oldest first, persona lines before them; a temporary one belongs to the last of them."""
        turns = [*self._personas, *self.history_strings]
        if turns and self.temp_history is not None:
            turns[-1] += self.temp_history
        return turns

    def get_history_vec(self) -> list[int] | None:
        """Token ids of the whole context, or None before the first utterance."""
        turns = self.turns()
        return self.dict.text.context_ids(turns) if turns else None

    def lines(self) -> set[str]:
        """All earlier lines, normalized by `same`, for repeat blocking."""
        return lines_of(self.history_raw_strings)


EARLIER = "earlier"
"""Where a message has the messages before it, when it is the first that a resumed run has of its conversation."""
MESSAGE_TURNS = "context_turns"
"""Where a message has its turns, when line ends in some of them look like those between turns in its text."""
EPOCH_EXAMPLES = "epoch_examples"
"""Where a training run's first messages say how many examples an epoch has."""
