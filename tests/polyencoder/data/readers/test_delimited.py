"""CSV and TSV: any table reads back, and one wrong quote costs one row."""

from __future__ import annotations

import csv
import gzip
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.data.readers import BadExamples, iter_records, parse_delimiter
from polyencoder.errors import ConfigError, InputError
from tests.polyencoder.data.readers.conftest import read_all

# NUL is not text that a table can hold: csv refuses it before Python 3.11.
CELLS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ['"', "a\nb", "a\r\nb", "\r", ",", "\t", '","', "\u2028"]
)


def table(rows: list[list[str]], delimiter: str = ",", end: str = "\r\n") -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(rows)
    return text.getvalue().encode()


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(
    rows=st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=6),
    tabs=st.booleans(),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    mark=st.booleans(),
)
def test_any_table_reads_back(tmp_path_factory, rows, tabs, end, mark):
    path = tmp_path_factory.getbasetemp() / ("any.tsv" if tabs else "any.csv")
    content = table([("a", "b", "c"), *rows], "\t" if tabs else ",", end)
    path.write_bytes(b"\xef\xbb\xbf" * mark + content)
    assert [tuple(record.values()) for _, record in iter_records(path)] == rows


def test_the_place_of_a_row_is_the_line_where_it_begins(write):
    path = write("a.csv", 'a,b\n1,"x\ny\n"\n\n2,z\n3\n')
    bad = BadExamples(skip=True)
    rows = list(iter_records(path, bad=bad))
    assert rows == [(f"{path}, line 2", {"a": "1", "b": "x\ny\n"}), (f"{path}, line 6", {"a": "2", "b": "z"})]
    assert bad.first == f"{path}, line 7: has 1 cells, but the header names 2 columns"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"2", "a.csv, line 3: has 1 cells, but the header names 2 columns"),
        (b"2,y,z", "a.csv, line 3: has 3 cells, but the header names 2 columns"),
        (b'2,"y"z', r"a.csv, line 3: not a row of cells \(.+\); look for a quote out of place"),
        (b"2,\xff", "a.csv, line 3: is not utf-8 text"),
        (b'2,"y\n\xff\nz"', "a.csv, line 4: is not utf-8 text"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_or_skipped_alone(write, row, message):
    path = write("a.csv", b"a,b\n1,x\n" + row + b"\n3,z\n")
    with pytest.raises(InputError, match=message):
        list(iter_records(path))
    rows, bad = read_all(path)
    assert (rows, bad.count) == ([{"a": "1", "b": "x"}, {"a": "3", "b": "z"}], 1)


def test_a_quote_that_is_never_closed_is_an_error_where_it_opens(write):
    path = write("a.csv", 'a,b\n1,x\n2,"y\n3,z\n')
    with pytest.raises(InputError, match="a.csv, line 3: not a row of cells"):
        list(iter_records(path))


def test_a_row_of_several_lines_that_cannot_be_read_names_all_of_them(write):
    """They are left out together, and count as one record."""
    path = write("a.csv", b'text,id\n"5 in,1\nlost,2\n"x y",3\nkept,4\n')
    rows, bad = read_all(path)
    assert (rows, bad.count) == ([{"text": "kept", "id": "4"}], 1)
    with pytest.raises(InputError, match="a.csv, lines 2 to 4: not a row of cells"):
        list(iter_records(path))


def test_rows_behind_a_quote_that_is_never_closed_are_read(write):
    good = [(str(n), "z" * 30) for n in range(5000)]
    path = write("a.csv", 'a,b\n1,x\n2,"y\n' + "".join(f"{a},{b}\n" for a, b in good) + '7,"never\n8,z\n')
    rows, bad = read_all(path)
    assert [tuple(record.values()) for record in rows] == [("1", "x"), *good, ("8", "z")]
    assert bad.count == 2
    assert bad.first is not None
    assert bad.first.startswith(f"{path}, line 3: not a row of cells")
    assert [where for where, _ in iter_records(path, bad=BadExamples(skip=True))][-1] == f"{path}, line 5005"


def test_a_cell_may_be_longer_than_pythons_own_limit(write):
    rows = [("1", "x" * 200_000), ("2", "turn\n" * 100_000), ("3", "z")]
    records, bad = read_all(write("a.csv", table([("a", "b"), *rows])))
    assert [tuple(record.values()) for record in records] == rows
    assert bad.count == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.csv: has no header row"),
        (b"\n\n", "a.csv: has no header row"),
        (b"a,b,a\n1,2,3\n", "a.csv, line 1: the header names the column 'a' twice"),
        (b"a,\xff\n1,2\n3,4\n", "a.csv, line 1: is not utf-8 text"),
    ],
)
def test_nothing_is_read_below_a_wrong_header(write, content, message):
    path = write("a.csv", content)
    with pytest.raises(InputError, match=message):
        list(iter_records(path))
    rows, bad = read_all(path)
    assert (rows, bad.count) == ([], 1)


def test_a_cut_gzip_gives_whole_rows_and_then_an_error(write):
    rows = [{"a": str(i * 7919), "b": "x\ny" * (i % 3)} for i in range(50)]
    whole = gzip.compress(table([["a", "b"], *(list(row.values()) for row in rows)]), mtime=0)
    for length in range(1, len(whole)):
        records, bad = read_all(write("cut.csv.gz", whole[:length]))
        assert records == rows[: len(records)]
        assert bad.count == 1
    assert read_all(write("cut.csv.gz", whole))[0] == rows


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_what_the_first_rows_show(write, name, delimiter):
    """Texts have the other characters, quoted or not; only rows of as many cells as the header count."""
    rows = [("is it open ; today | now ?", "yes"), ("a, b, c", "x;y\tz"), ("one", 'two "quoted", three')]
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter).writerows([("question", "answer"), *rows * 30])
    content = text.getvalue().encode()
    path = write(name, gzip.compress(content) if name.endswith(".gz") else content)
    assert [tuple(record.values()) for _, record in iter_records(path)] == rows * 30


def test_a_delimiter_that_is_said_is_used(write):
    content = "a;b,c\n1;2,3\n"
    assert [record for _, record in iter_records(write("a.csv", content))] == [{"a;b": "1;2", "c": "3"}]
    assert [record for _, record in iter_records(write("a.csv", content), delimiter=";")] == [{"a": "1", "b,c": "2,3"}]
    assert [record for _, record in iter_records(write("a.jsonl", '{"a": 1}'), delimiter=";")] == [{"a": 1}]


def test_a_column_of_texts_with_delimiters_is_one_column(write):
    path = write("a.csv", 'text\n"a, b"\nx;y\n1|2\n')
    assert [record["text"] for _, record in iter_records(path)] == ["a, b", "x;y", "1|2"]


@pytest.mark.parametrize(("text", "character"), [("tab", "\t"), (r"\t", "\t"), ("Pipe", "|"), ("~", "~"), (None, None)])
def test_names_of_delimiters(text, character):
    assert parse_delimiter(text) == character


@pytest.mark.parametrize("text", ["", "::", '"', "\n"])
def test_what_cannot_separate_columns(text):
    with pytest.raises(ConfigError, match="delimiter is") as raised:
        parse_delimiter(text)
    assert raised.value.argument == "delimiter"
