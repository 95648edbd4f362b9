"""`polyencoder index` and `polyencoder update` where no file can be larger: one line, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyencoder.errors import InputError, PolyencoderError
from polyencoder.index import FolderIndex, verify
from tests.commands import command_fails, run_command
from tests.processes import full_disk

pytestmark = pytest.mark.slow


@pytest.fixture
def many(make_ranker, make_backbone_config, tmp_path):
    """(name, first) -> a file of a thousand candidates, and, as attribute, the model that they are for."""
    ranker = make_ranker("bi", backbone=make_backbone_config(dim=128))
    ranker.save_pretrained(tmp_path / "wide")

    def write(name: str, first: int) -> Path:
        path = tmp_path / name
        path.write_text("\n".join(f"candidate {i}" for i in range(first, first + 1000)) + "\n")
        return path

    write.ranker = ranker
    return write


def test_a_full_disk_is_one_line_and_the_same_command_goes_on(many, tmp_path):
    command = ["index", "--model", tmp_path / "wide", "--candidates", many("many.txt", 0), "--out", tmp_path / "index"]
    command += ["--shard-size", 1000]

    def fail_with(limit: int) -> None:
        with full_disk(limit):
            command_fails(InputError, "cannot be written.*run the same command again", *command)

    fail_with(50_000)  # less than the database
    assert not (tmp_path / "index").exists()
    fail_with(400_000)  # more than the database, less than the vectors
    assert {entry.name for entry in (tmp_path / "index").iterdir()} == {"unfinished.sqlite", ".lock"}
    run_command(*command)
    assert len(FolderIndex.open(tmp_path / "index", many.ranker)) == 1000


def test_a_full_disk_and_faiss(many, tmp_path):
    pytest.importorskip("faiss")
    options = ["--model", tmp_path / "wide", "--candidates", many("many.txt", 0), "--out", tmp_path / "index"]
    with full_disk(600_000):  # more than the vectors, which FAISS copies with a little beside them
        command_fails(PolyencoderError, "FAISS could not build", "index", *options, "--faiss", "hnsw")
    index = FolderIndex.open(tmp_path / "index", many.ranker)
    assert len(index.search(many.ranker.encode_contexts(["hello"]), top_k=3)[0]) == 3
    assert not list((tmp_path / "index").glob("faiss*"))


def test_a_full_disk_leaves_an_index_as_it_was(many, tmp_path):
    folder, model = tmp_path / "index", ["--model", tmp_path / "wide"]

    def call(*arguments: object) -> None:
        run_command(*arguments)

    (tmp_path / "gone.jsonl").write_text('{"id": "gone", "text": "of whose row --compact has to make an end"}\n')
    call("index", *model, "--candidates", f"{tmp_path / 'gone.jsonl'},{many('a.txt', 0)}", "--out", folder)
    call("update", *model, "--index", folder, "--remove-id", "gone")
    before = {path.name for path in folder.glob("[!i]*")}  # SQLite's log comes and goes
    change = ["update", *model, "--index", folder, "--add", many("b.txt", 1000)]
    with full_disk(400_000):
        command_fails(InputError, "cannot be written .*run the same command again", *change)
        command_fails(InputError, "cannot be written", "update", *model, "--index", folder, "--compact")
    assert {path.name for path in folder.glob("[!i]*")} == before
    verify(folder)
    assert len(FolderIndex.open(folder, many.ranker)) == 1000
    call(*change)
    assert len(FolderIndex.open(folder, many.ranker)) == 2000
