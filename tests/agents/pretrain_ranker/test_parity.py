"""The agent's examples through the library's own pre-training: the same losses, step by step; the same evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from parlai.agents.pretrain_ranker.examples import ResponseBuffer
from parlai.scripts.train_model import TrainModel

from polyencoder.data.collator import Batch
from polyencoder.pretraining.batches import PairInputs
from polyencoder.pretraining.callbacks import HeldOut
from polyencoder.pretraining.corpus import PairExample
from polyencoder.pretraining.inputs import pair_batch
from polyencoder.pretraining.objective import PretrainingObjective
from polyencoder.pretraining.start import starting_model
from polyencoder.settings.pretrain import PretrainingSettings
from polyencoder.training.trainer import Trainer

pytestmark = pytest.mark.slow

UPDATES, SIZE = 12, 8


@pytest.fixture
def steps(monkeypatch):
    """The losses of each step of a run."""
    seen: list[list[float]] = []
    step = Trainer.step

    def observed(self, batch):
        outcome = step(self, batch)
        seen.append(outcome.losses.tolist())
        return outcome

    monkeypatch.setattr(Trainer, "step", observed)
    return seen


@pytest.fixture
def examples(monkeypatch):
    """The examples that the agent has made of the task, in its order; those of evaluations too."""
    made: list[PairExample] = []
    pair = ResponseBuffer.pair

    def observed(self, one, draws):
        made.append(pair(self, one, draws))
        return made[-1]

    monkeypatch.setattr(ResponseBuffer, "pair", observed)
    return made


@pytest.mark.parametrize("length", [None, 20])
def test_both_learn_the_same(fitted, task, tmp_path, steps, examples, length):
    """From the encoder that has learned, with rates at which it learns other things: twelve updates of one seed."""
    backbone = str(fitted[0].with_name("model.encoder"))
    rates = {"dropout": 0.0, "attention_dropout": 0.0, "mask_probability": 0.3, "history_size": 2}
    options = {"batchsize": SIZE, "max_train_steps": UPDATES, "learningrate": 3e-3, "seed": 7, "loglevel": "error"}
    options |= {"validation_every_n_epochs": -1, "lr_scheduler": "none", "warmup_updates": -1}
    options |= {"text_truncate": length} if length else {}
    theirs_at = str(tmp_path / "theirs")
    TrainModel.main(**task, **options, **rates, model="pretrain_ranker", backbone=backbone, model_file=theirs_at)
    theirs, trained_on = list(steps), examples[: UPDATES * SIZE]
    steps.clear()

    numbers = {"max_steps": UPDATES, "learning_rate": 3e-3, "schedule": "constant", "warmup_steps": 0, "seed": 7}
    settings = PretrainingSettings(
        corpus=("no file",), out="nowhere", backbone=backbone, text_truncate=length, device="cpu", **numbers, **rates
    )
    pretrained = starting_model(settings)
    inputs = PairInputs(pretrained.text, longest=pretrained.longest, masking=pretrained.masking)

    def batches() -> Iterator[Batch]:
        for place in range(0, len(trained_on), SIZE):
            make = inputs.masked if place // SIZE % 2 == 0 else inputs.next
            pairs = trained_on[place : place + SIZE]
            made = [make(pair, np.random.default_rng(pair.key)) for pair in pairs]
            yield pair_batch(made, pad_id=pretrained.text.pad_id)

    objective = PretrainingObjective(pretrained.model)
    Trainer(pretrained, settings.objective.training, batches=batches, objective=objective).fit()
    assert len(theirs) == UPDATES
    assert len({round(sum(losses), 3) for losses in theirs}) > UPDATES // 2
    for ours, other in zip(steps, theirs, strict=True):
        assert ours == pytest.approx(other, rel=1e-4, abs=1e-5)


def test_both_evaluate_the_same(fitted, evaluate, task, examples):
    path, _ = fitted
    report = evaluate(path)
    pretrained = starting_model(
        PretrainingSettings(corpus=("no file",), out="nowhere", backbone=f"{path}.encoder", max_steps=1, device="cpu")
    )
    inputs = PairInputs(pretrained.text, longest=pretrained.longest, masking=pretrained.masking)
    held_out = HeldOut(PretrainingObjective(pretrained.model), examples, inputs, tokens=2_000, every=1)
    run = SimpleNamespace(updates=SimpleNamespace(autocast=lambda: torch.autocast("cpu", enabled=False)))
    found = held_out.measure(run)
    for name, value in found.items():
        assert report["ppl" if name == "perplexity" else name] == pytest.approx(value, rel=1e-4), name


def test_what_does_not_follow_is_of_another_conversation(fitted, evaluate, examples):
    evaluate(fitted[0])
    others = [example for example in examples if example.other is not None]
    assert len(others) > 0.9 * len(examples)
    said = {example.label for example in examples}
    for example in others:
        assert example.other in said
        assert example.other != example.label
        assert example.other not in example.turns
