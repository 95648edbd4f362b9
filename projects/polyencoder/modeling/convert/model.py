"""`ConveRT`: one encoder for all texts, and a feed-forward network for each kind of them."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from polyencoder.config import RankerConfig
from polyencoder.errors import ConfigError
from polyencoder.modeling.convert.blocks import Block, Embeddings
from polyencoder.modeling.convert.config import ConvertConfig
from polyencoder.modeling.convert.feed_forward import FeedForward
from polyencoder.modeling.convert.reduction import Reduction
from polyencoder.modeling.convert.rows import Rows
from polyencoder.modeling.convert.scale import AnnealedScale
from polyencoder.modeling.separable import SeparableRanker
from polyencoder.scoring import ContextEncoding
from polyencoder.text.tokens import TokenBatch

__all__ = ["ConveRT", "SharedEncoder"]


class SharedEncoder(nn.Module):
    """Token ids into one vector for each text, r_x or r_y (Figure 1): what transfers to other tasks."""

    def __init__(self, config: ConvertConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(Block(config, limit=limit) for limit in config.attention_limits)
        self.reduction = Reduction(config.hidden_size, heads=config.reduction_heads, size=config.reduction_size)
        self.dim = config.reduction_heads * config.hidden_size

    def forward(self, tokens: TokenBatch) -> Tensor:
        """[batch, length] -> [batch, heads * dim]."""
        rows = Rows.of(tokens.mask)
        return self.reduction(self.outputs(tokens, rows), rows)

    def outputs(self, tokens: TokenBatch, rows: Rows) -> Tensor:
        """One vector for each token: [tokens, dim]."""
        outputs: Tensor = self.embeddings(rows.take(tokens.ids), rows.positions)
        for block in self.blocks:
            outputs = block(outputs, rows)
        return outputs


class ConveRT(SeparableRanker):
    """Scores are cosines of a context's vector and a response's, times a scale (Section 2.1).

    Vectors of candidates have length 1; the scale is in those of contexts, so that an index does not depend on it.
    """

    def __init__(self, config: RankerConfig) -> None:
        super().__init__(config)
        self.sizes = sizes = ConvertConfig.from_backbone(config.backbone)
        if config.text.truncation != "recent_first":
            raise ConfigError(f"a convert model needs the truncation 'recent_first', not {config.text.truncation!r}")
        if not sizes.multi_context and config.text.history_size != 1:
            raise ConfigError("a single-context convert model reads the last turn alone: its history_size must be 1")
        self.encoder = SharedEncoder(sizes)
        self.context_head = FeedForward(self.encoder.dim, sizes)
        self.response_head = FeedForward(self.encoder.dim, sizes)
        self.skip = nn.Linear(self.encoder.dim, sizes.output_size, bias=False) if sizes.skips else None
        if self.skip is not None:
            nn.init.orthogonal_(self.skip.weight)
        self.scale = AnnealedScale(sizes.output_size, over=sizes.scale_batches)

    def set_dropout(self, rate: float) -> None:
        """Learn with another dropout, after embeddings and attention."""
        self.sizes = replace(self.sizes, dropout=rate)
        self.config = replace(self.config, backbone=self.sizes.to_backbone())
        for part in self.modules():
            if isinstance(part, nn.Dropout):
                part.p = rate

    @property
    def dim(self) -> int:
        return self.sizes.output_size

    def encode_context(self, tokens: TokenBatch) -> ContextEncoding:
        vectors = self.context_head(self.encoder(tokens), self.skip)
        return ContextEncoding((vectors * self.scale()).unsqueeze(1), None)

    def encode_candidates(self, tokens: TokenBatch) -> Tensor:
        vectors: Tensor = self.response_head(self.encoder(tokens), self.skip)
        return vectors

    def candidate_modules(self) -> list[nn.Module]:
        return [self.encoder, self.response_head, *([] if self.skip is None else [self.skip])]
