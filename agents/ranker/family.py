"""What differs between agents whose models have a backbone and others: their flags, and how a model is configured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser

from polyencoder.config import Architecture, RankerConfig
from polyencoder.modeling.backbone import Backbone
from polyencoder.text import TextEncoder

__all__ = ["Design", "Origin", "Start"]


@dataclass(frozen=True)
class Origin:
    """Where weights are loaded from: the file of `--init-model` if the run fine-tunes it, else of `--model-file`."""

    path: str
    is_finetune: bool

    def __str__(self) -> str:
        return f"{'--init-model' if self.is_finetune else '--model-file'} {self.path}"


@dataclass(frozen=True)
class Start:
    """The model that is loaded, and where from."""

    config: RankerConfig
    origin: Origin


class Design(Protocol):
    """The design of an agent's models. Its methods raise ConfigError, or CheckpointError where a model is at odds."""

    def add_args(self, parser: ParlaiParser, partial_opt: Opt | None) -> None:
        """Add all flags that such agents share."""
        ...

    def check_flags(self, opt: Opt, architecture: Architecture) -> None:
        """Before anything is built: that every flag can be followed."""
        ...

    def check_origin(self, opt: Opt, architecture: Architecture, origin: Origin | None) -> None:
        """Before the dictionary is built: that no flag says that the model and its vocabulary come from elsewhere."""
        ...

    def configure(
        self, opt: Opt, architecture: Architecture, text: TextEncoder, start: Start | None
    ) -> tuple[RankerConfig, Backbone | None]:
        """The configuration of the model, written into the options too; and its pre-trained backbone, if any."""
        ...
