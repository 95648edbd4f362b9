"""Trains a contender for a time, or a number of updates."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.common import synchronize
from benchmarks.uni.contenders import Contexts, Late
from benchmarks.uni.tower import Packed

WARMUP = 0.05  # of a run
LOOKS = 10  # updates between looks at the clock, for which the GPU is waited for
LOGGED = 100  # updates


@dataclass(frozen=True)
class Goal:
    """When a run ends: after its seconds or its updates, infinite where not given; and how often it is evaluated."""

    seconds: float
    updates: float
    evaluations: int = 1

    def done(self, updates: int, seconds: float) -> float:
        """The share of the run."""
        return min(1.0, max(seconds / self.seconds, updates / self.updates))


@dataclass(frozen=True)
class Rates:
    """Peaks of the learning rate: of the encoder's weights, of the head's, and of the biases of `uni`."""

    encoder: float
    head: float
    bias: float


def fit(
    model: Late,
    batches: Iterator[tuple[Contexts, Packed, Tensor]],
    goal: Goal,
    rates: Rates,
    *,
    autocast: torch.autocast,
    evaluate: Callable[[int, float], None],
) -> tuple[int, float]:
    """Trains with AdamW: the updates that were made, and their seconds, without those of evaluations.

    The rates rise over the first `WARMUP` of the run and fall linearly to 0. A first pass is not counted: it loads the
    GPU's kernels.
    """
    groups = model.groups(encoder=rates.encoder, head=rates.head, bias=rates.bias)
    optimizer = torch.optim.AdamW(groups, fused=True)
    peaks = [float(group["lr"]) for group in optimizer.param_groups]
    parameters = [parameter for group in groups for parameter in group["params"]]

    def backward() -> Tensor:
        with autocast:
            loss = model.loss(*next(batches))
        loss.backward()
        return loss.detach()

    backward()
    optimizer.zero_grad()
    synchronize()
    updates, seconds, evaluated = 0, 0.0, 0
    begin = time.perf_counter()
    while True:
        done = goal.done(updates, seconds)
        if done >= (evaluated + 1) / goal.evaluations:
            synchronize()
            seconds = time.perf_counter() - begin
            evaluate(updates, seconds)
            evaluated += 1
            if done >= 1:
                return updates, seconds
            begin = time.perf_counter() - seconds
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * min((done + 1e-3) / WARMUP, 1 - done)
        loss = backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        model.after_update()
        updates += 1
        if updates % LOOKS == 0:
            synchronize()
        seconds = time.perf_counter() - begin
        if updates % LOGGED == 0:
            say(f"{updates} updates, {seconds:.1f} s: loss {loss.item():.3f}")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
