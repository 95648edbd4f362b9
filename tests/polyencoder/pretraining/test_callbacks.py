"""The log of a pre-training: its tokens are those of all processes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from polyencoder.data.pool import CandidatePool
from polyencoder.modeling.loading import build_backbone
from polyencoder.pretraining import callbacks
from polyencoder.pretraining.callbacks import ROUNDS, SIDE, PretrainingLog, matmul_throughput, step_flops
from polyencoder.pretraining.heads import PretrainingModel
from polyencoder.pretraining.inputs import PairBatch
from polyencoder.pretraining.masking import IGNORED
from polyencoder.text.tokens import TokenBatch
from polyencoder.training.distributed import Processes
from polyencoder.training.progress import Progress


def test_the_speed_is_that_of_all_processes_together(monkeypatch):
    monkeypatch.setattr(callbacks, "step_flops", lambda model, batch: 6e9)
    log = PretrainingLog(peak=1e10)
    log.on_start(SimpleNamespace())
    schedule = SimpleNamespace(expected_updates=None, warmup_updates=0)
    run = SimpleNamespace(
        processes=Processes(rank=0, count=4),
        progress=Progress(),
        updates=SimpleNamespace(schedule=schedule),
        model=None,
    )
    ids = torch.ones(2, 50, dtype=torch.long)
    batch = PairBatch(TokenBatch(ids, ids.bool()), CandidatePool([]))
    for _ in range(3):
        log.before_step(run, batch)
    assert log.shown_speed(2.0) == "600 tokens/s, 90% MFU"  # 300 tokens of this process
    assert log.tokens == 300


@pytest.fixture
def model(make_backbone_config) -> PretrainingModel:
    """Wide enough that its matrices have nearly all of its parameters."""
    return PretrainingModel(build_backbone(make_backbone_config(dim=96, ffn_dim=192, n_heads=4)))


def batch(chosen: int) -> PairBatch:
    """Two sequences of 24 tokens, with this number of predicted ones."""
    ids = torch.randint(5, 100, (2, 24))
    targets = torch.full_like(ids, IGNORED)
    targets.flatten()[:chosen] = 7
    return PairBatch(TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool)), CandidatePool([]), targets=targets)


@pytest.mark.parametrize("chosen", [1, 12])
def test_like_torchs_counter_without_attention(model, chosen):
    inputs = batch(chosen)
    model.train()
    model.masked_logits(inputs.contexts, inputs.targets != IGNORED)  # the first pass tries out packing, too
    with FlopCounterMode(display=False) as counter:
        logits = model.masked_logits(inputs.contexts, inputs.targets != IGNORED)
        logits.logsumexp(1).sum().backward()
    counted = {str(operator): flops for operator, flops in counter.get_flop_counts()["Global"].items()}
    products = sum(flops for operator, flops in counted.items() if operator in ("aten.mm", "aten.addmm", "aten.linear"))
    assert products > 0, counted
    assert step_flops(model, inputs) == pytest.approx(products, rel=0.05)


def test_padding_is_free_and_a_batch_of_the_other_objective_has_no_words(model):
    inputs = batch(12)
    whole = step_flops(model, inputs)
    padded = PairBatch(
        TokenBatch(
            torch.nn.functional.pad(inputs.contexts.ids, (0, 9)),
            torch.nn.functional.pad(inputs.contexts.mask, (0, 9)),
        ),
        CandidatePool([]),
        targets=torch.nn.functional.pad(inputs.targets, (0, 9), value=IGNORED),
    )
    assert step_flops(model, padded) == whole
    layers = sum(parameter.numel() for parameter in model.encoder.layers().parameters())
    assert step_flops(model, PairBatch(inputs.contexts, CandidatePool([]))) == 6 * layers * 48


def test_the_throughput_is_that_of_the_fastest_product():
    seconds = iter([3.0, 5.0, 1.0, 4.0, 2.0, 9.0, 7.0, 8.0])
    now, is_running = [0.0], [False]

    def clock() -> float:
        if is_running[0]:
            now[0] += next(seconds)
        is_running[0] = not is_running[0]
        return now[0]

    assert matmul_throughput(torch.device("cpu"), clock=clock) == 2 * SIDE**3 / 1.0
    assert next(seconds, None) is None, f"{ROUNDS} products were timed"
