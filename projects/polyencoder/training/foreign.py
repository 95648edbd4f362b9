"""Training for vectors of candidates that another encoder computed, and that an index folder holds.

The candidates of a run are rows of the index, which stays unchanged and is not saved with the model. Context and
candidate come from two spaces, so a linear map takes contexts from one to the other. It starts as the ridge regression
of the candidates' vectors on the backbone's vectors of their texts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyencoder.index.folder.index import FolderIndex
from polyencoder.index.meta import Fingerprints
from polyencoder.index.open import open_index
from polyencoder.index.vectors import Vectors
from polyencoder.ranker import Ranker

SAMPLE = 2048  # texts that the map is fitted to
RIDGE = 1e-3  # of the mean variance of a dimension
LOGIT = 20.0  # of a context and a candidate in the same direction, as sentence-transformers scales cosines

_log = logging.getLogger(__name__)


def find_foreign_candidates(where: str | None, ranker: Ranker) -> ForeignCandidates | None:
    """The candidates of the index folder at `where`, if only the fingerprint of its encoder, another's, is known."""
    if where is None:
        return None
    index = open_index(where)
    if (
        isinstance(index, FolderIndex)
        and not index.meta.architecture
        and not index.fingerprints.fits(Fingerprints.of(ranker))
    ):
        return ForeignCandidates(index)
    index.close()
    return None


@dataclass(frozen=True)
class _Rows:
    """The vectors as `RankerModel.foreign_vectors`; a copied model shares the mapped files."""

    vectors: Vectors

    def __call__(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(self.vectors.take(rows.cpu().numpy()))

    def __deepcopy__(self, memo: object) -> _Rows:
        return self


class ForeignCandidates:
    """The texts and vectors of an index folder, as a run's candidates."""

    def __init__(self, index: FolderIndex) -> None:
        """Reads the texts, and maps the vectors; the index is closed."""
        self._address, self._fingerprint = index.address, index.fingerprints.model
        self._texts, self._vectors, removed = index.texts(), index.vectors, index.removed_rows()
        self._living = np.array([row for row in range(len(self._texts)) if row not in removed], dtype=np.int64)
        index.close()

    def build_config(self, explicit: dict[str, Any]) -> dict[str, Any]:
        """The fields of a new model's `RankerConfig`; `explicit` are the user's."""
        rows = self._sample()
        length = float(np.linalg.norm(self._vectors.take(rows), axis=1).mean())
        normalize = explicit.get("normalize") is not False
        scaling = {"output_scaling": LOGIT / length} if normalize else {}
        foreign = {"foreign_dim": self._vectors.dim, "foreign_fingerprint": self._fingerprint}
        return {"normalize": True, **scaling, **explicit, **foreign}

    def attach(self, ranker: Ranker) -> Ranker:
        """Lets a ranker for these vectors find them by text, as long as it is in memory."""
        exact = {self._texts[row]: row for row in self._living.tolist()}
        ranker.text.rows = {text.strip(): row for text, row in exact.items()} | exact  # data's texts are stripped
        ranker.model.foreign_vectors = _Rows(self._vectors)
        return ranker

    @torch.no_grad()
    def fit_map(self, layer: Tensor, encode: Callable[[list[str]], np.ndarray[Any, Any]]) -> None:
        """Sets the weight [foreign dim, dim] of a new model's map; encode: texts -> vectors before it, [texts, dim]."""
        rows = self._sample()
        inputs = torch.from_numpy(encode([self._texts[row] for row in rows])).double()
        targets = torch.from_numpy(self._vectors.take(rows)).double()
        moments = inputs.T @ inputs
        moments += RIDGE * moments.diagonal().mean() * torch.eye(len(moments), dtype=torch.float64)
        weight = torch.linalg.solve(moments, inputs.T @ targets).T
        cosine = torch.nn.functional.cosine_similarity(inputs @ weight.T, targets, dim=1).mean().item()
        _log.info(
            "candidates are the %d texts of %s, with vectors of another encoder (fingerprint %s); the map from this "
            "encoder's has a mean cosine of %.2f with them, on the %d texts that it is fitted to",
            *(len(self._living), self._address, self._fingerprint, cosine, len(rows)),
        )
        layer.copy_(weight)

    def _sample(self) -> np.ndarray[Any, Any]:
        return np.sort(np.random.default_rng(0).permutation(self._living)[:SAMPLE])
