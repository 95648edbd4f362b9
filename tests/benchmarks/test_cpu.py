"""The benchmark of our functions for a CPU runs and reports each of them."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import cpu


@pytest.mark.slow
def test_report(monkeypatch, capsys):
    monkeypatch.setattr(cpu, "SIZES", {"tiny": 24})
    cpu.main(["--json", "--quick"])
    report = json.loads(capsys.readouterr().out)
    assert report["machine"]["threads"] == torch.get_num_threads()
    functions, steps = report["rows"][:-4], report["rows"][-4:]
    assert len(functions) == 8
    assert {*report["summary"]} > {row["what"] for row in functions}
    assert report["summary"]["a step in bfloat16, dropout 0.1, beside float32"] > 0
    assert all(row["ours_ms"] > 0 and row["torch_ms"] > 0 for row in functions)
    shares = {row["what"]: row["share_of_product_rate"] for row in report["rows"] if "share_of_product_rate" in row}
    assert list(shares) == [
        "linear, tiny, forward",
        "linear, tiny, forward and backward",
        *(row["what"] for row in steps),
    ]
    assert all(share > 0 for share in shares.values())
