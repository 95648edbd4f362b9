"""Checks that packing, precision, gradient caching, several processes and resuming do not change results.

And that ParlAI's own trainer for several GPUs trains our agents in fp16.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.nn.utils import parameters_to_vector

from benchmarks.common import get_two_towers
from benchmarks.gpu.fixtures import TINY, Unavailable, check, check_equal, make_examples, make_ranker
from polyencoder.data.collator import Collator
from polyencoder.data.example import Example
from polyencoder.modeling.backbone import Backbone
from polyencoder.text import TokenBatch
from polyencoder.training import TrainingConfig
from polyencoder.training.callbacks import Callback, Checkpoints, Run
from polyencoder.training.objective import Outcome
from polyencoder.training.trainer import Trainer

SMALL = {"layers": 4, "dim": 256, "heads": 4}
# Plain gradient descent: Adam makes a step of full size of a gradient that is rounding alone
PLAIN = TrainingConfig.of(
    max_updates=1, fine_tuned="all", optimizer="sgd", learning_rate=0.1, weight_decay=0.0, schedule="constant"
)
FLAGS = (
    *("-t", "selection:sample", "--text-truncate", "64", "--fp16", "true"),
    *("--embedding-size", "128", "--ffn-size", "256", "--n-layers", "2", "--n-heads", "4", "--dropout", "0"),
    *("--reduction-type", "mean", "--batchsize", "32", "--learningrate", "1e-3", "--max-train-steps", "100"),
    *("--log-every-n-steps", "20", "--validation-every-n-steps", "50"),
)
"""Of ParlAI's trainer."""


class Losses(Callback):
    """Remembers the mean loss of each step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def after_step(self, run: Run, outcome: Outcome | None) -> None:
        if outcome is not None:
            self.values.append(float(outcome.losses.mean()))


# ---- attention


def compare_attention(*, device: str, quick: bool) -> dict[str, Any]:
    """Outputs and gradients of a batch of unlike lengths, and of each of its sequences alone."""
    data = make_examples(8 if quick else 64, turns=6)
    ranker = make_ranker("bi", data, device=device, size=TINY if quick else SMALL)
    backbone = get_two_towers(ranker).context_tower
    tokens = ranker.text.batch_contexts([example.turns for example in data]).to(ranker.device)
    checks = []
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        limits = (1e-4, 1e-3) if dtype == torch.float32 else (5e-2, 1e-1)
        for mode in ("training", "inference"):
            backbone.train(mode == "training")
            with torch.autocast(ranker.device.type, dtype, enabled=dtype != torch.float32):
                together, gradients = _compute_outputs(backbone, [tokens], train=mode == "training")
                alone, expected = _compute_outputs(backbone, _split_batch(tokens), train=mode == "training")
            checks.append(check_equal(f"{name}, {mode}: outputs", together, alone, limit=limits[0]))
            if mode == "training":
                checks.append(check_equal(f"{name}, {mode}: gradients", gradients, expected, limit=limits[1]))
    return {"checks": checks}


def _compute_outputs(backbone: Backbone, batches: Sequence[TokenBatch], *, train: bool) -> tuple[Tensor, Tensor]:
    """The outputs at tokens, one row after the other, and the gradient of a sum of them over all parameters."""
    backbone.zero_grad()
    with torch.set_grad_enabled(train):
        outputs = torch.cat([backbone(batch)[batch.mask] for batch in batches]).float()
    if not train:
        return outputs, outputs
    weights = torch.linspace(-1, 1, outputs.numel(), device=outputs.device).view_as(outputs).sin()
    (outputs * weights).sum().backward()
    gradients = [p.grad.flatten() for p in backbone.parameters() if p.grad is not None]
    return outputs.detach(), torch.cat(gradients)


def _split_batch(tokens: TokenBatch) -> list[TokenBatch]:
    lengths = tokens.mask.sum(1).tolist()
    return [TokenBatch(tokens.ids[i : i + 1, :n], tokens.mask[i : i + 1, :n]) for i, n in enumerate(lengths)]


# ---- precision


def compare_precision(*, device: str, quick: bool) -> dict[str, Any]:
    """Gradients in each precision and in float32 at the same weights, and losses of a run, which fall.

    The losses of two runs are not compared: they differ as much from one bfloat16 run to another whose first weights
    differ by a thousandth, since the loss stays on a plateau until the model compares words.
    """
    steps, batch = (24, 8) if quick else (100, 32)
    data = make_examples(64 if quick else 1_600)
    names = ["float32", "bfloat16", *(["float16"] if device == "cuda" else [])]
    rows: list[dict[str, Any]] = []
    gradients: dict[str, Tensor] = {}
    for name in names:
        ranker = make_ranker("poly", data, device=device, size=TINY if quick else SMALL, reduction="mean", n_codes=16)
        config = TrainingConfig.of(
            max_updates=steps, batch_size=batch, fine_tuned="all", precision=name, learning_rate=3e-4
        )
        losses = Losses()
        trainer = Trainer(ranker, config, train=data, callbacks=[losses])
        gradients[name] = _compute_gradient(trainer, data[:batch])
        trainer.fit()
        last = statistics.fmean(losses.values[-max(1, steps // 4) :])
        skipped = trainer.updates.left_out
        rows.append({"precision": name, "first": losses.values[0], "last": last, "skipped_updates": skipped})
    expected = gradients["float32"]
    checks = [
        check(f"{name}: gradient", float((gradients[name] - expected).norm() / expected.norm()), limit=0.1)
        for name in names[1:]
    ]
    checks += [
        check(f"{row['precision']}: last loss of the first", row["last"] / row["first"], limit=0.98) for row in rows
    ]
    return {"rows": rows, "checks": checks}


def _compute_gradient(trainer: Trainer, examples: Sequence[Example]) -> Tensor:
    """The gradient of a batch's loss over all parameters."""
    ranker = trainer.ranker
    ranker.model.train()
    with trainer.updates.autocast():
        outcome = trainer.objective(Collator(ranker.text)(list(examples)).to(ranker.device))
    assert outcome is not None
    (outcome.loss * 128).backward()  # else the smallest numbers of a float16 gradient are 0
    gradient = torch.cat([p.grad.flatten() for p in ranker.model.parameters() if p.grad is not None]) / 128
    ranker.model.zero_grad()
    return gradient


