"""Pairs of files: which turns a context has, however its columns are laid out."""

from __future__ import annotations

import json

import pytest

from polyencoder.data.epochs import Counts
from polyencoder.data.example import Example
from polyencoder.data.layouts import Columns
from polyencoder.data.pairs import (
    estimate_pair_counts,
    read_examples,
    read_pair_rows,
    read_pairs,
    read_pairs_and_records,
)
from polyencoder.data.readers import BadExamples
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
    assert pair.text == "\n".join(turns)


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


@pytest.fixture
def write(tmp_path):
    """(name, content) -> the path of a file with it."""

    def make(name: str, content: str) -> str:
        path = tmp_path / name
        path.write_text(content)
        return str(path)

    return make


def test_a_pair_holds_nothing_else_of_its_record(write):
    path = write("a.csv", "context,response,html\nhi,you,<long>\n")
    (pair,) = read_pairs(path)
    assert (pair, pair.where) == (Example(["hi"], "you"), f"{path}, line 2")
    assert list(read_pairs_and_records(path)) == [(pair, {"context": "hi", "response": "you", "html": "<long>"})]


USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
PERSONA = {"role": "system", "content": "i ski"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}


@pytest.mark.parametrize(
    ("record", "pair"),
    [
        ({"messages": [USER, ANSWER]}, (["hi"], "hello", None)),
        ({"messages": [USER, ANSWER], "response": "you"}, (["hi", "hello"], "you", None)),
        ({"context": [USER], "response": "a", "candidates": ["a", "b"]}, (["hi"], "a", ["a", "b"])),
        ({"context": "x", "response": "a", "messages": [USER]}, (["x"], "a", None)),
        ({"messages": [PERSONA, USER, ANSWER]}, (["hi"], "hello", None)),
        (
            {"messages": [USER, ANSWER, USER, ANSWER], "candidates": ["hello", "b"]},
            (["hi", "hello", "hi"], "hello", ["hello", "b"]),
        ),
        ({"messages": [USER, CALL, {"role": "tool", "content": "{}"}, ANSWER]}, (["hi"], "hello", None)),
    ],
)
def test_messages_are_turns(write, record, pair):
    (example,) = read_pairs(write("a.jsonl", json.dumps(record)))
    assert example == Example(*pair)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": [ANSWER, USER]}, "line 1: has no 'response', and none of its messages is the assistant's after"),
        ({"messages": [USER, CALL]}, "line 1: has no 'response', and none of its messages"),
        ({"messages": [USER, CALL], "candidates": ["a"]}, "line 1: the last of its messages, .* only calls tools"),
        ({"messages": [{"role": "bot"}], "response": "x"}, "line 1: the context, message 0 is"),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, "line 1: the messages, message 1, content is"),
    ],
)
def test_messages_that_cannot_be_used(write, record, message):
    with pytest.raises(InputError, match=message):
        list(read_pairs(write("a.jsonl", json.dumps(record))))


CHATS = [
    [PERSONA, USER, ANSWER, {"role": "user", "content": "rain ?"}, CALL, {"role": "assistant", "content": "yes"}],
    [ANSWER, USER, ANSWER, {"role": "assistant", "content": "still there ?"}],
]
REPLIES = [(["hi"], "hello"), (["hi", "hello", "rain ?"], "yes"), (["hello", "hi"], "hello")]


@pytest.mark.parametrize("column", ["messages", "context"])
def test_each_message_of_the_assistant_after_one_of_the_user_is_an_example(write, column, caplog):
    """Fine-tuning of chat models does so; the log counts these messages and the system messages."""
    path = write("a.jsonl", "\n".join(json.dumps({column: chat, "id": 7}) for chat in CHATS))
    with caplog.at_level("INFO"):
        assert list(read_pairs(path)) == list(read_pairs(path)) == [Example(*pair) for pair in REPLIES]
    replies, system = caplog.messages
    assert str(path) in replies
    assert "3 of the assistant's 5 messages in 2 chats" in replies
    assert "1 system messages" in system
    assert "persona" in system
    assert list(read_pair_rows([{column: chat} for chat in CHATS], name="rows")) == [Example(*pair) for pair in REPLIES]
    caplog.clear()
    persona = ["your persona: i ski"]
    expected = [Example([*persona, *turns], label) for turns, label in REPLIES[:2]] + [Example(*REPLIES[2])]
    assert list(read_pairs(path, columns=Columns(system="persona"))) == expected
    assert not any("system" in message for message in caplog.messages)


@pytest.mark.parametrize(
    "columns", [{"context": [PERSONA, USER], "response": "a"}, {"prompt": [PERSONA, USER], "completion": [ANSWER]}]
)
def test_the_log_has_the_system_messages_of_pairs(write, columns, caplog):
    (example,) = read_pairs(path := write("a.jsonl", json.dumps(columns)))
    assert example.turns == ["hi"]
    assert caplog.messages == [f"{path}: 1 system messages were left out (system 'persona' reads them)"]


def test_a_chat_with_a_bad_message_gives_no_example(write):
    bad = BadExamples(skip=True)
    chat = [*CHATS[0], {"role": "bot", "content": "x"}]
    assert list(read_pairs(write("a.jsonl", json.dumps({"messages": chat})), bad=bad)) == []
    assert bad.count == 1


@pytest.mark.parametrize("part", ["context", "response", "candidates"])
def test_a_mistyped_column_names_those_that_there_are(write, part):
    record = {"context": "hi", "response": "you", "messages": [USER, ANSWER]}
    message = f"has no 'x'; it has 'context', 'response', 'messages'. Name the column with the {part}"
    with pytest.raises(InputError, match=message) as error:
        list(read_pairs(write("a.jsonl", json.dumps(record)), columns=Columns(**{part: "x"})))
    assert error.value.argument == f"columns.{part}"


@pytest.mark.parametrize("right", [[["x", "y"], ["w", "v"], ["u"]], [["x", "y"], ["y", "z"]]])
def test_candidates_are_drawn_from_all_responses(write, right):
    """Each example gets as many as there are, without its own."""
    records = ({"context": f"q {number}", "responses": texts} for number, texts in enumerate(right))
    examples, drawn = read_examples(write("a.jsonl", "\n".join(map(json.dumps, records))))
    fewest = len({text for texts in right for text in texts}) - 2
    assert drawn == len(right)
    assert [len(example.choices) for example in examples] == [len(texts) + fewest for texts in right]


def test_the_number_of_pairs_of_a_hub_dataset(tmp_path, monkeypatch):
    """The card has the number, which is not verified here; without a card, the rows are counted."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    (tmp_path / "set/train.jsonl").write_text('{"context": "hi", "response": "hello"}\n' * 5)
    assert estimate_pair_counts([f"hf:{tmp_path}/set:train"]) == Counts(5, 5)
    features = "features: [{name: context, dtype: string}, {name: response, dtype: string}]"
    splits = "splits: [{name: train, num_bytes: 100, num_examples: 7}]"
    (tmp_path / "set/README.md").write_text(f"---\ndataset_info:\n  {features}\n  {splits}\n---\n")
    assert estimate_pair_counts([f"hf:{tmp_path}/set:train"]) == Counts(7, 7)
