"""`polyencoder train` under a real torchrun: two processes learn what one learns, from a stream or not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.commands import invoke
from tests.model_folders import weights_in
from tests.polyencoder.cli.conftest import THINGS

pytestmark = [pytest.mark.usefixtures("forked_commands"), pytest.mark.slow]

KILLED = "tests.polyencoder.cli.killed"


@pytest.fixture
def folder(tmp_path, backbone_folder, edit_json):
    """Twenty pairs, and an encoder without dropout, which each process draws for itself."""
    records = [
        {"context": ["hello !", f"{greeting} {word} ?"], "response": f"my {word} is {greeting} ."}
        for word in THINGS
        for greeting in ("today", "great")
    ]
    for name in ("train", "valid"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    shutil.copytree(backbone_folder("bert"), tmp_path / "encoder")
    edit_json(tmp_path / "encoder" / "config.json", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    # of weights as small as BERT's, all vectors of so narrow an encoder are nearly alike, and rounding would rank
    weights = load_file(tmp_path / "encoder" / "model.safetensors")
    larger = {name: weight * 10 if weight.ndim == 2 else weight for name, weight in weights.items()}
    save_file(larger, tmp_path / "encoder" / "model.safetensors", metadata={"format": "pt"})
    return tmp_path


def arguments(folder, out: str, *more: object) -> list[str]:
    flags = ["--backbone", folder / "encoder", "--train", folder / "train.jsonl", "--valid", folder / "valid.jsonl"]
    flags += ["--out", folder / out, "--architecture", "bi", "--device", "cpu", "--fine-tuned", "all", "--epochs", 3]
    flags += ["--optimizer", "sgd", "--learning-rate", 0.2, "--evaluations", 0.1, "--num-negatives", 5]
    flags += ["--text-truncate", 24, "--label-truncate", 16, *more]
    return ["train", *map(str, flags)]


def two_processes(*command: str, module: str = "polyencoder.cli.main", **more: str) -> subprocess.CompletedProcess[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = {"capture_output": True, "text": True, "check": False, "timeout": 150, "env": {**os.environ, **more}}
    return subprocess.run([*torchrun, "-m", module, *command], **options)


def test_two_processes_learn_what_one_does(folder):
    alone = invoke(*arguments(folder, "one", "--batch-size", 10))
    assert alone.exit_code == 0, alone.output
    done = two_processes(*arguments(folder, "two", "--batch-size", 5))
    assert done.returncode == 0, done.stderr
    assert "Loading weights" not in done.stderr  # transformers' bar, which is for terminals
    rows, expected = ([row for row in result.stdout.splitlines() if " R6@1 " in row] for result in (done, alone))
    assert rows == expected  # by the first of them alone
    before, after = (float(row.split()[-1]) for row in rows[1:])
    assert after > 2 * before  # it has learned: of scores that are nearly equal, rounding would decide
    expected_weights, actual_weights = (weights_in(folder / name) for name in ("one", "two"))
    assert expected_weights.keys() == actual_weights.keys()
    for name, weights in expected_weights.items():
        assert actual_weights[name].allclose(weights, rtol=1e-3, atol=1e-5), name


@pytest.mark.long
def test_two_processes_share_a_stream_and_go_on_with_it(folder):
    flags = ["--streaming", "--shuffle-buffer", "4", "--candidates", "inline", "--batch-size", "5"]
    done = two_processes(*arguments(folder, "stream", *flags))
    assert done.returncode == 0, done.stderr
    assert "in 6 updates" in done.stdout  # of ten examples each: three epochs
    weights = (folder / "stream" / "polyencoder.safetensors").read_bytes()
    again = two_processes(*arguments(folder, "stream", *flags))
    assert again.returncode == 0, again.stderr
    assert "resumed from" in again.stderr
    assert (folder / "stream" / "polyencoder.safetensors").read_bytes() == weights


@pytest.mark.long
def test_two_processes_that_were_killed_end_with_the_weights_of_a_whole_run(folder):
    """Each process mines among the labels of its own examples."""
    flags = ["--batch-size", "4", "--hard-negatives", "2", "--hard-negatives-every", "2", "--evaluations", "1"]
    done = two_processes(*arguments(folder, "whole", *flags))
    assert done.returncode == 0, done.stderr
    killed = two_processes(*arguments(folder, "killed", *flags), module=KILLED, KILLED_AFTER="5")
    assert killed.returncode != 0
    again = two_processes(*arguments(folder, "killed", *flags))
    assert again.returncode == 0, again.stderr
    assert "resumed from" in again.stderr
    expected, actual = (last_weights(folder / name) for name in ("whole", "killed"))
    assert [name for name, tensor in expected.items() if not tensor.equal(actual[name])] == []


def last_weights(out) -> dict[str, torch.Tensor]:
    return torch.load(out / "training" / "checkpoint.pt", weights_only=True)["run"]["model"]
