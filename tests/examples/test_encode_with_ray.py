"""`examples/encode_with_ray.py`: two workers of Ray make the vectors of a plain index, though one is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from polyencoder.index import build_index, open_index, vectors_from

pytest.importorskip("ray", reason="pip install 'ray[data]'")
psutil = pytest.importorskip("psutil")
EXAMPLE = Path(__file__).parents[2] / "examples" / "encode_with_ray.py"


def named_below(pid: int, name: str) -> list[psutil.Process]:
    """The processes below this one whose command line begins with a name."""
    processes = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            processes += [child] if "".join(child.cmdline()).startswith(name) else []
    return processes


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(make_ranker, tmp_path):
    import pyarrow
    from pyarrow import parquet

    ranker = make_ranker("poly")
    ranker.save_pretrained(tmp_path / "model")
    ids, texts = [f"r{i}" for i in range(64)], [f"reply number {i}" for i in range(64)]
    parquet.write_table(pyarrow.table({"id": ids, "text": texts, "n": range(64)}), tmp_path / "in.parquet")

    flags = ["--model", tmp_path / "model", "--workers", "2", "--rows", "4"]
    command = [sys.executable, EXAMPLE, tmp_path / "in.parquet", tmp_path / "parts", *flags]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with subprocess.Popen([*map(str, command)], env=environment | {"CUDA_VISIBLE_DEVICES": ""}) as process:
        while not (workers := named_below(process.pid, "ray::MapWorker")):
            assert process.poll() is None
            time.sleep(0.05)
        workers[0].kill()
        assert process.wait(timeout=300) == 0

    build_index(tmp_path / "index", vectors_from(tmp_path / "parts" / "*.parquet"), ranker)
    build_index(tmp_path / "plain", [{"id": i, "text": text} for i, text in zip(ids, texts, strict=True)], ranker)
    with open_index(tmp_path / "index", ranker) as index, open_index(tmp_path / "plain", ranker) as plain:
        assert index.get_texts(ids) == plain.get_texts(ids) == dict(zip(ids, texts, strict=True))
        encoded, expected = index.get_vectors(ids), plain.get_vectors(ids)
        np.testing.assert_allclose([encoded[id_] for id_ in ids], [expected[id_] for id_ in ids], rtol=1e-5, atol=1e-6)
