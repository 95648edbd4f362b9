"""`polyencoder train` and `evaluate`: from a file of pairs to a model folder, without ParlAI."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from contextlib import suppress

import pytest

from polyencoder import Ranker
from polyencoder.cli.main import flags_of
from polyencoder.cli.train import _next
from polyencoder.config import TextConfig
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.settings.fields import leaves
from polyencoder.settings.pretrain import PretrainingSettings
from polyencoder.settings.train import TrainSettings
from polyencoder.training.trainer import Trainer
from tests.commands import run_command

pytestmark = pytest.mark.slow

# words that the tiny tokenizer knows
THINGS = ["dogs", "cat", "teacher", "math", "school", "ski", "mountains", "brother", "pets", "living"]
LR = 0.01
KINDS = ["today", "great", "fine", "high", "two"]


@pytest.fixture
def run():
    def run(*arguments):
        """Numbers of codes are a poly-encoder's."""
        words = [*arguments]
        kind = words[words.index("--architecture") + 1] if "--architecture" in words else "--config" not in words
        if kind not in ("poly", True) and 4 in words:
            place = words.index("--n-codes")
            del words[place : place + 2]
        return run_command(*words).output

    return run


@pytest.fixture
def pairs(tmp_path):
    """Files in which the right response repeats two words of the context."""
    records = [
        {"context": ["hello !", f"do you like {thing} {kind} ?"], "response": f"my {thing} is {kind} ."}
        for thing in THINGS
        for kind in KINDS
    ]
    for name, part in (("train", records), ("valid", records[::5])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in part))
    return tmp_path


@pytest.fixture
def arguments(pairs, backbone_folder):
    return [
        *("train", "--backbone", backbone_folder("bert"), "--train", pairs / "train.jsonl"),
        *("--valid", pairs / "valid.jsonl", "--out", pairs / "out", "--batch-size", 10, "--learning-rate", LR),
        *(
            "--text-truncate",
            24,
            "--label-truncate",
            16,
            "--n-codes",
            4,
            "--reduction",
            "mean",
            "--fine-tuned",
            "all",
            "--device",
            "cpu",
        ),
    ]


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross", "late"])
def test_a_model_that_can_be_used(run, arguments, pairs, architecture):
    length = ["--epochs", 2] if architecture == "cross" else ["--epochs", 30, "--patience", 100]
    output = run(*arguments, "--architecture", architecture, *length)
    assert "before training" in output
    assert ("of a bi-encoder of the backbone" in output) == (architecture in ("poly", "cross"))
    assert "training gained" in output
    ranker = Ranker.from_pretrained(pairs / "out", device="cpu")
    assert ranker.model.config.architecture == architecture
    assert "`--learning-rate` | `0.01`" in (pairs / "out" / "README.md").read_text()
    asked = ["--data", pairs / "valid.jsonl", "--json", "--num-negatives", 9]
    report = json.loads(run("evaluate", "--model", pairs / "out", *asked))
    assert report["examples"] == report["drawn"] == 10
    assert report["loss"] > 0
    if architecture != "cross":  # which learns too slowly for a test
        assert report["hits@1"] > 0.4


def test_the_papers_variants(run, arguments, pairs):
    variants = ("--context-vectors", "n_last", "--reduction", "mean_first", "--reduction-outputs", 3)
    run(*arguments, *variants, "--turn-separator", "newline", "--betas", "0.8,0.99", "--max-updates", 2)
    config = Ranker.from_pretrained(pairs / "out", device="cpu").model.config
    assert (config.context_vectors, config.reduction, config.reduction_outputs) == ("n_last", "mean_first", 3)
    assert config.text.separator == "[NEWLINE]"
    assert TrainSettings(train="a", out="b", backbone="c", betas="0.8,0.99").training.optimizer.betas == (0.8, 0.99)


def test_a_poly_encoder_with_multihead_attention(run, arguments, pairs):
    """It is compared with a bi-encoder, which has no such attention."""
    heads = [word for name in ("poly", "codes") for word in (f"--{name}-attention", "multihead")]
    heads += ["--poly-attention-heads", 2, "--codes-attention-heads", 8]
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
    asked = ["--data", pairs / "valid.jsonl", "--negatives", pairs / "train.jsonl", "--seed", 3, "--json"]
    report = json.loads(run("evaluate", "--model", pairs / "out", *asked))
    assert f"{report['R20@1']:.3f}" == trained
    assert "tfidf" not in report
    tfidf = next(line for line in output.splitlines() if line.startswith("TF-IDF ")).split()[-1]
    report = json.loads(run("evaluate", "--model", pairs / "out", *asked, "--baseline", "tfidf"))
    assert f"{report['tfidf']['R20@1']:.3f}" == tfidf
    said = run("evaluate", "--model", pairs / "out", *asked[:-1], "--baseline", "tfidf", "--hits-at", 2)
    assert said.splitlines()[1].startswith("TF-IDF, of the last turn: R20@2 ")
    with pytest.raises(ConfigError, match="baseline is 'bm25'; it must be tfidf"):
        run("evaluate", "--model", pairs / "out", *asked, "--baseline", "bm25")
    card = (pairs / "out" / "README.md").read_text()
    assert f"{report['mrr']:.4g}"[:5] in card


