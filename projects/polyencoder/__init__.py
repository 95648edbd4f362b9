"""Fast, accurate response rankers: bi-, cross- and poly-encoders, without ParlAI.

from polyencoder import Ranker
ranker = Ranker.from_pretrained("path-or-hub-id")
ranker.rank(["your persona: i ski .", "hi !"], candidates, top_k=5)
"""

from polyencoder.config import RankerConfig, TextConfig
from polyencoder.errors import CheckpointError, ConfigError, InputError, PolyencoderError
from polyencoder.ranker import Ranked, Ranker

__all__ = [
    "CheckpointError",
    "ConfigError",
    "InputError",
    "PolyencoderError",
    "Ranked",
    "Ranker",
    "RankerConfig",
    "TextConfig",
]
