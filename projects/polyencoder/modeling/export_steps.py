"""The steps of a model that are exported as ONNX graphs: modules over plain tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from polyencoder.modeling.pooling import reduce
from polyencoder.text.tokens import TokenBatch


class Step(nn.Module):
    """An exported step: ids int64 and mask bool [batch, length] (and segments int64) -> `outputs`."""

    inputs: tuple[str, ...] = ("ids", "mask")
    outputs: tuple[str, ...] = ("vectors",)
    separator: int | None = None
    """The separator of a multi-context model's two texts (`encoding.graph.make_inputs`)."""

    def __init__(self, model: Any) -> None:
        """`model`: a `RankerModel`, whose module imports this module."""
        super().__init__()
        self.model = model

    def list_axes(self, name: str) -> tuple[str, ...]:
        """The names of the dynamic leading axes of an input or output."""
        if name in self.inputs:
            return ("batch", "length")
        return ("batch", "codes") if len(self.outputs) > 1 else ("batch",)


class ContextStep(Step):
    """Contexts -> vectors [batch, codes, dim], and mask [batch, codes] if short contexts have fewer codes."""

    def __init__(self, model: Any, *, outputs: Sequence[str] = ("vectors",)) -> None:
        super().__init__(model)
        self.outputs = tuple(outputs)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        context = self.model.encode_context(TokenBatch(ids, mask))
        return (context.vectors,) if context.mask is None else (context.vectors, context.mask)


class BothTextsStep(Step):
    """A multi-context ConveRT's contexts -> vectors [batch, 3, dim], `CONTEXT_VECTORS`, and their mask [batch, 3].

    extra_ids and extra_mask: of the earlier utterances; the mask is False without any.
    """

    inputs = ("ids", "mask", "extra_ids", "extra_mask")
    outputs = ("vectors", "codes_mask")

    def __init__(self, model: Any, *, separator: int) -> None:
        super().__init__(model)
        self.separator = separator

    def list_axes(self, name: str) -> tuple[str, ...]:
        return super().list_axes(name) if name in self.inputs else ("batch",)

    def forward(self, ids: Tensor, mask: Tensor, extra_ids: Tensor, extra_mask: Tensor) -> tuple[Tensor, ...]:
        context = self.model.encode_texts(TokenBatch(ids, mask), TokenBatch(extra_ids, extra_mask))
        assert context.mask is not None
        return context.vectors, context.mask


class CandidatesStep(Step):
    """Candidates -> vectors [batch, dim]."""

    def __init__(self, model: Any, *, separator: int | None = None) -> None:
        super().__init__(model)
        self.separator = separator  # for pooled contexts: only the last utterance is encoded

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return (self.model.encode_candidates(TokenBatch(ids, mask)),)


class LateContextStep(Step):
    """A late-interaction encoder's contexts -> the vectors to compare, with as many turns as tokens.

    vectors [batch, length, dim], for searches; codes_mask [batch, length], False behind the latest turn; vector
    [batch, dim], of the whole context; tokens [batch, length, token_dim] and turns [batch, length, dim], of length 1.
    """

    outputs = ("vectors", "codes_mask", "vector", "tokens", "turns")

    def list_axes(self, name: str) -> tuple[str, ...]:
        if name in ("vector", "tokens"):
            return ("batch",) if name == "vector" else ("batch", "length")
        return super().list_axes(name)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        tokens = TokenBatch(ids, mask)
        read = self.model.read_contexts(tokens)
        search = self.model.encode_for_search(tokens, read)
        return search.vectors, search.mask, read.vectors, read.tokens, read.turns


class LateCandidatesStep(Step):
    """Candidates for late interaction -> vectors [batch, dim], and tokens [batch, length, token_dim] of length 1."""

    outputs = ("vectors", "tokens")

    def list_axes(self, name: str) -> tuple[str, ...]:
        return ("batch",) if name == "vectors" else ("batch", "length")

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return self.model.build_compared_vectors(self.model.candidate_tower(TokenBatch(ids, mask)), mask)


class ScorerStep(Step):
    """Pair sequences of a cross-encoder -> scores [batch]."""

    inputs = ("ids", "mask", "segments")
    outputs = ("scores",)

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        model, config = self.model, self.model.config
        outputs = model.tower(TokenBatch(ids, mask, segments))
        vectors = reduce(outputs, mask, reduction=config.reduction, first_m=config.reduction_outputs)
        return (model.score_vectors(vectors),)
