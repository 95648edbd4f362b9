"""ConveRT (Henderson et al., 2020): a small encoder of conversational text, shared by contexts and responses."""

from __future__ import annotations

from polyencoder.config import ConvertConfig
from polyencoder.modeling.convert.model import CONTEXT_VECTORS, ConveRT

__all__ = ["CONTEXT_VECTORS", "ConveRT", "ConvertConfig"]
