"""The source of loaded weights."""

from __future__ import annotations

from dataclasses import dataclass

from polyencoder.config import RankerConfig


@dataclass(frozen=True)
class CheckpointSource:
    """The source of loaded weights: the file of `--init-model` for fine-tuning, else of `--model-file`."""

    path: str
    is_finetune: bool

    def __str__(self) -> str:
        return f"{'--init-model' if self.is_finetune else '--model-file'} {self.path}"


@dataclass(frozen=True)
class LoadedModel:
    """The loaded model, and its source."""

    config: RankerConfig
    origin: CheckpointSource
