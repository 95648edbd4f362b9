"""Non-finite weights are refused: a model with nan or infinity in it gives no scores."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from polyencoder.errors import CheckpointError

__all__ = ["check_finite"]


def check_finite(tensors: Iterable[tuple[str, Tensor]], *, origin: str) -> None:
    """Raise CheckpointError, which names the first of these tensors that is not finite.

    `origin` says where they are from, to begin the message with.
    """
    for name, tensor in tensors:
        if tensor.is_floating_point() and not tensor.isfinite().all():
            bad = int((~tensor.isfinite()).sum())
            raise CheckpointError(
                f"{origin}: {bad} of the {tensor.numel()} numbers in {name} are nan or infinite, so the model has no "
                "scores to give: its training has diverged, or the file is damaged"
            )