def test_a_run_that_makes_its_model_worse_warns_and_keeps_the_one_before(arguments, pairs):
    run_command(*(part for part in arguments if part not in ("--n-codes", 4)), "--architecture", "bi")
    before = (pairs / "out" / "model.safetensors").read_bytes()
    begun = [part for part in arguments if part not in ("--n-codes", 4, "--reduction", "mean")]
    begun[1:3], begun[begun.index("--out") + 1] = ["--init", pairs / "out"], pairs / "worse"
    begun[begun.index("--learning-rate") + 1] = 3.0
    result = run_command(*begun, "--architecture", "bi", "--epochs", 1)
    assert "warning: the trained model is no better than before: R@1 -0." in result.stderr
    assert "are few: give more epochs" in result.stderr
    assert "try a lower learning_rate than 3" in result.stderr
    assert "kept: the model before training" in result.stdout
    assert (pairs / "worse" / "model.safetensors").read_bytes() == before


def test_it_goes_on_where_it_was(run, arguments, pairs):
    run(*arguments, "--epochs", 2, "--architecture", "bi")
    weights = (pairs / "out" / "model.safetensors").read_bytes()
    output = run(*arguments, "--epochs", 2, "--architecture", "bi")
    assert (pairs / "out" / "model.safetensors").read_bytes() == weights
    assert "training gained" in output
    with pytest.raises(CheckpointError, match=r"was begun with epochs 2\.0, not 3\.0"):
        run(*arguments, "--epochs", 3, "--architecture", "bi")
    with pytest.raises(CheckpointError, match="was begun with max_updates None, not 9; .* another folder .init .*out"):
        run(*arguments, "--max-updates", 9, "--architecture", "bi")
    lines = (pairs / "train.jsonl").read_text().splitlines(keepends=True)
    for changed, message in ((lines[1:], "data '50 pairs, .*, not '49 pairs, "), (lines[::-1], "data '50 pairs, ")):
        (pairs / "train.jsonl").write_text("".join(changed))
        with pytest.raises(CheckpointError, match=message):
            run(*arguments, "--epochs", 2, "--architecture", "bi")


def test_a_limit_of_time_may_be_raised(run, arguments, pairs):
    flags = ["--epochs", 2, "--architecture", "bi"]
    assert "in 10 updates" not in run(*arguments, *flags, "--max-seconds", 1e-6)
    assert "in 10 updates" in run(*arguments, *flags, "--max-seconds", 1e6)


def test_a_yaml_file_holds_settings_and_flags_go_before_it(run, arguments, pairs):
    (pairs / "run.yaml").write_text("architecture: bi\nepochs: 1\nseed: 7\nlearning-rate: 1.0\n")
    run(*arguments, "--config", pairs / "run.yaml")
    settings = json.loads(json.dumps(Ranker.from_pretrained(pairs / "out", device="cpu").model.config.architecture))
    assert settings == "bi"
    card = (pairs / "out" / "README.md").read_text()
    assert "`0.01`" in card  # the flag, not the file's


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 3\n", "unknown setting 'epoch'; did you mean 'epochs'"),
        ("- 3\n", "must hold `name: value` lines"),
        ("a: [\n", "not YAML"),
    ],
)
def test_a_yaml_file_that_cannot_be_used(run, arguments, pairs, text, message):
    (pairs / "run.yaml").write_text(text)
    with pytest.raises((ConfigError, InputError), match=message):
        run(*arguments, "--config", pairs / "run.yaml")


def test_hard_negatives_distillation_and_held_out_data(run, arguments, pairs, backbone_folder):
    run(*arguments, "--architecture", "bi", "--epochs", 1)
    valid = arguments.index("--valid")
    others = [*arguments[:valid], *arguments[valid + 2 :]]
    others[others.index("--out") + 1] = pairs / "student"
    flags = ["--teacher", pairs / "out", "--hard-negatives", 2, "--hard-negatives-every", 3, "--epochs", 2]
    run(*others, *flags, "--architecture", "poly")
    assert (pairs / "student" / "training" / "teacher.sqlite").is_file()


