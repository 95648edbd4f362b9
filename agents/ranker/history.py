"""The dialogue so far, as turns of text: the tokenizer remembers their ids, so nothing is tokenized twice."""

from __future__ import annotations

from parlai.core.torch_agent import History


class RankerHistory(History):
    """ParlAI's history without its own copy of the token ids."""

    def parse(self, text: str) -> list[int]:
        return []  # the ids of a turn are made, and remembered, by the text encoder

    def turns(self) -> list[str]:
        """The utterances so far, oldest first; a temporary one belongs to the last of them."""
        if not self.history_strings or self.temp_history is None:
            return list(self.history_strings)
        return [*self.history_strings[:-1], self.history_strings[-1] + self.temp_history]

    def get_history_vec(self) -> list[int] | None:
        """Token ids of the whole context, or None before the first utterance."""
        turns = self.turns()
        return self.dict.text.context_ids(turns) if turns else None

    def lines(self) -> set[str]:
        """Every line that was said: what repeat blocking does not say again."""
        return {line for text in self.history_raw_strings for line in text.split("\n")}
