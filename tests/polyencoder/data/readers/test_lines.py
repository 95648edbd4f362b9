from __future__ import annotations

import gzip
import io
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.data.readers import BadExamples, iter_lines, open_bytes
from polyencoder.errors import InputError

# Ends of lines, what looks like one, a mark of UTF-8, characters of one to four bytes.
PIECES = st.sampled_from(
    ["\n", "\r", "\r\n", "\u2028", "\x0b", "\x85", "\ufeff", " ", "a", "b c", "\u00e9", "\U0001f600"]
)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(pieces=st.lists(PIECES, max_size=20), copies=st.sampled_from([1, 3000]))
def test_the_lines_are_those_of_pythons_text_files(tmp_path_factory, pieces, copies):
    content = "".join(pieces * copies).encode()
    path = tmp_path_factory.getbasetemp() / "lines.txt"
    path.write_bytes(content)
    # newline=None is "universal newlines"; utf-8-sig drops the mark at the beginning.
    expected = [line.removesuffix("\n") for line in io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig")]
    assert list(iter_lines(path)) == list(enumerate(expected, start=1))


@settings(deadline=None, max_examples=100)
@given(
    rows=st.lists(st.binary(max_size=6).map(lambda row: row.replace(b"\n", b"").replace(b"\r", b""))),
    large=st.booleans(),
)
def test_each_line_that_is_not_utf8_is_left_out_alone(tmp_path_factory, rows, large):
    rows = [b"x", *rows, *[b"x" * 40] * 1000 * large]
    path = tmp_path_factory.getbasetemp() / "bytes.txt"
    path.write_bytes(b"\n".join(rows) + b"\n")
    expected, n_bad = [], 0
    for number, row in enumerate(rows, start=1):
        try:
            expected.append((number, row.decode()))
        except UnicodeDecodeError:
            n_bad += 1
    bad = BadExamples(skip=True)
    assert list(iter_lines(path, bad=bad)) == expected
    assert bad.count == n_bad


def test_a_line_in_another_encoding_is_named(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("one\ncaf\u00e9\n".encode("latin-1"))
    lines = iter_lines(path)
    assert next(lines) == (1, "one")
    with pytest.raises(InputError, match=r"latin.txt, line 2: is not utf-8 text \(byte 0xe9 at column 4\); convert"):
        next(lines)


def test_utf16_is_recognised(tmp_path):
    path = tmp_path / "notepad.txt"
    path.write_bytes("one\n".encode("utf-16"))
    with pytest.raises(InputError, match="line 1: is not utf-8 text .* looks like UTF-16: save it as UTF-8"):
        list(iter_lines(path))


def test_files_of_other_kinds_are_recognised(tmp_path):
    """To convert them to UTF-8 would break them."""
    (tmp_path / "c.xlsx").write_bytes(b"PK\3\4\x14\0\6\0\b\0\0\0!\0\xdf\xa4\xd2l")
    with pytest.raises(InputError, match="c.xlsx, line 1: .* looks like an Excel workbook .*: save the table as CSV"):
        list(iter_lines(tmp_path / "c.xlsx"))
    (tmp_path / "c.jsonl").write_bytes(gzip.compress(b'{"text": "a"}\n', mtime=0))
    with pytest.raises(InputError, match="c.jsonl, line 1: .* looks compressed: let its name end in .gz"):
        list(iter_lines(tmp_path / "c.jsonl"))


def test_a_cut_gzip_gives_whole_lines_and_then_an_error(tmp_path):
    expected = [(number, f"line {number * 7919}") for number in range(1, 60)]
    whole = gzip.compress("".join(f"{text}\n" for _, text in expected).encode(), mtime=0)
    path = tmp_path / "cut.gz"
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        bad = BadExamples(skip=True)
        if length == 0:
            with pytest.raises(InputError, match="is empty"):
                list(iter_lines(path, bad=bad))
            continue
        lines = list(iter_lines(path, bad=bad))
        assert lines == expected[: len(lines)]
        assert bad.count == (length < len(whole))
        if bad.first is not None:
            assert bad.first.endswith(f"; line {len(lines)} is the last whole one")
    assert lines == expected


def test_a_damaged_gzip_never_gives_a_wrong_line_without_an_error(tmp_path):
    expected = [(number, f"line {number * 7919}") for number in range(1, 60)]
    whole = gzip.compress("".join(f"{text}\n" for _, text in expected).encode(), mtime=0)
    path = tmp_path / "damaged.gz"
    for offset in range(len(whole)):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0x10]) + whole[offset + 1 :])
        bad = BadExamples(skip=True)
        if list(iter_lines(path, bad=bad)) != expected:
            assert bad.count


@pytest.mark.parametrize("missing", [8, 1000, 50_000])  # 8: the check sum alone
def test_all_lines_before_the_damage_are_given(tmp_path, missing):
    digits = random.Random(0)
    text = "".join(f"{digits.randrange(10 ** digits.randrange(60))}\n" for _ in range(20_000)).encode()
    cut = gzip.compress(text)[:-missing]
    path = tmp_path / "cut.gz"
    path.write_bytes(cut)
    *expected, _ = zlib.decompressobj(wbits=31).decompress(cut).decode().split("\n")
    bad = BadExamples(skip=True)
    assert [line for _, line in iter_lines(path, bad=bad)] == expected
    assert bad.first.endswith(f"; line {len(expected)} is the last whole one")


def test_an_open_file_is_left_open(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("one\ntwo\n")
    with open_bytes(path) as file:
        assert [text for _, text in iter_lines(file)] == ["one", "two"]
        assert not file.closed
