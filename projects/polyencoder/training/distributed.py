"""Distributed training: rank, world size and collectives, which are no-ops without a group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

T = TypeVar("T")

BUCKET = 1 << 23  # numbers sent at once: 32 MB in fp32


@dataclass(frozen=True)
class Processes:
    """This process's rank, and the number of processes."""

    rank: int = 0
    count: int = 1

    @classmethod
    def from_group(cls) -> Processes:
        """Reads the default process group; without one, a single process."""
        return cls(dist.get_rank(), dist.get_world_size()) if _is_grouped() else cls()

    @property
    def is_first(self) -> bool:
        """Whether this process writes and logs for all."""
        return self.rank == 0

    def take_share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's share of `items`: every `count`-th."""
        return items[self.rank :: self.count]


def gather_objects(value: T) -> list[T]:
    """The values of all processes, in the order of their ranks."""
    if not _is_grouped():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def sum_over_processes(count: int, *, device: torch.device) -> int:
    """The sum of all processes' counts; the tensor that they exchange is on `device`."""
    if not _is_grouped():
        return count
    total = torch.tensor(count, device=device)
    dist.all_reduce(total)
    return int(total)


def broadcast_weights(model: nn.Module) -> None:
    """Copies the first process's weights to all."""
    if _is_grouped():
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)


def gather_vectors(vectors: Tensor, counts: Sequence[int]) -> Tensor:
    """All-gathers the processes' vectors, [counts[rank], dim], in the order of ranks: [sum(counts), dim], sent in fp32.

    Every process gets the sum over all processes of the gradients of its vectors. So a loss that is the sum of the
    processes' losses has the gradients of one process with all vectors.
    """
    if not vectors.requires_grad:  # all processes must take part in the backward pass
        vectors = vectors.detach().requires_grad_()
    return _Gather.apply(vectors, tuple(counts))


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
    """All-reduces (sums) the gradients; one that a process lacks counts as zero. Frozen parameters are skipped."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained or not _is_grouped():
        return
    used = torch.tensor([parameter.grad is not None for parameter in trained], device=trained[0].device).int()
    dist.all_reduce(used)
    gradients = []
    for parameter, users in zip(trained, used.tolist(), strict=True):
        if users:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
    for bucket in _iter_buckets(gradients):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(flat)
        for gradient, total in zip(bucket, flat.split([gradient.numel() for gradient in bucket]), strict=True):
            gradient.copy_(total.view_as(gradient))


def _iter_buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Groups tensors into buckets of one dtype and about `BUCKET` numbers."""
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
