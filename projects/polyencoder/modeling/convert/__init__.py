"""ConveRT (Henderson et al., 2020): a small encoder of conversational text, shared by contexts and responses."""

from __future__ import annotations

from polyencoder.config import ConvertConfig
from polyencoder.modeling.convert.contexts import CONTEXT_VECTORS
from polyencoder.modeling.convert.model import ConveRT

__all__ = ["CONTEXT_VECTORS", "ConveRT", "ConvertConfig"]
