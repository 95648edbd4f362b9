"""A folder with all that commands take, what it looks like when one of them refuses, and the files of a training."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from polyencoder.cli.main import main
from polyencoder.training.trainer import Trainer
from tests.commands import run_command
from tests.polyencoder.cli.commands import with_files_once, with_model

LOG = re.compile(r"\d\d:\d\d:\d\d ")  # of a training, before it stops


@pytest.fixture(scope="module")
def master(make_model, tokenizer, tmp_path_factory, sentences):
    """A folder with models, an index, and files of any kind."""
    from polyencoder.ranker import Ranker
    from polyencoder.text import TextEncoder

    folder = tmp_path_factory.mktemp("master")
    for name, kind in (("model", "poly"), ("cross", "cross")):
        model = make_model(kind)
        ranker = Ranker(model, TextEncoder(tokenizer, model.config.text), device="cpu")
        ranker.save_pretrained(folder / name)
        if name == "model":
            ranker.index(sentences, folder / "index")
    (folder / "texts.txt").write_text("\n".join(sentences))
    ranker = Ranker.from_pretrained(folder / "model", device="cpu")
    best = {text: ranker.rank(text, sentences)[0].text for text in sentences}
    records = [{"context": [text], "response": best[text], "candidates": sentences} for text in sentences] * 2
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, records)))
    (folder / "notes.txt").write_text("just some text\n")
    half = r'{"context": ["hi \ud83d"], "response": "a", "candidates": ["a", "b"]}'
    (folder / "half_context.jsonl").write_text(half)
    (folder / "half_response.jsonl").write_text(half.replace(r"hi \ud83d", "hi").replace('"a"', r'"a \ud83d"'))
    lines = ['{"text": "fine"}', r'{"text": "bad \ud83d"}', r'{"text": "good", "key": "\uDC00"}']
    (folder / "half.jsonl").write_text("\n".join(lines))
    (folder / "there.jsonl").write_text("not to be lost\n")
    return folder


@pytest.fixture
def workdir(master, tmp_path, monkeypatch):
    """A copy of it, in which commands run."""
    shutil.copytree(master, tmp_path / "place")
    os.mkfifo(tmp_path / "place" / "pipe")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


@pytest.fixture
def refused(workdir, monkeypatch, capsys):
    """(command) -> what it says, in one line; it ends with the exit code 1 and leaves nothing behind."""

    def run(command: list[str]) -> str:
        before = files_of(workdir)
        monkeypatch.setattr(sys, "argv", ["polyencoder", *with_model(command, "model")])
        with pytest.raises(SystemExit) as end:
            main()
        message = "\n".join(line for line in capsys.readouterr().err.splitlines() if not LOG.match(line))
        assert end.value.code == 1, message
        assert message.startswith("polyencoder: ")
        assert len(message.splitlines()) == 1, message
        assert len(message) < 700
        assert files_of(workdir) == before
        return message

    return run


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below it with what it holds, besides locks and the unfinished index that a next start goes on with.

    Nor those that SQLite has beside a database while somebody reads, which hold nothing.
    """
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    paths = (path for path in paths if not path.name.endswith(("-wal", "-shm")))
    paths = (path for path in paths if path.relative_to(folder).parts[0] != "out")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


# words that the tiny tokenizer knows
THINGS = ["dogs", "cat", "teacher", "math", "school", "ski", "mountains", "brother", "pets", "living"]
LR = 0.01
KINDS = ["today", "great", "fine", "high", "two"]


@pytest.fixture
def run():
    def run(*arguments):
        return run_command(*with_files_once([*arguments])).output

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
        *("--text-truncate", 24, "--label-truncate", 16, "--reduction", "mean", "--fine-tuned", "all"),
        *("--device", "cpu"),
    ]


class Killed(BaseException):
    """Interrupts a run."""


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
