"""`IndexModel`: the model that an index is opened for."""

from __future__ import annotations

from weakref import WeakSet

from polyencoder.encoding.protocol import TextRanker
from polyencoder.errors import CheckpointError
from polyencoder.index.meta import Fingerprints, Maker
from polyencoder.search.contexts import Contexts


class IndexModel:
    """The model that searches an index, and must have made every state of it; None: the maker of the first state."""

    ranker: TextRanker | None
    """Encodes added texts; None without the model itself."""

    def __init__(self, ranker: TextRanker | Fingerprints | None, *, opened_with: Fingerprints | None = None) -> None:
        self._model = ranker
        self._fingerprints = opened_with
        self.ranker = None if ranker is None or isinstance(ranker, Fingerprints) else ranker
        self._verified = WeakSet([] if self.ranker is None else [self.ranker.model])  # the index checks the latter

    def check_ranker(self, ranker: TextRanker, fingerprints: Fingerprints, *, where: object) -> None:
        """Raises CheckpointError unless the fingerprints are this ranker's. Reads the weights of each model once."""
        if ranker.model not in self._verified:
            fingerprints.check_model(ranker, where=where)
            self._verified.add(ranker.model)

    def check(self, maker: Maker, *, where: object) -> None:
        """Raises CheckpointError unless the model is the maker. Reads its weights only for other fingerprints."""
        newest, opened = maker.fingerprints, self._fingerprints
        if newest == opened:
            return
        if self._model is None and opened is not None and not newest.fits(opened):
            raise CheckpointError(
                f"{where}: was replaced by an index that was made by another model (fingerprint {newest.model}) than "
                f"when it was opened ({opened.model}): open it again"
            )
        maker.check_model(self._model, where=where)
        self._fingerprints = newest

    def get_attention(self, maker: Maker, contexts: Contexts) -> str:
        """The `poly_attention` of a search: the model's, or without a model the maker's, if contexts need any."""
        if self.ranker is not None:
            return self.ranker.model.config.poly_attention
        if contexts.keys is not None:
            return "multihead"
        return maker.attention if contexts.vectors.shape[1] > 1 else "basic"
