from __future__ import annotations

import errno
import os
import sys
import tracemalloc
from pathlib import Path

import filelock
import numpy as np
import pytest

import polyencoder.index.folder.build as build_module
import polyencoder.index.folder.shards as shards_module
from polyencoder import Ranker
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.index.entries import Candidate
from polyencoder.index.folder.build import build_index
from polyencoder.index.folder.files import DATABASE, LOCK, UNFINISHED, remove_index
from polyencoder.index.folder.index import FolderIndex
from polyencoder.index.vectors import quantize
from polyencoder.search.rows import Block
from tests.forked import forkserver
from tests.polyencoder.index.folder.building import N_TEXTS, SHARD, Killed, built, contents, killed_at, many

pytestmark = pytest.mark.slow


@pytest.fixture
def candidates(sentences) -> list[Candidate]:
    return many(sentences)


@pytest.fixture
def make_index(tmp_path, ranker, candidates):
    """(name="index", **build_index's arguments) -> the folder of an index of `candidates`."""
    return lambda name="index", **settings: built(tmp_path / name, ranker, **({"candidates": candidates} | settings))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_each_text_has_its_vector(make_index, ranker, dtype):
    folder = make_index(dtype=dtype)
    index = FolderIndex.open(folder, ranker)
    meta, vectors, texts = index.meta, index.vectors, index.texts()
    assert (meta.rows, meta.dim, meta.dtype, meta.architecture) == (N_TEXTS, 16, dtype, "poly")
    one_by_one = np.concatenate([ranker.encode_candidates([text]) for text in texts])
    expected, largest = Block(0, *quantize(one_by_one, dtype)).read_vectors(), np.abs(one_by_one).max()
    step = {"float32": 0, "float16": 2**-10, "bfloat16": 2**-7, "int8": 1 / 127}[dtype]  # one step of rounding
    actual = vectors.take(np.arange(N_TEXTS))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=float(largest * step) + 1e-5)


def test_the_files_are_shards(make_index):
    folder = make_index(dtype="int8")
    vectors = [f"vectors-{first:012d}-BUILD" for first in range(0, N_TEXTS, SHARD)]
    expected = {DATABASE, *(f"{v}.npy" for v in vectors), *(f"{v}.bounds.npy" for v in vectors)}
    assert set(contents(folder)) == expected


@pytest.mark.long
def test_two_processes_write_the_same_bytes(tmp_path, ranker, candidates, monkeypatch):
    """With a model in 16 bits, whose weights are not what can be saved. The processes have their imports done."""
    contexts = {"spawn": forkserver()}
    monkeypatch.setattr(shards_module.multiprocessing, "get_context", contexts.__getitem__)
    ranker.save_pretrained(tmp_path / "model")
    rounded = Ranker.from_pretrained(tmp_path / "model", device="cpu", dtype="bfloat16")
    for workers in (1, 2):
        build_index(tmp_path / f"by {workers}", candidates, rounded, workers=workers, shard_size=SHARD)
    assert contents(tmp_path / "by 2") == contents(tmp_path / "by 1")


