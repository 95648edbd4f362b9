"""What a run reads is opened before it begins; how long it is decides its warm-up and its schedule."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import parlai.utils.logging as logging
import pytest
import torch
from parlai.agents.ranker.agent import RankerAgent
from parlai.agents.ranker.model.open_data import check_metric
from parlai.core.opt import Opt
from parlai.scripts.train_model import TrainModel

from polyencoder.errors import ConfigError, InputError

pytestmark = pytest.mark.slow

EXAMPLES = 32  # of the task


@pytest.fixture
def pairs(tmp_path) -> Path:
    """A folder of pairs for `-t selection:jsonl`."""
    folder = tmp_path / "pairs"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        lines = [json.dumps({"context": [f"hello {n}"], "response": f"bye {n}"}) for n in range(8)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def train_on(pairs, tmp_path) -> Callable[..., None]:
    """(**options) -> a training on the pairs."""

    def run(**options: Any) -> None:
        usual = {"model": "biencoder", "task": "selection:jsonl", "selection_folder": str(pairs), "loglevel": "error"}
        usual |= {"num_negatives": 5}
        usual |= {"embedding_size": 16, "ffn_size": 32, "n_layers": 1, "n_heads": 2, "dict_maxtokens": 300}
        TrainModel.main(**{**usual, "model_file": str(tmp_path / "model"), "num_epochs": 1.0, **options})

    return run


@pytest.fixture
def nothing_is_trained(monkeypatch):
    def fail(self, batch):
        raise AssertionError("training had begun")

    monkeypatch.setattr(RankerAgent, "train_step", fail)


@pytest.mark.parametrize("datatype", ["train:evalmode", "valid"])
def test_a_datatype_that_trains_nothing(datatype, train_on, tmp_path):
    """ParlAI would evaluate for so long, and save the model as a trained one."""
    with pytest.raises(ConfigError, match=f"-dt {datatype}: trains nothing; give -dt train, or evaluate by eval_model"):
        train_on(datatype=datatype)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("stream", ["", ":stream"])
def test_a_file_that_is_missing(split, stream, pairs, train_on, nothing_is_trained, tmp_path):
    (pairs / f"{split}.jsonl").unlink()
    with pytest.raises(InputError, match=rf"has no {split}\.jsonl"):
        train_on(datatype=f"train{stream}")
    assert not (tmp_path / "model").exists()


def test_a_file_that_is_broken(pairs, train_on, nothing_is_trained):
    with open(pairs / "test.jsonl", "a") as file:
        file.write('{"context": ["hello"], "resp\n')
    with pytest.raises(InputError, match=r"test\.jsonl, line 9"):
        train_on()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"validation_metric": "acuracy"}, r"--validation-metric acuracy: .*did you mean accuracy\?"),
        ({"validation_metric": "rank"}, "--validation-metric rank: a lower one .* give --validation-metric-mode min"),
        ({"validation_metric": "R10@1"}, r"--validation-metric R10@1: .*there are .*R6@1"),
        (
            {"eval_candidates": "fixed", "fixed_candidates_path": "FILE", "candidates": "inline"},
            "a label that is not among the fixed candidates",
        ),
    ],
)
def test_what_an_evaluation_will_not_find(options, problem, train_on, nothing_is_trained, tmp_path):
    (tmp_path / "some.txt").write_text("".join(f"bye {n}\n" for n in range(7)))  # all but one
    options = {name: str(tmp_path / "some.txt") if value == "FILE" else value for name, value in options.items()}
    with pytest.raises((ConfigError, InputError), match=problem):
        train_on(**options)
    assert not (tmp_path / "model").exists()


def test_a_loss_of_one_of_several_tasks_needs_a_mode():
    """ParlAI knows that a lower one is better only of the loss of all."""
    report = {"loss": 1.0, "convai2/loss": 1.0}
    check_metric(Opt(validation_metric="loss"), report)
    opt = Opt(validation_metric="convai2/loss")
    check_metric(Opt(opt, validation_metric_mode="min"), report)
    with pytest.raises(ConfigError, match="convai2/loss: a lower one is better: give --validation-metric-mode min"):
        check_metric(opt, report)


def test_data_without_candidates(nothing_is_trained, make_task, train, tmp_path):
    """An evaluation with inline candidates would stop at its first example, after half of the training."""
    folder = tmp_path / "task"
    folder.mkdir()
    task = make_task(folder, train=[[{"text": "hello", "labels": "bye"}]])
    with pytest.raises(InputError, match="has no candidates of its own, which --eval-candidates inline needs"):
        train("biencoder", tmp_path / "model", **task)
    with pytest.raises(AssertionError, match="training had begun"):
        train("biencoder", tmp_path / "model", **task, eval_candidates="batch")
    with pytest.raises(AssertionError, match="training had begun"):
        train("biencoder", tmp_path / "model", **task, eval_candidates="batch", validation_metric="mrr")


def test_a_metric_of_candidates_that_parlai_collects(nothing_is_trained, train, tmp_path):
    """Their number is not known before: the name of the metric is not an error yet."""
    with pytest.raises(AssertionError, match="training had begun"):
        train("biencoder", tmp_path / "model", eval_candidates="fixed", validation_metric="R8@1")


def test_a_process_without_validation_examples(in_processes, make_task, make_agent, tmp_path):
    """Two of them share a single example: the one that has none does not miss the metric."""
    turn = {"text": "hello", "labels": "bye", "label_candidates": ["bye", "no"]}
    folder = tmp_path / "task"
    folder.mkdir()
    task = make_task(folder, train=[[turn]] * 4, valid=[[turn]], test=[[turn]])
    options = {**task, "num_epochs": 1.0, "validation_metric": "mrr"}
    assert in_processes(lambda rank: make_agent("biencoder", **options)._run.is_in_loop) == [True, True]


def test_a_task_of_parlais(make_task, train, nothing_is_trained, tmp_path):
    folder = tmp_path / "task"
    folder.mkdir()
    task = make_task(folder, train=[[{"text": "hello", "labels": "bye", "label_candidates": ["bye", "no"]}]])
    (folder / "task_test.txt").unlink()
    with pytest.raises(InputError, match=r"-t fromfile: its data for test cannot be opened: .*task_test\.txt"):
        train("biencoder", tmp_path / "model", **task)


def test_the_task_of_evaluation(pairs, task, train_on, nothing_is_trained):
    """`--evaltask`: the training task's own validation and test data are not read."""
    for split in ("valid", "test"):
        (pairs / f"{split}.jsonl").unlink()
    elsewhere = {name: value for name, value in task.items() if name != "task"}
    with pytest.raises(AssertionError, match="training had begun"):
        train_on(evaltask="fromfile", **elsewhere)


