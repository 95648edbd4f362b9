"""`polyencoder train` resumes: after a kill, from a checkpoint, with the settings that may change."""

from __future__ import annotations

import json
import shutil

import pytest
from tensorboard.backend.event_processing import event_accumulator

from polyencoder import Ranker
from polyencoder.config import TextConfig
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.training.callbacks.checkpoints import read_checkpoint
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow


def test_it_goes_on_where_it_was(run, arguments, pairs):
    run(*arguments, "--epochs", 2, "--architecture", "bi")
    weights = (pairs / "out" / "polyencoder.safetensors").read_bytes()
    output = run(*arguments, "--epochs", 2, "--architecture", "bi")
    assert (pairs / "out" / "polyencoder.safetensors").read_bytes() == weights
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


@mostly_long(("candidates", "kills"), [("inline", [3, 8]), ("batch", [8])], quick=1)
def test_a_killed_run_that_streams_goes_on_bit_by_bit(run, arguments, pairs, losses, candidates, kills):
    """Two epochs of five batches, from two files, mixed in a buffer that holds a part of them."""
    lines = (pairs / "train.jsonl").read_text().splitlines(keepends=True)
    for name, part in (("one", lines[:30]), ("two", lines[30:])):
        (pairs / f"{name}.jsonl").write_text("".join(part))
    flags = ["--streaming", "--shuffle-buffer", 8, "--epochs", 2, "--architecture", "bi", "--candidates", candidates]
    flags += ["--train", f"{pairs}/one.jsonl,{pairs}/two.jsonl", "--num-negatives", 3, "--save-every-seconds", 0]
    unbroken = losses(lambda: run(*arguments, *flags, "--out", pairs / "unbroken"))
    assert len(unbroken) == 10
    for kill_after in kills:
        out = ["--out", pairs / f"killed after {kill_after}"]
        begun = losses(lambda out=out: run(*arguments, *flags, *out), kill_after)
        assert begun == unbroken[:kill_after]
        assert losses(lambda out=out: run(*arguments, *flags, *out)) == unbroken[kill_after:]
        weights = [(folder / "polyencoder.safetensors").read_bytes() for folder in (pairs / "unbroken", out[1])]
        assert weights[0] == weights[1]


@pytest.mark.long
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


@pytest.mark.long
def test_the_comparison_is_made_once(run, arguments, pairs, losses):
    """A resumed run says what the first start found, and does not take its own weights for the untrained ones."""
    flags = ["--architecture", "bi", "--epochs", 3, "--save-every-seconds", 0, "--report-to", "tensorboard"]
    losses(lambda: run(*arguments, *flags), 7)
    outputs: list[str] = []
    losses(lambda: outputs.append(run(*arguments, *flags)))
    outputs.append(run(*arguments, *flags, "--out", pairs / "unbroken"))
    models = ("TF-IDF  ", "before training  ", "trained  ")
    rows = [[row for row in output.splitlines() if row.startswith(models)] for output in outputs]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 3
    for out in ("out", "unbroken"):
        events = event_accumulator.EventAccumulator(str(pairs / out / "training" / "tensorboard"))
        events.Reload()
        tracked = {event.step: event.value for event in events.Scalars("train/loss")}
        states = read_checkpoint(pairs / out / "training" / "checkpoint.pt", instead="")["run"]["callbacks"][0]
        recorded = {point["updates"]: point["loss"] for point in states["curve"]["points"]["training"]}
        assert tracked == pytest.approx(recorded), "in one run of the tracker, with the figures of the record"


@pytest.mark.long
def test_a_length_that_is_given_only_on_restart_is_noticed(run, arguments, pairs):
    """The run trains a ranker on, whose lengths differ from a new ranker's."""
    flags = ["--architecture", "bi", "--epochs", 1]
    run(*arguments, *flags, "--history-size", 3)
    start = [part for part in arguments[3:] if part not in ("--reduction", "mean")]
    start[start.index("--out") + 1] = pairs / "again"
    again = ["train", "--init", pairs / "out", *start, *flags]
    run(*again)
    run(*again, "--history-size", 3)  # the same, given
    with pytest.raises(CheckpointError, match="was begun with history_size 3, not 20;"):
        run(*again, "--history-size", TextConfig.history_size)


def test_a_model_that_is_there_stays(run, arguments, pairs):
    run(*arguments, "--architecture", "bi", "--epochs", 1)
    shutil.rmtree(pairs / "out" / "training")
    before = (pairs / "out" / "polyencoder.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="holds a model, but no run to resume"):
        run(*arguments, "--architecture", "bi", "--epochs", 2)
    assert (pairs / "out" / "polyencoder.safetensors").read_bytes() == before


def test_a_run_that_reaches_its_end_has_not_ended_early(run, arguments):
    """Though its last evaluation is one too many that is no better."""
    flags = ["--architecture", "bi", "--learning-rate", 1e-9, "--patience", 1, "--evaluations", 2]
    assert "ended early" not in run(*arguments, *flags, "--epochs", 1)
    assert "ended early" not in run(*arguments, *flags, "--epochs", 1)  # nor when it is started again


def test_a_stream_resumes_without_the_bad_record_that_ended_it(run, arguments, pairs, losses, monkeypatch):
    """A label that the objective cannot read, behind what is checked before training."""
    monkeypatch.setattr("polyencoder.training.data.CHECKED", 20)
    monkeypatch.setattr("polyencoder.training.run.SAMPLE", 20)
    bad = {"context": "hi", "candidates": ["my cat .", "my dogs ."], "labels": [2, 0]}
    lines = (pairs / "train.jsonl").read_text().splitlines(keepends=True)
    (pairs / "train.jsonl").write_text("".join([*lines[:48], json.dumps(bad) + "\n", *lines[48:]]))
    flags = ["--streaming", "--shuffle-buffer", 8, "--epochs", 2, "--architecture", "bi", "--candidates", "inline"]
    flags += ["--objective", "bce", "--num-negatives", 3, "--save-every-seconds", 0]
    whole = losses(lambda: run(*arguments, *flags, "--skip-bad-examples", "--out", pairs / "unbroken"))
    with pytest.raises(InputError, match="train.jsonl, line 49: objective bce .* leave out such records"):
        run(*arguments, *flags)
    resumed = losses(lambda: run(*arguments, *flags, "--skip-bad-examples"))
    assert 0 < len(resumed) < len(whole)  # from its last checkpoint to its end
    assert (pairs / "out" / "polyencoder.safetensors").is_file()
