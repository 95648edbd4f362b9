"""Labelled texts from files, a sample per label, and what is held out."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.data.readers import BadExamples
from polyencoder.errors import InputError
from polyencoder.intents.examples import hold_out, read_labelled, read_plain, sample_per_label

LABELS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=60)


def lines(path, *records) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.mark.parametrize("column", ["label", "intent", "category", "mine"])
def test_each_format_gives_the_same(tmp_path, column):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"text": "hello,  you", column: "greeting"}, {"text": "bye", column: "7"}]
    lines(tmp_path / "a.jsonl", *rows)
    (tmp_path / "a.csv").write_text(f'text,{column}\n"hello,  you",greeting\nbye,7\n')
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    label = column if column == "mine" else None
    for name in ("a.jsonl", "a.csv", "a.parquet"):
        found = read_labelled(str(tmp_path / name), label=label)
        assert [(one.text, one.label) for one in found] == [("hello, you", "greeting"), ("bye", "7")]
    assert read_labelled(str(tmp_path / "a.csv"), label=label)[1].where == f"{tmp_path / 'a.csv'}, line 3"


def test_labels_may_be_numbers(tmp_path):
    path = lines(tmp_path / "a.jsonl", {"q": "hello", "label": 0}, {"q": "bye", "label": 12})
    assert [one.label for one in read_labelled(path, text="q")] == ["0", "12"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "hi"}, r"line 2: has no 'label' or 'intent' or 'category'; it has 'text'\. Name the column"),
        ({"label": "a"}, "line 2: has no 'text'; it has 'label'"),
        ({"text": " ", "label": "a"}, "line 2: 'text' is ' '; it must be a text that is not empty"),
        ({"text": ["hi"], "label": "a"}, r"line 2: 'text' is \['hi'\]"),
        ({"text": "hi", "label": ""}, "line 2: the label is ''"),
        ({"text": "hi", "label": None}, "line 2: the label is None"),
        ({"text": "hi", "label": True}, "line 2: the label is True"),
        ({"text": "hi", "label": "b"}, "line 2: the label 'b' is that of no training text"),
    ],
)
def test_a_bad_record_is_named_or_counted(tmp_path, record, message):
    path = lines(tmp_path / "a.jsonl", {"text": "fine", "label": "a"}, record)
    with pytest.raises(InputError, match=message):
        read_labelled(path, known={"a"})
    bad = BadExamples(skip=True)
    assert [one.text for one in read_labelled(path, known={"a"}, bad=bad)] == ["fine"]
    assert bad.count == 1


def test_a_file_without_a_record(tmp_path):
    with pytest.raises(InputError, match="no labelled text in it"):
        read_labelled(lines(tmp_path / "a.jsonl"))
    with pytest.raises(InputError, match="no such file"):
        read_labelled(str(tmp_path / "none.jsonl"))


def test_plain_texts(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n two  words \n")
    assert read_plain(str(tmp_path / "a.txt")) == ["one", "two words"]
    assert read_plain(lines(tmp_path / "a.jsonl", {"q": "hi", "label": "a"}), text="q") == ["hi"]
    (tmp_path / "b.txt").write_text("\n\n")
    with pytest.raises(InputError, match="no text in it"):
        read_plain(str(tmp_path / "b.txt"))


@given(LABELS, st.integers(1, 9), st.integers(0, 3))
def test_a_sample_per_label(labels, count, seed):
    places = sample_per_label(labels, count, seed=seed)
    assert places == sorted(set(places))
    there = Counter(labels)
    assert Counter(labels[i] for i in places) == {label: min(count, there[label]) for label in there}
    assert places == sample_per_label(labels, count, seed=seed)


def test_other_seeds_draw_others():
    labels = ["a"] * 50 + ["b"] * 50
    assert len({tuple(sample_per_label(labels, 5, seed=seed)) for seed in range(5)}) == 5
    assert len({tuple(hold_out(labels, 0.1, seed=seed)[1]) for seed in range(5)}) == 5


@given(LABELS, st.floats(0.01, 0.99), st.integers(0, 3))
def test_what_is_hold_out(labels, share, seed):
    kept, out = hold_out(labels, share, seed=seed)
    assert sorted(kept + out) == list(range(len(labels)))
    there, drawn = Counter(labels), Counter(labels[i] for i in out)
    for label, count in there.items():
        assert drawn[label] == 0 if count == 1 else 1 <= drawn[label] < count
        if 2 <= round(share * count) < count - 1:
            assert abs(drawn[label] - share * count) <= 0.5
