from __future__ import annotations

import gzip
import json
import random
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.data.readers import BadExamples, iter_json_array, open_bytes
from polyencoder.errors import ConfigError, InputError

INTEGERS = st.integers(min_value=1 - 2**63, max_value=2**63 - 1)
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
OBJECTS = st.lists(st.dictionaries(st.text(), VALUES, max_size=4), max_size=6)


def read_all(path) -> tuple[list[dict], BadExamples]:
    bad = BadExamples(skip=True)
    return [record for _, record in iter_json_array(path, bad=bad)], bad


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(
    objects=OBJECTS,
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
    before=st.sampled_from(["", "\ufeff", " \n"]),
)
def test_any_list_of_objects_reads_back(tmp_path_factory, objects, indent, ascii_only, before):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(before + json.dumps(objects, indent=indent, ensure_ascii=ascii_only) + "\n", encoding="utf-8")
    records = list(iter_json_array(path))
    assert json.dumps([record for _, record in records]) == json.dumps(objects)  # 1 is not 1.0, nor 0.0 -0.0
    assert [where for where, _ in records] == [f"{path}, example {i + 1}" for i in range(len(objects))]


def test_a_file_cut_anywhere_gives_whole_objects_and_then_an_error(write):
    objects = [{"id": i, "text": "ab\u00e9" * i, "more": [{"x": i / 4}]} for i in range(5)]
    content = json.dumps(objects, ensure_ascii=False).encode()
    for length in range(len(content)):
        records, bad = read_all(write("data.json", content[:length]))
        assert records == objects[: len(records)]
        assert bad.count == 1
        assert content[:length].count(b"]}") == len(records)  # and none of the whole ones is lost
    assert read_all(write("data.json", content))[0] == objects


def test_a_cut_gzip_gives_whole_objects_and_then_an_error(write):
    objects = [{"id": i * 7919} for i in range(50)]
    whole = gzip.compress(json.dumps(objects).encode(), mtime=0)
    for length in range(1, len(whole)):
        records, bad = read_all(write("data.json.gz", whole[:length]))
        assert records == objects[: len(records)]
        assert bad.count == 1
    assert read_all(write("data.json.gz", whole))[0] == objects


def test_all_objects_before_the_damage_are_given(write):
    digits = random.Random(0)
    content = json.dumps([{"id": str(digits.randrange(10**30))} for _ in range(20_000)]).encode()
    cut = gzip.compress(content)[:-50_000]
    records, bad = read_all(write("data.json.gz", cut))
    assert len(records) == zlib.decompressobj(wbits=31).decompress(cut).count(b"}")
    assert bad.first.endswith(f"; example {len(records)} is the last whole one")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"a": 1}, {"a": 2},, {"a": 3}]', r"data.json, example 3: not valid JSON, or cut off \(.+\)"),
        ('[{"a": 1}, {"a": 2', r"data.json, example 2: not valid JSON, or cut off \(.+\)"),
        (b'[{"a": 1}, {"a": "\xff"}]', r"example 2: not valid JSON, or cut off \(.+\)"),
        ('[{"a": 1}] and more', r"example 2: not valid JSON"),
        ('[{"a": 123456789012345678901234567890}]', r"example 1: not valid JSON"),
        ('[{"a": 1}, [2], {"a": 3}]', r"data.json, example 2: not a JSON object, but \[2\]"),
        ('{"a": 1}\n{"a": 2}\n', "data.json: holds JSON lines, not one JSON array"),
        ('{"data": [\n{"a": 1},\n{"a": 2}\n]}', "data.json: holds one JSON object, not an array"),
        ("hello\n", "data.json: not a JSON array of examples, but begins with b'hello"),
        ("  \n", "data.json: is empty, not a JSON array"),
        ("", "data.json: is empty, not a JSON array"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(write, content, message):
    with pytest.raises(InputError, match=message) as raised:
        list(iter_json_array(write("data.json", content)))
    assert "\n" not in str(raised.value)


def test_the_parsers_picture_of_the_place_is_in_the_error(write):
    ijson = pytest.importorskip("ijson")
    if ijson.backend_name == "python":
        pytest.skip("ijson's Python backend says the place alone")
    with pytest.raises(InputError, match=r'unallowed token .*: \[\{"a": 1\},, \{"a": 3\}\]'):
        list(iter_json_array(write("data.json", '[{"a": 1},, {"a": 3}]')))


def test_elements_that_are_no_objects_are_skipped_and_counted(write):
    records, bad = read_all(write("data.json", '[{"a": 1}, 5, "x", null, [[1]], {"item": [{"a": 1}]}]'))
    assert records == [{"a": 1}, {"item": [{"a": 1}]}]
    assert bad.count == 4
    assert bad.first.endswith("example 2: not a JSON object, but 5")


@pytest.mark.long
@pytest.mark.slow
def test_memory_does_not_grow_with_the_array(write):
    def peak(n: int) -> int:
        path = write("data.json", "[" + ",".join(json.dumps({"text": f"{i} " * 50}) for i in range(n)) + "]")
        tracemalloc.start()
        try:
            assert sum(1 for _ in iter_json_array(path)) == n
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)
    assert peak(40_000) < 1.5 * peak(4_000)


def test_every_backend_reads_the_same(write, monkeypatch):
    ijson = pytest.importorskip("ijson")
    monkeypatch.setattr(ijson, "items", ijson.get_backend("python").items)
    content = '[{"a": 1, "b": 1.5}, {"a": "\u00e9"}'
    assert read_all(write("data.json", content + "]"))[0] == [{"a": 1, "b": 1.5}, {"a": "\u00e9"}]
    for wrong in (content, content + ",,", content + "] 5", b'[{"a": 1, "b": 1.5}, {"a": "\xff"}]'):
        _, bad = read_all(write("data.json", wrong))
        assert bad.count == 1
        assert "not valid JSON, or cut off (" in bad.first


def test_without_ijson_the_error_says_what_to_install(write, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ijson", None)
    with pytest.raises(ConfigError, match=r"`ijson` is not installed: pip install 'parlai-polyencoder\[data\]'"):
        list(iter_json_array(write("data.json", "[]")))


@pytest.mark.slow
def test_real_conversations(data_path):
    path = data_path / "dstc7" / "ubuntu_dev_subtask_1.json.gz"
    if not path.is_file():
        pytest.skip("no real data: ../shared/data/dstc7 does not exist")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        expected = json.load(file)
    with open_bytes(path) as file:
        assert [record for _, record in iter_json_array(file)] == expected
        assert file.fraction == 1
