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
from polyencoder.protocol import Context, TextRanker
from polyencoder.scoring import ContextEncoding
from polyencoder.text import TextEncoder

__all__ = ["Scorer", "score_texts"]


class Scorer:
    """What `polyencoder.protocol.TextRanker` asks for, of a model of torch or of ONNX graphs.

    The model is moved to the device. It computes as in evaluation, without dropout, and keeps the mode that it has.
    """

    def __init__(self, model: RankerModel, text: TextEncoder, *, device: torch.device | str | None = None) -> None:
        self.device = checked_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model = model.to(self.device)
        self.text = text

    def score(self, contexts: Sequence[Context], candidates: Sequence[str]) -> Tensor:
        """Scores [contexts, candidates] of every candidate for every context, on the CPU, in float32."""
        candidates = checked_texts("candidates", candidates)
        if not candidates:
            raise InputError("no candidate to rank: the list of candidates is empty")
        return score_texts(self, checked_contexts(contexts), candidates)

    @torch.inference_mode()
    def encode_contexts(self, contexts: Sequence[Context]) -> ContextEncoding:
        """The vectors of each context, [contexts, codes, dim] with their mask. Not for cross-encoders."""
        model, tokens = self._separable(), self.text.contexts(checked_contexts(contexts)).to(self.device)
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

    def _separable(self) -> SeparableRanker:
        if isinstance(self.model, CrossEncoder):
            raise InputError("a cross-encoder has no vectors of contexts or candidates: it reads them together")
        return self.model


@torch.inference_mode()
def score_texts(
    ranker: TextRanker, contexts: Sequence[Context], candidates: Sequence[str], index: Tensor | None = None
) -> Tensor:
    """Scores of some candidates for each context, on the CPU, in float32, by a ranker of any kind.

    A cross-encoder reads the pairs of all contexts together, those of like length in a batch; equal texts are tokenized
    once. Others encode each context and each candidate once.

    Args:
        ranker: whose scores.
        contexts: any number of them.
        candidates: different texts.
        index: [contexts, n], names each context's candidates by their place in `candidates`; below 0 there is none, and
            the score is -inf. None for every candidate of every context.

    Returns:
        [contexts, n], or [contexts, candidates] without an index.
    """
    model, text, device = ranker.model, ranker.text, ranker.device
    tokens = text.contexts(contexts).to(device)
    with in_evaluation(model):
        if isinstance(model, CrossEncoder):
            pairs = None if index is None else index.to(device)
            return model.score(tokens, text.candidates(candidates).to(device), pairs).float().cpu()
        vectors = encode_candidates(model, text, candidates)
        scores = model.score(model.encode_context(tokens), vectors).float().cpu()
    if index is None:
        return scores
    index = index.cpu()
    return scores.gather(1, index.clamp(min=0)).masked_fill(index < 0, -torch.inf)
