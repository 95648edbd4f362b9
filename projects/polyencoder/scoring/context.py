"""`ContextEncoding`: the vectors of encoded contexts, their mask, and the keys of multi-head attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from polyencoder.errors import InputError
from polyencoder.scoring.tokens import Texts


@dataclass(frozen=True, eq=False)
class Keys:
    """The keys of multi-head attention, from which attention weights are computed.

    ParlAI's `poly_attention_type` multihead attends over the codes y_1..y_m with the candidate c as the query of h
    heads, each with its rows of the projections Q, K, V and its columns of the output O:

        p_h = softmax_i((Q_h c + q_h) . (K_h y_i + k_h) / sqrt(dim / heads))
        score = (o + sum_h O_h sum_i p_hi (V_h y_i + v_h)) . c

    Both products with c can be moved to the context's side. With

        key    k_hi = Q_h^T (K_h y_i + k_h) / sqrt(dim / heads)    bias b_hi = q_h . (K_h y_i + k_h) / sqrt(dim / heads)
        value  l_hi = O_h (V_h y_i + v_h) + o / heads

    score = sum_h sum_i p_hi (l_hi . c) with p_h = softmax_i(k_hi . c + b_hi): two inner products per code and head
    with the candidate, whose vector is the same as without heads. So `[batch, candidates, dim]` is not needed here
    either, and candidates are indexed as for any poly-encoder. But the weights do not depend on the values l: the
    largest value gives no bound on the score.

    Args:
        vectors: [batch, codes, dim], where `codes` counts the heads of each code, consecutively, as in the values.
        biases: [batch, codes], added to their products with a candidate.
        heads: the number of heads, each with its own softmax.

    Raises:
        InputError: if a shape does not fit.
    """

    vectors: Tensor
    biases: Tensor
    heads: int

    def __post_init__(self) -> None:
        if self.heads < 1 or self.vectors.size(1) % self.heads or self.biases.shape != self.vectors.shape[:2]:
            shapes = f"keys {list(self.vectors.shape)} with biases {list(self.biases.shape)}"
            raise InputError(f"{shapes} are not those of {self.heads} heads")


def attend_by_heads(values: Tensor, logits: Tensor, *, heads: int) -> Tensor:
    """sum_h sum_i p_hi l_hi over the last dimension, with a softmax per head: [..., codes] -> [...]."""
    by_head = (-1, heads)
    weights = logits.unflatten(-1, by_head).softmax(dim=-2)
    return (weights * values.unflatten(-1, by_head)).sum(dim=(-2, -1))


@dataclass(frozen=True, eq=False)
class ContextEncoding:
    """A batch of encoded contexts: `codes` vectors each, with a mask of padding.

    A poly-encoder's context has many codes, a bi-encoder's one.

    Args:
        vectors: [batch, codes, dim], floating point, at least one code.
        mask: bool [batch, codes], False at padding; None without padding.
        keys: the keys of multi-head attention; None if the vectors are their own keys.
        tokens: the further vectors that a late-interaction encoder compares; None for other models.

    Raises:
        InputError: a wrong shape or dtype.
    """

    vectors: Tensor
    mask: Tensor | None = None
    keys: Keys | None = None
    tokens: list[Texts] | None = None

    def __post_init__(self) -> None:
        if self.vectors.dim() != 3 or self.vectors.size(1) == 0 or not self.vectors.is_floating_point():
            raise InputError(
                "context vectors must be floating point [batch, codes, dim] with at least one code, "
                f"got {self.vectors.dtype} {list(self.vectors.shape)}"
            )
        if self.keys is not None and self.keys.vectors.shape != self.vectors.shape:
            raise InputError(
                f"the keys of context vectors {list(self.vectors.shape)} must have their shape, "
                f"got {list(self.keys.vectors.shape)}"
            )
        if self.mask is None:
            return
        if self.mask.dtype != torch.bool or self.mask.shape != self.vectors.shape[:2]:
            raise InputError(
                f"the mask of context vectors {list(self.vectors.shape)} must be torch.bool "
                f"{list(self.vectors.shape[:2])}, got {self.mask.dtype} {list(self.mask.shape)}"
            )

    @property
    def batch_size(self) -> int:
        return self.vectors.size(0)

    @property
    def n_codes(self) -> int:
        return self.vectors.size(1)

    @property
    def dim(self) -> int:
        return self.vectors.size(2)

    def list_codes(self) -> list[Tensor]:
        """The vectors of each context without padding: [n, dim]."""
        return list(self.vectors) if self.mask is None else [v[m] for v, m in zip(self.vectors, self.mask, strict=True)]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> ContextEncoding:
        """Converts device and dtype (the mask stays boolean)."""

        def convert(tensor: Tensor) -> Tensor:
            return tensor.to(device, None if tensor.dtype == torch.bool else dtype)

        tokens = None if self.tokens is None else [texts.map_tensors(convert) for texts in self.tokens]
        return replace(self._map_tensors(convert), tokens=tokens)

    def select(self, rows: int | slice | Tensor | Sequence[int]) -> ContextEncoding:
        """Selects contexts by slice or positions; an int gives a batch of one. InputError outside the batch."""
        if isinstance(rows, int):
            if not -self.batch_size <= rows < self.batch_size:
                raise InputError(f"context {rows} is outside the batch of {self.batch_size}")
            rows %= self.batch_size
            rows = slice(rows, rows + 1)
        elif isinstance(rows, Sequence):
            if len(rows) == 1:
                return self.select(rows[0])  # a view, not a copy
            rows = torch.tensor(rows, dtype=torch.int64, device=self.vectors.device)
        selected = self._map_tensors(lambda tensor: tensor[rows])
        if self.tokens is None:
            return selected
        tokens = self.tokens
        numbers = range(self.batch_size)[rows] if isinstance(rows, slice) else torch.arange(self.batch_size)[rows.cpu()]
        return replace(selected, tokens=[tokens[int(number)] for number in numbers])

    def build_empty(self, batch_size: int) -> ContextEncoding:
        """Zeros for `batch_size` contexts of the same shape; a mask is False everywhere."""
        zeros = self._map_tensors(lambda tensor: tensor.new_zeros(batch_size, *tensor.shape[1:]))
        return replace(zeros, tokens=None if self.tokens is None else self.tokens[:1] * batch_size)

    def pad_codes(self, codes: int) -> ContextEncoding:
        """Pads to this number of vectors; the mask, if any, is False at padding."""
        return self._map_tensors(lambda t: pad(t, (*(0, 0) * (t.dim() - 2), 0, codes - t.size(1))))

    def put(self, rows: Tensor, part: ContextEncoding) -> None:
        """Writes the contexts of `part`, with at most as many codes, into rows: int64 [batch of the part]."""
        for whole, new in zip(self._list_tensors(), part._list_tensors(), strict=True):
            whole[rows, : new.size(1)] = new
        if self.tokens is not None and part.tokens is not None:
            for row, text in zip(rows.tolist(), part.tokens, strict=True):
                self.tokens[row] = text

    def _list_tensors(self) -> list[Tensor]:
        keys = () if self.keys is None else (self.keys.vectors, self.keys.biases)
        return [self.vectors, *(() if self.mask is None else (self.mask,)), *keys]

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> ContextEncoding:
        """Applies `change` to every tensor but the ones in `tokens`."""
        keys = self.keys
        return replace(
            self,
            vectors=change(self.vectors),
            mask=None if self.mask is None else change(self.mask),
            keys=None if keys is None else Keys(change(keys.vectors), change(keys.biases), keys.heads),
        )


def stack_contexts(parts: Sequence[ContextEncoding]) -> ContextEncoding:
    """Concatenates batches of contexts, padded and masked to the most codes."""
    codes = max(part.n_codes for part in parts)
    if any(part.mask is not None or part.n_codes < codes for part in parts):
        real = [part.vectors.new_ones(part.vectors.shape[:2], dtype=torch.bool) for part in parts]
        parts = [replace(part, mask=new) if part.mask is None else part for part, new in zip(parts, real, strict=True)]
    parts = [part.pad_codes(codes) for part in parts]
    tensors = iter([torch.cat(column) for column in zip(*(part._list_tensors() for part in parts), strict=True)])
    texts = [text for part in parts for text in part.tokens or ()]
    return replace(parts[0]._map_tensors(lambda _: next(tensors)), tokens=texts or None)