class Killed(BaseException):
    """What ends a run in the midst of it."""


@pytest.fixture
def losses(monkeypatch):
    """(function, kill_after=None) -> the mean loss of each step that it makes, until it is killed."""
    step = Trainer.step

    def record(function, kill_after=None) -> list[float]:
        seen: list[float] = []

        def observed(self, batch):
            if len(seen) == kill_after:
                raise Killed
            outcome = step(self, batch)
            seen.append(float(outcome.losses.mean()))
            return outcome

        monkeypatch.setattr(Trainer, "step", observed)
        with suppress(Killed):
            function()
        return seen

    return record


@pytest.mark.parametrize(("candidates", "kill_after"), [("batch", 8), ("inline", 3), ("inline", 8)])
def test_a_killed_run_that_streams_goes_on_bit_by_bit(run, arguments, pairs, losses, candidates, kill_after):
    """Two epochs of five batches, from two files, mixed in a buffer that holds a part of them."""
    lines = (pairs / "train.jsonl").read_text().splitlines(keepends=True)
    for name, part in (("one", lines[:30]), ("two", lines[30:])):
        (pairs / f"{name}.jsonl").write_text("".join(part))
    flags = ["--streaming", "--shuffle-buffer", 8, "--epochs", 2, "--architecture", "bi", "--candidates", candidates]
    flags += ["--train", f"{pairs}/one.jsonl,{pairs}/two.jsonl", "--num-negatives", 3, "--save-every-seconds", 0]
    unbroken = losses(lambda: run(*arguments, *flags, "--out", pairs / "unbroken"))
    assert len(unbroken) == 10
    begun = losses(lambda: run(*arguments, *flags), kill_after)
    assert begun == unbroken[:kill_after]
    assert losses(lambda: run(*arguments, *flags)) == unbroken[kill_after:]
    weights = [(pairs / name / "model.safetensors").read_bytes() for name in ("unbroken", "out")]
    assert weights[0] == weights[1]


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


def test_what_is_streamed_is_read_again_and_not_held_out(run, arguments, pairs):
    os.mkfifo(pairs / "pipe")
    with pytest.raises(InputError, match="pipe: cannot be read again in each epoch"):
        run(*arguments, "--streaming", "--train", pairs / "pipe")
    valid = arguments.index("--valid")
    with pytest.raises(ConfigError, match=r"streamed data cannot be split: give validation data \(valid\)"):
        run(*arguments[:valid], *arguments[valid + 2 :], "--streaming")


@pytest.mark.parametrize("streaming", [[], ["--streaming"]])
def test_bad_records_end_a_run_or_are_left_out(run, arguments, pairs, streaming):
    with open(pairs / "train.jsonl", "a") as file:
        file.write('{"context": "hi"}\n')
    flags = ["--epochs", 2, "--architecture", "bi", *streaming]
    with pytest.raises(InputError, match=r"train.jsonl, line 51: has no 'response'"):
        run(*arguments, *flags)
    said = run(*arguments, *flags, "--skip-bad-examples", "--out", pairs / "other")
    assert "1 bad record was left out; the first: " in said


def test_an_output_scaling_that_is_measured_comes_back_with_a_checkpoint(run, arguments, pairs, losses):
    flags = ["--output-scaling", "auto", "--architecture", "bi", "--epochs", 2, "--save-every-seconds", 0]
    unbroken = losses(lambda: run(*arguments, *flags, "--out", pairs / "unbroken"))
    losses(lambda: run(*arguments, *flags), 4)
    assert losses(lambda: run(*arguments, *flags)) == unbroken[4:]
    scalings = [
        Ranker.from_pretrained(pairs / name, device="cpu").model.config.output_scaling for name in ("unbroken", "out")
    ]
    assert scalings[0] == scalings[1] != 1.0
    with pytest.raises(ConfigError, match="output_scaling is 'auto', but vectors are normalized"):
        run(*arguments, *flags, "--normalize", "--out", pairs / "other")


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


def test_the_comparison_is_made_once(run, arguments, pairs, losses):
    """A run that goes on says what the first start found, and does not take its own weights for the untrained ones."""
    flags = ["--architecture", "bi", "--epochs", 6, "--save-every-seconds", 0]
    losses(lambda: run(*arguments, *flags), 12)
    outputs: list[str] = []
    losses(lambda: outputs.append(run(*arguments, *flags)))
    outputs.append(run(*arguments, *flags, "--out", pairs / "unbroken"))
    rows = [[row for row in output.splitlines() if " R20@1 " in row and row[0].isalpha()] for output in outputs]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 3