# ---- large batches in pieces


def compare_caching(*, device: str, quick: bool) -> dict[str, Any]:
    """One update of a large batch: at once, by gradient caching, and by a group of processes that gather negatives."""
    processes = torch.cuda.device_count() if device == "cuda" else 2
    batch = 8 if quick else 128
    whole, loss = _update(device, quick, batch=batch)
    checks = []
    cached, cached_loss = _update(device, quick, batch=batch, grad_cache=2)
    checks.append(check_equal("gradient caching: update", cached, whole, limit=1e-3))
    checks.append(check("gradient caching: loss", abs(cached_loss - loss), limit=1e-3))
    with tempfile.TemporaryDirectory() as folder:
        arguments = (processes, device, quick, batch, folder)
        spawn(_run_member, arguments, nprocs=processes)
        parts = [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(processes)]
    for rank, part in enumerate(parts):
        name = f"process {rank} of {processes}"
        checks.append(check_equal(f"{name}: update", part["update"], whole, limit=1e-3))
    mean = sum(part["loss"] for part in parts) / processes
    checks.append(check(f"{processes} processes: loss", abs(mean - loss), limit=1e-3))
    backend = "nccl" if device == "cuda" else "gloo"
    return {"rows": [{"batch": batch, "processes": processes, "backend": backend, "loss": loss}], "checks": checks}


