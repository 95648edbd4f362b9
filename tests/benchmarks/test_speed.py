"""Benchmarks of speed and memory, run with their smallest sizes: they report what docs/benchmarks.md quotes."""

from __future__ import annotations

import json
import math
import re

import pytest

pytest.importorskip("parlai")

from benchmarks import memory, scoring, training
from benchmarks.agents import build_size_flags

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]

TINY = build_size_flags(layers=1, dim=16, heads=2, codes=4)


@pytest.fixture
def report_of(capsys):
    """(benchmark, words) -> its report; every figure of the summary is a number above 0."""

    def run(benchmark, *words: str) -> dict:
        benchmark.main(["--json", "--quick", *words])
        report = json.loads(re.search(r"^\{.*", capsys.readouterr().out, re.MULTILINE | re.DOTALL)[0])
        assert all(math.isfinite(value) and value >= 0 for value in report["summary"].values())
        return report

    return run


@pytest.mark.long
def test_training(report_of, convai2, bert, monkeypatch):
    """With `--backbone`, which brings its own tokenizer: the agent of the comparison with sentence-transformers."""
    pytest.importorskip("sentence_transformers")
    monkeypatch.setattr(training, "SIZES", {"datapath": TINY})
    words = ["--datapath", str(convai2), "--backbone", str(bert), "--batch", "4", "--threads", "1", "--bf16"]
    report = report_of(training, *words, "--steps", "1", "--repeats", "1")
    peers = [(row["case"], row["peer"]) for row in report["rows"]]
    assert peers[:2] == [("datapath", "ours"), ("datapath", "parlai")]
    assert peers[2:] == [("backbone", "ours"), ("backbone", "sentence_transformers")]
    assert {"datapath_vs_parlai", "backbone_vs_sentence_transformers"} <= report["summary"].keys()
    assert all(row["examples_per_second"] > 0 for row in report["rows"])


def test_scoring(report_of, monkeypatch):
    """ParlAI's own attention gives the same scores: `measure` compares them."""
    monkeypatch.setattr(scoring, "DIM", 32)
    monkeypatch.setattr(scoring, "COUNTS", (50, 500))
    monkeypatch.setattr(scoring, "HEADLINE", (500, 64))
    rows = report_of(scoring)["rows"]
    assert [(row["candidates"], row["codes"]) for row in rows] == [(50, 16), (50, 64), (500, 16), (500, 64)]


def test_memory(report_of):
    sizes = ["--batch", "4", "--plain-batch", "2", "--grad-cache", "1"]
    words = [*sizes, "--bf16", "--threads", "1", "--only", "poly cached"]
    report = report_of(memory, *words)
    assert [row["name"] for row in report["rows"]] == ["poly cached"]
    assert report["rows"][0]["peak_gb"] > 0
