"""Graded records, several right responses and tuples: what becomes of them, and what is refused."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from polyencoder.data.example import Example
from polyencoder.data.layouts import LAYOUTS, Columns, parse_examples
from polyencoder.data.pairs import read_pairs
from polyencoder.data.readers import BadExamples
from polyencoder.errors import InputError


def read(tmp_path, *records, name="a.jsonl", **options):
    path = tmp_path / name
    path.write_text("".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records))
    return list(read_pairs(path, **options))


def graded(label, candidates, labels=None):
    return Example(["hi"], label, candidates, labels=labels)


PASSAGES = [{"docid": "7", "title": "Ants", "text": "They dig."}, {"title": "", "text": "a"}]


@pytest.mark.parametrize(
    ("record", "example"),
    [
        (
            {"context": "hi", "candidates": ["a", "b", "c"], "labels": [2, 0, 1]},
            ("a", ["a", "b", "c"], {"a": 2, "c": 1}),
        ),
        ({"context": "hi", "candidates": ["a", "b", "c"], "labels": [0, 1, 0]}, ("b", ["a", "b", "c"])),
        ({"context": "hi", "candidates": ["a", "b"], "labels": [0.25, 0.5]}, ("b", ["a", "b"], {"a": 0.25, "b": 0.5})),
        ({"context": "hi", "candidates": ["a", "a ", "b"], "labels": [1, 1, 0]}, ("a", ["a", "a", "b"])),
        (
            {"context": "hi", "response": "b", "candidates": ["a", "b"], "labels": [1, 1]},
            ("b", ["a", "b"], {"a": 1, "b": 1}),
        ),
        ({"context": "hi", "responses": ["a", "b", "a"]}, ("a", None, {"a": 1, "b": 1})),
        ({"context": "hi", "responses": ["a"]}, ("a", None)),
        (
            {"context": "hi", "responses": ["c", "b"], "candidates": ["a", "b", "c"]},
            ("c", ["a", "b", "c"], {"c": 1, "b": 1}),
        ),
        ({"anchor": "hi", "positive": "a"}, ("a", None)),
        ({"anchor": "hi", "positive": "a", "negative": "b"}, ("a", ["a", "b"])),
        ({"query": "hi", "positive": "a", "negative_2": "c", "negative_1": "b", "id": 7}, ("a", ["a", "b", "c"])),
        (
            {"query": "hi", "positive": "a", "negative_1": "b", "negative_10": "d", "negative_9": None},
            ("a", ["a", "b", "d"]),
        ),
        ({"messages": [{"role": "user", "content": "hi"}], "responses": ["a", "b"]}, ("a", None, {"a": 1, "b": 1})),
        ({"context": "hi", "response": "a", "candidates": ["a", "b"], "labels": "7"}, ("a", ["a", "b"])),
        ({"context": "hi", "response": "a", "candidates": ["a", "b"], "labels": [True]}, ("a", ["a", "b"])),
        # a response was read before there were labels: what other data has in these columns is no matter
        ({"context": "hi", "response": "a", "candidates": ["a", "b"], "labels": ["greeting"]}, ("a", ["a", "b"])),
        ({"context": "hi", "response": "a", "labels": [3]}, ("a", None)),
        ({"context": "hi", "response": "a", "responses": 5, "positive": "x", "query": "y"}, ("a", None)),
        # tuples of other projects
        ({"anchor": "hi", "positive": ["a", "b"]}, ("a", None, {"a": 1, "b": 1})),
        ({"anchor": "hi", "positive": "a", "negative": ["b", "c"], "negative_2": "d"}, ("a", ["a", "b", "c", "d"])),
        ({"anchor": "hi", "positive": "a", "negative": ["b", "a", "b"]}, ("a", ["a", "b"])),
        ({"query": "hi", "pos": ["a"], "neg": ["b", "c"]}, ("a", ["a", "b", "c"])),
        ({"query": "hi", "pos": ["a", "b"], "neg": []}, ("a", None, {"a": 1, "b": 1})),
        ({"query": "hi", "pos": ["a"], "neg": [], "prompt": "Find it"}, ("a", None)),
        (
            {"query": "hi", "query_id": "1", "positive_passages": PASSAGES[:1], "negative_passages": PASSAGES[1:]},
            ("Ants They dig.", ["Ants They dig.", "a"]),
        ),
        (
            {"question": "hi", "answers": ["x"], "positive_ctxs": PASSAGES, "hard_negative_ctxs": []},
            ("Ants They dig.", None, {"Ants They dig.": 1, "a": 1}),
        ),
        (
            {"question": "hi", "answer": "x", "positive_ctxs": PASSAGES[1:], "hard_negative_ctxs": [{"text": "b"}]},
            ("a", ["a", "b"]),
        ),
        ({"prompt": "hi", "completion": "a"}, ("a", None)),
        (
            {"prompt": [{"role": "user", "content": "hi"}], "completion": [{"role": "assistant", "content": "a"}]},
            ("a", None),
        ),
        ({"question": "hi", "answer": "a", "id": 7}, ("a", None)),
        ({"context": "hi", "response": "a", "negatives": ["b", "c"]}, ("a", ["a", "b", "c"])),
        ({"context": "hi", "response": "a", "negatives": "b|c"}, ("a", ["a", "b", "c"])),
        ({"context": "hi", "responses": ["a", "b"], "negatives": ["c"]}, ("a", ["a", "b", "c"], {"a": 1, "b": 1})),
        ({"context": "hi", "response": "a", "candidates": ["a", "d"], "negatives": ["c"]}, ("a", ["a", "d"])),
    ],
)
def test_what_a_record_holds(tmp_path, record, example):
    assert read(tmp_path, record) == [graded(*example)]


def test_cells_of_tables(tmp_path):
    rows = ("context,candidates,labels", "hi,a|b|c,0|2|0.5", "hi,a|b,1|0")
    assert read(tmp_path, *rows, name="a.csv") == [
        graded("b", ["a", "b", "c"], {"b": 2, "c": 0.5}),
        graded("a", ["a", "b"]),
    ]
    assert read(tmp_path, "context,responses", "hi,a|b", name="b.csv") == [graded("a", None, {"a": 1, "b": 1})]
    rows = ("anchor,positive,negative_1,negative_2", "hi,a,b,c", "hi,a,b,")
    assert [example.candidates for example in read(tmp_path, *rows, name="c.csv")] == [["a", "b", "c"], ["a", "b"]]


CHAT = [{"role": "user", "content": "it's me"}, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize("write", [json.dumps, str], ids=["json", "python"])
@pytest.mark.parametrize(
    ("record", "example"),
    [
        ({"context": ["it's", "hello"], "response": "[1]"}, Example(["it's", "hello"], "[1]")),
        (
            {"context": "hi", "response": "a", "candidates": ["a", "b|c"], "labels": ""},
            Example(["hi"], "a", ["a", "b|c"]),
        ),
        ({"context": ["hi"], "response": "", "responses": ["a", "b"]}, graded("a", None, {"a": 1, "b": 1})),
        ({"context": "hi", "candidates": ["a", "b"], "labels": [0, 2.5]}, graded("b", ["a", "b"], {"b": 2.5})),
        ({"context": "hi", "response": "a", "candidates": []}, graded("a", None)),
        ({"messages": CHAT}, Example(["it's me"], "a")),
        ({"context": CHAT[:1], "response": "[]"}, Example(["it's me"], "[]")),
    ],
)
def test_a_list_in_a_cell_is_a_list(tmp_path, write, record, example):
    """`DataFrame.to_csv` and `json.dumps` write lists so; a response is a text whatever it looks like."""
    cells = {name: write(value) if isinstance(value, list) else value for name, value in record.items()}
    with open(tmp_path / "a.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(cells))
        writer.writeheader()
        writer.writerow(cells)
    assert list(read_pairs(tmp_path / "a.csv")) == [example]
    assert read(tmp_path, cells) == [example]


@pytest.mark.parametrize("text", ["[hi", "[hi] you", "[1]", "[note] it's", "[[1, 2]]", '["a", 1]'])
def test_a_text_with_brackets_is_no_list(tmp_path, text):
    assert read(tmp_path, {"context": text, "response": "a"}) == [Example([text], "a")]


@pytest.mark.parametrize("empty", [None, "", " "])
def test_a_table_may_mix_the_records(tmp_path, empty):
    """Each row has all columns: those of other layouts are empty in CSV, null in Parquet and datasets."""
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}]
    rows = [
        ({"context": "hi", "response": "a"}, ("a", None)),
        ({"context": "hi", "response": "a", "candidates": "a|b"}, ("a", ["a", "b"])),
        ({"context": "hi", "responses": "a|b"}, ("a", None, {"a": 1, "b": 1})),
        ({"context": "hi", "candidates": "a|b|c", "labels": "2|0|1"}, ("a", ["a", "b", "c"], {"a": 2, "c": 1})),
        ({"context": "hi", "candidates": "a", "labels": "1"}, ("a", ["a"])),
        ({"anchor": "hi", "positive": "a", "negative": "b"}, ("a", ["a", "b"])),
        ({"query": "hi", "positive": "a"}, ("a", None)),
        ({"messages": chat}, ("a", None)),
        ({"context": chat}, ("a", None)),
        ({"messages": chat[:1], "responses": "a|b"}, ("a", None, {"a": 1, "b": 1})),
    ]
    whole = dict.fromkeys({name for record, _ in rows for name in record}, empty)
    assert read(tmp_path, *({**whole, **record} for record, _ in rows)) == [graded(*expected) for _, expected in rows]
    for absent in ({}, {"context": "hi"}, {"context": "hi", "candidates": "a|b"}, {"anchor": "hi"}, {"positive": "a"}):
        with pytest.raises(InputError, match=r"a\.jsonl, line 1: the (response|labels|context)"):
            read(tmp_path, {**whole, **absent})


def test_empty_columns_of_other_names(tmp_path):
    columns = Columns(response="answer", responses="answers", candidates="docs", labels="grades")
    rows = ("context,answer,answers,docs,grades", "hi,a,,,", "hi,,a|b,,", "hi,,,a|b,0|2", "hi,,,,", "hi,,,a,")
    skipped = BadExamples(skip=True)
    assert read(tmp_path, *rows, name="a.csv", columns=columns, bad=skipped) == [
        graded("a", None),
        graded("a", None, {"a": 1, "b": 1}),
        graded("b", ["a", "b"], {"b": 2}),
    ]
    assert skipped.count == 2
    assert skipped.first.startswith(f"{tmp_path}/a.csv, line 5: ")


def test_columns_of_other_names(tmp_path):
    columns = Columns(context="q", candidates="docs", labels="grades", responses="answers")
    record = {"q": "hi", "docs": ["a", "b"], "grades": [0, 3], "answers": ["b"], "response": "b"}
    assert read(tmp_path, record, columns=columns) == [graded("b", ["a", "b"], {"b": 3})]
    for name in ("grades", "docs", "answers"):
        with pytest.raises(InputError, match=f"a.jsonl, line 1: has no '{name}'; it has 'q'"):
            read(tmp_path, {key: value for key, value in record.items() if key != name}, columns=columns)
    triple = {"anchor": "hi", "positive": "a", "negative": "b"}
    named = Columns(context="anchor", response="positive")
    assert read(tmp_path, triple, columns=named) == [graded("a", None)]  # a pair, as its columns are named
    with pytest.raises(InputError, match="a.jsonl, line 1: has no 'q'; it has 'anchor', 'positive', 'negative'"):
        read(tmp_path, triple, columns=Columns(context="q"))  # no triple: a name was given


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"labels": [1]}, "has 1 labels for 2 candidates"),
        ({"labels": [1, -1]}, "label 1 is -1; give a finite number of 0 or more"),
        ({"labels": [0, 0]}, "all labels are 0: no candidate is right"),
        ({"labels": ["1", "0"]}, "label 0 is .1.; give a finite number"),
        ({"labels": [1, None]}, "label 1 is None; give a finite number"),
        ({"labels": "1|x"}, r"the labels are '1\|x', not a list of numbers"),
        ({"labels": None}, "the labels are None, not a list of numbers"),
        ({"labels": 1}, "the labels are 1, not a list of numbers"),
        ({"labels": [1, 0], "candidates": None}, "has labels, but no candidates that they are of"),
        ({"labels": [1, 0], "candidates": ["a", "a"]}, "the candidate 'a' occurs twice, with the labels 1 and 0"),
        ({"labels": [1, 0], "candidates": ["a", " "]}, "candidate 1 is empty"),
        ({"labels": [2, 1], "response": "b"}, "its response has the label 1, and another candidate a higher one"),
        ({"labels": [2, 1], "response": "c"}, "its response has the label 0, and another candidate a higher one"),
        ({"responses": []}, "the responses are empty"),
        ({"responses": "a|"}, "response 1 is empty"),
        ({"responses": ["c", "a"]}, "its response is not among its 2 candidates"),
        ({}, "has no 'response'; it has 'context', 'candidates'"),
    ],
)
def test_what_is_refused_with_its_line(tmp_path, fields, message):
    good = {"context": "hi", "candidates": ["a", "b"], "labels": [1, 0]}
    bad = {"context": "hi", "candidates": ["a", "b"], **fields}
    with pytest.raises(InputError, match=rf"a\.jsonl, line 2: {message}"):
        read(tmp_path, good, bad, good)
    skipped = BadExamples(skip=True)
    assert len(read(tmp_path, good, bad, good, bad=skipped)) == 2
    assert skipped.count == 1


LABELLED = {"anchor": "hi", "positive": "a"}
UBUNTU = {"Context": "hi __eou__ __eot__", "Utterance": "a"}


@pytest.mark.parametrize("right", [1, 1.0, "1", "1.0", True, None])
@pytest.mark.parametrize("wrong", [0, 0.0, "0", "0.0", False])
def test_a_text_with_the_label_0_is_no_response(tmp_path, right, wrong):
    """Half of sentence-transformers' labelled pairs have a negative in the column `positive`; and Ubuntu's rows."""
    for record, name, columns in ((LABELLED, "label", None), (UBUNTU, "Label", Columns("Context", "Utterance"))):
        rows = [{**record, name: right}, {**record, name: wrong}]
        with pytest.raises(InputError, match=r"a\.jsonl, line 2: has the label 0, so its response is wrong") as raised:
            read(tmp_path, *rows, columns=columns)
        assert raised.value.argument == "skip_bad_examples"  # whose flag a command that has it names
        skipped = BadExamples(skip=True)
        assert [example.label for example in read(tmp_path, *rows, columns=columns, bad=skipped)] == ["a"]
        assert skipped.count == 1
    class_of_another_kind = {"context": "hi", "response": "a", "label": wrong}
    assert read(tmp_path, class_of_another_kind) == [graded("a", None)]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"query": "hi", "pos": [], "neg": ["b"]}, "the responses are empty"),
        ({"query": "hi", "pos": ["a", 5]}, "the responses are not a list of texts"),
        ({"query": "hi", "pos": ["a"], "neg": ["b", " "]}, "negative 1 is empty"),
        ({"query": "hi", "positive_passages": [{"docid": "7"}]}, "the response is empty"),
        ({"question": "hi", "answer": 5}, "the response is int, not a text"),
        ({"question": "", "answer": "a"}, "the context is empty"),
        (
            {"context": "x", "question": "hi", "answer": "a"},
            "has no 'response'; it has 'context', 'question', 'answer'",
        ),
        ({"query": "hi", "text": "a"}, "has no 'context'; it has 'query', 'text'"),
    ],
)
def test_tuples_that_cannot_be_used(tmp_path, record, message):
    with pytest.raises(InputError, match=f"a.jsonl, line 1: {message}"):
        read(tmp_path, record)


def test_the_error_of_a_record_without_a_layout_lists_them(tmp_path):
    with pytest.raises(InputError) as raised:
        read(tmp_path, {"sentence": "hi"})
    assert all(" + ".join(layout.needs) in str(raised.value) for layout in LAYOUTS)
    assert raised.value.argument == "columns.context"


def test_a_named_column_is_of_no_other_layout(tmp_path):
    record = {"query": "hi", "positive": "a", "answer": "b"}
    with pytest.raises(InputError, match="line 1: has no 'context'"):
        read(tmp_path, record, columns=Columns(response="answer"))
    named = Columns(context="query", response="answer")
    assert read(tmp_path, record, columns=named) == [graded("b", None)]
    assert read(tmp_path, {**record, "wrong": ["c"]}, columns=replace(named, negatives="wrong")) == [
        graded("b", ["b", "c"])
    ]


HUMAN, GPT = {"from": "human", "value": "hi"}, {"from": "gpt", "value": "a"}
SYSTEM = {"from": "system", "value": "i ski"}


def test_chats_of_sharegpt(tmp_path):
    calls = [{"from": "function_call", "value": "f()"}, {"from": "observation", "value": "7"}]
    record = {"conversations": [SYSTEM, HUMAN, GPT, HUMAN, *calls, {"from": "gpt", "value": "b"}], "id": "x"}
    first, second = [(["hi"], "a"), (["hi", "a", "hi"], "b")]
    assert read(tmp_path, record) == [Example(*first), Example(*second)]
    (example, _) = read(tmp_path, record, columns=Columns(system="persona"))
    assert example.turns == ["your persona: i ski", "hi"]


def test_who_answers_in_chats(tmp_path):
    chat = [{"role": "customer", "content": "hi"}, {"role": "agent", "content": "a"}, {"role": "bot", "content": "b"}]
    with pytest.raises(InputError, match=r"line 1: the messages, message 0 .* role"):
        read(tmp_path, {"messages": chat})
    assert read(tmp_path, {"messages": chat}, columns=Columns(roles="agent")) == [Example(["hi"], "a")]
    assert read(tmp_path, {"conversations": [HUMAN, GPT]}, columns=Columns(roles="gpt")) == [Example(["hi"], "a")]
    with pytest.raises(InputError, match="none of its messages is the assistant's") as raised:
        read(tmp_path, {"messages": chat}, columns=Columns(roles="nobody"))
    assert raised.value.argument == "columns.roles"


@pytest.mark.parametrize("name", ["turns", "dialog"])
def test_each_turn_of_a_dialogue_after_the_first_is_a_response(tmp_path, name):
    pairs = [Example(["hi"], "a"), Example(["hi", "a"], "b")]
    speakers = [{"speaker": speaker, "text": text} for speaker, text in (("A", "hi"), ("B", "a"), ("A", "b"))]
    for turns in (["hi", " ", "a", "b"], speakers):
        assert read(tmp_path, {name: turns, "split": "x"}) == pairs
    assert read(tmp_path, {name: speakers}, columns=Columns(roles="B")) == pairs[:1]
    assert read(tmp_path, {name: ["hi", "a"], "response": "c"}) == [Example(["hi", "a"], "c")]
    with pytest.raises(InputError, match="line 1: is a dialogue of one turn"):
        read(tmp_path, {name: ["hi"]})


@pytest.mark.parametrize(
    ("record", "rest"),
    [
        ({"query": "hi", "pos": ["a"], "neg": ["b"], "id": 7}, {"id": 7, "negatives": ["b"]}),
        ({"conversations": [HUMAN, GPT], "id": 7}, {"id": 7}),
    ],
)
def test_the_record_of_a_pair_has_its_columns(record, rest):
    """`polyencoder mine` writes it so."""
    ((example, written),) = parse_examples(record, Columns(), where="x")
    assert {name: written[name] for name in rest} == rest
    assert not {"query", "pos", "neg", "conversations"} & written.keys()
    assert [example_read for example_read, _ in parse_examples(written, Columns(), where="x")] == [example]


def test_the_samples_of_the_documentation(tmp_path):
    """Two lines of each layout, and a row in the table."""
    page = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
    rows, samples = page.partition("### Layouts")[2].split("```jsonl\n", 1)
    lines = samples.split("```")[0].splitlines()
    records = list(map(json.loads, lines))
    for layout in LAYOUTS:
        assert all(f"`{name}`" in rows for name in (*layout.needs, *layout.also))
        assert sum({*layout.needs} <= record.keys() for record in records) == 2
    assert len(records) == 2 * len(LAYOUTS)
    assert len(read(tmp_path, *records)) >= len(records)


def test_a_response_that_is_no_candidate_can_join_them():
    record = {"context": "hi", "responses": ["c", "a"], "candidates": ["a", "b"]}
    ((example, _),) = parse_examples(record, Columns(), where="x", add_response=True)
    assert example == graded("c", ["c", "a", "b"], {"c": 1, "a": 1})
