"""Where weights are loaded from."""

from __future__ import annotations

from dataclasses import dataclass

from polyencoder.config import RankerConfig

__all__ = ["CheckpointSource", "LoadedModel"]


@dataclass(frozen=True)
class CheckpointSource:
    """Where weights are loaded from: the file of `--init-model` if the run fine-tunes it, else of `--model-file`."""

    path: str
    is_finetune: bool

    def __str__(self) -> str:
        return f"{'--init-model' if self.is_finetune else '--model-file'} {self.path}"


@dataclass(frozen=True)
class LoadedModel:
    """The loaded model, and its source."""

    config: RankerConfig
    origin: CheckpointSource
