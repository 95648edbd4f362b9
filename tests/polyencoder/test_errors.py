"""Errors of ours where others are expected: in ParlAI's place, and in torch's."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import pytest

import polyencoder
from polyencoder import errors

LIBRARY = Path(polyencoder.__file__).parent
KINDS = [kind for name, kind in vars(errors).items() if name.endswith("Error")]


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_catches_parlais_errors_catches_ours(kind):
    for expected in (RuntimeError, errors.PolyencoderError, kind):
        with pytest.raises(expected, match="what to do"):
            raise kind("what to do")


def test_bad_values_are_value_errors_too():
    assert issubclass(errors.InputError, ValueError)
    assert issubclass(errors.ConfigError, ValueError)


@pytest.mark.parametrize("kind", KINDS)
def test_the_argument_at_fault_crosses_processes(kind):
    error = pickle.loads(pickle.dumps(kind("batch_size is 0; it must be at least 1", argument="batch_size")))  # noqa: S301
    assert (type(error), error.argument) == (kind, "batch_size")
    assert str(error) == "batch_size is 0; it must be at least 1"
    assert kind("no argument's fault").argument is None


@pytest.mark.slow
def test_the_library_speaks_of_arguments_not_of_flags():
    """In messages and docstrings, besides whole commands; cards and reports show those that a run was given.

    settings/ declares the flags and their help, and `Parameter(name=...)` is the name of one.
    """
    for file in LIBRARY.rglob("*.py"):
        shows_flags = any(file.is_relative_to(LIBRARY / folder) for folder in ("cli", "settings"))
        if shows_flags or file.name in ("card.py", "training_run.py"):
            continue
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        calls = [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Parameter"]
        names = {keyword.value for call in calls for keyword in call.keywords if keyword.arg == "name"}
        for node in nodes:
            if node not in names and isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = re.sub(r"`polyencoder [^`]*`", "", node.value)
                assert not re.search(r"(?<![\w-])--([a-z]|$)", text), f"{file}, line {node.lineno}: {node.value}"


@pytest.mark.parametrize(
    ("name", "options", "hint"),
    [
        ("batchsize", {}, "; did you mean batch_size?"),
        ("batchsize", {"shown": "--{}".format, "form": " ({})"}, " (did you mean --batch_size?)"),
        ("colour", {}, "; it must be one of batch_size, epochs"),
        ("colour", {"listed": False}, ""),
    ],
)
def test_an_unknown_name_gets_the_most_similar_known_one(name, options, hint):
    assert errors.suggest_similar(name, iter(["batch_size", "epochs"]), **options) == hint


def test_where_precedes_the_message_and_is_not_for_clients():
    error = errors.InputError("no candidate has the id 'x'", where="folder/replies")
    assert (str(error), error.public) == ("folder/replies: no candidate has the id 'x'", "no candidate has the id 'x'")
    assert errors.PolyencoderError("folder/replies: damaged", public="the index is bad").public == "the index is bad"
    assert errors.PolyencoderError("folder/replies: damaged").public is None
