from __future__ import annotations

from collections import Counter

import pytest

from polyencoder.data.texts import read_records, read_texts, sample_uniformly
from polyencoder.errors import InputError


def test_texts_of_all_kinds_of_files(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "b.jsonl").write_text(
        '{"turns": ["three", "four\\nfive"], "id": 3}\n{"context": "six", "response": "7"}\n'
    )
    (tmp_path / "c.csv").write_text("title,text\neight,nine\n")
    files = [str(tmp_path / name) for name in ("a.txt", "b.jsonl", "c.csv")]
    assert list(read_texts(files)) == ["one", "two", "three", "four", "five", "six", "7", "nine"]
    assert list(read_texts(files[2:], columns=["title"])) == ["eight"]


@pytest.mark.parametrize(
    ("line", "columns", "message"),
    [
        ('{"words": "a"}', [], "line 1: has none of 'text'.*it has 'words'. Name the columns"),
        ('{"text": "a"}', ["title"], "line 1: has no 'title'"),
        ('{"text": 3}', [], "line 1: 'text' is neither a text nor a list of texts, but int"),
    ],
)
def test_a_record_without_texts_is_an_error(tmp_path, line, columns, message):
    (tmp_path / "a.jsonl").write_text(line)
    with pytest.raises(InputError, match=message):
        list(read_texts([str(tmp_path / "a.jsonl")], columns=columns))


def test_a_brace_begins_json_in_text_files_alone(tmp_path):
    (tmp_path / "a.txt").write_text('one\n\n{"text": "{two}", "id": 2}\n')
    assert [record for _, record in read_records(str(tmp_path / "a.txt"))] == [
        {"text": "one"},
        {"text": "{two}", "id": 2},
    ]
    (tmp_path / "b.csv").write_text("text\n{name} is here\n")
    (tmp_path / "b.jsonl").write_text('{"text": "{name} is here"}\n')
    for name in ("b.csv", "b.jsonl"):
        assert [record for _, record in read_records(str(tmp_path / name))] == [{"text": "{name} is here"}]
    (tmp_path / "c.txt").write_text("one\n{two}\n")
    with pytest.raises(InputError, match=r"c.txt, line 2: begins with { but is not a JSON object"):
        list(read_records(str(tmp_path / "c.txt")))


def test_samples():
    items = [str(i) for i in range(10)]
    assert list(sample_uniformly(items, count=20, of=10)) == items
    counts = Counter(item for seed in range(2_000) for item in sample_uniformly(items, count=3, of=10, seed=seed))
    assert sum(counts.values()) == 6_000
    assert all(500 < counts[item] < 700 for item in items)  # 600 expected; a deviation is 20
    assert list(sample_uniformly(items, count=3, of=10, seed=5)) == list(
        sample_uniformly(items, count=3, of=10, seed=5)
    )
