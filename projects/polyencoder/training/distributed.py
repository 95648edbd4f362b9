"""Distributed training: this process among the others, and its collectives with them.

Collective: every process of the default group makes the same calls in the same order. Alone, each of them is what it is
with one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["Processes", "broadcast_weights", "gather_objects", "gather_vectors", "sum_gradients", "sum_of_all"]

T = TypeVar("T")

BUCKET = 1 << 23  # numbers that go over the wire at once: 32 MB in fp32


@dataclass(frozen=True)
class Processes:
    """The processes that train together, as one of them sees them: its rank, and how many there are."""

    rank: int = 0
    count: int = 1

    @classmethod
    def of_this_group(cls) -> Processes:
        """Those of the default process group; without one this process alone."""
        return cls(dist.get_rank(), dist.get_world_size()) if _is_grouped() else cls()

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and logs for all of them."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's share of `items`: every `count`-th."""
        return items[self.rank :: self.count]


def gather_objects(value: T) -> list[T]:
    """The values of all processes, in the order of their ranks."""
    if not _is_grouped():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def sum_of_all(count: int, *, device: torch.device) -> int:
    """The sum of all processes' counts; the tensor that they exchange is on `device`."""
    if not _is_grouped():
        return count
    total = torch.tensor(count, device=device)
    dist.all_reduce(total)
    return int(total)


def broadcast_weights(model: nn.Module) -> None:
    """Give the model of every process the weights of the first one's."""
    if _is_grouped():
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)


def gather_vectors(vectors: Tensor, counts: Sequence[int]) -> Tensor:
    """All processes' vectors, one after the other in the order of their ranks, on each of them.

    The gradient of what came from another process goes back to it: every process gets the sum, over all processes, of
    the gradients of its own vectors. So a loss that is the sum of the processes' losses has the gradients that one
    process with all vectors would compute.

    Args:
        vectors: [counts[rank], dim], floating point; none at all is fine.
        counts: how many vectors each process has, the same on all of them.

    Returns:
        [sum(counts), dim] in the dtype of `vectors`; between processes they travel in fp32.
    """
    if not vectors.requires_grad:  # else the backward pass, in which all take part, would leave this process out
        vectors = vectors.detach().requires_grad_()
    gathered: Tensor = _Gather.apply(vectors, tuple(counts))
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, counts: tuple[int, ...]) -> Tensor:
        ctx.start, ctx.count = sum(counts[: dist.get_rank()]), len(vectors)
        sent = torch.zeros(max(counts), vectors.size(1), device=vectors.device)
        sent[: len(vectors)] = vectors
        received = [torch.empty_like(sent) for _ in counts]
        if sent.numel():
            dist.all_gather(received, sent)
        return torch.cat([part[:count] for part, count in zip(received, counts, strict=True)]).to(vectors.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.float().contiguous().clone()
        if total.numel():
            dist.all_reduce(total)
        return total[ctx.start : ctx.start + ctx.count].to(gradient.dtype), None


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace the gradient of each parameter by the sum of all processes' gradients.

    A process that has none for a parameter counts as zero; a parameter for which nobody has one keeps none. Frozen
    parameters are passed over.
    """
    learning = [parameter for parameter in parameters if parameter.requires_grad]
    if not learning or not _is_grouped():
        return
    used = torch.tensor([parameter.grad is not None for parameter in learning], device=learning[0].device).int()
    dist.all_reduce(used)
    gradients = []
    for parameter, users in zip(learning, used.tolist(), strict=True):
        if users:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
    for bucket in _buckets(gradients):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(flat)
        for gradient, total in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
            gradient.copy_(total.view_as(gradient))


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors in runs of one dtype and about `BUCKET` numbers: few collectives, and little memory for each."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        full = sum(t.numel() for t in bucket) + tensor.numel() > BUCKET
        if bucket and (full or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _is_grouped() -> bool:
    return dist.is_available() and dist.is_initialized()
