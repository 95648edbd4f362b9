"""The keyword baseline on a task: what it counts, and that the generated dialogues are not solved by keywords."""

from __future__ import annotations

import json

import pytest

from benchmarks.reproduce import tfidf
from tests.parameters import mostly_long


@pytest.fixture
def run(capsys):
    """(*flags) -> the report on the generated dialogues."""
    pytest.importorskip("parlai")

    def call(*flags: str) -> dict[str, float]:
        tfidf.main(["--task", "selection:sample", *flags])
        return json.loads(capsys.readouterr().out)

    return call


@pytest.mark.slow
@mostly_long("flags", [[], ["--whole-context"]], quick=1)
def test_keywords_are_far_from_solving_the_sample_task(run, flags):
    assert 0.02 < run(*flags)["R20@1"] < 0.35


@pytest.mark.slow
def test_a_number_of_examples(run):
    report = run("--num-examples", "7")
    assert report["examples"] == 7
    assert report["R20@10"] >= report["R20@5"] >= report["R20@1"]