def _run_member(rank: int, processes: int, device: str, quick: bool, batch: int, folder: str) -> None:
    """One process of the group, with its share of the batch."""
    address = f"file://{folder}/group"
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=address,
        rank=rank,
        world_size=processes,
        timeout=timedelta(seconds=120),
    )
    where = f"cuda:{rank}" if device == "cuda" else device
    update, loss = _update(where, quick, batch=batch // processes, grad_cache=2)
    torch.save({"update": update, "loss": loss}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def _update(device: str, quick: bool, *, batch: int, **settings: int) -> tuple[Tensor, float]:
    """How one update changes all weights, and its loss; of several processes this one's loss."""
    data = make_examples(8 if quick else 128)
    ranker = make_ranker("poly", data, device=device, size=TINY if quick else SMALL, n_codes=8, text_truncate=128)
    losses, before = Losses(), parameters_to_vector(ranker.model.parameters()).detach().cpu()
    Trainer(ranker, replace(PLAIN, batch_size=batch, **settings), train=data, callbacks=[losses]).fit()  # type: ignore[arg-type]
    return parameters_to_vector(ranker.model.parameters()).detach().cpu() - before, losses.values[0]


# ---- resuming


class Killed(Exception):
    """Raised after an update in place of a kill."""


class KillAt(Callback):
    def __init__(self, updates: int) -> None:
        self._updates = updates

    def after_step(self, run: Run, outcome: Outcome | None) -> None:
        if run.updates.count == self._updates:
            raise Killed


def resume(*, device: str, quick: bool) -> dict[str, Any]:
    """Compare a run that resumes from its checkpoint with an uninterrupted one, with dropout and autocast."""
    data = make_examples(64 if quick else 512)
    batch = 8 if quick else 32
    config = TrainingConfig.of(
        max_updates=10, batch_size=batch, fine_tuned="all", precision="bfloat16", learning_rate=1e-4
    )
    deterministic = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)

    def run(folder: Path, *callbacks: Callback) -> tuple[Tensor, int]:
        size = TINY if quick else SMALL
        ranker = make_ranker("bi", data, device=device, size=size, dropout=0.1)
        checkpoints = Checkpoints(folder / "checkpoint.pt", settings={}, every_seconds=0.0)
        trainer = Trainer(ranker, config, train=data, callbacks=[checkpoints, *callbacks])
        trainer.fit()
        return parameters_to_vector(ranker.model.parameters()).detach().cpu(), trainer.updates.count

    try:
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as other:
            straight, _ = run(Path(first))
            with suppress(Killed):
                run(Path(other), KillAt(5))
            resumed, updates = run(Path(other))
    finally:
        torch.use_deterministic_algorithms(deterministic)
    same = torch.equal(straight, resumed)
    checks = [check_equal("weights after a resumed run", resumed, straight, limit=1e-5)]
    return {"rows": [{"updates": updates, "bit_equal": same}], "checks": checks}


# ---- ParlAI's trainer for several GPUs


def run_multiprocessing_train(*, device: str, quick: bool) -> dict[str, Any]:
    """`parlai multiprocessing_train --fp16 true`, which joins its processes by NCCL: the loss falls."""
    if device != "cuda":
        raise Unavailable("multiprocessing_train joins its processes by NCCL, which needs a GPU")
    if importlib.util.find_spec("parlai") is None or importlib.util.find_spec("parlai.core") is None:
        raise Unavailable("ParlAI is not installed (pip install --no-deps parlai==1.7.2)")
    rows: list[dict[str, Any]] = []
    checks = []
    for model in ("biencoder", "polyencoder"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            command = [sys.executable, "-m", "parlai", "multiprocessing_train", "-m", model, *FLAGS]
            done = subprocess.run([*command, "-mf", str(path)], capture_output=True, text=True, check=False)
            if done.returncode:
                why = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
                return {"rows": rows, "checks": [check(f"{model}: {why[0]}", 1.0, limit=0.0)]}
            reports = json.loads(Path(f"{path}.trainstats").read_text(encoding="utf-8"))["train_reports"]
        losses = [report["mean_loss"] for report in reports if "mean_loss" in report]
        rows.append({"model": model, "first": losses[0], "last": losses[-1]})
        checks.append(check(f"{model}: last loss of the first", losses[-1] / losses[0], limit=0.9))
    return {"rows": rows, "checks": checks}
