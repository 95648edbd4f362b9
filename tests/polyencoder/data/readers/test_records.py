from __future__ import annotations

import gzip
import io
import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.data.readers import HEAD, detect_format, iter_records, open_bytes
from polyencoder.errors import ConfigError, InputError
from tests.polyencoder.data.readers.conftest import read_all

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.text(), VALUES, max_size=4), max_size=6)


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.jsonl", "jsonl"),
        ("a.json", "jsonl"),
        ("a.NDJSON.gz", "jsonl"),
        ("a.csv.bz2", "csv"),
        ("a.tsv", "tsv"),
        ("a.parquet", "parquet"),
        ("a.csv.txt.xz", "txt"),
        ("a.gz", "txt"),
        ("-", "txt"),
    ],
)
def test_the_name_says_the_format(name, format):
    assert detect_format(name) == format


def test_an_unknown_format_is_refused(write):
    with pytest.raises(ConfigError, match="unknown format 'xml'; use one of jsonl, csv, tsv, parquet, txt"):
        iter_records(write("a.txt", ""), format="xml")


@pytest.mark.parametrize("name", ["a.txt", "a"])
@pytest.mark.parametrize("head", ["", "\n", "# a title\n\n", "\n" * (HEAD - 1)])
def test_records_are_not_read_as_texts(write, name, head):
    path, line = write(name, head + '{"id": 1, "text": "a"}\n'), head.count("\n") + 1
    with pytest.raises(
        InputError, match=rf"line {line}: is JSON with 'id', 'text', but is read as a text: .* in \.jsonl"
    ):
        list(iter_records(path))


@pytest.mark.parametrize("name", ["a.txt", "a"])
def test_texts_may_look_like_records(write, name):
    later = '{"text": "after ten texts"}'
    assert read_all(write(name, "a\n" * HEAD + later))[0][-1] == {"text": later}
    for text in ('{"name": "a tool"}', "{text}", '["text"]', "{1}"):
        assert read_all(write(name, text))[0] == [{"text": text}]


# --- JSON lines ---


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(objects=OBJECTS, ascii_only=st.booleans(), end=st.sampled_from(["\n", "\r\n", "\n\n"]), mark=st.booleans())
def test_any_objects_read_back_from_json_lines(tmp_path_factory, objects, ascii_only, end, mark):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    text = "".join(json.dumps(value, ensure_ascii=ascii_only) + end for value in objects)
    path.write_bytes(("\ufeff" * mark + text).encode())
    records = list(iter_records(path))
    assert json.dumps([record for _, record in records]) == json.dumps(objects)
    step = 2 if end == "\n\n" else 1
    assert [where for where, _ in records] == [f"{path}, line {1 + i * step}" for i in range(len(objects))]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": 1,}', r"a.jsonl, line 2: not JSON \(.+\)"),
        ("[1]", r"a.jsonl, line 2: not a JSON object, but \[1\]"),
        ("5", "a.jsonl, line 2: not a JSON object, but 5"),
        ('{"a": ' * 100_000, "a.jsonl, line 2: not JSON"),
        ('{"a": ' + "1" * 5000 + "}{", "a.jsonl, line 2: not JSON"),
    ],
)
def test_a_line_that_is_no_object_is_named_or_skipped(write, line, message):
    path = write("a.jsonl", f'{{"a": 1}}\n{line}\n{{"a": 3}}\n')
    with pytest.raises(InputError, match=message) as raised:
        list(iter_records(path))
    assert "\n" not in str(raised.value)
    records, bad = read_all(path)
    assert (records, bad.count) == ([{"a": 1}, {"a": 3}], 1)


def test_a_json_file_may_be_one_array(write):
    path = write("a.json", '\ufeff [{"a": 1},\n {"a": 2}]\n')
    assert list(iter_records(path)) == [(f"{path}, example 1", {"a": 1}), (f"{path}, example 2", {"a": 2})]


# --- Parquet ---


@pytest.fixture
def write_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def write(rows: list[dict], **options):
        path = tmp_path / "a.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(rows), path, **options)
        return path

    return write


ROWS = [{"text": f"row \u00e9 {i}", "n": i, "turns": ["a"] * (i % 3), "none": None} for i in range(2500)]


def test_parquet_rows_read_back_in_order(write_parquet):
    path = write_parquet(ROWS, row_group_size=700)
    records = list(iter_records(path))
    assert [record for _, record in records] == ROWS
    assert [where for where, _ in records] == [f"{path}, row {i + 1}" for i in range(len(ROWS))]


def test_the_fraction_of_parquet_is_exact(write_parquet):
    with open_bytes(write_parquet(ROWS)) as file:
        records = iter_records(file)
        for _ in range(10):
            next(records)
        assert 10 / file.fraction == pytest.approx(len(ROWS))


def test_parquet_errors(write_parquet, write, monkeypatch):
    path = write_parquet(ROWS[:10])
    content = path.read_bytes()
    for length in (0, 3, len(content) // 2, len(content) - 1):
        records, bad = read_all(write("cut.parquet", content[:length]))
        assert (records, bad.count) == ([], 1)
        assert "cut.parquet, after row 0: not a Parquet file, or damaged" in bad.first
    with pytest.raises(InputError, match=r"a.parquet.gz: Parquet must be an ordinary file"):
        list(iter_records(write("a.parquet.gz", gzip.compress(content))))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"pip install 'parlai-polyencoder\[data\]'"):
        list(iter_records(path))


# --- text ---


def test_every_line_of_text_is_a_record(write):
    path = write("a.txt", "one\n\n{two}")
    assert list(iter_records(path)) == [
        (f"{path}, line {i}", {"text": text}) for i, text in enumerate(["one", "", "{two}"], 1)
    ]


def test_standard_input_in_another_format(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 1}\n')))
    assert list(iter_records("-", format="jsonl")) == [("standard input, line 1", {"a": 1})]


# --- real files ---


@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("banking77/train.csv", 10_003),
        ("Ubuntu/valid.csv", 1_000),
        ("Ubuntu/official_layout_test_1000.csv", 1_000),
        ("reddit_sample/sample-00000-of-00001.json", 1_000),
        ("dailydialog/dialogues.jsonl.gz", 13_118),
        ("wiki_article_search/wikipedia_valid.txt.gz", 1_000),
    ],
)
def test_real_files_have_as_many_records_as_their_readme_says(data_path, name, n):
    path = data_path / name
    if not path.is_file():
        pytest.skip(f"no real data: ../shared/data/{name} does not exist")
    assert sum(1 for _ in iter_records(path)) == n
