"""`polyencoder train` and `evaluate`: from a file of pairs to a model folder, without ParlAI."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from polyencoder import Ranker
from polyencoder.cli.main import get_flags
from polyencoder.cli.train import _suggest_next
from polyencoder.errors import ConfigError, InputError
from polyencoder.settings.fields import get_leaves
from polyencoder.settings.pretrain import PretrainingSettings
from polyencoder.settings.train import TrainSettings
from tests.commands import run_command
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow


@mostly_long("architecture", ["poly", "cross", "bi", "late"], quick=2)
def test_a_model_that_can_be_used(run, arguments, pairs, architecture):
    # A late-interaction encoder's loss is 0 in float32 after 30.
    epochs = {"cross": 2, "late": 8}.get(architecture, 20)
    length = ["--epochs", epochs, "--evaluations", 4 / epochs, "--patience", 100]
    output = run(*arguments, "--architecture", architecture, *length)
    assert "before training" in output
    assert ("of a bi-encoder of the backbone" in output) == (architecture in ("poly", "cross"))
    assert re.search(r"training gained .*standard error 0\.\d+: 10 examples", output)
    ranker = Ranker.from_pretrained(pairs / "out", device="cpu")
    assert ranker.model.config.architecture == architecture
    assert "`--learning-rate` | `0.01`" in (pairs / "out" / "README.md").read_text()
    options = ["--data", pairs / "valid.jsonl", "--json", "--num-negatives", 9]
    report = json.loads(run("evaluate", "--model", pairs / "out", *options))
    assert report["examples"] == report["drawn"] == 10
    assert report["loss"] > 0
    if architecture != "cross":  # which learns too slowly for a test
        assert report["hits@1"] > 0.4


@pytest.mark.long
def test_the_papers_variants(run, arguments, pairs):
    variants = ("--context-vectors", "n_last", "--reduction", "mean_first", "--reduction-outputs", 3)
    flags = ("--architecture", "poly", *variants, "--turn-separator", "newline", "--betas", "0.8,0.99")
    run(*arguments, *flags, "--max-updates", 2)
    config = Ranker.from_pretrained(pairs / "out", device="cpu").model.config
    assert (config.context_vectors, config.reduction, config.reduction_outputs) == ("n_last", "mean_first", 3)
    assert config.text.separator == "[NEWLINE]"
    assert TrainSettings(train="a", out="b", backbone="c", betas="0.8,0.99").training.optimizer.betas == (0.8, 0.99)


@pytest.mark.long
def test_a_poly_encoder_with_multihead_attention(run, arguments, pairs):
    """It is compared with a bi-encoder, which has no such attention."""
    heads = [word for name in ("poly", "codes") for word in (f"--{name}-attention", "multihead")]
    heads += ["--architecture", "poly", "--poly-attention-heads", 2, "--codes-attention-heads", 8]
    output = run(*arguments, *heads, "--max-updates", 2)
    assert "of a bi-encoder of the backbone" in output
    config = Ranker.from_pretrained(pairs / "out", device="cpu").model.config
    assert (config.poly_attention, config.poly_attention_heads) == ("multihead", 2)
    assert (config.codes_attention, config.codes_attention_heads) == ("multihead", 8)


def test_an_evaluation_has_the_numbers_of_the_training(run, arguments, pairs):
    """With the same responses to draw from and the same seed: the same candidates."""
    output = run(*arguments, "--architecture", "bi", "--epochs", 6, "--seed", 3)
    assert "kept: the model after" in output  # else the folder has the one before training
    trained = next(line for line in output.splitlines() if line.startswith("trained ")).split()[-1]
    options = ["--data", pairs / "valid.jsonl", "--negatives", pairs / "train.jsonl", "--seed", 3, "--json"]
    report = json.loads(run("evaluate", "--model", pairs / "out", *options))
    assert f"{report['R20@1']:.3f}" == trained
    assert "tfidf" not in report
    tfidf = next(line for line in output.splitlines() if line.startswith("TF-IDF ")).split()[-1]
    report = json.loads(run("evaluate", "--model", pairs / "out", *options, "--baseline", "tfidf"))
    assert f"{report['tfidf']['R20@1']:.3f}" == tfidf
    output = run("evaluate", "--model", pairs / "out", *options[:-1], "--baseline", "tfidf", "--hits-at", 2)
    assert output.splitlines()[1].startswith("TF-IDF, of the last turn: R20@2 ")
    with pytest.raises(ConfigError, match="baseline is 'bm25'; it must be tfidf"):
        run("evaluate", "--model", pairs / "out", *options, "--baseline", "bm25")
    card = (pairs / "out" / "README.md").read_text()
    assert f"{report['mrr']:.4g}"[:5] in card
    assert "## Worst errors" in card


def test_a_run_that_makes_its_model_worse_warns_and_keeps_the_one_before(arguments, pairs):
    run_command(*arguments, "--architecture", "bi")
    before = (pairs / "out" / "polyencoder.safetensors").read_bytes()
    begun = [part for part in arguments if part not in ("--reduction", "mean")]
    begun[1:3], begun[begun.index("--out") + 1] = ["--init", pairs / "out"], pairs / "worse"
    begun[begun.index("--learning-rate") + 1] = 3.0
    result = run_command(*begun, "--architecture", "bi", "--epochs", 1)
    assert "warning: the trained model is no better than before: R20@1 -0." in result.stderr
    assert "are few: give more epochs" in result.stderr
    assert "try a lower learning_rate than 3" in result.stderr
    assert "kept: the model before training" in result.stdout
    assert (pairs / "worse" / "polyencoder.safetensors").read_bytes() == before


def test_the_card_describes_the_kept_model(arguments, pairs):
    """Not the model of the last update, whose score has other weights."""
    begun = [*arguments]
    begun[begun.index("--learning-rate") + 1] = 3.0
    result = run_command(*begun, "--architecture", "late", "--epochs", 1)
    assert "kept: the model before training" in result.stdout
    assert "| 1.00 vectors, 0.00 candidate tokens" in (pairs / "out" / "README.md").read_text()


def test_a_yaml_file_holds_settings_and_flags_go_before_it(run, arguments, pairs):
    (pairs / "run.yaml").write_text("architecture: bi\nepochs: 1\nseed: 7\nlearning-rate: 1.0\n")
    run(*arguments, "--config", pairs / "run.yaml")
    assert Ranker.from_pretrained(pairs / "out", device="cpu").model.config.architecture == "bi"
    card = (pairs / "out" / "README.md").read_text()
    assert "`0.01`" in card  # the flag, not the file's


def test_hard_negatives_distillation_and_held_out_data(run, arguments, pairs, backbone_folder):
    run(*arguments, "--architecture", "bi", "--epochs", 1)
    valid = arguments.index("--valid")
    others = [*arguments[:valid], *arguments[valid + 2 :]]
    others[others.index("--out") + 1] = pairs / "student"
    flags = ["--teacher", pairs / "out", "--hard-negatives", 2, "--hard-negatives-every", 3, "--epochs", 2]
    run(*others, *flags, "--architecture", "poly")
    assert (pairs / "student" / "training" / "teacher.sqlite").is_file()


def test_a_dataset_of_the_hub_is_streamed(run, arguments, pairs, tmp_path, monkeypatch, losses):
    datasets = pytest.importorskip("datasets", reason="needs datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    (pairs / "train.jsonl").rename(tmp_path / "set/train.jsonl")
    flags = ["--train", f"hf:{tmp_path}/set:train", "--epochs", 1, "--architecture", "bi"]
    streamed = losses(lambda: run(*arguments, *flags, "--streaming"))
    assert len(streamed) == 5
    whole = losses(lambda: run(*arguments, *flags, "--out", pairs / "whole"))
    assert len(whole) == 5
    assert streamed != whole  # in another order


def test_bad_records_end_a_run_or_are_left_out(run, arguments, pairs):
    with open(pairs / "train.jsonl", "a") as file:
        file.write('{"context": "hi"}\n')
    flags = ["--epochs", 1, "--architecture", "bi", "--streaming"]
    with pytest.raises(InputError, match=r"train.jsonl, line 51: has no 'response'"):
        run(*arguments, *flags)
    output = run(*arguments, *flags, "--skip-bad-examples", "--out", pairs / "other")
    assert "1 bad record was left out; the first: " in output


@pytest.mark.long
def test_bf16_is_a_precision(run, arguments, pairs, losses):
    flags = ["--architecture", "bi", "--max-updates", 2]
    both = [
        losses(lambda out=out, flag=flag: run(*arguments, *flags, *flag, "--out", pairs / out))
        for out, flag in (("a", ["--bf16"]), ("b", ["--precision", "bfloat16"]), ("c", []))
    ]
    assert both[0] == both[1] != both[2]
    with pytest.raises(ConfigError, match="contradict each other"):
        run(*arguments, "--bf16", "--precision", "float16")


def test_encoders_are_compiled(run, arguments, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="compiling needs a C"):
        run(*arguments, "--architecture", "bi", "--compile")


def test_a_ranker_that_is_trained_on_keeps_its_architecture_and_may_get_other_lengths(run, arguments, pairs):
    run(*arguments, "--architecture", "poly", "--n-codes", 4, "--epochs", 1)
    start = [part for part in arguments[3:] if part not in ("--reduction", "mean")]
    start[start.index("--out") + 1] = pairs / "again"
    start[start.index("--text-truncate") + 1] = 20
    run("train", "--init", pairs / "out", *start, "--context-prompt", "hi ! ", "--epochs", 1)
    config = Ranker.from_pretrained(pairs / "again", device="cpu").model.config
    assert (config.n_codes, config.reduction, config.text.text_truncate) == (4, "mean", 20)
    assert (config.text.context_prompt, config.text.candidate_prompt) == ("hi ! ", "")
    with pytest.raises(ConfigError, match="n_codes is not read with init: give one of them"):
        run("train", "--init", pairs / "out", *start, "--n-codes", 8)


@pytest.mark.long
def test_a_cross_encoder_starts_from_a_bi_encoder(run, arguments, pairs):
    """It keeps the encoder, pooling and lengths; the comparison before training is the trained bi-encoder."""
    fitted = run(*arguments, "--architecture", "bi", "--epochs", 10)
    start = ["--train", pairs / "train.jsonl", "--valid", pairs / "valid.jsonl", "--device", "cpu", "--epochs", 1]
    flags = ["--architecture", "cross", "--batch-size", 10, "--out", pairs / "cross"]
    output = run("train", "--backbone", pairs / "out", *start, *flags)
    (trained,), (before,) = (
        re.findall(rf"^{name} +R20@1 ([.\d]+)", printed, re.M)
        for printed, name in ((fitted, "trained"), (output, "before training"))
    )
    assert before == trained
    ranker = Ranker.from_pretrained(pairs / "cross", device="cpu")
    config = ranker.model.config
    assert (config.architecture, config.reduction, config.text.text_truncate) == ("cross", "mean", 24)
    weights = (pairs / "cross" / "polyencoder.safetensors").read_bytes()
    run("train", "--backbone", pairs / "out", *start, *flags)  # which is over, and knows it
    assert (pairs / "cross" / "polyencoder.safetensors").read_bytes() == weights
    with pytest.raises(ConfigError, match="bi, not cross: give its own, or start a new model .* with backbone"):
        run("train", "--init", pairs / "out", *start, *flags, "--out", pairs / "other")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("epochs: many", "run.yaml: epochs is 'many'; it must be a number"),
        ("train: 7", "run.yaml: train is 7; it must be a text"),
        ("seed: true", "run.yaml: seed is True; it must be a whole number"),
        ("epoch: 3", "unknown setting 'epoch'; did you mean 'epochs'"),
        ("- 3", "must hold `name: value` lines"),
        ("a: [", "not YAML"),
    ],
)
def test_a_yaml_file_that_cannot_be_used(run, arguments, pairs, line, message):
    (pairs / "run.yaml").write_text(f"{line}\n")
    with pytest.raises((ConfigError, InputError), match=message):
        run(*arguments, "--config", pairs / "run.yaml")


def test_numbers_that_yaml_takes_for_texts():
    values = {"train": "a", "out": "b", "backbone": "c", "learning_rate": "5e-5", "epochs": 3, "patience": None}
    settings = TrainSettings.of(values)
    assert (settings.training.optimizer.learning_rate, settings.training.epochs) == (5e-5, 3.0)
    assert settings.evaluation.patience is None


def test_every_setting_has_a_flag_and_every_flag_a_word():
    for command, settings in (("train", TrainSettings), ("pretrain", PretrainingSettings)):
        known = {name: leaf for name, leaf in get_leaves(settings).items() if leaf.has_flag}
        assert {name.lower() for name in get_flags(command)} == {*known}
        assert all(leaf.field.metadata.get("help") for leaf in known.values())


def test_a_response_alone_among_its_candidates_is_no_exam(run, arguments, pairs):
    run(*arguments, "--architecture", "bi", "--epochs", 1)
    (pairs / "one.jsonl").write_text('{"context": "hi", "response": "ho", "candidates": ["ho"]}\n')
    with pytest.raises(InputError, match="is its only candidate"):
        run("evaluate", "--model", pairs / "out", "--data", pairs / "one.jsonl")


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("cross", "polyencoder evaluate --model 'my model' --data FILE, or --rerank 'my model' in polyencoder search"),
        ("poly", "polyencoder index --model 'my model' --candidates FILE --out INDEX"),
    ],
)
def test_the_next_command_suits_the_model_and_its_path(architecture, expected):
    assert _suggest_next(shlex.quote("my model"), architecture).startswith(expected)
