"""What a context is to the scorers: a few vectors, and which of them are real."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polyencoder.errors import InputError


@dataclass(frozen=True, eq=False)
class ContextEncoding:
    """Encoded contexts: `codes` vectors for each, of which a mask may say that some are padding.

    A poly-encoder's context has many codes; a bi-encoder's is the case of one.

    Args:
        vectors: [batch, codes, dim], floating point, at least one code.
        mask: bool [batch, codes], True where the code is real; None says that all of them are.

    Raises:
        InputError: if a shape or a dtype is another one.
    """

    vectors: Tensor
    mask: Tensor | None = None

    def __post_init__(self) -> None:
        if self.vectors.dim() != 3 or self.vectors.size(1) == 0 or not self.vectors.is_floating_point():
            raise InputError(
                "context vectors must be floating point [batch, codes, dim] with at least one code, "
                f"got {self.vectors.dtype} {list(self.vectors.shape)}"
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
        return ContextEncoding(self.vectors.to(device=device, dtype=dtype), mask)

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
        return ContextEncoding(self.vectors[rows], None if self.mask is None else self.mask[rows])
