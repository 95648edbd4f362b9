"""Rescores shortlists (`certificate`) with torch."""

from __future__ import annotations

from torch import Tensor

from polyencoder.index.certificate import Shortlist
from polyencoder.scoring import ContextEncoding, search


class Rescoring:
    """The part of a `certificate.ShortlistSearch` that scores with `polyencoder.scoring`."""

    contexts: ContextEncoding
    k: int
    attention: str
    """As in `polyencoder.scoring.score`."""

    def rescored(self, context: ContextEncoding, shortlist: Shortlist) -> tuple[Tensor, Tensor]:
        """As in `certificate.ShortlistSearch`."""
        device = context.vectors.device
        scores, places = search(context, shortlist.vectors.to(device), k=self.k, attention=self.attention)
        return scores[0], shortlist.rows.to(device)[places[0]]
