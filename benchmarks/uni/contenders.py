"""What is trained from one late-interaction encoder: itself, and `uni`; and a cross-encoder, for its times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.uni.tower import Packed, Prefix, Tower
from polyencoder.modeling.late import LateEncoder
from polyencoder.ranker.ranker import Ranker
from polyencoder.scoring.tokens import Texts
from polyencoder.text import TokenBatch

Score = Callable[["Contexts", Packed], Tensor]
"""The scores of all candidates for every context, [batch, n]."""
NEAR = 0.95
"""Candidates whose vectors have a larger cosine with the label's are no negatives of it."""


@dataclass(frozen=True)
class Contexts:
    """A padded batch of contexts, with its lengths where the processor needs no GPU to know them."""

    tokens: TokenBatch
    lengths: list[int]

    def __len__(self) -> int:
        return len(self.lengths)


class Late(nn.Module):
    """The late-interaction encoder, run by `Tower`s, so that no contender has another implementation's speed.

    Without dropout, and without training the embeddings, as in `benchmarks.reproduce`.
    """

    def __init__(self, late: LateEncoder) -> None:
        super().__init__()
        self.late = late.eval()
        self._context_tower, self._candidate_tower = Tower(late.context_tower), Tower(late.candidate_tower)
        for tower in late.towers:
            tower.embeddings().requires_grad_(False)

    def forward(self, contexts: Contexts, packed: Packed, index: Tensor | None = None) -> Tensor:
        """Scores of all candidates for every context, [batch, n]; or, with row b of `packed` those of context b and
        their numbers in `index` [batch, k], below 0 at padding, [batch, k]."""
        return self.compared(self.read_contexts(contexts)[0], packed, index)[0]

    def compared(self, contexts: Texts, packed: Packed, index: Tensor | None = None) -> tuple[Tensor, Texts]:
        """The late-interaction encoder's scores, and the candidates as it reads them."""
        outputs, _ = self._candidate_tower.read(packed.ids, packed.attends, positions=packed.positions)
        candidates = self.late.candidate_texts(packed.each(outputs), packed.mask)
        return self.late.compare(contexts, candidates, index), candidates

    def read_contexts(self, contexts: Contexts) -> tuple[Texts, Prefix]:
        tokens = contexts.tokens
        outputs, kept = self._context_tower.read(tokens.ids, tokens.mask.unsqueeze(1))
        read = self.late.context_texts(tokens, outputs)
        return read, Prefix(kept, tokens.mask, read.vectors)

    def loss(self, contexts: Contexts, packed: Packed, labels: Tensor) -> Tensor:
        """Cross-entropy of each context's label among the candidates of the batch, near-duplicates left out."""
        read, prefix = self.read_contexts(contexts)
        scores, candidates = self.compared(read, packed)
        scores = self.completed(scores, prefix, packed)
        return F.cross_entropy(scores.masked_fill(near(candidates, labels), -torch.inf), labels)

    def completed(self, scores: Tensor, prefix: Prefix, packed: Packed) -> Tensor:
        """What is added to the scores of all candidates."""
        return scores

    def after_update(self) -> None:
        self.late.after_batch()

    def learned_weights(self) -> dict[str, list[float]]:
        """The trained weights of the score's terms."""
        return {"exits": self.late.exit_weights.tolist()}

    def groups(self, *, encoder: float, head: float, bias: float) -> list[dict[str, Any]]:
        """The optimizer's groups, with their learning rates: weights of the encoder, new ones, and biases of `uni`."""
        rates: dict[tuple[float, bool], list[nn.Parameter]] = {}
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                rate = bias if name == "bias" else head if name.startswith("head") else encoder
                rates.setdefault((rate, parameter.dim() > 1 and name != "bias"), []).append(parameter)
        return [{"params": some, "lr": rate, "weight_decay": 0.01 * decays} for (rate, decays), some in rates.items()]


