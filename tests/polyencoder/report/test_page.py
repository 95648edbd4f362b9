"""The page of a run, from a record in memory. The command and real runs: tests/polyencoder/cli/test_report.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyencoder.errors import InputError
from polyencoder.report.page import report_page
from polyencoder.report.record import RunRecord
from polyencoder.report.validation import validate
from polyencoder.settings.base import flat_values
from polyencoder.settings.train import TrainSettings
from tests.html_page import Page

MARKUP = "</svg><script>alert('&amp;')</script>$x_1"


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({}, set()),
        ({"architecture": "cross"}, {"architecture"}),  # whose batches and candidates have other defaults
        ({"batch_size": 7, "betas": (0.8, 0.99)}, {"batch_size", "betas"}),
    ],
)
def test_settings_that_differ_from_the_defaults_of_their_architecture(given, changed):
    values = flat_values(TrainSettings(train="a", out="b", backbone="c", **given))
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    found = {name: (value, default) for name, value, default in RunRecord(Path("b"), options, []).changed}
    assert found.keys() == {"train", "out", "backbone"} | changed
    assert found["train"] == ("a", None)
    if "betas" in changed:
        assert found["betas"] == ([0.8, 0.99], [0.9, 0.999])


def test_everything_that_a_run_recorded_is_escaped():
    options = {"architecture": "poly", "train": MARKUP, "odd": MARKUP, MARKUP: 1}
    start = {
        "time": MARKUP,
        "command": MARKUP,
        "updates": 0,
        "versions": {MARKUP: MARKUP},
        "machine": {"gpus": [MARKUP]},
    }
    run = RunRecord(
        Path(MARKUP.replace("/", "")),
        options,
        [{**start, "end": {}}],
        measures={MARKUP: {MARKUP: 0.5}},
        progress={"updates": 4, "examples": 8, "seconds": 2.0},
        stopped=MARKUP,
    )
    page = Page(report_page(run))
    assert not {"script", "svg"} & {tag for tag, _ in page.tags}
    assert sum(MARKUP in word for word in page.words) >= 9
    assert page.loads == []


def test_a_run_without_time_has_no_speed():
    run = RunRecord(Path("run"), {"architecture": "poly", "train": "a"}, [], progress={"updates": 0, "seconds": 0.0})
    assert "Missing: the memory" in " ".join(Page(report_page(run)).words)
    assert run.examples_per_second is None


def test_no_examples_are_an_error(make_ranker):
    with pytest.raises(InputError, match="no example"):
        validate(make_ranker("bi"), [], data="none.jsonl")
