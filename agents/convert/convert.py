"""`-m convert`: the cosine of a context's and a response's vector, times a scale (Henderson et al., 2020)."""

from __future__ import annotations

from typing import Any

from parlai.agents.convert.model import ConvertDictionary, ConvertFamily
from parlai.agents.ranker.agent import RankerAgent
from parlai.agents.ranker.dialogue.history import MESSAGE_TURNS, RankerHistory
from parlai.core.message import Message
from parlai.core.opt import Opt

from polyencoder.errors import ConfigError
from polyencoder.modeling.base import RankerModel


class ConvertHistory(RankerHistory):
    """A history whose turns are the lines of messages, unless messages contain turns; a reply is one turn."""

    def __init__(self, opt: Opt, **options: Any) -> None:
        super().__init__(opt, **options)
        self._whole: dict[str, list[str]] = {}  # the turns of a text, if they are not its lines

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

    def list_turns(self) -> list[str]:
        return [turn for text in super().list_turns() for turn in self._whole.get(text) or text.split("\n")]


class ConvertAgent(RankerAgent):
    """ConveRT, single- or multi-context: small, fast, and trained from scratch."""

    architecture = "convert"
    family = ConvertFamily()

    @classmethod
    def history_class(cls) -> type[ConvertHistory]:
        return ConvertHistory

    @staticmethod
    def dictionary_class() -> type[ConvertDictionary]:
        return ConvertDictionary

    def build_model(self) -> RankerModel:
        model = super().build_model()
        if vector := self.opt.get("context_vector"):
            if model.context_vector is None:
                raise ConfigError("only a multi-context convert model has contexts to choose from")
            model.context_vector = vector
        return model
