"""The pre-training benchmark on a small corpus: what it reads, and what it reports."""

from __future__ import annotations

import json
import math
import time

import pytest

from benchmarks import pretraining
from benchmarks.pretraining import TURNS, read, write_corpus
from benchmarks.pretraining_fairseq import fairseq_stepping
from polyencoder.pretraining.corpus import Corpus


def test_a_corpus_has_the_size_that_was_asked_for_and_no_turn_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(pretraining, "FILE", 100_000)
    write_corpus(tmp_path, size=250_000)
    files = sorted(map(str, tmp_path.glob("*.jsonl")))
    assert len(files) == 3
    assert 250_000 <= sum(path.stat().st_size for path in tmp_path.iterdir()) < 255_000
    documents = list(Corpus(files).documents())
    turns = [turn for document in documents for turn in document.units]
    assert all(len(document.units) == TURNS for document in documents)
    assert len(set(turns)) == len(turns)


@pytest.mark.slow
def test_an_epoch_is_read_to_its_end(tmp_path, forked):
    write_corpus(tmp_path, size=300_000)
    found = read(tmp_path)
    assert [mark["read_gb"] for mark in found["marks"]] == pytest.approx([0.0, 0.0001, 0.0001, 0.0003], abs=1e-4)
    peaks = [mark["peak_mb"] for mark in found["marks"]]
    assert peaks == sorted(peaks)
    assert found["mb_per_second"] > 0


def test_it_reports_what_a_step_does(capsys, monkeypatch):
    monkeypatch.setattr(pretraining, "SIZES", {"tiny": (1, 16, 2)})
    monkeypatch.setattr(pretraining, "matmul_throughput", lambda device, *, clock: 1e12)
    pretraining.main(["--quick", "--json", "--cases", "steps", "--tokens", "512", "--sizes", "tiny"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["case"] for row in rows] == ["tiny packed", "tiny padded"]
    for row in rows:
        assert 0 < row["tokens_per_second"] < row["floor_tokens_per_second"]
        assert row["share"] == pytest.approx(row["tokens_per_second"] / row["floor_tokens_per_second"])


@pytest.mark.slow
def test_fairseq_learns_from_the_same_batch():
    pytest.importorskip("fairseq", reason="no fairseq: its wheel is for Python 3.11 on Linux (Makefile)")
    sizes = {"layers": 1, "dim": 16, "heads": 2, "vocabulary_size": 3_000, "longest": pretraining.LONGEST}
    step = fairseq_stepping(pretraining.masked_batch(512), **sizes, clock=time.perf_counter)
    first = step()
    assert first.seconds > 0
    assert first.loss == pytest.approx(math.log(3_000), rel=0.1)  # of a new model, per masked word
    assert [step() for _ in range(30)][-1].loss < first.loss - 0.1


@pytest.mark.slow
def test_it_compares_with_fairseq(capsys, monkeypatch):
    pytest.importorskip("fairseq", reason="no fairseq: its wheel is for Python 3.11 on Linux (Makefile)")
    monkeypatch.setattr(pretraining, "SIZES", {"tiny": (1, 16, 2)})
    pretraining.main(["--quick", "--json", "--cases", "fairseq", "--tokens", "512", "--sizes", "tiny"])
    report = json.loads(capsys.readouterr().out)
    (row,) = report["rows"]
    ratio = row["ours_tokens_per_second"] / row["fairseq_tokens_per_second"]
    assert report["summary"] == {"tiny_vs_fairseq": pytest.approx(ratio)}
