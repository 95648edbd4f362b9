"""Each kind of run, killed at random updates and started again: it has the weights of a whole run, byte for byte."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from polyencoder.training import TrainSettings, train_ranker
from polyencoder.training.trainer import Trainer
from tests.polyencoder.training.runs import CONVERT, THINGS

pytestmark = pytest.mark.slow

KINDS = ["today", "great", "fine"]

MINED = {"hard_negatives": 2, "hard_negatives_every": 4}
QUANTIZED = {"quantization_aware": True, "quantization_update": 3, "dropout": 0.1}
RUNS = {
    "plateau, gradients of two batches": {"schedule": "plateau", "accumulate": 2, "save_every_seconds": 0.0},
    "sampled negatives": {"candidates": "inline", "num_negatives": 3},
    "cross-encoder": {"architecture": "cross", "num_negatives": 3, "pair_tokens": 128},
    "adapters": {"lora": 2, "lora_dropout": 0.1, "fine_tuned": "all_encoder_layers", **MINED},
    "hard negatives, gradient cache and gradients of two batches, in a stream": {
        "streaming": True,
        "grad_cache": 2,
        "accumulate": 2,
        "save_every_seconds": 0.0,
        "hard_negatives": 2,
        "hard_negatives_every": 2,
    },
    "measured scaling": {"output_scaling": "auto", "candidates": "batch-all-cands", "num_negatives": 2},
    "quantized ConveRT": {"architecture": "convert", "extra_contexts": 2, **QUANTIZED},
    "ConveRT with hard negatives": {"architecture": "convert", **MINED},
}
QUICK = "plateau, gradients of two batches"


@pytest.fixture
def make_settings(tmp_path, backbone_folder, vocabulary):
    """(out, **settings) -> the settings of a run of 12 batches over files that this writes."""
    records = [
        {"context": ["hello !", f"do you like {thing} {kind} ?"], "response": f"my {thing} is {kind} ."}
        for thing in THINGS
        for kind in KINDS
    ]
    for name, part in (("train", records), ("valid", records[::7])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in part))
    common = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "valid")}
    common |= {"batch_size": 5, "epochs": 2.0, "text_truncate": 24, "label_truncate": 16, "device": "cpu"}
    around = {"backbone": str(backbone_folder("bert")), "learning_rate": 0.01, "fine_tuned": "all"}

    def make(out: str, **settings) -> TrainSettings:
        if settings.get("architecture") == "convert":
            start = {"vocabulary": str(vocabulary), **CONVERT}
        else:
            start = around | ({"architecture": "poly", "n_codes": 4} if "architecture" not in settings else {})
        return TrainSettings(out=str(tmp_path / out), **{**common, "patience": None, **start, **settings})

    return make


class Killed(BaseException):
    """Interrupts a run."""


@pytest.fixture
def kill(monkeypatch):
    """(settings, steps) -> run, and be killed after each of these numbers of steps; then run to the end."""

    def run(settings: TrainSettings, steps: list[int]) -> None:
        for last in steps:
            step, done = Trainer.step, []

            def until_then(self, batch, step=step, done=done, last=last):
                if len(done) == last:
                    raise Killed
                done.append(batch)
                return step(self, batch)

            with monkeypatch.context() as patch:
                patch.setattr(Trainer, "step", until_then)
                with pytest.raises(Killed):
                    train_ranker(settings)
        assert train_ranker(settings).resumed

    return run


def of_the_end(settings: TrainSettings) -> dict[str, torch.Tensor]:
    """The last weights and buffers of a run."""
    return torch.load(f"{settings.data.out}/training/checkpoint.pt", weights_only=True)["run"]["model"]


def assert_same_end(unbroken: TrainSettings, resumed: TrainSettings) -> None:
    expected, actual = of_the_end(unbroken), of_the_end(resumed)
    assert expected.keys() == actual.keys()
    assert [name for name, tensor in expected.items() if not tensor.equal(actual[name])] == []
    contents = [Path(settings.data.out, "polyencoder.safetensors").read_bytes() for settings in (unbroken, resumed)]
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    "kind", [QUICK, *(pytest.param(kind, marks=pytest.mark.long) for kind in RUNS if kind != QUICK)]
)
def test_a_killed_run_ends_with_the_weights_of_a_whole_one(make_settings, kill, kind):
    whole, killed = make_settings("whole", **RUNS[kind]), make_settings("killed", **RUNS[kind])
    train_ranker(whole)
    draws = random.Random(kind)
    again = [draws.randrange(1, 4)] if "accumulate" in RUNS[kind] else []  # these have a checkpoint of every update
    kill(killed, [draws.randrange(4, 7), *again])
    assert_same_end(whole, killed)


@pytest.mark.long
@pytest.mark.parametrize("candidates", [{}, {"candidates": "inline", "num_negatives": 3}])
def test_a_killed_student_ends_with_the_weights_of_a_whole_one(make_settings, kill, candidates):
    """The scores that its teacher gave before the kill are there, also those of batches that are repeated."""
    train_ranker(make_settings("cross", architecture="cross", epochs=1.0))
    taught = {"teacher": make_settings("cross").data.out, "distillation_candidates": 3, "batch_size": 6, **candidates}
    whole, killed = make_settings("whole", **taught), make_settings("killed", **taught)
    train_ranker(whole)
    kill(killed, [4])
    assert_same_end(whole, killed)
