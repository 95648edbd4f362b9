"""Training and evaluation in two processes, joined as torchrun joins them."""

from __future__ import annotations

import pytest
from parlai.agents.ranker.dialogue.fixed import read_candidates
from parlai.agents.ranker.launch import launch
from parlai.scripts.eval_model import EvalModel
from parlai.scripts.train_model import TrainModel

from polyencoder.errors import ConfigError
from polyencoder.training.process_group import VARIABLES
from tests.agents.ranker.conftest import ANIMALS
from tests.task_files import write

pytestmark = pytest.mark.slow


def test_two_processes_have_the_curve_of_one(options, launched, losses, tmp_path):
    """The same losses, step by step, and the same validation; and what they wrote evaluates the same."""
    single, double = tmp_path / "one", tmp_path / "two"
    expected, _ = TrainModel.main(**options, batchsize=8, model_file=str(single), loglevel="error")
    half = {**options, "batchsize": 4, "model_file": str(double), "loglevel": "error", "grad_cache": 1}
    reports = launched("train_model", half, half)
    curve = losses(single)
    assert len(curve) >= 12
    assert sum(curve[-3:]) < 0.9 * sum(curve[:3]), "the last epoch is fitted better than the first"
    assert losses(double) == pytest.approx(curve, rel=1e-3)
    for valid, test in reports:
        for report in (valid, test):
            assert float(report["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-3)
            assert float(report["exs"]) == float(expected["exs"]) == 24
            assert float(report["accuracy"]) == pytest.approx(float(expected["accuracy"]))

    evaluation = {name: options[name] for name in ("task", "selection_folder", "num_negatives")}
    evaluation |= {"model_file": str(double), "datatype": "valid", "loglevel": "error"}
    alone = EvalModel.main(**evaluation, batchsize=5)
    for report in launched("eval_model", {**evaluation, "batchsize": 5}, {**evaluation, "batchsize": 5}):
        for name in ("loss", "accuracy", "hits@5", "mrr", "exs"):
            assert float(report[name]) == pytest.approx(float(alone[name]), rel=1e-4), name


@pytest.mark.long
def test_two_processes_have_the_curve_of_one_with_several_objectives(make_convert_ranker, launched, losses, tmp_path):
    """A multi-context ConveRT: of two processes one may have no example with earlier turns, whose loss it lacks."""
    words = ["cat", "dogs", "pets", "school", "math", "ski", "teacher", "brother"]
    for split in ("train", "valid", "test"):
        pairs = [
            {"context": ["hello !", f"the {word} ?"] if n % 4 == 0 else f"the {word} ?", "response": f"my {word} ."}
            for n, word in enumerate(words)
        ]
        write(tmp_path / f"{split}.jsonl", pairs)
    make_convert_ranker(extra_contexts=3).save_pretrained(tmp_path / "start")
    options = {"task": "selection:jsonl", "selection_folder": str(tmp_path), "num_negatives": 3, "model": "convert"}
    options |= {"init_model": str(tmp_path / "start"), "dropout": 0.0, "seed": 3, "loglevel": "error"}
    options |= {"max_train_steps": 8, "validation_every_n_epochs": -1, "log_every_n_steps": 1}
    expected, _ = TrainModel.main(**options, batchsize=4, model_file=str(tmp_path / "one"))
    half = {**options, "batchsize": 2, "model_file": str(tmp_path / "two")}
    reports = launched("train_model", half, half)
    curve = losses(tmp_path / "one")
    assert len(curve) == 7  # the last step ends the run before a report
    assert losses(tmp_path / "two") == pytest.approx(curve, rel=1e-4)
    for valid, _ in reports:
        assert float(valid["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-4)


@pytest.mark.long
def test_a_vocabulary_is_trained_before_the_processes_part(options, launched, tmp_path):
    fresh = {**options, "batchsize": 4, "num_epochs": 1.0, "model_file": str(tmp_path / "new"), "loglevel": "error"}
    del fresh["init_model"]
    fresh |= {"embedding_size": 16, "ffn_size": 32, "n_layers": 1, "n_heads": 2, "poly_n_codes": 2}
    first, second = launched("train_model", fresh, fresh)
    assert float(first[0]["exs"]) == float(second[0]["exs"]) == 24
    assert {path.name for path in tmp_path.glob("new*")} >= {"new", "new.dict", "new.tokenizer.json", "new.opt"}


@pytest.mark.long
def test_fixed_candidates_of_two_processes_are_all_labels_of_the_task(options, launched, tmp_path):
    flags = {**options, "batchsize": 4, "num_epochs": 1.0, "loglevel": "error", "model_file": str(tmp_path / "two")}
    flags |= {"candidates": "fixed", "eval_candidates": "fixed"}
    del flags["num_negatives"]
    for valid, _ in launched("train_model", flags, flags):
        assert float(valid["exs"]) == 24
    (written,) = tmp_path.glob("two.cands-*")
    assert sorted(read_candidates(str(written))) == sorted(f"my {animal} is here ." for animal in ANIMALS)


# ---- errors


def test_without_torchrun(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="RANK is not set: start this process with torchrun"):
        launch(["train_model", "-m", "polyencoder"])


@pytest.mark.parametrize("command", [[], ["interactive"]])
def test_another_command(command):
    with pytest.raises(ConfigError, match="the launcher runs train_model and eval_model"):
        launch(command)


def test_an_evaluation_does_not_learn(options, launched, tmp_path):
    model = tmp_path / "model"
    flags = {"task": options["task"], "selection_folder": options["selection_folder"], "model_file": str(model)}
    flags |= {"datatype": "train", "loglevel": "error"}
    for error in launched("eval_model", flags, flags):
        assert error == "-dt train: this would train; evaluate training data as train:evalmode"
