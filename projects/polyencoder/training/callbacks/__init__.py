"""What happens beside the steps of a run: each one a callback that can be left out."""

from __future__ import annotations

from polyencoder.training.callbacks.base import Callback

__all__ = ["Callback"]
