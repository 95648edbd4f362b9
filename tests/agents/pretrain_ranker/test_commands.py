"""`parlai train_model -m pretrain_ranker` and what is done with what it writes."""

from __future__ import annotations

import json
import re
import shlex
import shutil

import pytest
import torch
from parlai.scripts.display_model import DisplayModel
from parlai.scripts.eval_model import EvalModel
from parlai.scripts.interactive import Interactive
from safetensors.torch import load_file

from polyencoder.checkpoint import read_states
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.modeling.loading import load_pretrained
from polyencoder.ranker import Ranker
from tests.agents.pretrain_ranker.conftest import SIZES

pytestmark = pytest.mark.slow

MEASURES = ("loss", "ppl", "masked_loss", "masked_accuracy", "next_loss", "next_accuracy")


def plain(shown: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", shown)


def evaluated(path, task, **options) -> dict[str, float]:
    defaults = {**task, "datatype": "valid", "batchsize": 7, "loglevel": "error"}
    report = EvalModel.main(model_file=str(path), **{**defaults, **options})
    return {name: float(value) for name, value in report.items()}


def test_a_learnable_task_is_learned(fitted):
    path, report = fitted
    first, *_ = json.loads(path.with_name("model.trainstats").read_text())["valid_reports"]
    assert report["ppl"] < 2.5 < first["ppl"]
    assert report["masked_accuracy"] > 0.6
    assert report["loss"] == pytest.approx(report["masked_loss"] + report["next_loss"])
    assert report["ppl"] == pytest.approx(torch.tensor(report["masked_loss"]).exp().item(), rel=1e-4)
    assert path.with_name("model.png").read_bytes().startswith(b"\x89PNG")


def test_eval_model_repeats_the_last_validation_in_batches_of_any_size(fitted, task):
    path, report = fitted
    again = evaluated(path, task)
    assert {name: again[name] for name in MEASURES} == pytest.approx(
        {name: report[name] for name in MEASURES}, rel=1e-4
    )
    other = evaluated(path, task, batchsize=3)
    for name in ("masked_loss", "masked_accuracy", "ppl"):  # which responses are known for the others depends on it
        assert other[name] == pytest.approx(report[name], rel=1e-4)


def test_a_choice_from_one_response_is_not_measured(learn, task, tmp_path, capsys):
    """Every model would be right."""
    path = tmp_path / "model"
    learn(path, next="contrastive", num_epochs=1.0)
    among, alone = (evaluated(path, task, batchsize=size) for size in (7, 1))
    assert among["next_loss"] > 0.5
    assert set(MEASURES) - set(alone) == {"loss", "next_loss", "next_accuracy"}
    assert alone["masked_loss"] == pytest.approx(among["masked_loss"], rel=1e-4)
    capsys.readouterr()
    DisplayModel.main(model_file=str(path), **task, datatype="valid", num_examples=1)
    shown = plain(capsys.readouterr().out)
    assert "masked words: " in shown
    assert "follows" not in shown


def test_several_tasks_each_have_their_measures(fitted, task):
    path, report = fitted
    found = evaluated(path, {**task, "task": f"{task['task']},integration_tests:nocandidate"})
    assert found["fromfile/ppl"] == pytest.approx(report["ppl"], rel=1e-4)
    assert found["integration_tests:nocandidate/ppl"] > found["fromfile/ppl"]


def test_display_model_shows_words_and_how_likely_responses_follow(fitted, task, capsys):
    path, _ = fitted
    DisplayModel.main(model_file=str(path), num_examples=6, loglevel="error", **task)
    shown = re.findall(r"labels: (.*)\n\s*model: (.*)", plain(capsys.readouterr().out))
    assert len(shown) == 6
    for label, said in shown:
        assert re.match(r"masked words: .+; follows: \d+% ", said)
        assert repr(label) in said


def test_it_has_no_answers(fitted):
    with pytest.raises(ConfigError, match=r"gives no answers: train a ranker from it, with --backbone"):
        Interactive.main(model_file=str(fitted[0]), loglevel="error")


# ---- what rankers begin with


def test_the_folder_beside_the_model_is_its_encoder(fitted):
    path, report = fitted
    folder = path.with_name("model.encoder")
    encoder, heads, states = load_pretrained(folder), load_file(folder / "heads.safetensors"), read_states(path)
    for name, tensor in encoder.state_dict().items():
        assert tensor.equal(states["model"][f"tower.{name}"]), name
    assert heads["next_utterance.weight"].equal(states["model"]["linear.weight"])
    assert heads["masked_words.bias"].equal(states["masked_words"]["bias"])
    card = (folder / "README.md").read_text()
    updates = states["number_training_updates"]
    assert f"| trained for | {updates:,} updates, " in card
    assert f"perplexity {report['ppl']:.1f}" in card
    assert "| corpus | fromfile |" in card
    assert "`--embedding-size` | `32`" in card
    assert str(path.parent) not in card


def test_the_command_at_its_end_makes_a_ranker_of_it(make, vocabulary, train, tmp_path):
    options = {"next": "contrastive", "reduction_type": "mean", "model_file": str(tmp_path / "model"), **SIZES}
    agent = make(vocabulary=vocabulary, **options)
    agent.save()
    (line,) = agent.what_next()
    model, flags = line.removeprefix("make a ranker of it: parlai train_model -m ").split(maxsplit=1)
    words = shlex.split(flags.removesuffix(" -t TASK -mf FILE"))
    given = {
        name.removeprefix("--").replace("-", "_"): value for name, value in zip(words[::2], words[1::2], strict=True)
    }
    assert given["type_optimization"] == "all"
    train(model, tmp_path / "ranker", num_epochs=1.1, validation_every_n_epochs=1.0, **given)
    config = Ranker.from_pretrained(tmp_path / "ranker", device="cpu").model.config
    assert (config.architecture, config.reduction) == ("bi", "mean")
    assert config.output_scaling == pytest.approx(SIZES["embedding_size"] ** -0.25, rel=1e-3)


def test_rankers_begin_with_the_model_file_too(fitted, make, task):
    """But not with the lengths of pre-training, in which context and response share the positions."""
    path = str(fitted[0])
    ranker = make(model="biencoder", init_model=path).ranker
    assert (ranker.config.text.text_truncate, ranker.config.text.label_truncate) == (48, 48)
    weights = read_states(path)["model"]
    name = "embeddings.word_embeddings.weight"
    assert ranker.state_dict()[f"context_tower.model.{name}"].equal(weights[f"tower.model.{name}"])


# ---- what goes on


def test_a_backbone_goes_on_with_its_heads(fitted, learn, task, tmp_path):
    folder = str(fitted[0].with_name("model.encoder"))
    path = tmp_path / "more"
    report, _ = learn(path, backbone=folder, num_epochs=0.2, learningrate=1e-12, validation_every_n_epochs=0.2)
    for name in MEASURES:
        assert report[name] == pytest.approx(fitted[1][name], rel=1e-3), name
    assert "| began as | model.encoder |" in (tmp_path / "more.encoder" / "README.md").read_text()


@pytest.mark.parametrize("start", ["its own", "a ranker"])
def test_an_initial_model_goes_on(start, fitted, learn, make_agent, tmp_path):
    """Of a pre-training with both heads; of a ranker, whose vocabulary may have no mask token, with new ones."""
    origin = fitted[0]
    if start == "a ranker":
        origin = tmp_path / "ranker"
        make_agent("biencoder", n_positions=48, text_truncate=30).save(str(origin))
    options = {"init_model": str(origin), "num_epochs": 0.2, "learningrate": 1e-12, "validation_every_n_epochs": 0.2}
    report, _ = learn(tmp_path / "more", **options)
    if start == "its own":
        assert report["loss"] == pytest.approx(fitted[1]["loss"], rel=1e-3)
    else:
        assert report["masked_accuracy"] < 0.3
    assert load_pretrained(tmp_path / "more.encoder").dim == 32
    assert str(origin) not in (tmp_path / "more.encoder" / "README.md").read_text()


def test_another_model_does_not_go_on(make_agent, make, tmp_path):
    make_agent("crossencoder", n_positions=64).save(str(tmp_path / "cross"))
    with pytest.raises(CheckpointError, match=r"has no head for masked words: pre-train its encoder with --init-model"):
        make(model_file=str(tmp_path / "cross"))
    make_agent("biencoder").save(str(tmp_path / "bi"))
    with pytest.raises(CheckpointError, match=r"holds a ranker: pre-train its encoder further with --init-model"):
        make(model_file=str(tmp_path / "bi"))


# ---- options of the loop


@pytest.mark.parametrize(
    "options",
    [
        {"dynamic_batching": "full", "eval_dynamic_batching": "off", "batchsize": 1, "text_truncate": 24},
        {"update_freq": 2, "gradient_clip": 1.0, "final_learning_rate": 1e-4, "lr_scheduler": "linear"},
        {"bf16": True, "optimizer": "adam"},
        {"fp16": True},
        {"datatype": "train:stream"},
        {"lr_scheduler": "reduceonplateau", "validation_metric": "next_accuracy", "validation_cutoff": 1.0},
        {"mask_probability": 0.3, "history_size": 1, "text_truncate": 20},
        {"special_tok_lst": "a,b"},
        {"next": "contrastive", "reduction_type": "mean"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_it_learns_as_other_agents_do(options, learn, tmp_path):
    report, _ = learn(tmp_path / "model", **{"num_epochs": 3.1, "validation_every_n_epochs": 1.5, **options})
    stats = json.loads((tmp_path / "model.trainstats").read_text())
    first, *_, last = (one["masked_loss"] for one in stats["valid_reports"])
    assert 0 < report["masked_loss"] < 4.5  # an untrained encoder's is 4.7
    assert last < first


def test_a_metric_that_is_none(learn, tmp_path):
    with pytest.raises(ConfigError, match=r"--validation-metric hits@1: validations report no such metric; there are"):
        learn(tmp_path / "model", validation_metric="hits@1", num_epochs=1.1, validation_every_n_epochs=0.5)


def test_bad_examples_are_an_error_or_skipped_and_counted(make_task, learn, task, tmp_path, vocabulary):
    good = [{"text": f"where is number {n} ?", "labels": f"number {n} is here ."} for n in range(6)]
    episodes = [[turn] for turn in good] + [[{"text": "and what is this ?", "labels": ""}]]
    options = make_task(tmp_path, train=episodes, valid=[[turn] for turn in good], test=[[turn] for turn in good])
    with pytest.raises(InputError, match=r"has no label to train on\. To skip and count such examples set"):
        learn(tmp_path / "model", **options, batchsize=7, num_epochs=1.0)
    learn(tmp_path / "other", **options, ignore_bad_candidates=True, batchsize=7, num_epochs=3.0)


def test_a_folder_that_cannot_be_written(learn, tmp_path):
    (tmp_path / "model.encoder").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"model\.encoder"):
        learn(tmp_path / "model", num_epochs=1.0, validation_every_n_epochs=-1)


def test_the_same_command_has_nothing_more_to_do(fitted, learn, tmp_path):
    for file in fitted[0].parent.iterdir():
        copy = shutil.copytree if file.is_dir() else shutil.copy
        copy(file, tmp_path / file.name)
    before = (tmp_path / "model").read_bytes()
    report, _ = learn(tmp_path / "model")
    assert report["loss"] == pytest.approx(fitted[1]["loss"], rel=1e-6)
    assert (tmp_path / "model").read_bytes() == before


def test_a_warm_up_is_six_percent_of_the_run(make, vocabulary):
    assert make(max_train_steps=1_000, vocabulary=vocabulary, **SIZES).opt["warmup_updates"] == 60
