"""The sizes of a ConveRT, which a model's configuration has where that of other rankers has a backbone's."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from polyencoder.config import RankerConfig, TextConfig
from polyencoder.errors import ConfigError

__all__ = ["MODEL_TYPE", "ConvertConfig", "convert_text"]

MODEL_TYPE = "convert"

Activation = Literal["gelu", "relu"]


@dataclass(frozen=True)
class ConvertConfig:
    """Sections 2.1 and 2.2 of the paper, whose numbers are the defaults; in brackets those of its ablations (Table 4).

    vocab_size: the ids that have embeddings, unknown characters' included. hidden_size: of these, and of the blocks.
    attention_limits: of each block, how many positions apart two tokens may be that see each other. attention_heads (8)
    of attention_size each. relative_bias (False). intermediate_size: of feed-forward 1. positions: rows of the position
    tables, added modulo. reduction_heads (1) of reduction_size each. head_sizes: hidden layers of feed-forward 2.
    output_size: of the final vectors. skips (False): in feed-forward 2, around its layers and over all of them.
    multi_context: whether earlier turns are read. dropout: after embeddings and attention. scale_batches: over which
    the scale of cosines rises from 1 to the square root of `output_size`. quantized: whether embeddings are kept in 8
    bits, other weights in 16. quantization_update: after how many batches the range of these 8 bits follows the
    embeddings, while a quantized model learns.
    """

    vocab_size: int
    hidden_size: int = 512
    attention_limits: tuple[int, ...] = (3, 5, 48, 48, 48, 48)
    attention_heads: int = 1
    attention_size: int = 64
    relative_bias: bool = True
    intermediate_size: int = 2_048
    positions: tuple[int, ...] = (47, 11)
    reduction_heads: int = 2
    reduction_size: int = 64
    head_sizes: tuple[int, ...] = (1_024, 1_024, 1_024)
    output_size: int = 512
    skips: bool = True
    activation: Activation = "gelu"
    multi_context: bool = False
    dropout: float = 0.0
    scale_batches: int = 10_000
    quantized: bool = False
    quantization_update: int = 100

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field.name, getattr(self, field.name), str(field.type))
        if self.activation not in get_args(Activation):
            raise ConfigError(f"activation is {self.activation!r}; it must be one of {', '.join(get_args(Activation))}")

    @property
    def separator_id(self) -> int:
        """The id between the last utterance and those before it, behind that of padding; neither has an embedding."""
        return self.vocab_size + 1

    def to_backbone(self) -> dict[str, Any]:
        """The plain dictionary that stands in a `RankerConfig`."""
        values = {"model_type": MODEL_TYPE, "num_hidden_layers": len(self.attention_limits), **dataclasses.asdict(self)}
        if not self.quantized:  # as before there were quantized models: fingerprints are of this
            del values["quantized"], values["quantization_update"]
        plain: dict[str, Any] = json.loads(json.dumps(values))  # lists for tuples, as it is read again
        return plain

    @classmethod
    def from_backbone(cls, values: Mapping[str, Any]) -> ConvertConfig:
        """Read what `to_backbone` gave.

        Raises:
            ConfigError: it is something else.
        """
        if values.get("model_type") != MODEL_TYPE:
            raise ConfigError(f"the model type of a convert model is {values.get('model_type')!r:.60}")
        given = {name: value for name, value in values.items() if name not in ("model_type", "num_hidden_layers")}
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(given) - known):
            raise ConfigError(f"a convert model has no {unknown[0]!r}; it has {', '.join(sorted(known))}")
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
        }
        try:
            return cls(**fields)
        except TypeError as error:
            raise ConfigError(f"a convert model cannot be made of its configuration: {error}") from None


def convert_text(*, text_truncate: int = 60, label_truncate: int = 60, extra_contexts: int = 0) -> TextConfig:
    """How a ConveRT's texts are laid out: 60 subwords of each (Section 3), without a token around them.

    extra_contexts: turns before the last one that are read, 10 in the paper; 0 for a single-context model.
    """
    return TextConfig(
        text_truncate=text_truncate,
        label_truncate=label_truncate,
        history_size=1 + extra_contexts,
        pad_token="[PAD]",
        start_token="[PAD]",  # there is none
        end_token="[PAD]",
        separator="[EXTRA]",
        truncation="recent_first",
        surround=False,
    )


LISTS = ("attention_limits", "head_sizes")
"""Sizes that are several numbers: one of each block, one of each hidden layer."""


def parse_sizes(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `ConvertConfig` as flags have them: those of `LISTS` as a text, numbers with commas."""
    return {name: _numbers(name, value) if name in LISTS else value for name, value in sizes.items()}


def shown_sizes(config: ConvertConfig, names: Iterable[str]) -> dict[str, Any]:
    """These fields as flags have them: what `parse_sizes` reads."""
    fields = {name: getattr(config, name) for name in names}
    return {name: ",".join(map(str, value)) if name in LISTS else value for name, value in fields.items()}


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{name} is {text!r:.60}; it must be whole numbers with commas", argument=name) from None


def convert_ranker(config: ConvertConfig, text: TextConfig) -> RankerConfig:
    """The configuration of the whole ranker."""
    return RankerConfig("convert", config.to_backbone(), text, share_encoders=True, normalize=True)


def _check(name: str, value: Any, kind: str) -> None:
    """Raise ConfigError for a number that cannot be a size, a limit or a rate."""
    least = 0 if name in ("scale_batches", "attention_limits") else 1
    if kind == "int":
        fits, wanted = type(value) is int and value >= least, f"a whole number, at least {least}"
    elif kind.startswith("tuple"):
        wanted = f"whole numbers, each at least {least}"
        fits = isinstance(value, tuple) and all(type(one) is int and one >= least for one in value)
        fits = fits and len(value) <= 1_000 and (bool(value) or name == "attention_limits")
    elif kind == "float":
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1
        wanted = "at least 0 and below 1"
    elif kind == "bool":
        fits, wanted = isinstance(value, bool), "true or false"
    else:
        fits, wanted = isinstance(value, str), "a text"
    if not fits:
        raise ConfigError(f"{name} of a convert model is {value!r:.60}; it must be {wanted}", argument=name)
