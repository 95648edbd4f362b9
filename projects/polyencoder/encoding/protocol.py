"""The interface that indexes, calibration, evaluation, export and training need of a ranker, such as `Ranker`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from polyencoder.encoding.encoder import Encoder
    from polyencoder.search.contexts import Array, Contexts
    from polyencoder.text import TextEncoder

Context = Sequence[str] | str
"""A dialogue: its turns, oldest first, persona lines before them; or a single text."""

Dialogue = Context | Sequence[Mapping[str, Any]]
"""A context as callers may pass it: also chat messages, `[{"role": "user", "content": "hi"}]`."""


class Learner(Protocol):
    """The interface of a `Trainer`'s subject: a model with its tokenizer, on a device."""

    @property
    def model(self) -> Any:
        """A `TrainableModel` that the run's objective can score."""
        ...

    @property
    def text(self) -> TextEncoder: ...

    @property
    def device(self) -> torch.device: ...


class TextRanker(Protocol):
    """A model with its tokenizer, on a device: texts in, arrays out."""

    @property
    def encoder(self) -> Encoder: ...

    @property
    def model(self) -> Any:
        """A `RankerModel` of torch, or a `GraphModel`, which describes itself by the same attributes."""
        ...

    @property
    def text(self) -> TextEncoder: ...

    @property
    def device(self) -> Any: ...

    def encode_contexts(self, contexts: Sequence[Context]) -> Contexts:
        """Encodes contexts: [contexts, codes, dim] with their mask. InputError for a cross-encoder."""
        ...

    def encode_candidates(self, candidates: Sequence[str], *, batch_size: int = 256) -> Array:
        """Encodes candidates: float32 [candidates, dim]. InputError for a cross-encoder."""
        ...

    def score(self, contexts: Sequence[Context], candidates: Sequence[str]) -> Array:
        """Scores every candidate for every context: float32 [contexts, candidates]."""
        ...
