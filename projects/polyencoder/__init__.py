"""Fast, accurate response rankers: bi-, cross- and poly-encoders, without ParlAI.

from polyencoder import Ranker
ranker = Ranker.from_pretrained("path-or-hub-id")
ranker.rank(["your persona: i ski .", "hi !"], candidates, top_k=5)

Names are imported on first use: `import polyencoder` alone does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyencoder.config import RankerConfig, TextConfig
    from polyencoder.errors import CheckpointError, ConfigError, InputError, PolyencoderError
    from polyencoder.ranker.ranked import Ranked
    from polyencoder.ranker.ranker import Ranker
    from polyencoder.ranker.selector import Selector

    __version__: str

__all__ = [
    "CheckpointError",
    "ConfigError",
    "InputError",
    "PolyencoderError",
    "Ranked",
    "Ranker",
    "RankerConfig",
    "Selector",
    "TextConfig",
    "__version__",
]

_MODULES = {
    **dict.fromkeys(("RankerConfig", "TextConfig"), "polyencoder.config"),
    **dict.fromkeys(("CheckpointError", "ConfigError", "InputError", "PolyencoderError"), "polyencoder.errors"),
    "Ranked": "polyencoder.ranker.ranked",
    "Ranker": "polyencoder.ranker.ranker",
    "Selector": "polyencoder.ranker.selector",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        version_of = import_module("polyencoder.packages").version_of
        return version_of("parlai-polyencoder") or version_of("polyencoder-runtime") or "unknown"
    if name not in _MODULES:
        if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}")  # `polyencoder.index`, without an import of its own
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec(_MODULES[name]) is None:
        raise ImportError(
            f"polyencoder-runtime has no polyencoder.{name}: take Ranker from polyencoder.runtime, or install "
            "parlai-polyencoder"
        )
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
