"""Refuses non-finite weights."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from polyencoder.errors import CheckpointError


def check_finite(tensors: Iterable[tuple[str, Tensor]], *, origin: str) -> None:
    """Raises CheckpointError for the first tensor, of those from `origin`, with nan or infinity."""
    for name, tensor in tensors:
        # a sum is a quarter of the work; one of finite numbers may exceed the type
        if tensor.is_floating_point() and not tensor.sum().isfinite() and not tensor.isfinite().all():
            bad = int((~tensor.isfinite()).sum())
            raise CheckpointError(
                f"{origin}: {bad} of the {tensor.numel()} numbers in {name} are nan or infinite: training has "
                "diverged, or the file is damaged"
            )
