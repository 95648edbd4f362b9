from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import sys
from functools import partial

import pytest

from polyencoder.data.readers import DamagedFile, expand, iter_json_array, iter_lines, iter_records, open_bytes
from polyencoder.errors import InputError
from tests.parameters import mostly_long

PACKED = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".GZ": gzip.compress}


def noise(n_bytes: int) -> bytes:
    return random.Random(0).randbytes(n_bytes)


@pytest.mark.parametrize("suffix", PACKED)
def test_the_bytes_are_those_before_compression(tmp_path, suffix):
    content = noise(300_000)
    path = tmp_path / f"data{suffix}"
    path.write_bytes(PACKED[suffix](content))
    with open_bytes(path) as file:
        assert file.size == path.stat().st_size
        assert file.read() == content
    assert file.closed


def test_standard_input_is_read_and_stays_open(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    with open_bytes("-") as file:
        assert (file.path, file.size, file.fraction) == ("standard input", None, None)
        assert file.readline() == b"one\n"
    assert not sys.stdin.buffer.closed
    with pytest.raises(InputError, match="standard input can be read once, and was read already"):
        open_bytes("-")


def test_what_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere.txt: no such file"):
        open_bytes(tmp_path / "nowhere.txt")
    with pytest.raises(InputError, match="is a folder, not a file"):
        open_bytes(tmp_path)
    (tmp_path / "empty.gz").touch()
    with pytest.raises(InputError, match=r"empty.gz: is empty, which no compressed file is"):
        open_bytes(tmp_path / "empty.gz")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_damage_is_an_error_each_time_it_is_met_and_the_bytes_before_it_are_given(tmp_path, suffix):
    content = noise(2_000_000)
    packed = PACKED[suffix](content)
    path = tmp_path / f"data{suffix}"
    path.write_bytes(packed[: len(packed) - 20])
    got: list[bytes] = []
    with open_bytes(path) as file:
        with pytest.raises(DamagedFile, match=rf"data{suffix}: damaged or cut off after [\d,]+ bytes \(.+\)"):
            got.extend(iter(partial(file.read1, 1 << 16), b""))
        with pytest.raises(DamagedFile):
            file.read1()
    assert content.startswith(b"".join(got))
    assert sum(map(len, got)) > 1_000_000


def test_a_file_that_is_not_compressed_although_its_name_says_so(tmp_path):
    path = tmp_path / "data.txt.gz"
    for content in (b"hi", b"hello\n" * 10):  # after the first two bytes, gzip finds the end of the first one in order
        path.write_bytes(content)
        with open_bytes(path) as file:
            for _ in range(3):
                with pytest.raises(DamagedFile, match=r"after 0 bytes \(Not a gzipped file"):
                    file.read()


@pytest.mark.slow
@mostly_long("suffix", ["", ".gz", ".xz"], quick=2)
@pytest.mark.parametrize(
    ("name", "reader", "line"),
    [
        ("a.jsonl", iter_records, '{{"text": "{}"}}\n'),
        ("a.txt", iter_lines, "{}\n"),
        ("a.json", iter_json_array, ',{{"text": "{}"}}\n'),
    ],
)
def test_the_fraction_tells_how_many_records_there_are(tmp_path, suffix, name, reader, line):
    # Lines of random digits, so that every part of the file is compressed alike.
    n, digits = 20_000, random.Random(0)
    text = "".join(line.format(digits.randrange(10**30)) for _ in range(n))
    if reader is iter_json_array:
        text = f"[{text[1:]}]"
    path = tmp_path / (name + suffix)
    path.write_bytes(PACKED[suffix](text.encode()))
    with open_bytes(path) as file:
        assert file.fraction is None
        fractions = []
        for i, _ in enumerate(reader(file), start=1):
            fractions.append(file.fraction)
            if i == 5_000:
                assert i / file.fraction == pytest.approx(n, rel=0.25)
        assert file.fraction == 1
    assert 0 < fractions[0] < 0.2


def test_expand_gives_files_in_the_order_named_and_each_once(tmp_path):
    for name in ("b.txt", "a.txt", "c.json", "x, y.txt", "[z].txt"):
        (tmp_path / name).touch()
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "d.txt").touch()

    def names(*paths: str) -> list[str]:
        expanded = expand([str(tmp_path / path) for path in paths])
        return [path.removeprefix(f"{tmp_path}/").replace("\\", "/") for path in expanded]

    assert names("b.txt", "a.txt") == ["b.txt", "a.txt"]
    assert names("[ab].txt") == ["a.txt", "b.txt"]
    assert names("c.*", "*.txt", "a.txt") == ["c.json", "[z].txt", "a.txt", "b.txt", "x, y.txt"]
    assert names("**/*.txt")[-1] == "x, y.txt"
    assert "deep/d.txt" in names("**/*.txt")
    assert names("x, y.txt") == ["x, y.txt"]
    assert names("[z].txt") == ["[z].txt"]
    assert expand(f"{tmp_path}/c.json, {tmp_path}/a.*") == [f"{tmp_path}/c.json", f"{tmp_path}/a.txt"]
    assert expand(tmp_path / "a.txt") == [str(tmp_path / "a.txt")]
    assert expand("-") == ["-"]


def test_expand_names_what_matches_nothing(tmp_path):
    (tmp_path / "deep").mkdir()
    with pytest.raises(InputError, match=r"\*\.csv': no such file, and no file matches it as a pattern"):
        expand(str(tmp_path / "*.csv"))
    with pytest.raises(InputError, match="no file matches"):
        expand(str(tmp_path / "*"))  # a folder alone
    with pytest.raises(InputError, match="deep: is a folder; name the files in it, such as .*deep"):
        expand(tmp_path / "deep")
    for nothing in ([], "", " , "):
        with pytest.raises(InputError, match="no file is named by"):
            expand(nothing)
