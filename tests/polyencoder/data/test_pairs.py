"""Pairs of files: which turns a context has, however its columns are laid out."""

from __future__ import annotations

import json

import pytest

from polyencoder.data.pairs import Columns, read_pairs
from polyencoder.errors import InputError

EARLIER = {"context/0": "the\n\none before", "context/1": "first", "context/3": "behind a gap"}


@pytest.mark.parametrize(
    ("fields", "turns"),
    [
        ({"context": "one text\nof two lines "}, ["one text\nof two lines"]),
        ({"context": [" a\nb", " ", "c"]}, ["a\nb", "c"]),
        ({"context": "last\none", **EARLIER}, ["first", "the one before", "last one"]),
        ({"context": "last", "context/0": None}, ["last"]),
        ({"context": "last", "context/0": "", "context/1": "first"}, ["first", "last"]),
    ],
    ids=["text", "list", "PolyAI", "null", "empty"],
)
def test_turns_of_a_context(tmp_path, fields, turns):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({**fields, "response": "yes"}))
    (pair,) = read_pairs(path)
    assert pair.turns == turns
    assert pair.context == "\n".join(turns)


@pytest.mark.parametrize("fields", [{"context": " \n"}, {"context": [" "]}, {"context": "", "context/0": " "}])
def test_a_context_without_a_word(tmp_path, fields):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({**fields, "response": "yes"}))
    with pytest.raises(InputError, match=r"pairs.jsonl, line 1: the context is empty"):
        list(read_pairs(path))


def test_columns_of_tables_are_turns_too(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("question,question/0,question/1,response\nlast,before,first,yes\nalone,,,no\n")
    assert [pair.turns for pair in read_pairs(path, columns=Columns(context="question"))] == [
        ["first", "before", "last"],
        ["alone"],
    ]