def test_torchrun_changes_nothing(monkeypatch, make_index):
    """Whoever trains under torchrun may build an index in one process: it must not wait for the others."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert len(list(make_index().glob("vectors-*"))) == 3 * 5


def test_a_finished_index_is_left_as_it_is(monkeypatch, make_index):
    folder = make_index()
    before = contents(folder)
    monkeypatch.setattr(shards_module, "tokenize_candidates", lambda *args, **kwargs: pytest.fail("encoded again"))
    make_index()
    assert contents(folder) == before


def test_whole_shards_of_a_killed_build_are_not_encoded_again(monkeypatch, make_index, tmp_path):
    """tests/reliability kills it everywhere."""
    with monkeypatch.context() as patch:
        killed_at(patch, shards_module, "write_vectors", 3, after=True)
        with pytest.raises(Killed):
            make_index()
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "index").glob("vectors-*")}
    assert len({path.name.split(".")[0] for path in times}) == 3
    make_index()
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_a_lock_that_another_process_holds_is_left_to_it(tmp_path):
    """A build that fails removes its folder, unless another one has begun in it."""
    with pytest.raises(RuntimeError), build_module._create_folder(tmp_path / "index"):
        raise RuntimeError
    assert not (tmp_path / "index").exists()
    (tmp_path / "index").mkdir()
    with filelock.FileLock(tmp_path / "index" / LOCK):
        with pytest.raises(RuntimeError), build_module._create_folder(tmp_path / "index"):
            raise RuntimeError
        assert (tmp_path / "index" / LOCK).exists()


@pytest.mark.parametrize("finished", [True, False])
def test_another_index_is_there(make_index, make_ranker, tmp_path, candidates, finished):
    folder = make_index()
    if not finished:
        (folder / DATABASE).rename(folder / UNFINISHED)
    before = contents(folder)
    with pytest.raises(InputError, match="has an index of other candidates"):
        make_index(candidates=candidates[1:])
    with pytest.raises(InputError, match="has an index with dtype float32, not int8"):
        make_index(dtype="int8")
    with pytest.raises(InputError, match="has an index with shard_size 4, not 5"):
        make_index(shard_size=5)
    with pytest.raises(CheckpointError, match="made by another model"):
        build_index(folder, candidates, make_ranker("poly", seed=1), shard_size=SHARD)
    assert contents(folder) == before


def test_an_index_that_splits_texts_otherwise_is_there(make_index):
    records = [Candidate("a", "hi !")]  # one passage, however long it may be
    make_index(candidates=records, split=8)
    make_index(candidates=records, split=8)
    with pytest.raises(ConfigError, match="exists, with passages of 8 tokens"):
        make_index(candidates=records, split=12)


@pytest.mark.parametrize("name", ["mine.txt", "faiss_settings.json", "catalogue.sqlite.bak", "vectors-0.npy"])
def test_a_folder_of_other_things(make_index, tmp_path, name):
    """Nothing of it is removed, not even what is called much like a file of an index."""
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / name).write_text("important")
    with pytest.raises(InputError, match=f"has {name} in it, which belongs to no index"):
        make_index()
    with pytest.raises(InputError, match=f"has {name} in it, which belongs to no index"):
        remove_index(tmp_path / "index")
    assert os.listdir(tmp_path / "index") == [name]


def test_vectors_of_unknown_origin_are_written_anew(make_index, tmp_path):
    undisturbed = contents(make_index("undisturbed"))
    folder = make_index()
    (folder / DATABASE).unlink()
    assert contents(make_index()) == undisturbed


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "there are no candidates: the input is empty"),
        ([Candidate(None, "a"), Candidate(None, " ", where="c.txt, line 2")], "c.txt, line 2: .*its text is empty"),
        ([Candidate("1", "a"), Candidate("1", "b", where="c.jsonl, line 2")], "c.jsonl, line 2: the id '1' belongs to"),
    ],
)
def test_candidates_that_cannot_be_used(make_index, tmp_path, bad, message):
    with pytest.raises(InputError, match=message):
        make_index(candidates=bad)
    assert not (tmp_path / "index").exists()


def test_what_faiss_cannot_build_is_refused_before_texts_are_encoded(monkeypatch, make_index, tmp_path):
    cases = {
        f"ivf-flat,nlist={N_TEXTS + 1}": f"nlist is {N_TEXTS + 1}",
        "ivf-pq,pq_m=5": "pq_m must divide the vectors' dimension, 16; got 5",
        "ivf-pq,pq_bits=5": "pq_bits is 5",
    }
    with monkeypatch.context() as patched:
        patched.setattr(shards_module, "tokenize_candidates", None)
        for faiss, message in cases.items():
            with pytest.raises(ConfigError, match=message):
                make_index(faiss=faiss)
            assert not (tmp_path / "index").exists()
    make_index()
    for faiss, message in cases.items():
        with pytest.raises(ConfigError, match=message):
            make_index(faiss=faiss)
    make_index()  # nothing was lost


def test_a_full_disk(monkeypatch, make_index, tmp_path):
    undisturbed = contents(make_index("undisturbed"))
    with monkeypatch.context() as patch:

        def full(*args, **kwargs):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(np, "save", full)
        with pytest.raises(InputError, match="index: cannot be written .*No space left on device.*resumes"):
            make_index()
    assert set(contents(tmp_path / "index")) == {UNFINISHED}
    assert contents(make_index()) == undisturbed


def test_a_disk_that_fails_when_the_database_gets_its_name(monkeypatch, make_index, tmp_path):
    replace = os.replace

    def fail(source, target):
        if Path(target).name == UNFINISHED:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(InputError, match="index: cannot be written .*Input/output error"):
            make_index()
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("keep", [0, 60, -7])
def test_a_shard_that_was_cut_short_is_encoded_again(make_index, keep):
    """A loss of power can cut a file, if the disk reports writes before they are made."""
    folder = make_index(dtype="int8")
    undisturbed = contents(folder)
    (folder / DATABASE).rename(folder / UNFINISHED)
    for shard in (*folder.glob("vectors-000000000004-*.npy"), *folder.glob("vectors-000000000012-*.bounds.npy")):
        shard.write_bytes(shard.read_bytes()[:keep])
    assert contents(make_index(dtype="int8")) == undisturbed


@pytest.mark.long
def test_memory_does_not_grow_with_the_candidates(tmp_path, ranker, monkeypatch):
    """Each further candidate adds less to the peak of what Python and numpy allocate than its text would."""

    def encode(texts, progress):  # as cheap as can be: many thousands are encoded
        progress(len(texts))
        return np.array([[float(len(text))] * ranker.model.dim for text in texts], dtype=np.float32)

    monkeypatch.setattr(shards_module, "tokenize_candidates", lambda text, texts, remember: texts)
    monkeypatch.setattr(ranker.encoder, "encode_candidates", encode)
    peaks = []
    for n in (1_000, 10_000):
        tracemalloc.start()
        build_index(tmp_path / str(n), (Candidate(None, f"text {i}") for i in range(n)), ranker, shard_size=1_000)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 9_000 < sys.getsizeof("text 0") / 2


def test_progress_goes_to_stderr(make_index, capsys):
    make_index(progress=True)
    out, err = capsys.readouterr()
    assert not out
    assert "reading: 24 candidates" in err
    assert "encoding: 100%" in err