def test_opening_draws_nothing(make_agent, monkeypatch):
    """A seeded run learns the same, whichever data it opens before."""
    states = []
    for counted in (False, True):
        random.seed(1)
        torch.manual_seed(1)
        agent = make_agent("biencoder", num_epochs=2.0 if counted else -1)
        states.append((random.getstate(), torch.get_rng_state().tolist(), agent.random.getstate()))
    assert states[0] == states[1]


# ---- how long a run is


@pytest.mark.parametrize(
    ("options", "updates"),
    [
        ({"num_epochs": 3.0, "batchsize": 8}, 3 * EXAMPLES // 8),
        ({"num_epochs": 3.0, "batchsize": 8, "update_freq": 3}, 3 * EXAMPLES // 8 // 3),
        ({"num_epochs": 0.5, "batchsize": 5}, 4),  # 16 examples: the loop ends after the batch that has the last
        ({"num_epochs": 3.0, "batchsize": 8, "max_train_steps": 7}, 7),
        ({"num_epochs": 3.0, "batchsize": 8, "max_train_steps": 700}, 12),
        ({"max_train_steps": 7}, 7),
        ({"num_epochs": 3.0, "batchsize": 8, "dynamic_batching": "full"}, None),
        ({"num_epochs": -1}, None),
    ],
)
def test_the_number_of_updates(options, updates, make_agent):
    assert make_agent("biencoder", **options)._run.planned_updates == updates


def test_several_processes_share_an_epoch(make_agent, in_processes):
    results = in_processes(lambda rank: make_agent("biencoder", num_epochs=4.0, batchsize=8)._run.planned_updates)
    assert results == [4 * EXAMPLES // 16] * 2


def test_a_schedule_of_a_run_whose_length_nobody_knows(make_agent, train, tmp_path):
    with pytest.raises(ConfigError, match="the schedule 'linear' needs the number of updates") as error:
        train("biencoder", tmp_path / "model", lr_scheduler="linear", num_epochs=3.0, dynamic_batching="full")
    assert error.value.argument == "max_updates"
    with pytest.raises(ConfigError, match="the schedule 'cosine' needs the number of updates"):
        make_agent("biencoder", lr_scheduler="cosine", load_from_checkpoint=False)


@pytest.mark.parametrize(("epochs", "warmup"), [(19.0, 7), (1.0, 0), (1000.0, 100)])
def test_a_warm_up_takes_a_tenth_of_the_run_at_most(epochs, warmup, make_agent):
    agent = make_agent("biencoder", num_epochs=epochs, batchsize=8)  # 76 updates, 4, 4,000
    assert agent.updates.schedule.warmup_updates == warmup


def test_a_warm_up_that_is_given_is_followed(make_agent, monkeypatch):
    warnings = []
    monkeypatch.setattr(logging, "warning", warnings.append)
    agent = make_agent("biencoder", num_epochs=19.0, batchsize=8, warmup_updates=60)
    assert agent.updates.schedule.warmup_updates == 60
    assert not warnings
    agent = make_agent("biencoder", num_epochs=1.0, batchsize=8, warmup_updates=60)
    assert agent.updates.schedule.warmup_updates == 60
    assert "--warmup-updates 60: the run of 4 updates ends before" in warnings.pop()
    with pytest.raises(ConfigError, match="a warm-up of 60 updates takes the whole run, of 4") as error:
        make_agent("biencoder", num_epochs=1.0, batchsize=8, warmup_updates=60, lr_scheduler="linear")
    assert error.value.argument == "warmup_updates"
