"""A study of runs: killed and continued, and with failed trials."""

from __future__ import annotations

import json
from itertools import product

import optuna
import pytest
import yaml

from polyencoder.errors import CheckpointError, ConfigError, InputError, TrainingError
from polyencoder.settings.train import TrainSettings
from polyencoder.settings.tune import TuneSettings
from polyencoder.training.trainer import Trainer
from polyencoder.training.tuning import tune

pytestmark = pytest.mark.slow

THINGS = ["dogs", "cat", "teacher", "math", "school", "ski"]


class Killed(BaseException):
    """Interrupts a study."""


@pytest.fixture
def settings(tmp_path, backbone_folder):
    """(**changes) -> those of a study of tiny runs."""
    records = [{"context": ["hello !", f"do you like {one} ?"], "response": f"my {one} ."} for one in THINGS]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records * 2))
    usual = {
        "backbone": str(backbone_folder("bert")),
        "architecture": "bi",
        "device": "cpu",
        "epochs": 1,
        "train": str(tmp_path / "pairs.jsonl"),
        "valid": str(tmp_path / "pairs.jsonl"),
        "num_negatives": 5,
        "batch_size": 4,
        "save_every_seconds": 0,
        "out": str(tmp_path / "study"),
        "search": ("learning_rate=1e-4:1e-1:log", "reduction=mean,first"),
        "trials": 2,
    }
    return lambda **changes: TuneSettings.of(usual | changes)


@pytest.fixture
def steps(monkeypatch):
    """(function, kill_after=None) -> the learning rate of each step, until it is killed."""
    step = Trainer.step

    def record(function, kill_after=None) -> list[float]:
        seen: list[float] = []

        def observed(self, batch):
            if len(seen) == kill_after:
                raise Killed
            seen.append(self.config.optimizer.learning_rate)
            return step(self, batch)

        with monkeypatch.context() as patched:
            patched.setattr(Trainer, "step", observed)
            try:
                function()
            except Killed:
                assert kill_after is not None
        return seen

    return record


def values(report):
    return [(one.number, dict(one.values), dict(one.measures)) for one in report.trials]


def test_a_killed_study_has_the_trials_of_one_that_was_not(settings, steps, tmp_path):
    whole, rest = [], []
    unbroken = steps(lambda: whole.append(tune(settings(out=str(tmp_path / "unbroken")))))
    assert len(unbroken) == 2 * 3
    assert len({*unbroken}) == 2
    begun = steps(lambda: tune(settings()), 4)
    assert begun == unbroken[:4]
    assert steps(lambda: rest.append(tune(settings()))) == unbroken[4:], "the second trial's other two steps"
    assert values(rest[0]) == values(whole[0])
    assert rest[0].best == max(rest[0].trials, key=lambda one: one.order)
    more = []
    assert len(steps(lambda: more.append(tune(settings(trials=3))))) == 3
    assert values(more[0])[:2] == values(whole[0])
    weights = {one.number: (one.folder / "model.safetensors").is_file() for one in more[0].trials}
    assert weights == {number: number == more[0].best.number for number in range(3)}
    assert all((one.folder / "training" / "run.json").is_file() for one in more[0].trials)
    study = optuna.load_study(study_name="study", storage=f"sqlite:///{tmp_path / 'study' / 'study.sqlite'}")
    assert study.best_value == next(iter(more[0].best.measures.values()))


