"""ColBERTs of other libraries around an encoder, with the methods of sentence-transformers' `MultiVectorEncoder`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.common import peer_module

TOKENS = 360
"""Length limit of a text."""
CANDIDATE_TOKENS = 72
"""Length limit of a candidate for PyLate, which pads each text to its limit in training."""


def multi_vector_encoder(backbone: str | Path, *, projected: bool, config: Mapping[str, Any] | None = None) -> Any:
    """Makes their model of an encoder: with a new projection to 128 dimensions, or by the encoder's own outputs."""
    try:
        package = importlib.import_module("sentence_transformers")
        dense = importlib.import_module("sentence_transformers.base.modules.dense").Dense
        model = package.MultiVectorEncoder(str(backbone), device="cpu", config_kwargs=dict(config or {}))
    except (ImportError, AttributeError) as error:
        raise SystemExit(
            f"this compares with sentence-transformers' MultiVectorEncoder ({error}): "
            "pip install 'sentence-transformers>=6.2'"
        ) from None
    if not projected:
        kept = [module for module in model.children() if not isinstance(module, dense)]
        model = package.MultiVectorEncoder(modules=kept, device="cpu")
    model.max_seq_length = TOKENS
    return model


class PyLate:
    """PyLate's `ColBERT`; contexts are not padded with mask tokens (its "query expansion", for short questions)."""

    def __init__(self, backbone: str | Path, *, config: Mapping[str, Any] | None = None) -> None:
        models, self._scores = peer_module("pylate.models"), peer_module("pylate.scores")
        lengths = {"query_length": TOKENS, "document_length": CANDIDATE_TOKENS, "do_query_expansion": False}
        self.model = models.ColBERT(str(backbone), device="cpu", config_kwargs=dict(config or {}), **lengths)

    def encode_query(self, texts: Sequence[str], *, show_progress_bar: bool) -> list[Tensor]:
        """Encodes contexts: for each, vectors of length 1, [its tokens, 128]."""
        return self._encode(texts, is_query=True, show_progress_bar=show_progress_bar)

    def encode_document(self, texts: Sequence[str], *, show_progress_bar: bool) -> list[Tensor]:
        """Encodes candidates as `encode_query` does contexts; their punctuation has no vectors."""
        return self._encode(texts, is_query=False, show_progress_bar=show_progress_bar)

    def _encode(self, texts: Sequence[str], **how: bool) -> list[Tensor]:
        return [torch.as_tensor(tokens) for tokens in self.model.encode(list(texts), **how)]

    def similarity(self, contexts: Sequence[Tensor], candidates: Sequence[Tensor]) -> Tensor:
        """Scores candidates by MaxSim: [contexts, candidates]; contexts of one length."""
        mask = pad_sequence([torch.ones(len(tokens)) for tokens in candidates], batch_first=True)
        padded = pad_sequence(list(candidates), batch_first=True)
        return cast("Tensor", self._scores.colbert_scores(torch.stack([*contexts]), padded, documents_mask=mask))
