"""The registry of architectures: capabilities, model class, training defaults, own settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from polyencoder.checks import check_choice
from polyencoder.config import RankerConfig
from polyencoder.errors import ConfigError
from polyencoder.modeling.capabilities import (
    BiCapabilities,
    Capabilities,
    ConvertCapabilities,
    CrossCapabilities,
    LateCapabilities,
    PolyCapabilities,
)

if TYPE_CHECKING:
    from polyencoder.modeling.base import RankerModel

# around a pre-trained encoder: Section 5.1 of Humeau et al. (ICLR 2020)
_USUAL = {"learning_rate": 5e-5, "optimizer": "adamw", "weight_decay": 0.01, "schedule": "linear", "clip": 1.0}
# Section 3 of ConveRT, and note 10
_CONVERT = {
    "learning_rate": 1.0,
    "final_learning_rate": 0.001,
    "optimizer": "adadelta",
    "weight_decay": 1e-5,
    "schedule": "cosine",
    "warmup_updates": 0,
    "clip": 0.0,
    "embedding_clip": 1.0,
    "label_smoothing": 0.2,
    "batch_size": 512,
}
# fine-tuning: "for 60K training steps"
_CONVERT_FINE_TUNED = _CONVERT | {
    "learning_rate": 0.1,
    "final_learning_rate": 0.0001,
    "batch_size": 256,
    "dropout": 0.2,
    "max_updates": 60_000,
}

# Fields of a `ConvertConfig` that shape a new ConveRT
CONVERT_SIZES = (
    *("hidden_size", "intermediate_size", "attention_limits", "attention_heads", "relative_bias", "reduction_heads"),
    *("head_sizes", "skips", "scale_batches"),
)


@dataclass(frozen=True)
class Family:
    """An architecture's entry in the registry."""

    can: type[Capabilities]
    """The capabilities of its models: a base of their class, which needs no torch; or the class."""
    import_path: str = ""
    """The class as MODULE:NAME, if `can` is a base of it."""
    has_backbone: bool = True
    """Whether it has a Hugging Face encoder, from which rankers of other such architectures can start."""
    training: Mapping[str, Any] = field(default_factory=lambda: _USUAL)
    """Default hyperparameters of a new model."""
    fine_tuning: Mapping[str, Any] | None = None
    """Default hyperparameters of fine-tuning a trained model, if different."""
    settings: tuple[str, ...] = ()
    """Training settings that only this architecture has, applied by `RankerModel.continue_with`."""

    @property
    def model(self) -> type[RankerModel]:
        """The class of its models, called with a `RankerConfig`, and a `Backbone` if the architecture has one."""
        module, _, name = self.import_path.partition(":")
        model: Any = getattr(import_module(f"polyencoder.modeling.{module}"), name) if module else self.can
        return model

    def check(self, config: RankerConfig) -> None:
        """Raises ConfigError for a configuration that this architecture does not support."""
        if self.has_backbone and config.convert is not None:
            raise ConfigError(f"a {self.can.title} is built around a backbone; `convert` is for convert models")
        self.can.check_config(config)
        if config.base is not None:
            base = get_family(config.base.architecture)
            if self.can.has_vectors or not (base.has_backbone and base.can.has_vectors) or config.base.foreign_dim:
                raise ConfigError(
                    f"a {self.can.title} does not add its score to that of a {base.can.title}: `base` is a bi-, "
                    "poly- or late-interaction encoder that a cross-encoder started from",
                    argument="residual",
                )
            base.check(config.base)

    def get_preset(self, *, fine_tuning: bool) -> Mapping[str, Any]:
        """Default hyperparameters, of a new model or for `fine_tuning` a trained one."""
        return self.fine_tuning if fine_tuning and self.fine_tuning is not None else self.training


FAMILIES: dict[str, Family] = {
    "bi": Family(BiCapabilities, "separable:BiEncoder"),
    "poly": Family(PolyCapabilities, "separable:PolyEncoder"),
    "cross": Family(CrossCapabilities, "cross:CrossEncoder"),
    "late": Family(LateCapabilities, "late:LateEncoder"),
    "convert": Family(
        ConvertCapabilities,
        "convert.model:ConveRT",
        has_backbone=False,
        training=_CONVERT,
        fine_tuning=_CONVERT_FINE_TUNED,
        settings=(
            *CONVERT_SIZES,
            *("extra_contexts", "number_turns", "dropout", "quantization_aware", "quantization_update"),
        ),
    ),
}


def get_family(name: str) -> Family:
    """Looks up an architecture by name. ConfigError if unknown."""
    check_choice("architecture", name, FAMILIES)
    return FAMILIES[name]


def check_config(config: RankerConfig, *, origin: str) -> None:
    """Raises ConfigError, naming the `origin`, for a configuration that its architecture does not support."""
    try:
        get_family(config.architecture).check(config)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from None
