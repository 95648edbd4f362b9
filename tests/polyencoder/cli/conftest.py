"""A folder with all that commands take, and what it looks like when one of them refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from polyencoder.cli.main import main
from tests.polyencoder.cli.commands import with_model

LOG = re.compile(r"\d\d:\d\d:\d\d ")  # of a training, before it stops


@pytest.fixture(scope="module")
def master(make_model, tokenizer, tmp_path_factory, sentences):
    """A folder with models, an index, and files of any kind."""
    from polyencoder.ranker.ranker import Ranker
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
def place(master, tmp_path, monkeypatch):
    """A copy of it, in which commands run."""
    shutil.copytree(master, tmp_path / "place")
    os.mkfifo(tmp_path / "place" / "pipe")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


@pytest.fixture
def refused(place, monkeypatch, capsys):
    """(command) -> what it says, in one line; it ends with the exit code 1 and leaves nothing behind."""

    def run(command: list[str]) -> str:
        before = files_of(place)
        monkeypatch.setattr(sys, "argv", ["polyencoder", *with_model(command, "model")])
        with pytest.raises(SystemExit) as end:
            main()
        said = "\n".join(line for line in capsys.readouterr().err.splitlines() if not LOG.match(line))
        assert end.value.code == 1, said
        assert said.startswith("polyencoder: ")
        assert len(said.splitlines()) == 1, said
        assert len(said) < 700
        assert files_of(place) == before
        return said

    return run


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below it with what it holds, besides locks and the unfinished index that a next start goes on with.

    Nor those that SQLite has beside a database while somebody reads, which hold nothing.
    """
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    paths = (path for path in paths if not path.name.endswith(("-wal", "-shm")))
    paths = (path for path in paths if path.relative_to(folder).parts[0] != "out")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
