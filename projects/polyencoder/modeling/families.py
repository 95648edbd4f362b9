"""The architectures by name: what a model is built of, before there is one."""

from __future__ import annotations

from dataclasses import dataclass

from polyencoder.errors import ConfigError
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.convert.model import ConveRT
from polyencoder.modeling.cross import CrossEncoder
from polyencoder.modeling.separable import BiEncoder, PolyEncoder

__all__ = ["FAMILIES", "Family", "family"]


@dataclass(frozen=True)
class Family:
    """An architecture."""

    model: type[RankerModel]
    """Its class. It is called with a `RankerConfig`, and with a `Backbone` if the family has one."""
    has_backbone: bool = True
    """Whether it is built around a Hugging Face encoder, which other rankers with one can start from."""


FAMILIES: dict[str, Family] = {
    "bi": Family(BiEncoder),
    "poly": Family(PolyEncoder),
    "cross": Family(CrossEncoder),
    "convert": Family(ConveRT, has_backbone=False),
}


def family(name: str) -> Family:
    """The architecture of this name. ConfigError if there is none."""
    if name not in FAMILIES:
        raise ConfigError(f"architecture is {name!r}; it must be one of {', '.join(FAMILIES)}", argument="architecture")
    return FAMILIES[name]
