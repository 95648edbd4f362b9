"""Response rankers without ParlAI: bi-, poly-, late-interaction and cross-encoders, and ConveRT.

from polyencoder import Ranker
ranker = Ranker.from_pretrained("path-or-hub-id")
ranker.rank(["your persona: i ski .", "hi !"], candidates, top_k=5)

Names are imported on first use: `import polyencoder` alone does not import torch, and neither does a ranker of ONNX
graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polyencoder.lazy import build_lazy_names

if TYPE_CHECKING:
    from polyencoder.config import RankerConfig, TextConfig
    from polyencoder.errors import CheckpointError, ConfigError, InputError, PolyencoderError
    from polyencoder.ranked import Ranked
    from polyencoder.ranker import Ranker
    from polyencoder.selector import Selector

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
    "CheckpointError": "polyencoder.errors",
    "ConfigError": "polyencoder.errors",
    "InputError": "polyencoder.errors",
    "PolyencoderError": "polyencoder.errors",
    "Ranked": "polyencoder.ranked",
    "Ranker": "polyencoder.ranker",
    "RankerConfig": "polyencoder.config",
    "Selector": "polyencoder.selector",
    "TextConfig": "polyencoder.config",
}

_get, __dir__ = build_lazy_names(__name__, _MODULES)


def __getattr__(name: str) -> Any:
    if name != "__version__":
        from polyencoder.guesses import NAMES

        if name in NAMES:  # `from polyencoder import Class` would hide the words of an AttributeError
            error = ImportError if name[0].isupper() else AttributeError
            raise error(f"polyencoder has no {name}: {NAMES[name]}")
        return _get(name)
    from polyencoder.packages import get_version

    return get_version("parlai-polyencoder") or get_version("polyencoder-runtime") or "unknown"
