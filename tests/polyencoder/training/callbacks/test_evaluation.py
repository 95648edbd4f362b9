"""When a run is evaluated, which of its models is kept, and when it stops early."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from polyencoder.errors import ConfigError, InputError
from polyencoder.training.callbacks.evaluation import Evaluation, KeepBest


class RunMeasures(Evaluation):
    """Evaluations that say after how many examples they were."""

    def measure(self, run):
        return {"loss": float(run.progress.examples)}


class Saved:
    """A ranker that counts how often it is saved."""

    times = 0

    def save_pretrained(self, folder) -> None:
        self.times += 1


@pytest.fixture
def evaluated(run):
    """Where evaluations came, in examples; `run` is of 8 examples an update."""
    run.reports, run.processes, run.stopped = [], SimpleNamespace(is_first=True), None
    run.evaluated = lambda report: run.reports.append(report["loss"])
    run.stop = lambda why: setattr(run, "stopped", why)
    return run


def test_some_examples_are_between_two_evaluations():
    with pytest.raises(InputError, match="every is 0 .*; it must be at least 1"):
        Evaluation(None, [], every=0)


@pytest.mark.parametrize(
    ("every", "expected"), [(8, [8, 16, 24, 32]), (16, [16, 32]), (20, [24, 32]), (12, [16, 24, 32]), (100, [32])]
)
def test_an_evaluation_is_due_after_so_many_examples_and_at_the_end(evaluated, every, expected):
    """Once, where both come together; `every` need not be a number of whole batches."""
    callback = RunMeasures(None, [], every=every)
    for number in range(1, 5):
        evaluated.is_over = number == 4
        evaluated.step(callback)
    assert evaluated.reports == expected
    assert callback.report == {"loss": 32.0}


def test_a_run_that_another_callback_ends_is_evaluated_once_more(evaluated):
    callback = RunMeasures(None, [], every=16)
    for expected in ([16], [16, 24]):
        evaluated.step(callback)
        if expected == [16]:
            evaluated.step(callback)
        callback.on_end(evaluated)
        callback.on_end(evaluated)
        assert evaluated.reports == expected


def test_without_a_new_update_there_is_no_evaluation(evaluated):
    """Gradients that are accumulated change no weights: examples go by, and the model stays."""
    callback = RunMeasures(None, [], every=8)
    evaluated.step(callback)
    evaluated.progress.examples += 8
    callback.after_step(evaluated, None)
    assert evaluated.reports == [8]
    evaluated.step(callback)
    assert evaluated.reports == [8, 24]


def test_a_resumed_run_evaluates_where_it_would_have(evaluated):
    first, resumed = RunMeasures(None, [], every=16), RunMeasures(None, [], every=16)
    for _ in range(3):
        evaluated.step(first)
    resumed.load_state_dict(first.state_dict())
    assert resumed.report == {"loss": 16.0}
    evaluated.step(resumed)
    assert evaluated.reports == [16, 32]


def keep_best(run, values, **settings) -> KeepBest:
    best = KeepBest(Saved(), "folder", **settings)
    for number, value in enumerate(values, start=1):
        run.updates.count = number
        best.on_evaluation(run, {settings["metric"]: value})
    return best


@pytest.mark.parametrize(
    ("metric", "values", "updates", "times"),
    [
        ("loss", [3.0, 1.0, 2.0], 2, 2),  # lower is better
        ("rank", [3.0, 1.0, 2.0], 2, 2),
        ("mrr", [0.3, 0.1, 0.2], 1, 1),
        ("mrr", [0.1, 0.3, 0.3], 3, 3),  # the later of equal ones
        ("loss", [float("nan"), 5.0, float("inf")], 2, 1),
        ("mrr", [float("nan")], 0, 0),
    ],
)
def test_the_best_model_is_kept(evaluated, metric, values, updates, times):
    best = keep_best(evaluated, values, metric=metric)
    assert best.updates == updates
    assert best._ranker.times == times
    assert best.report == ({metric: values[updates - 1]} if updates else None)
    assert evaluated.stopped is None


def test_processes_besides_the_first_write_nothing(evaluated):
    evaluated.processes.is_first = False
    best = keep_best(evaluated, [1.0], metric="mrr")
    assert (best.updates, best._ranker.times) == (1, 0)


@pytest.mark.parametrize(
    ("values", "stops"),
    [([3.0, 2.0, 2.5], False), ([3.0, 3.0, 3.0], True), ([3.0, 4.0, 2.0, 3.0], False), ([3.0, 4.0, 5.0], True)],
)
def test_evaluations_that_are_no_better_end_the_run(evaluated, values, stops):
    """`patience` in a row end it; an equal evaluation is no better."""
    keep_best(evaluated, values, metric="loss", patience=2)
    assert evaluated.stopped == ("no better loss in 2 evaluations" if stops else None)


def test_a_resumed_run_compares_with_the_best_before(evaluated):
    best = keep_best(evaluated, [1.0, 2.0], metric="loss", patience=2)
    resumed = KeepBest(Saved(), "folder", metric="loss", patience=2)
    resumed.load_state_dict(best.state_dict())
    assert (resumed.report, resumed.trained, resumed.updates) == ({"loss": 1.0}, {"loss": 1.0}, 1)
    resumed.on_evaluation(evaluated, {"loss": 3.0})
    assert resumed._ranker.times == 0
    assert evaluated.stopped is not None


def test_the_model_before_training_stays_until_a_better_one_comes(evaluated):
    best = KeepBest(Saved(), "folder", metric="loss")
    best.keep(evaluated, {"loss": 2.0})
    evaluated.updates.count = 1
    best.on_evaluation(evaluated, {"loss": 3.0})
    assert (best.report, best.trained, best.updates) == ({"loss": 2.0}, {"loss": 3.0}, 0)
    evaluated.updates.count = 2
    best.on_evaluation(evaluated, {"loss": 1.0})
    assert (best.report, best.trained, best.updates) == ({"loss": 1.0}, {"loss": 1.0}, 2)


def test_a_metric_that_is_not_measured_is_an_error(evaluated):
    with pytest.raises(ConfigError, match="no metric 'mmr' to choose the best model by; use one of loss, mrr"):
        KeepBest(Saved(), "folder", metric="mmr").on_evaluation(evaluated, {"loss": 1.0, "mrr": 0.5})
