"""A build that is killed, by an error or for good, and started again: the index is that of an undisturbed one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import polyencoder.index.folder.build as build_module
import polyencoder.index.folder.shards as shards_module
import polyencoder.index.vectors as vectors_module
from polyencoder.encoding.torch_encoder import TorchEncoder
from polyencoder.index.entries import Candidate
from polyencoder.index.folder.build import build_index
from polyencoder.index.folder.catalogue import Catalogue
from polyencoder.index.folder.files import DATABASE
from tests.polyencoder.index.folder.building import Killed, built, contents, killed_at, many

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def candidates(sentences) -> list[Candidate]:
    return many(sentences)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, make_poly, candidates) -> dict[str, Any]:
    """What is in the folder of an index of `candidates` in int8 if nothing kills its build."""
    folder = tmp_path_factory.mktemp("undisturbed") / "index"
    return contents(built(folder, make_poly(), candidates=candidates, dtype="int8"))


@pytest.fixture
def make_index(tmp_path, ranker, candidates):
    """(name="index", **build_index's arguments) -> the folder of an index of `candidates`."""
    return lambda name="index", **settings: built(tmp_path / name, ranker, **({"candidates": candidates} | settings))


MOMENTS = [
    (build_module, "_remove_all", 1),
    (build_module, "_remove_all", 2),
    (Catalogue, "put", 1),
    (Catalogue, "put", 15),
    (Catalogue, "create_indexes", 1),
    (Catalogue, "describe", 1),
    (build_module, "connect", 1),
    (build_module, "recorded", 1),
    (build_module, "recorded", 5),
    (Catalogue, "add_file", 1),
    (Catalogue, "add_file", 10),
    (os, "replace", 1),
    (os, "replace", 4),
    (os, "replace", 12),
    (build_module, "fsync", 1),
    (build_module, "fsync", 2),
    (TorchEncoder, "encode_candidates", 1),
    (TorchEncoder, "encode_candidates", 4),
    (shards_module, "write_vectors", 1),
    (shards_module, "write_vectors", 5),
    (vectors_module, "write_array", 2),
    (vectors_module, "write_array", 3),
    (np, "save", 6),
    (build_module, "_finish", 1),
]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("module", "name", "call"), MOMENTS)
def test_killed_and_started_again(make_index, undisturbed, module, name, call, after):
    with pytest.MonkeyPatch.context() as patch:
        killed_at(patch, module, name, call, after=after)
        with pytest.raises(Killed):
            make_index(dtype="int8")
    assert contents(make_index(dtype="int8")) == undisturbed


def test_whole_shards_are_not_encoded_again(monkeypatch, make_index, tmp_path):
    with monkeypatch.context() as patch:
        killed_at(patch, shards_module, "write_vectors", 3, after=True)
        with pytest.raises(Killed):
            make_index()
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "index").glob("vectors-*")}
    assert len({path.name.split(".")[0] for path in kept}) == 3
    make_index()
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


SCRIPT = """
import os, signal, sys
from polyencoder import Ranker
import polyencoder.index.folder.build as build, polyencoder.index.folder.encoding as encoding
from polyencoder.encoding.torch_encoder import TorchEncoder
from polyencoder.index.entries import Candidate

def kill(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

model, folder, moment = sys.argv[1:]
candidates = [Candidate(None, f"text {i}") for i in range(10)]
calls = []

def kill_in_second_shard(vectors, *args, **kwargs):
    calls.append(1)
    if len(calls) == 2:
        kill()
    return quantize(vectors, *args, **kwargs)

def kill_while_reading():
    yield from candidates[:5]
    kill()

source = candidates
if moment == "reading":
    source = kill_while_reading()
elif moment == "encoding":
    quantize = encoding.quantize
    encoding.quantize = kill_in_second_shard
elif moment == "writing":
    import numpy
    numpy.save = lambda file, *args, **kwargs: (file.write(b"half" * 10_000), kill())  # more than a buffer
build.build_index(folder, source, Ranker.from_pretrained(model), shard_size=3)
"""


@pytest.mark.usefixtures("forked_commands")
@pytest.mark.parametrize("moment", ["reading", "writing", "encoding"])
def test_a_real_kill(tmp_path, ranker, moment):
    candidates = [Candidate(None, f"text {i}") for i in range(10)]
    ranker.save_pretrained(tmp_path / "model")
    build_index(tmp_path / "undisturbed", candidates, ranker, shard_size=3)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "model"), str(tmp_path / "index"), moment]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "index" / DATABASE).exists()
    assert any(name.endswith(".part") for name in os.listdir(tmp_path / "index")) == (moment != "encoding")
    build_index(tmp_path / "index", candidates, ranker, shard_size=3)
    assert contents(tmp_path / "index") == contents(tmp_path / "undisturbed")
