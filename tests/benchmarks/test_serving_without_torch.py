"""The benchmark of the server without torch, on a tiny ranker, with the library's own environment in its place."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.serving import without_torch
from polyencoder.export.onnx import export_onnx

pytestmark = pytest.mark.slow


def test_a_report(make_ranker, tmp_path, capsys, forked):
    pytest.importorskip("onnxruntime")
    ranker = make_ranker("bi")
    ranker.save_pretrained(tmp_path / "model")
    export_onnx(ranker, tmp_path / "model")
    ranker.index(["a text", "another one", "a third"], tmp_path / "index")
    flags = ["--quick", "--json", "--model", str(tmp_path / "model"), "--runtime", sys.executable]
    without_torch.main([*flags, "--servers", "without torch, float32", "--index", str(tmp_path / "index")])
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert {"start_cpu_s", "resident_mb", "per_second_1", "cpu_ms_1", "per_second_64", "cpu_ms_64"} <= row.keys()
    assert all(value > 0 for name, value in row.items() if name not in ("server", "cpu_ms_1", "cpu_ms_64"))
