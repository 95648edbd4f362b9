"""The benchmark of the runtime, on a tiny ranker."""

from __future__ import annotations

import pytest

from benchmarks import runtime
from polyencoder.export.onnx import export_onnx

pytestmark = pytest.mark.slow


def test_a_report(make_ranker, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    export_onnx(make_ranker("bi"), tmp_path / "model")
    runtime.main(["--quick", "--model", str(tmp_path / "model"), "--sides", "runtime"])
    printed = capsys.readouterr().out
    for name in ("start_s", "resident_mb", "context_20_ms", "context_86_ms", "rank_20_ms", "installed_mb"):
        assert name in printed


def test_the_size_of_what_is_installed():
    one, more = (runtime.installed_mb(names) for names in (["regex"], runtime.RUNTIME))
    assert 0.1 < one < 10 < more < 400
    assert runtime.installed_mb(["no-such-distribution"]) == 0