def test_a_trial_whose_values_were_not_all_drawn_is_left_out(settings, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(optuna.trial.Trial, "_suggest", killed_at(optuna.trial.Trial._suggest, "reduction"))
        with pytest.raises(Killed):
            tune(settings(trials=1))
    report = tune(settings(trials=1))
    assert [one.number for one in report.trials] == [1]


def test_all_combinations_are_tried_after_a_kill_and_in_a_study_that_grew(settings, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(optuna.trial.Trial, "_suggest", killed_at(optuna.trial.Trial._suggest, "n_codes"))
        with pytest.raises(Killed):
            tune(settings(search=("reduction=mean,first", "n_codes=2:3"), architecture="poly", trials=9))
    asked = settings(search=("reduction=mean,first", "n_codes=2:3"), architecture="poly", trials=9)
    report = tune(asked)
    assert [tuple(one.values.values()) for one in report.trials] == [*product(("mean", "first"), (2, 3))]
    best = TrainSettings.of(yaml.safe_load(report.settings.read_text()) | {"out": "other"})
    assert best == asked.trial(report.best.values, out="other")
    grows = {"search": "reduction=mean,first,last", "out": str(report.settings.parent) + "-2"}
    with monkeypatch.context() as patched:
        patched.setattr("optuna.samplers.RandomSampler.sample_independent", lambda *_: "mean")  # twice
        tune(settings(**grows, trials=2))
    found = {one.values["reduction"] for one in tune(settings(**grows, trials=3)).trials}
    assert found == {"mean", "first", "last"}


def killed_at(suggest, name):
    def suggested(self, asked, distribution):
        if asked == name:
            raise Killed
        return suggest(self, asked, distribution)

    return suggested


def test_equal_values_are_tried_once(settings, steps, monkeypatch):
    """Of combinations that are more than the trials, some of which Optuna draws again."""
    monkeypatch.setattr("optuna.samplers.RandomSampler.sample_independent", lambda *_: "mean")
    reports = []
    assert len(steps(lambda: reports.append(tune(settings(search="reduction=mean,first,last", trials=2))))) == 3
    first, second = reports[0].trials
    assert first.measures == second.measures


def test_a_trial_that_fails_is_reported(settings, monkeypatch):
    step = Trainer.step

    def fails(self, batch):
        if self.config.optimizer.learning_rate > 1 and self.progress.batches:
            raise TrainingError("the loss is nan: it diverged")
        return step(self, batch)

    monkeypatch.setattr(Trainer, "step", fails)
    report = tune(settings(search="learning_rate=0.001,2"))
    assert {one.values["learning_rate"]: one.failed for one in report.trials} == {
        "0.001": None,
        "2": "the loss is nan: it diverged",
    }
    assert report.best.values == {"learning_rate": "0.001"}
    held = {one.number: (one.folder / "training" / "checkpoint.pt").is_file() for one in report.trials}
    assert held == {one.number: one is report.best for one in report.trials}, "of a failed trial neither"
    with pytest.raises(TrainingError, match="all trials failed; the last one: the loss is nan"):
        tune(settings(search="learning_rate=2,3", out=str(report.settings.parent) + "-2"))


def test_a_study_keeps_its_settings_and_folder(settings, tmp_path):
    tune(settings(trials=1))
    for changed, message in (
        ({"epochs": 2}, r"was begun with epochs 1\.0, not 2\.0; give the same settings, or another folder"),
        ({"search": "reduction=mean,first"}, "was begun with search"),
    ):
        with pytest.raises(CheckpointError, match=message):
            tune(settings(**changed))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="holds a model; give another folder for the study"):
        tune(settings(out=str(tmp_path / "other")))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "best.yaml").write_text("mine")
    with pytest.raises(CheckpointError, match=r"mine: holds best\.yaml, but no study \(study\.sqlite\); give another"):
        tune(settings(out=str(tmp_path / "mine")))
    (tmp_path / "theirs" / "trial-0").mkdir(parents=True)
    (tmp_path / "theirs" / "trial-0" / "README.md").write_text("theirs")
    with pytest.raises(CheckpointError, match=r"trial-0: holds README\.md, but no run to resume"):
        tune(settings(out=str(tmp_path / "theirs")))
    assert [one.name for folder in ("mine", "theirs") for one in (tmp_path / folder).iterdir()] == [
        "best.yaml",
        "trial-0",
    ]
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "study.sqlite").write_text("no database" * 100)
    with pytest.raises(CheckpointError, match="study.sqlite: cannot be opened"):
        tune(settings(out=str(tmp_path / "broken")))


def test_a_value_that_ends_a_run_before_its_first_update_fails_its_trial(settings):
    report = tune(settings(search="accumulate=1,50"))
    assert [one.failed is None for one in sorted(report.trials, key=lambda one: one.values["accumulate"])] == [
        True,
        False,
    ]


def test_a_study_whose_folder_was_renamed_continues(settings, steps, tmp_path):
    tune(settings(trials=2))
    (tmp_path / "study").rename(tmp_path / "renamed")
    assert steps(lambda: tune(settings(trials=2, out=str(tmp_path / "renamed")))) == []
    with pytest.raises(CheckpointError, match="was begun with search"):
        tune(settings(search="reduction=mean,first", out=str(tmp_path / "renamed")))
    with pytest.raises(ConfigError, match=r"'\?' is not possible in the path of a study's folder"):
        tune(settings(out=str(tmp_path / "which?")))


def test_nothing_remains_of_a_study_that_cannot_begin(settings, tmp_path):
    for changed, error in (
        ({"train": str(tmp_path / "none.jsonl")}, InputError),
        ({"backbone": str(tmp_path / "none")}, ConfigError),
        ({"search": "batch_size=4,many"}, ConfigError),
    ):
        with pytest.raises(error):
            tune(settings(**changed))
        assert not (tmp_path / "study").exists()
