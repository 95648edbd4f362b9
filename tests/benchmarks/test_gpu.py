"""`python -m benchmarks.gpu` in miniature on a CPU: each part's way, and what becomes of its results."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.fixtures import Unavailable, check
from tests.forked import forgetting
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

CPU = ["--device", "cpu", "--quick", "--here"]


@mostly_long("part", command.PARTS, quick=4)
def test_a_part(part, tmp_path, forked):
    out = tmp_path / "gpu.json"
    assert command.main(["--out", str(out), "--only", part, *CPU]) == 0
    result = json.loads(out.read_text())["parts"][part]
    if part == "framework":
        assert result["status"] == "unavailable"
        assert "NCCL" in result["why"]
    else:
        assert result["status"] == "done", result
        assert result.get("rows") or result.get("checks")


def test_results_are_kept_and_what_is_wrong_says_so(tmp_path, monkeypatch, capsys):
    calls: list[str] = []

    def part(name: str, result):
        def run(**_):
            calls.append(name)
            if isinstance(result, Exception):
                raise result
            return result

        return run

    parts = {
        "right": part("right", {"checks": [check("a number", 0.5, limit=1)]}),
        "wrong": part("wrong", {"checks": [check("another number", 2.0, limit=1)]}),
        "missing": part("missing", Unavailable("a package is not installed")),
    }
    monkeypatch.setattr(command, "PARTS", parts)
    out = tmp_path / "gpu.json"
    assert command.main(["--out", str(out), *CPU]) == 1
    report = json.loads(out.read_text())
    statuses = {name: part["status"] for name, part in report["parts"].items()}
    assert statuses == {"right": "done", "wrong": "wrong", "missing": "unavailable"}
    assert "wrong: another number" in capsys.readouterr().err
    calls.clear()
    parts["wrong"] = part("wrong", {"rows": [{}]})
    assert command.main(["--out", str(out), *CPU]) == 0
    assert calls == ["wrong", "missing"], "what is done is not run again"


def test_a_check_of_nan_is_wrong():
    assert not check("loss", float("nan"), limit=1.0)["ok"]


def test_a_part_that_ends_without_a_result_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "LIMIT", 0.01)
    out = tmp_path / "gpu.json"
    assert command.main(["--out", str(out), "--only", "attention", "--device", "cpu", "--quick"]) == 1
    assert json.loads(out.read_text())["parts"]["attention"]["status"] == "failed"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_do(tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.main(["--out", str(tmp_path / "gpu.json")])
    assert "--device cpu --quick" in capsys.readouterr().err
    assert not (tmp_path / "gpu.json").exists()


def test_torch_and_transformers_are_enough(forked_commands):
    """Nothing else is imported, ParlAI least of all, but what settings are declared with: pydantic and cyclopts."""
    others = ["parlai", "sklearn", "scipy", "pandas", "datasets", "faiss", "pymilvus", "matplotlib", "pyarrow"]
    others += ["sentence_transformers", "onnx", "onnxruntime", "ijson", "nltk"]
    code = forgetting("benchmarks", "polyencoder", *others)
    code += f"sys.modules.update(dict.fromkeys({others!r}))\nimport benchmarks.gpu.__main__"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_part_that_takes_too_long_ends_with_all_that_it_started(tmp_path, monkeypatch):
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/started\nwait\n")
    script.chmod(0o755)
    monkeypatch.setattr(command.sys, "executable", str(script))
    monkeypatch.setattr(command, "LIMIT", 1)
    assert command.main(["--out", str(tmp_path / "gpu.json"), "--only", "attention", "--device", "cpu"]) == 1
    result = json.loads((tmp_path / "gpu.json").read_text())["parts"]["attention"]
    assert (result["status"], result["why"]) == ("failed", "not over after 1 seconds")
    started = int((tmp_path / "started").read_text())
    until = time.monotonic() + 10
    while (state := _state(started)) not in ("", "Z") and time.monotonic() < until:
        time.sleep(0.05)
    assert state in ("", "Z")


def _state(process: int) -> str:
    """Z for a process that ended and nobody waited for, nothing for one that is no more."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return done.stdout.strip()[:1]
