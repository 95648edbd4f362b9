"""The architectures: bi-, poly-, cross- and late-interaction encoders, ConveRT."""

from __future__ import annotations

from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.build import build_model, fitting
from polyencoder.modeling.convert import ConveRT
from polyencoder.modeling.cross import CrossEncoder
from polyencoder.modeling.freezing import FINE_TUNED, freeze
from polyencoder.modeling.separable import BiEncoder, PolyEncoder, TwoTowers

__all__ = [
    "FINE_TUNED",
    "BiEncoder",
    "ConveRT",
    "CrossEncoder",
    "PolyEncoder",
    "RankerModel",
    "TwoTowers",
    "build_model",
    "fitting",
    "freeze",
]