class Uni(Late):
    """A cross-encoder whose contexts are read once: score = late(x, c) + head(x, u), u the mean output of c behind x.

    Prefix mask: a context's tokens see the context, a candidate's tokens the context's keys and values and
    themselves. A bias for each layer and head is added to their logits of the context. At -inf u is the candidate
    encoder's own output: a candidate keeps its start token and its positions from 0.

    late(x, c) are the exits of the same encoder, trained on: a context's outputs are the same with and without a
    candidate behind it, so that they cost one more pass of the candidates alone, and no second encoder stands still.
    The last layer of the head begins at zero, so that before training the score is late(x, c), whatever the bias.

    Activations of at most `max_tokens` of candidates behind contexts are kept; of more they are computed block by
    block, and again for the gradients.
    """

    def __init__(self, late: LateEncoder, *, bias: float, max_tokens: int) -> None:
        super().__init__(late)
        tower, dim = self._candidate_tower, late.context_tower.dim
        self.bias = nn.Parameter(torch.full(tower.bias_shape, bias))
        last = nn.Linear(dim, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.head = nn.Sequential(nn.LayerNorm(3 * dim), nn.Linear(3 * dim, dim), nn.GELU(), last)
        self._max_tokens = max_tokens

    def forward(self, contexts: Contexts, packed: Packed, index: Tensor | None = None) -> Tensor:
        read, prefix = self.read_contexts(contexts)
        scores, _ = self.compared(read, packed, index)
        return self.completed(scores, prefix, packed) if index is None else scores + self._added(prefix, packed)

    def completed(self, scores: Tensor, prefix: Prefix, packed: Packed) -> Tensor:
        rows = [packed.row(number) for number in range(len(packed.counts))]
        if len(scores) * packed.ids.numel() <= self._max_tokens:
            return scores + torch.cat([self._added(prefix, row) for row in rows], dim=1)
        most = max(1, self._max_tokens // packed.ids.size(1))
        blocks = [prefix.select(block) for block in torch.arange(len(scores), device=scores.device).split(most)]
        added = [[checkpoint(self._added, block, row, use_reentrant=False) for row in rows] for block in blocks]
        return scores + torch.cat([torch.cat(parts, dim=1) for parts in added])

    def learned_weights(self) -> dict[str, list[float]]:
        return {**super().learned_weights(), **{f"bias of layer {i}": row for i, row in enumerate(self.bias.tolist())}}

    def _added(self, prefix: Prefix, packed: Packed) -> Tensor:
        """head(x, u) of a row's candidates behind every context, or of row b's behind context b: [batch, most]."""
        outputs, _ = self._candidate_tower.read(
            packed.ids, packed.attends, positions=packed.positions, prefix=prefix, bias=self.bias
        )
        with torch.autocast(outputs.device.type, enabled=False):  # scores stay in float32
            means = packed.means(outputs.float())
            contexts = prefix.vectors.float().unsqueeze(1).expand_as(means)
            added: Tensor = self.head(torch.cat([means, contexts, means * contexts], dim=-1)).squeeze(-1)
        return added


def pairs(model: str, *, device: torch.device) -> Score:
    """The scores of the library's cross-encoder, which starts from the same encoder: for its times, without training.

    Its last layer is random: at the start it is zero, and no pair would be read.
    """
    cross = Ranker.from_backbone(model, "cross", device=device).model
    with torch.no_grad():
        cross.get_parameter("linear.weight").normal_()

    def score(contexts: Contexts, packed: Packed) -> Tensor:
        candidates = TokenBatch(packed.ids.flatten()[packed.place], packed.mask)
        scores: Tensor = cross(contexts.tokens, candidates)
        return scores

    return score


def near(candidates: Texts, labels: Tensor) -> Tensor:
    """Which candidates are near-duplicates of each label, [batch, n]; the label itself is none."""
    directions = candidates.turns[:, 0].detach()
    return (directions[labels] @ directions.T > NEAR).scatter(1, labels.unsqueeze(1), False)
