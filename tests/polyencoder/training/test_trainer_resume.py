"""Runs of the trainer that are killed, over, stopped or started again."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from polyencoder.data.example import Example
from polyencoder.errors import CheckpointError, InputError, TrainingError
from polyencoder.settings.training import OptimizerConfig
from polyencoder.training.callbacks import Callback
from polyencoder.training.callbacks.checkpoints import Checkpoints
from polyencoder.training.callbacks.evaluation import Evaluation, KeepBest
from polyencoder.training.trainer import Trainer
from tests.parameters import mostly_long
from tests.polyencoder.training.runs import (
    ARCHITECTURES,
    CONFIG,
    EXAMPLES,
    VALID,
    Kill,
    Losses,
    Stop,
    callbacks,
    weights,
)

pytestmark = pytest.mark.slow


@mostly_long(
    ("architecture", "after"),
    [
        ("cross", 3),
        ("poly", 3),
        *((other, 3) for other in ARCHITECTURES if other not in ("cross", "poly")),
        ("bi", 1),
        ("bi", 5),
    ],
    quick=2,
)
def test_a_killed_run_goes_on_bit_by_bit(make_ranker, tmp_path, architecture, after):
    """Dropout, sampling and the schedule included: the same losses from there, and the same weights at the end."""
    settings = {"architecture": architecture, "backbone_dropout": 0.1}

    def fresh():
        ranker = make_ranker(settings["architecture"])
        for module in ranker.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = settings["backbone_dropout"]
        return ranker

    unbroken, losses = fresh(), Losses()
    Trainer(unbroken, CONFIG, train=EXAMPLES, callbacks=callbacks(unbroken, tmp_path / "a", losses)).fit()

    first = fresh()
    with pytest.raises(KeyboardInterrupt):
        Trainer(first, CONFIG, train=EXAMPLES, callbacks=callbacks(first, tmp_path / "b", Kill(after))).fit()
    again, rest = fresh(), Losses()
    Trainer(again, CONFIG, train=EXAMPLES, callbacks=callbacks(again, tmp_path / "b", rest)).fit()

    done = 6 - len(rest.values)
    assert 0 <= done <= after
    assert rest.values == losses.values[done:]
    for expected, actual in zip(weights(unbroken.model), weights(again.model), strict=True):
        assert torch.equal(expected, actual)
    best = [(tmp_path / run / "best" / "polyencoder.safetensors").read_bytes() for run in "ab"]
    assert best[0] == best[1]


class Steps(Callback):
    """Counts the steps of a run, and ends it after so many, or kills it before another one."""

    name = "steps"
    stored = ("count",)

    def __init__(self, *, stop: int = 0, kill: int = 0) -> None:
        self.count, self._stop, self._kill = 0, stop, kill

    def before_step(self, run, batch):
        if self.count == self._kill > 0:
            raise KeyboardInterrupt
        return batch

    def after_step(self, run, outcome) -> None:
        self.count += 1
        if self.count == self._stop:
            run.stop("enough")


def test_a_checkpoint_has_the_state_of_the_callbacks_after_it(make_ranker, tmp_path):
    first, again, steps = make_ranker("bi"), make_ranker("bi"), Steps()
    with pytest.raises(KeyboardInterrupt):
        Trainer(first, CONFIG, train=EXAMPLES, callbacks=[*callbacks(first, tmp_path), Steps(kill=3)]).fit()
    Trainer(again, CONFIG, train=EXAMPLES, callbacks=[*callbacks(again, tmp_path), steps]).fit()
    assert steps.count == 6


def test_a_run_that_a_callback_ended_in_the_step_of_a_checkpoint_stays_so(make_ranker, tmp_path):
    first, again = make_ranker("bi"), make_ranker("bi")
    Trainer(first, CONFIG, train=EXAMPLES, callbacks=[*callbacks(first, tmp_path), Steps(stop=2)]).fit()
    trainer = Trainer(again, CONFIG, train=EXAMPLES, callbacks=callbacks(again, tmp_path))
    assert trainer.fit().updates == 2
    assert trainer.stopped == "enough"


def test_a_run_that_is_over_stays_as_it_is(make_ranker, tmp_path):
    ranker = make_ranker("bi")
    Trainer(ranker, CONFIG, train=EXAMPLES, callbacks=callbacks(ranker, tmp_path)).fit()
    again, losses = make_ranker("bi"), Losses()
    progress = Trainer(again, CONFIG, train=EXAMPLES, callbacks=callbacks(again, tmp_path, losses)).fit()
    assert (progress.updates, losses.values) == (6, [])
    for expected, actual in zip(weights(ranker.model), weights(again.model), strict=True):
        assert torch.equal(expected, actual)


def test_a_run_that_was_stopped_stays_so(make_ranker, tmp_path):
    config = replace(CONFIG, max_updates=50, optimizer=OptimizerConfig(learning_rate=1e-9))

    def fit():
        ranker = make_ranker("bi")
        best = KeepBest(ranker, tmp_path / "best", patience=2)
        checkpoints = Checkpoints(tmp_path / "checkpoint.pt", settings={})
        parts = [Evaluation(ranker, VALID, every=8), best, checkpoints]
        trainer = Trainer(ranker, config, train=EXAMPLES, callbacks=parts)
        return trainer.fit().updates, trainer.stopped

    assert fit() == fit() == (6, "no better R8@1 in 2 evaluations")


def test_a_checkpoint_of_another_version_is_one_clear_error(make_ranker, tmp_path):
    ranker, path = make_ranker("bi"), tmp_path / "checkpoint.pt"
    Trainer(ranker, CONFIG, train=EXAMPLES, callbacks=callbacks(ranker, tmp_path)).fit()
    states = torch.load(path, weights_only=True)
    name, *others = states["run"]["model"]
    weights = {other: states["run"]["model"][other] for other in others}
    without = {**states, "run": {**states["run"], "model": weights}}
    earlier = copy.deepcopy(states)
    for callback in earlier["run"]["callbacks"]:
        del callback["best"]["trained"]
    changes = (earlier, "has no 'trained': "), (without, f"has no '{name}': "), ({**states, "format_version": 1}, "")
    for changed, problem in changes:
        torch.save(changed, path)
        message = f"checkpoint.pt: {problem}another version of polyencoder wrote it; give another folder"
        with pytest.raises(CheckpointError, match=message):
            Trainer(make_ranker("bi"), CONFIG, train=EXAMPLES, callbacks=callbacks(ranker, tmp_path)).fit()


def test_a_run_that_goes_on_counts_on_what_is_not_finite(make_ranker):
    trainer = Trainer(make_ranker("bi"), replace(CONFIG, max_nonfinite=3), train=EXAMPLES)
    again = Trainer(make_ranker("bi"), replace(CONFIG, max_nonfinite=3), train=EXAMPLES)
    infinite = torch.tensor(float("inf"))
    for _ in range(2):
        trainer.updates.check_losses(infinite)
        trainer.updates.step()
    again.load_run_state(trainer.run_state())
    again.updates.check_losses(infinite)
    with pytest.raises(TrainingError, match="update 3: the loss is inf, as in the 3 updates up to it"):
        again.updates.step()


def test_a_run_that_trained_nothing_is_an_error_when_it_is_started_again(make_ranker, tmp_path):
    same = [Example(example.turns, "i like them .") for example in EXAMPLES]
    config = replace(CONFIG, epochs=3.0, max_updates=None)
    for _ in range(2):
        ranker = make_ranker("bi")
        with pytest.raises(InputError, match="nothing was trained: in all of 6 batches"):
            Trainer(ranker, config, train=same, callbacks=callbacks(ranker, tmp_path)).fit()
        assert not (tmp_path / "best").exists()


def test_a_run_that_goes_on_remembers_that_it_has_trained(make_ranker, tmp_path):
    """The rest of the run may be batches with one label."""
    ranker, config = make_ranker("bi"), replace(CONFIG, max_updates=7)
    with pytest.raises(KeyboardInterrupt):
        Trainer(ranker, config, train=EXAMPLES, callbacks=callbacks(ranker, tmp_path, Kill(5))).fit()
    same = [Example(example.turns, "i like them .") for example in EXAMPLES]
    again = make_ranker("bi")
    stops = Stop(after=6)
    progress = Trainer(again, config, train=same, callbacks=[stops, *callbacks(again, tmp_path)]).fit()
    assert (progress.updates, progress.batches) == (4, 6)
