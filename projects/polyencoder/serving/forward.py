"""`Forward`: what the server needs of a ranker. `BatchForward` has it with torch, `GraphForward` without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from polyencoder.serving.model_thread import WorkItem

if TYPE_CHECKING:
    from polyencoder.calibration import CalibratedRanker
    from polyencoder.index.options import SearchOptions

CONTEXT, CANDIDATE, PAIR = "context", "candidate", "pair"

Array = np.ndarray[Any, Any]
Ids = Sequence[int]


def context(ids: Ids) -> WorkItem:
    """Becomes an encoded context."""
    return WorkItem(CONTEXT, ids, len(ids))


def candidate(ids: Ids) -> WorkItem:
    """Becomes a vector, [dim]."""
    return WorkItem(CANDIDATE, ids, len(ids))


def pair(context: Ids, candidate: Ids) -> WorkItem:
    """Becomes a score, of a cross-encoder."""
    return WorkItem(PAIR, (context, candidate), len(context) + len(candidate))


class Forward(Protocol):
    """Batches of contexts, candidates, or pairs for a cross-encoder, through a ranker's model.

    Encoded contexts and candidates are of its own types; scores and embeddings are numpy arrays.
    """

    ranker: CalibratedRanker
    max_tokens: int
    """Maximum tokens of a batch; a longer text is a batch of its own."""

    def prepare_thread(self) -> None:
        """Called first on each thread that calls the other methods."""
        ...

    def __call__(self, kind: str, tokens: Sequence[Any]) -> list[Any]:
        """The result of each item of one kind."""
        ...

    def score(self, context: Any, candidates: Sequence[Any]) -> Array:
        """Scores encoded candidates for an encoded context: float32 [candidates]."""
        ...

    def embeddings(self, kind: str, encoded: Sequence[Any]) -> Array:
        """The single vectors of encoded contexts or candidates: float32 [n, dim]."""
        ...

    def searcher(self, index: Any, options: SearchOptions, **settings: Any) -> Any:
        """What `find` searches with. Raises InputError or ConfigError if an option does not fit the index.

        `settings` are `reranker`, `rerank_k`, `min_probability` and `keep_turns`, as of `polyencoder.index.searcher`.
        """
        ...

    def find(self, searcher: Any, encoded: Sequence[Any], contexts: Sequence[Sequence[str]]) -> list[list[Any]]:
        """The hits of each encoded context, best first; `contexts` are their texts."""
        ...
