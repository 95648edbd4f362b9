"""Model FLOPs utilization (MFU): FLOPs of a training step, and the machine's peak matmul throughput."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from polyencoder.pretraining.heads import PretrainingModel
from polyencoder.pretraining.inputs import PairBatch
from polyencoder.pretraining.masking import IGNORED

SIDE, ROUNDS = 1_024, 8  # of square matrices; more rounds on a GPU, whose clock rises slowly


def step_flops(model: PretrainingModel, batch: PairBatch) -> float:
    """FLOPs of a training step: six per parameter and token.

    Two for the product, four for its two gradients. All tokens go through the layers, those that are asked for through
    the head and the table of words; attention is left out.
    """
    through_layers = sum(parameter.numel() for parameter in model.encoder.layers().parameters())
    flops = 6.0 * through_layers * int(batch.contexts.mask.sum())
    if batch.targets is not None:
        head = sum(parameter.numel() for parameter in model.masked_words.parameters())
        words = model.masked_words.bias.numel() * model.encoder.dim
        flops += 6.0 * (head + words) * int((batch.targets != IGNORED).sum())
    return flops


@torch.no_grad()
def matmul_throughput(
    device: torch.device, *, dtype: torch.dtype = torch.float32, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Measures peak matmul throughput in FLOP/s: the best of a few runs."""
    rounds, side = (ROUNDS, SIDE) if device.type == "cpu" else (10 * ROUNDS, 8 * SIDE)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(rounds):
        _wait(device)
        start = clock()
        torch.mm(left, right)
        _wait(device)
        best = min(best, clock() - start)
    return 2 * side**3 / best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
