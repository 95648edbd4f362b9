"""Queries of files, with their ids."""

from __future__ import annotations

import gzip

import pytest

from polyencoder.data.contexts import read_queries, read_questions
from polyencoder.errors import InputError


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("q.jsonl", '{"_id": "1", "text": "hi", "metadata": {}}\n{"id": 2, "context": ["a", "b"]}\n'),
        ("q.tsv", "1\thi\n2\ta\n"),
        ("q.tsv", 'id\ttext\n1\thi\n2\t"a"\n'),
        ("q.tsv", "\n\ntext\tid\nhi\t1\na\t2\n"),
        ("q.csv", "_id,text,other\n1,hi,x\n2,a,y\n"),
        ("q.csv", "id,context\n1,hi\n2,['a']\n"),
        (
            "q.csv",
            'id,messages\n1,"[{""role"": ""user"", ""content"": ""hi""}]"\n'
            "2,\"[{'role': 'user', 'content': 'a'}]\"\n",
        ),
    ],
)
def test_queries_of_any_format(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    expected = {"1": ["hi"], "2": ["a", "b"] if name == "q.jsonl" else ["a"]}
    assert read_queries(str(tmp_path / name)) == expected
    with gzip.open(tmp_path / f"{name}.gz", "wt") as file:
        file.write(content)
    assert read_queries(str(tmp_path / f"{name}.gz")) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.jsonl", '{"_id": "1", "text": "hi"}\n{"text": "ho"}\n', "line 2: has no id"),
        (
            "q.jsonl",
            '{"_id": "1", "text": "hi"}\n{"id": 1, "text": "ho"}\n',
            "line 2: the id '1' belongs to an earlier",
        ),
        ("q.jsonl", '{"_id": "1", "text": " "}\n', "line 1: 'text' is empty"),
        ("q.jsonl", '{"_id": "1", "title": "x"}\n', "line 1: has none of 'context', 'messages', 'text'"),
        ("q.tsv", "1\thi\nho\n", "line 2: has no id"),
        ("q.txt", "hi\n", "line 1: has no id"),
        ("q.jsonl", "", "has no query"),
    ],
)
def test_bad_queries_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_queries(str(tmp_path / name))


def test_an_empty_context_beside_a_text_counts_as_absent(tmp_path):
    """In a table every record has all columns."""
    (tmp_path / "q.jsonl").write_text(
        '{"id": 1, "context": null, "text": "a"}\n{"id": 2, "context": ["b"], "text": ""}'
    )
    assert read_queries(str(tmp_path / "q.jsonl")) == {"1": ["a"], "2": ["b"]}


def test_contexts_keep_the_ids_of_their_records(tmp_path):
    (tmp_path / "q.jsonl").write_text('{"_id": "x", "text": "hi"}\n{"id": 3, "text": "ho"}\n{"text": "hey"}\n')
    assert [question.id for question in read_questions([str(tmp_path / "q.jsonl")])] == ["x", 3, None]


def test_earlier_turns_are_in_columns_of_their_own_as_in_files_of_pairs(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text(
        '{"context": "c", "context/0": "b\\n b", "context/1": "a", "response": "r"}\n'
        '{"id": 1, "context": "c", "context/0": 3}\n'
    )
    questions = read_questions([str(path)])
    assert next(questions).turns == ["a", "b b", "c"]
    with pytest.raises(InputError, match=r"line 2: a turn before the last one of the context is int, not a text"):
        next(questions)
