"""What differs between agents whose models have a backbone and others: their flags, and how a model is configured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser

from polyencoder.config import Architecture, RankerConfig
from polyencoder.modeling.backbone import Backbone
from polyencoder.text import TextEncoder

__all__ = ["CheckpointSource", "LoadedModel", "ModelFamily"]


@dataclass(frozen=True)
class CheckpointSource:
    """Where weights are loaded from: the file of `--init-model` if the run fine-tunes it, else of `--model-file`."""

    path: str
    is_finetune: bool

    def __str__(self) -> str:
        return f"{'--init-model' if self.is_finetune else '--model-file'} {self.path}"


@dataclass(frozen=True)
class LoadedModel:
    """The model that is loaded, and where from."""

    config: RankerConfig
    origin: CheckpointSource


class ModelFamily(Protocol):
    """The flags of a kind of model, and its configuration.

    Its methods raise ConfigError, or CheckpointError where a loaded model contradicts the flags.
    """

    def add_args(self, parser: ParlaiParser, partial_opt: Opt | None) -> None:
        """Add all flags that such agents share."""
        ...

    def check_flags(self, opt: Opt, architecture: Architecture) -> None:
        """Before anything is built: that every flag can be followed."""
        ...

    def check_origin(self, opt: Opt, architecture: Architecture, origin: CheckpointSource | None) -> None:
        """Before the dictionary is built: that no flag says that the model and its vocabulary come from elsewhere."""
        ...

    def configure(
        self, opt: Opt, architecture: Architecture, text: TextEncoder, start: LoadedModel | None
    ) -> tuple[RankerConfig, Backbone | None]:
        """The configuration of the model, written into the options too; and its pre-trained backbone, if any."""
        ...
