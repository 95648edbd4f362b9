"""An encoded context: a few vectors, and a mask of which are real."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from polyencoder.errors import InputError
from polyencoder.scoring.keys import Keys


@dataclass(frozen=True, eq=False)
class ContextEncoding:
    """Encoded contexts: `codes` vectors for each, of which a mask may say that some are padding.

    A poly-encoder's context has many codes; a bi-encoder's is the case of one.

    Args:
        vectors: [batch, codes, dim], floating point, at least one code.
        mask: bool [batch, codes], True where the code is real; None says that all of them are.
        keys: what weighs the vectors under multi-head attention; None where they weigh themselves.

    Raises:
        InputError: if a shape or a dtype is another one.
    """

    vectors: Tensor
    mask: Tensor | None = None
    keys: Keys | None = None

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

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> ContextEncoding:
        """The same contexts on another device or with vectors of another dtype (the mask stays boolean)."""
        mask = None if self.mask is None else self.mask.to(device=device)
        keys = None if self.keys is None else self.keys.to(device, dtype)
        return ContextEncoding(self.vectors.to(device=device, dtype=dtype), mask, keys)

    def select(self, rows: int | slice | Tensor) -> ContextEncoding:
        """Some contexts of the batch, by slice or by index tensor; an int gives a batch of that one context.

        Raises:
            InputError: if an int is outside the batch.
        """
        if isinstance(rows, int):
            if not -self.batch_size <= rows < self.batch_size:
                raise InputError(f"context {rows} asked of a batch of {self.batch_size}")
            rows %= self.batch_size
            rows = slice(rows, rows + 1)
        mask = None if self.mask is None else self.mask[rows]
        return ContextEncoding(self.vectors[rows], mask, None if self.keys is None else self.keys.select(rows))

    def empty(self, batch_size: int) -> ContextEncoding:
        """`batch_size` contexts of zeros with as many codes as these; if these have a mask, no code is real."""

        def zeros(like: Tensor) -> Tensor:
            return like.new_zeros(batch_size, *like.shape[1:])

        keys = None if self.keys is None else Keys(zeros(self.keys.vectors), zeros(self.keys.biases), self.keys.heads)
        return ContextEncoding(zeros(self.vectors), None if self.mask is None else zeros(self.mask), keys)

    def put(self, rows: Tensor, part: ContextEncoding) -> None:
        """Write the contexts of `part`, which have no more codes, into these rows, int64 [batch of the part]."""
        for whole, some in zip(self._tensors(), part._tensors(), strict=True):
            whole[rows, : some.size(1)] = some

    def _tensors(self) -> list[Tensor]:
        keys = () if self.keys is None else (self.keys.vectors, self.keys.biases)
        return [self.vectors, *(() if self.mask is None else (self.mask,)), *keys]


def stacked(parts: Sequence[ContextEncoding]) -> ContextEncoding:
    """All contexts in one batch. Where some have fewer codes than others, these get codes that are masked."""
    codes = max(part.n_codes for part in parts)
    alike = all(part.mask is None and part.n_codes == codes for part in parts)
    masks = [
        part.vectors.new_ones(part.vectors.shape[:2], dtype=torch.bool) if part.mask is None else part.mask
        for part in parts
    ]
    keys = [part.keys for part in parts if part.keys is not None]
    vectors = torch.cat([pad(part.vectors, (0, 0, 0, codes - part.n_codes)) for part in parts])
    return ContextEncoding(
        vectors,
        None if alike else torch.cat([pad(mask, (0, codes - mask.size(1))) for mask in masks]),
        Keys(
            torch.cat([pad(one.vectors, (0, 0, 0, codes - one.vectors.size(1))) for one in keys]),
            torch.cat([pad(one.biases, (0, codes - one.biases.size(1))) for one in keys]),
            keys[0].heads,
        )
        if keys
        else None,
    )
