"""The modules that are exported: each step of a ranker as a function of plain tensors."""

from __future__ import annotations

from torch import Tensor, nn

from polyencoder.export.onnx.files import CANDIDATES, CONTEXT, SCORER
from polyencoder.modeling import BiEncoder, CrossEncoder, RankerModel, SeparableRanker
from polyencoder.modeling.pooling import reduce
from polyencoder.text import TokenBatch


class Step(nn.Module):
    """ids int64 and mask bool [batch, length], and segments int64 where asked for -> what `outputs` names."""

    inputs: tuple[str, ...] = ("ids", "mask")
    outputs: tuple[str, ...] = ("vectors",)

    def axes(self, name: str) -> tuple[str, ...]:
        """The names of those first axes of an input or output that have another size in another batch."""
        if name in self.inputs:
            return ("batch", "length")
        return ("batch", "codes") if len(self.outputs) > 1 else ("batch",)


class ContextStep(Step):
    """-> vectors [batch, codes, dim]; where a short context has fewer codes than others also mask [batch, codes].

    Under multi-head attention also keys [batch, codes, dim] and their biases [batch, codes].
    """

    def __init__(self, model: SeparableRanker) -> None:
        super().__init__()
        self.model = model
        if not isinstance(model, BiEncoder) and model.config.context_vectors != "codes":
            self.outputs = ("vectors", "codes_mask")
        if model.config.architecture == "poly" and model.config.poly_attention == "multihead":
            self.outputs += ("keys", "key_biases")

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        context = self.model.encode_context(TokenBatch(ids, mask))
        outputs = (context.vectors,) if context.mask is None else (context.vectors, context.mask)
        return outputs if context.keys is None else (*outputs, context.keys.vectors, context.keys.biases)


class CandidatesStep(Step):
    """-> vectors [batch, dim]."""

    def __init__(self, model: SeparableRanker) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return (self.model.encode_candidates(TokenBatch(ids, mask)),)


class ScorerStep(Step):
    """Sequences of a context and a candidate -> scores [batch]."""

    inputs = ("ids", "mask", "segments")
    outputs = ("scores",)

    def __init__(self, model: CrossEncoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        model, config = self.model, self.model.config
        outputs = model.tower(TokenBatch(ids, mask, segments))
        vectors = reduce(outputs, mask, reduction=config.reduction, first_m=config.reduction_outputs)
        return (model.linear(vectors * config.output_scaling).squeeze(-1),)


def steps_of(model: RankerModel) -> dict[str, Step]:
    """The steps of a ranker, by the name of their graph."""
    if isinstance(model, CrossEncoder):
        return {SCORER: ScorerStep(model)}
    return {CONTEXT: ContextStep(model), CANDIDATES: CandidatesStep(model)}
