"""What tests of building an index share: candidates of several files, and what is in a folder."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

from polyencoder.index.entries import Candidate
from polyencoder.index.folder.build import build_index
from polyencoder.index.folder.files import DATABASE, UNFINISHED

SHARD = 4
N_TEXTS = 18  # different ones: shards of 4, 4, 4, 4 and 2


def many(sentences: Sequence[str]) -> list[Candidate]:
    """Texts of very different lengths, every third of them twice under two ids."""
    texts = [*sentences, *(sentence[: 3 + i] for i, sentence in enumerate(sentences)), " ".join(sentences), "hi"]
    assert len(set(texts)) == N_TEXTS
    duplicates = [Candidate(f"again {i}", text, {"i": i}) for i, text in enumerate(texts[::3])]
    return [*(Candidate(None, text) for text in texts), *duplicates]


def built(folder: Path, ranker, *, candidates: Sequence[Candidate], **settings) -> Path:
    """The folder of an index, of files of `SHARD` rows."""
    build_index(folder, candidates, ranker, **({"shard_size": SHARD} | settings))
    return folder


def contents(folder: Path) -> dict[str, Any]:
    """What is in a folder, whichever build it is: its files, and the tables of its database."""
    transient = (".lock", "index.sqlite-wal", "index.sqlite-shm")  # of who builds and who reads
    files: dict[str, Any] = {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in transient}
    for name in {DATABASE, UNFINISHED} & files.keys():
        with closing(sqlite3.connect(f"{(folder / name).as_uri()}?immutable=1", uri=True)) as connection:
            build = json.loads(connection.execute("SELECT json FROM description").fetchone()[0])["build"]
            files[name] = [line.replace(build, "BUILD") for line in connection.iterdump()]
        assert files.pop("meta.json", build.encode()).count(build.encode()) == 1
        files = {file.replace(build, "BUILD"): content for file, content in files.items()}
    return files


class Killed(BaseException):
    pass


def killed_at(monkeypatch, module, name: str, call: int, *, after: bool) -> None:
    """The call of this number dies, before or after its work."""
    calls, original = count(1), getattr(module, name)

    def die(*args, **kwargs):
        if (this := next(calls)) == call and not after:
            raise Killed
        result = original(*args, **kwargs)
        if this == call:
            raise Killed
        return result

    monkeypatch.setattr(module, name, die)
