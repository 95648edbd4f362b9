"""The dialogue history as turns."""

from __future__ import annotations

import re
from typing import Any

from parlai.core.message import Message
from parlai.core.opt import Opt
from parlai.core.torch_agent import History

from polyencoder.text.context import normalize_lines, select_persona_lines

LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class RankerHistory(History):
    """ParlAI's history without token ids: `--history-size` messages, and the persona lines of older ones."""

    def __init__(self, opt: Opt, **options: Any) -> None:
        super().__init__(opt, **options)
        self._personas: list[str] = []
        self._keeps_replies = opt.get("use_reply", "label") != "none"
        self._interactive = bool(opt.get("interactive_mode"))

    def parse(self, text: str) -> list[int]:
        return []  # the text encoder computes and caches the ids of turns

    def reset(self) -> None:
        super().reset()
        self._personas = []

    def _update_strings(self, text: str) -> None:
        before = self.history_strings[:]
        super()._update_strings(text)
        for dropped in before[: len(before) + 1 - len(self.history_strings)]:
            self._personas += select_persona_lines(dropped.split("\n"))

    def update_history(self, obs: Message, temp_history: str | None = None) -> None:
        """Adds a message; in a resumed run, the first message of a conversation contains the earlier ones."""
        for message in obs.get(EARLIER, ()):
            self._add(message)
            if self._keeps_replies:
                self.add_reply(message["labels"][0])
        if self._interactive and obs.get("text"):  # typed text may hold lone surrogates
            obs = Message({**obs, "text": LONE_SURROGATES.sub("\ufffd", obs["text"])})
        self._add(obs, temp_history)

    def _add(self, obs: Message, temp_history: str | None = None) -> None:
        """Adds a message, with `--split-lines` each of its lines: ParlAI repeats all of it with `--person-tokens`."""
        text = obs.get("text")
        lines = [] if text is None else text.split("\n") if self.split_on_newln else [text]
        for left, line in zip(range(len(lines))[::-1], lines, strict=True):
            self._update_raw_strings(line)
            if self.add_person_tokens and not (left and self.add_p1_after_newln):  # which only the last line has
                line = self._add_person_tokens(line, self.p1_token, self.add_p1_after_newln)
            self._update_strings(line)
            self._update_vecs(line)
        self.temp_history = temp_history

    def add_reply(self, text: str | None) -> None:
        """Adds a reply, which may be empty; None adds nothing."""
        if text is not None:
            super().add_reply(text)

    def list_turns(self) -> list[str]:
        """The messages so far, oldest first, after the persona lines; a temporary message extends the last one."""
        turns = [*self._personas, *self.history_strings]
        if turns and self.temp_history is not None:
            turns[-1] += self.temp_history
        return turns

    def get_history_vec(self) -> list[int] | None:
        """Token ids of the whole context, or None before the first utterance."""
        turns = self.list_turns()
        return self.dict.text.tokenize_context(turns) if turns else None

    def collect_lines(self) -> set[str]:
        """All earlier lines, normalized by `normalize_text`, for repeat blocking."""
        return normalize_lines(self.history_raw_strings)


EARLIER = "earlier"
"""The field with earlier messages, in a resumed run's first message of a conversation."""
MESSAGE_TURNS = "context_turns"
"""The field with a message's turns, if some contain line ends, which also separate turns in its text."""
EPOCH_EXAMPLES = "epoch_examples"
"""The field with the number of examples in an epoch, in a training run's first messages."""
