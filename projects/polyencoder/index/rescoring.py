"""Rescores shortlists (`certificate`)."""

from __future__ import annotations

from polyencoder.index.certificate import Shortlist
from polyencoder.search.contexts import Array, Contexts
from polyencoder.search.scan import search


class Rescoring:
    """The part of a `certificate.ShortlistSearch` that scores with `polyencoder.search`."""

    contexts: Contexts
    k: int
    attention: str
    """As in `polyencoder.search.scores.score`."""

    def rescored(self, context: Contexts, shortlist: Shortlist) -> tuple[Array, Array]:
        """As in `certificate.ShortlistSearch`."""
        scores, places = search(context, shortlist.vectors, k=self.k, attention=self.attention)
        return scores[0], shortlist.rows[places[0]]