def test_a_ranker_that_is_trained_on_keeps_its_architecture_and_may_get_other_lengths(run, arguments, pairs):
    run(*arguments, "--architecture", "poly", "--epochs", 1)
    start = arguments[3:]
    start = [part for part in start if part not in ("--n-codes", 4, "--reduction", "mean")]
    start[start.index("--out") + 1] = pairs / "again"
    start[start.index("--text-truncate") + 1] = 20
    run("train", "--init", pairs / "out", *start, "--context-prompt", "hi ! ", "--epochs", 1)
    config = Ranker.from_pretrained(pairs / "again", device="cpu").model.config
    assert (config.n_codes, config.reduction, config.text.text_truncate) == (4, "mean", 20)
    assert (config.text.context_prompt, config.text.candidate_prompt) == ("hi ! ", "")
    with pytest.raises(ConfigError, match="n_codes is not read with init: give one of them"):
        run("train", "--init", pairs / "out", *start, "--n-codes", 8)


def test_a_cross_encoder_starts_from_a_bi_encoder(run, arguments, pairs):
    """With its encoder, pooling and lengths; before training stands the bi-encoder, which has learned."""
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
    weights = (pairs / "cross" / "model.safetensors").read_bytes()
    run("train", "--backbone", pairs / "out", *start, *flags)  # which is over, and knows it
    assert (pairs / "cross" / "model.safetensors").read_bytes() == weights
    with pytest.raises(ConfigError, match="bi, not cross: give its own, or start a new model .* with backbone"):
        run("train", "--init", pairs / "out", *start, *flags, "--out", pairs / "other")


def test_a_length_that_is_given_only_on_restart_is_noticed(run, arguments, pairs):
    """Of a run that trains a ranker on, whose lengths are other ones than a new ranker's."""
    flags = ["--architecture", "bi", "--epochs", 1]
    run(*arguments, *flags, "--history-size", 3)
    start = [part for part in arguments[3:] if part not in ("--n-codes", 4, "--reduction", "mean")]
    start[start.index("--out") + 1] = pairs / "again"
    again = ["train", "--init", pairs / "out", *start, *flags]
    run(*again)
    run(*again, "--history-size", 3)  # the same, said
    with pytest.raises(CheckpointError, match="was begun with history_size 3, not 20;"):
        run(*again, "--history-size", TextConfig.history_size)


def test_a_model_that_is_there_stays(run, arguments, pairs):
    run(*arguments, "--architecture", "bi", "--epochs", 1)
    shutil.rmtree(pairs / "out" / "training")
    before = (pairs / "out" / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="holds a model, but no run to resume"):
        run(*arguments, "--architecture", "bi", "--epochs", 2)
    assert (pairs / "out" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("epochs: many", "run.yaml: epochs is 'many'; it must be a number"),
        ("batch_size: 3.5", "run.yaml: batch_size is 3.5; it must be a whole number"),
        ("streaming: perhaps", "run.yaml: streaming is 'perhaps'; it must be true or false"),
        ("schedule: steps", "run.yaml: schedule is 'steps'; it must be one of plateau, linear"),
        ("train: 7", "run.yaml: train is 7; it must be a text"),
        ("seed: true", "run.yaml: seed is True; it must be a whole number"),
        ("output_scaling: much", "run.yaml: output_scaling is 'much'; it must be a number or 'auto'"),
    ],
)
def test_values_of_a_yaml_file_that_cannot_be(run, arguments, pairs, line, message):
    (pairs / "run.yaml").write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=message):
        run(*arguments, "--config", pairs / "run.yaml")


def test_numbers_that_yaml_takes_for_texts():
    values = {"train": "a", "out": "b", "backbone": "c", "learning_rate": "5e-5", "epochs": 3, "patience": None}
    settings = TrainSettings.of(values)
    assert (settings.training.optimizer.learning_rate, settings.training.epochs) == (5e-5, 3.0)
    assert settings.evaluation.patience is None


def test_a_run_that_reaches_its_end_has_not_ended_early(run, arguments):
    """Though its last evaluation is one too many that is no better."""
    flags = ["--architecture", "bi", "--learning-rate", 1e-9, "--patience", 1, "--evaluations", 2]
    assert "ended early" not in run(*arguments, *flags, "--epochs", 1)
    assert "ended early" not in run(*arguments, *flags, "--epochs", 1)  # nor when it is started again


def test_every_setting_has_a_flag_and_every_flag_a_word():
    for command, settings in (("train", TrainSettings), ("pretrain", PretrainingSettings)):
        known = {name: one for name, one in leaves(settings).items() if one.has_flag}
        assert {name.lower() for name in flags_of(command)} == {*known}
        assert all(one.field.metadata.get("help") for one in known.values())


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
    assert _next(shlex.quote("my model"), architecture).startswith(expected)
