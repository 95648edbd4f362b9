"""`polyencoder pretrain`: from files to an encoder that `train` takes, its errors, and two processes under torchrun."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest

from polyencoder.cli.main import main
from tests.commands import invoke
from tests.parameters import mostly_long
from tests.polyencoder.cli.commands import with_files_once
from tests.polyencoder.cli.conftest import THINGS

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Twenty conversations, pairs, and a vocabulary of these."""
    monkeypatch.chdir(tmp_path)
    both = [(word, how) for word in THINGS for how in ("ok", "mad")]
    talks = [[f"do you like {word} ?", f"my {word} is {how} .", f"{how} {word} !"] for word, how in both]
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps({"turns": talk}) + "\n" for talk in talks))
    pairs = [{"context": talk[:1], "response": talk[1]} for talk in talks]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    fitted = invoke("vocab", "--type", "bpe", "talks.jsonl", "--out", "pieces", "--size", "90")
    assert fitted.exit_code == 0, fitted.output
    return tmp_path


def arguments(out: str, *more: object) -> list[str]:
    flags = ["talks.jsonl", "--vocabulary", "pieces", "--out", out, "--valid", "talks.jsonl", "--device", "cpu"]
    flags += ["--n-layers", 1, "--embedding-size", 16, "--n-heads", 2, "--ffn-size", 32, "--n-positions", 40]
    flags += ["--tokens-per-batch", 320, "--max-steps", 4, *more]
    return ["pretrain", *map(str, with_files_once(flags))]


def test_an_encoder_that_a_ranker_is_made_of(folder):
    result = invoke(*arguments("encoder"))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[-4:-2]] == ["before", "pre-trained"]
    assert "warning: the classifier learned little: masked words have a perplexity of" in result.stderr
    assert "perplexity" in lines[-3]
    assert lines[-2].startswith("4 updates, ")
    assert "tokens/s" in result.output
    train = ["train", "--backbone", "encoder", "--train", "pairs.jsonl", "--valid", "pairs.jsonl", "--out", "ranker"]
    train += ["--architecture", "cross", "--max-updates", "2", "--text-truncate", "20", "--label-truncate", "20"]
    trained = invoke(*train, "--output-scaling", "auto", "--num-negatives", "3")
    assert trained.exit_code == 0, trained.output
    assert (folder / "ranker" / "polyencoder.safetensors").is_file()


@mostly_long("objective", ["yes-no", "contrastive"], quick=1)
def test_the_commands_on_its_card_and_at_its_end_work_as_they_are_written(folder, objective):
    (folder / "my").mkdir()
    for split in ("train", "valid"):
        (folder / "my" / f"{split}.jsonl").write_text((folder / "pairs.jsonl").read_text())
    pretrained = invoke(*arguments("encoder", "--next", objective))
    assert pretrained.exit_code == 0, pretrained.output
    (command,) = re.findall(r"^polyencoder (train .*)$", (folder / "encoder" / "README.md").read_text(), re.MULTILINE)
    trained = invoke(*shlex.split(command))
    assert trained.exit_code == 0, trained.output
    assert json.loads((folder / "runs" / "my" / "polyencoder.json").read_text())["architecture"] == "bi"
    (next_command,) = re.findall(r"Next: polyencoder (train .*)$", pretrained.output, re.MULTILINE)
    words = shlex.split(next_command.replace("FILE", "pairs.jsonl").replace("FOLDER", "next"))
    trained = invoke(*words, "--valid", "pairs.jsonl", "--max-updates", "1")
    assert trained.exit_code == 0, trained.output
    assert json.loads((folder / "next" / "polyencoder.json").read_text())["architecture"] == "bi"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--vocabulary", ""], "give one of vocabulary, .* (flag --vocabulary)"),
        (["--tokens-per-batch", "60"], "tokens_per_batch is 60; .* (flag --tokens-per-batch)"),
        (["--n-heads", "3"], "dim is 16, which is not a multiple of n_heads, 3 .* (flag --embedding-size)"),
        (["--mask-probability", "2"], "mask_probability is 2; .* (flag --mask-probability)"),
        (["--vocabulary", "talks.jsonl"], "vocabulary talks.jsonl: .* (flag --vocabulary)"),
        (["--warmup-steps", "9"], "a warm-up of 9 updates takes the whole run, .* (flag --warmup-steps)"),
        (["--valid", "none.jsonl"], "'none.jsonl': no such file, .*"),
    ],
)
def test_an_error_is_one_line(folder, monkeypatch, capsys, more, message):
    monkeypatch.setattr(sys, "argv", ["polyencoder", *arguments("out", *more)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    *_, line = capsys.readouterr().err.splitlines()
    beginning, _, flag = message.partition(" .*")
    assert line.startswith(f"polyencoder: {beginning}")
    assert line.endswith(flag.strip())
    assert not (folder / "out" / "model.safetensors").exists()


@pytest.mark.long
@pytest.mark.usefixtures("forked_commands")
def test_two_processes_under_torchrun_go_on(folder):
    def run(steps: int) -> subprocess.CompletedProcess[str]:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [*torchrun, "-m", "polyencoder.cli.main", *arguments("two", "--evaluate-every", 2)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)

    done = run(4)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("pre-trained") == 1  # by the first of them alone
    weights = (folder / "two" / "model.safetensors").read_bytes()
    again = run(4)
    assert again.returncode == 0, again.stderr
    assert "resumed from" in again.stderr
    assert (folder / "two" / "model.safetensors").read_bytes() == weights
