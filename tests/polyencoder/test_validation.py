"""Errors of settings: one line that names each setting by its flag, its value and what it must be."""

from __future__ import annotations

import dataclasses
import json
from typing import Literal

import pytest

from polyencoder.errors import ConfigError, PolyencoderError
from polyencoder.settings.pretrain import PretrainingSettings
from polyencoder.settings.train import TrainSettings
from polyencoder.validation import Count, Whole, from_json_values, validated

MINIMAL = {"train": "a.jsonl", "out": "x", "backbone": "bert"}


def problem(cls: type, values: dict) -> PolyencoderError:
    with pytest.raises(PolyencoderError) as caught:
        cls.of(values)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("values", "line", "argument"),
    [
        ({"batch_size": "x"}, "batch_size is 'x'; it must be a whole number", "batch_size"),
        ({"batch_size": "3.5"}, "batch_size is 3.5; it must be a whole number", "batch_size"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1", "batch_size"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'; it must be a number", "learning_rate"),
        ({"learning_rate": float("inf")}, "learning_rate is inf; it must be a finite number", "learning_rate"),
        ({"label_smoothing": 1.0}, "label_smoothing is 1.0; it must be below 1", "label_smoothing"),
        ({"streaming": "perhaps"}, "streaming is 'perhaps'; it must be true or false", "streaming"),
        ({"betas": "0.9"}, "betas is 0.9; it must be two numbers with a comma", "betas"),
        ({"betas": "0.9,0.99,0.999"}, "betas is '0.9,0.99,0.999'; it must be two numbers with a comma", "betas"),
        ({"device": 3}, "device is 3; it must be a text", "device"),
        ({"teacher": 3}, "teacher is 3; it must be a text", "teacher"),
    ],
)
def test_one_setting(values, line, argument):
    error = problem(TrainSettings, MINIMAL | values)
    assert str(error) == line
    assert error.argument == argument
    assert isinstance(error, ConfigError)


def test_choices_are_listed():
    line = str(problem(TrainSettings, MINIMAL | {"schedule": "step"}))
    assert line == "schedule is 'step'; it must be one of plateau, linear, cosine, invsqrt, constant"


def test_each_alternative_of_a_setting_of_several_types():
    line = str(problem(TrainSettings, MINIMAL | {"output_scaling": "wide"}))
    assert line.startswith("output_scaling is 'wide'; it must be ")
    assert " or " in line
    assert "auto" in line
    assert "a number" in line


def test_all_that_is_wrong_in_one_line():
    line = str(problem(TrainSettings, MINIMAL | {"batch_size": -1, "clip": "no"}))
    assert sorted(line.split("; and ")) == [
        "batch_size is -1; it must be at least 1",
        "clip is 'no'; it must be a number",
    ]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("batchsize", "did you mean 'batch_size'?"),
        ("qqqqqq", "it must be one of train, valid, out"),
        ("find_batch_size", "it was removed: give grad_cache"),
        ("hard_negative_margin", "it was removed: max_positive_similarity"),
    ],
)
def test_a_setting_that_there_is_not(name, hint):
    error = problem(TrainSettings, MINIMAL | {name: 3})
    assert str(error).startswith(f"unknown setting {name!r}; {hint}")
    assert error.argument == name


def test_a_setting_that_is_missing():
    error = problem(PretrainingSettings, {"corpus": ["a.txt"], "vocabulary": "v", "max_steps": 1})
    assert (str(error), error.argument) == ("out is missing: give it", "out")


def test_an_error_of_our_own_is_not_wrapped():
    error = problem(TrainSettings, MINIMAL | {"hard_negatives": 3, "hard_negative_ranks": "20-10"})
    assert str(error) == "hard negatives: the ranks are 20-10; give the first and the last, as in 10-100"


@validated
class Part:
    sizes: tuple[Count, ...] = ()


@validated
class Values:
    count: Whole = 1
    share: float = 0.5
    name: str | None = None
    kind: Literal["a", "b"] = "a"
    part: Part | None = None


@pytest.mark.parametrize("values", [{}, {"share": 1}, {"name": "x"}, {"kind": "b"}, {"part": Part(sizes=(1, 2))}])
def test_values_of_the_declared_types(values):
    instance = Values(**values)
    assert from_json_values(Values, json.loads(json.dumps(dataclasses.asdict(instance)))) == instance
    with pytest.raises(dataclasses.FrozenInstanceError):
        instance.count = 3


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"count": 1.0}, "count is 1.0; it must be a whole number"),
        ({"count": "1"}, "count is '1'; it must be a whole number"),
        ({"count": True}, "count is True; it must be a whole number"),
        ({"count": 10**20}, "count is 100000000000000000000; it must be below 1e+18"),
        ({"share": True}, "share is True; it must be a number"),
        ({"share": float("nan")}, "share is nan; it must be a finite number"),
        ({"name": 1}, "name is 1; it must be a text"),
        ({"kind": "c"}, "kind is 'c'; it must be one of a, b"),
        ({"part": {"sizes": [0]}}, "part.sizes is 0; it must be at least 1"),
        ({"part": {"size": [1]}}, "unknown setting 'part.size'; did you mean sizes?"),
        ({"part": 3}, "part is 3; it must be a mapping of settings"),
        ({"shares": 1}, "unknown setting 'shares'; did you mean share?"),
    ],
)
def test_other_values_are_named(values, line):
    makers = [from_json_values, lambda cls, fields: cls(**fields)][: 1 if isinstance(values.get("part"), dict) else 2]
    for make in makers:
        with pytest.raises(ConfigError) as caught:
            make(Values, values)
        assert str(caught.value) == line


@pytest.mark.parametrize("values", [None, 3, [], "x", {"name": "\ud83d"}])
def test_what_is_no_object(values):
    with pytest.raises(ConfigError, match="^it is .*; it must be "):
        from_json_values(Values, values)
