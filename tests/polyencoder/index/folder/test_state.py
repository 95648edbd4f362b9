"""Opening an index folder: it must be whole, and of this model; little of it is read."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polyencoder.errors import CheckpointError, PolyencoderError
from polyencoder.index import Candidate, FolderIndex, verify
from polyencoder.index.folder.catalogue import Catalogue, File
from polyencoder.index.folder.database import connect
from polyencoder.index.folder.files import DATABASE, UNFINISHED
from polyencoder.index.meta import Fingerprints
from polyencoder.index.open import describe_index
from polyencoder.index.vectors import list_side_files


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="maps of files are read as Linux shows them")
def test_a_closed_index_has_no_files_mapped(folder, ranker, dialogues):
    def mapped() -> bool:
        return str(folder / "vectors-") in Path("/proc/self/maps").read_text()

    index = FolderIndex.open(folder, ranker)
    index.search(ranker.encode_contexts(dialogues), top_k=2)
    assert mapped()
    index.close()
    assert not mapped()


def test_no_index(tmp_path, ranker):
    with pytest.raises(CheckpointError, match="nowhere: no index .*make one with .*`polyencoder index`"):
        FolderIndex.open(tmp_path / "nowhere", ranker)


def test_one_that_is_not_finished(folder, ranker):
    (folder / DATABASE).rename(folder / UNFINISHED)
    with pytest.raises(CheckpointError, match="not finished; run the same command again"):
        FolderIndex.open(folder, ranker)


def describe(folder, text) -> None:
    with closing(connect(folder / DATABASE)) as connection:
        Catalogue(connection, folder).describe(text)


def test_a_description_that_cannot_be(index, folder, ranker):
    describe(folder, json.dumps(json.loads(index.meta.to_json()) | {"rows": 9}))
    message = "says 9 texts, its database has 8, and its files have the vectors of 8; build it again"
    with pytest.raises(CheckpointError, match=message):
        FolderIndex.open(folder, ranker)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "vectors-0.npy", "a/b"])
def test_files_that_are_elsewhere(folder, ranker, name):
    with closing(connect(folder / DATABASE)) as connection:
        Catalogue(connection, folder).add_file(File(name, 3, 5, ""))
    with pytest.raises(CheckpointError, match="is not the name of an index file"):
        FolderIndex.open(folder, ranker)


@pytest.mark.parametrize(
    ("lost", "counts"),
    [
        ("files WHERE name LIKE 'vectors-000000000006-%'", "database has 8, and its files have the vectors of 6"),
        ("texts WHERE row = 7", "database has 7, and its files have the vectors of 8"),
    ],
)
def test_a_file_or_text_is_lost(folder, ranker, lost, counts):
    with closing(connect(folder / DATABASE)) as connection:
        connection.execute(f"DELETE FROM {lost}")
    with pytest.raises(CheckpointError, match=f"damaged, its description says 8 texts, its {counts}"):
        FolderIndex.open(folder, ranker)


def test_another_thread_may_empty_the_cache_of_filters(index):
    class Emptied(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            self.clear()

    index.state._allowed = Emptied()
    assert index.count_texts({"n": [None]}) == index._read(
        lambda _, catalogue: catalogue.select_allowed({"n": None}).sum()
    )


@pytest.mark.parametrize(
    "pattern", ["vectors-000000000003-????????????????.npy", "vectors-000000000003-*.int8.npy", "faiss-*.index"]
)
@pytest.mark.parametrize("change", ["shorter", "longer", "missing"])
def test_a_file_of_another_size(folder, index, ranker, pattern, change):
    pytest.importorskip("faiss")
    index.build_faiss("ivf-flat", nlist=1)
    (path,) = folder.glob(pattern)
    data = path.read_bytes()
    path.unlink()
    if change != "missing":
        path.write_bytes(data[:-1] if change == "shorter" else data + b"x")
    with pytest.raises(CheckpointError, match=f"{path.name}: (missing|truncated or damaged)"):
        FolderIndex.open(folder, ranker)


@pytest.mark.parametrize("start", [0, 4096])
def test_a_damaged_database(folder, ranker, start):
    data = (folder / DATABASE).read_bytes()
    (folder / DATABASE).write_bytes(data[:start] + b"x" * (len(data) - start))
    with pytest.raises(CheckpointError, match="index.sqlite: .*build the index again"):
        FolderIndex.open(folder, ranker)


VIEW = "ALTER TABLE {0} RENAME TO own; CREATE VIEW {0} AS SELECT {1} FROM own;"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            VIEW.format("texts", "'x' || row AS row, digest, text"),
            "has the view 'texts', which is not part",
        ),
        (VIEW.format("entries", "number, id, row + 1 AS row, metadata"), "has the view 'entries'"),
        ("CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM texts; END;", "has the trigger 't'"),
        ("CREATE VIRTUAL TABLE more USING fts5(text);", "has the table 'more'"),
        ("DROP TABLE texts; CREATE TABLE texts(row TEXT, digest, text);", "has no valid table 'texts'"),
        ("DROP TABLE dead;", "has no valid table 'dead'"),
        ("DROP TABLE description;", "has no valid table 'description'"),
    ],
)
def test_a_database_that_is_made_up(folder, ranker, script, message):
    with closing(sqlite3.connect(folder / DATABASE)) as connection:
        connection.executescript(script)
    with pytest.raises(CheckpointError, match=f"index: damaged, its database {message}.*; build it again"):
        FolderIndex.open(folder, ranker)


def test_another_version_made_it(folder, ranker, sentences):
    """The tables of another version may differ, too."""
    with closing(sqlite3.connect(folder / DATABASE)) as connection:
        (text,) = connection.execute("SELECT json FROM description").fetchone()
        connection.execute("UPDATE description SET json = ?", (json.dumps(json.loads(text) | {"format_version": 4}),))
        connection.execute("DROP TABLE fields")
        connection.commit()
    for use in (lambda: FolderIndex.open(folder, ranker), lambda: ranker.index(sentences, folder)):
        with pytest.raises(CheckpointError, match="format version 4, .* reads 7; .* remove the index, and build"):
            use()


def test_neither_vectors_nor_texts_are_read(folder, index, ranker):
    """A gigabyte of vectors (a file with a hole), and the last of ten million texts."""
    rows, dim = 10_000_000, 16
    path = folder / f"vectors-000000000000-{index.meta.build}.npy"
    for name, kind, size in (
        (path, "<f4", dim),
        (list_side_files(path)["int8"], "|i1", dim),
        (list_side_files(path)["bounds"], "<f4", 3),
    ):
        with open(name, "wb") as file:
            header = {"descr": kind, "fortran_order": False, "shape": (rows, size)}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + rows * size * np.dtype(kind).itemsize)
    with closing(connect(folder / DATABASE)) as connection:
        catalogue = Catalogue(connection, folder)
        connection.execute("INSERT INTO texts VALUES (?, x'00', 'last')", (rows - 1,))
        catalogue.forget_files(file.name for file in catalogue.list_files())
        catalogue.add_file(File(path.name, rows, path.stat().st_size, ""))
        catalogue.describe(replace(index.meta, rows=rows, entries=rows).to_json())
    fingerprints = Fingerprints.of(ranker)
    start = time.process_time()  # of this process alone, however busy the machine is
    index = FolderIndex.open(folder, fingerprints)
    assert time.process_time() - start < 0.5
    assert len(index.vectors) == rows


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM texts WHERE row = 2",
        "UPDATE texts SET text = x'00' WHERE row = 2",
        "UPDATE texts SET row = 99 WHERE row = 2",
        "UPDATE texts SET row = -1 WHERE row = 2",
        "UPDATE entries SET row = 99 WHERE row = 2",
        "UPDATE entries SET row = 'x' WHERE row = 2",
        "UPDATE entries SET row = -1 WHERE row = 2",
        "UPDATE entries SET id = x'00' WHERE row = 2",
        "UPDATE entries SET metadata = '[1]' WHERE row = 2",
        "UPDATE entries SET metadata = 'x' WHERE row = 2",
        "UPDATE entries SET metadata = x'00' WHERE row = 2",
        "INSERT INTO dead VALUES (99)",
        "INSERT INTO dead VALUES (-1)",
        "UPDATE files SET rows = 0",
        "DELETE FROM files",
        "DELETE FROM description",
        "UPDATE description SET json = x'00'",
        "DROP TABLE texts",
        "DROP TABLE dead",
    ],
)
def test_a_crafted_database(folder, ranker, contexts, statement):
    """The database is valid SQLite, but not an index: whatever it holds, there are results or an error of our own."""
    with closing(connect(folder / DATABASE)) as connection:
        connection.execute(statement)
    fingerprints = Fingerprints.of(ranker)

    def search(filter) -> None:
        results = FolderIndex.open(folder, fingerprints).search(contexts, top_k=10, filter=filter)
        assert all(isinstance(hit.id, str) and isinstance(hit.text, str) for hits in results for hit in hits)

    for use in (
        lambda: verify(folder),
        lambda: describe_index(folder),
        lambda: search(None),
        lambda: search({"even": True}),
        lambda: FolderIndex.open(folder, fingerprints).count({"even": True}),
        lambda: FolderIndex.open(folder, fingerprints).count(None),
        lambda: FolderIndex.open(folder, fingerprints).texts(),
        lambda: FolderIndex.open(folder, ranker).put([Candidate("5", "a new text")]),
        lambda: FolderIndex.open(folder, fingerprints).remove(["2"]),
        lambda: FolderIndex.open(folder, ranker).compact(),
    ):
        with suppress(PolyencoderError):
            use()


@pytest.mark.parametrize(
    "change", [{"file": "../../x"}, {"file": "index.sqlite"}, {"kind": "hnsw"}, {"rows": 5}, {"rows": 99}]
)
def test_a_crafted_description_of_faiss(folder, index, ranker, contexts, change):
    pytest.importorskip("faiss")
    index.build_faiss("ivf-flat", nlist=1)
    values = json.loads(index.meta.to_json())
    values["faiss"] |= change
    describe(folder, json.dumps(values))
    with pytest.raises(CheckpointError, match="damaged|made from other vectors|cannot be searched"):
        FolderIndex.open(folder, ranker).search(contexts, top_k=2, exactness="approximate", list_length=4)
