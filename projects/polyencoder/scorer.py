"""`Scorer`: a model with its tokenizer on a device, from texts to vectors and scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyencoder.checks import checked_contexts, checked_count, checked_device, checked_texts
from polyencoder.encoding import encode_candidates
from polyencoder.errors import InputError
from polyencoder.modeling import CrossEncoder, RankerModel, SeparableRanker
from polyencoder.modeling.mode import in_evaluation
from polyencoder.protocol import Context
from polyencoder.scoring import ContextEncoding
from polyencoder.text import TextEncoder, TokenBatch

__all__ = ["Scorer"]


class Scorer:
    """What `polyencoder.protocol.TextRanker` asks for, of a model of torch or of ONNX graphs.

    The model is moved to the device. It computes as in evaluation, without dropout, and keeps the mode that it has.
    """

    def __init__(self, model: RankerModel, text: TextEncoder, *, device: torch.device | str | None = None) -> None:
        self.device = checked_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model = model.to(self.device)
        self.text = text

    @torch.inference_mode()
    def score(self, contexts: Sequence[Context], candidates: Sequence[str]) -> Tensor:
        """Scores [contexts, candidates] of every candidate for every context, on the CPU, in float32."""
        candidates = checked_texts("candidates", candidates)
        if not candidates:
            raise InputError("no candidate to rank: the list of candidates is empty")
        if isinstance(self.model, CrossEncoder):
            tokens = self.text.candidates(candidates).to(self.device)
            with in_evaluation(self.model):
                scores = self.model.score(self._context_tokens(contexts), tokens)
        else:
            scores = self.model.score(self.encode_contexts(contexts), self.encode_candidates(candidates))
        return scores.float().cpu()

    @torch.inference_mode()
    def encode_contexts(self, contexts: Sequence[Context]) -> ContextEncoding:
        """The vectors of each context, [contexts, codes, dim] with their mask. Not for cross-encoders."""
        model, tokens = self._separable(), self._context_tokens(contexts)
        with in_evaluation(model):
            return model.encode_context(tokens)

    @torch.inference_mode()
    def encode_candidates(self, candidates: Sequence[str], *, batch_size: int = 256) -> Tensor:
        """One vector for each candidate, [candidates, dim]. Not for cross-encoders."""
        texts = checked_texts("candidates", candidates)
        size = checked_count("batch_size", batch_size)
        model = self._separable()
        with in_evaluation(model):
            return encode_candidates(model, self.text, texts, batch_size=size)

    def _context_tokens(self, contexts: Sequence[Context]) -> TokenBatch:
        return self.text.contexts(checked_contexts(contexts)).to(self.device)

    def _separable(self) -> SeparableRanker:
        if isinstance(self.model, CrossEncoder):
            raise InputError("a cross-encoder has no vectors of contexts or candidates: it reads them together")
        return self.model
