"""Files of merges and vocabularies: line ends, the three formats, and vocabularies that merges need."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from polyencoder.errors import CheckpointError
from polyencoder.importing.bpe import VERSION, complete, read_lines, read_merges, read_numbers

PIECES = st.text(alphabet="abc", min_size=1, max_size=3)


@pytest.fixture
def write(tmp_path):
    """(text or bytes) -> the path of a file that holds it."""

    def make(content) -> str:
        path = tmp_path / "file"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return make


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a\r\nb", ["a", "b"]),
        ("a\u2028b\x85c\x1cd\n", ["a\u2028b\x85c\x1cd"]),  # line ends elsewhere, parts of tokens here
        ("a\n\nb\n\n", ["a", "", "b", ""]),
        ("", [""]),
    ],
)
def test_lines_end_at_line_feeds_alone(write, content, lines):
    assert read_lines(write(content)) == lines


@pytest.mark.parametrize(
    ("content", "versioned"),
    [("a b\nab c\n", False), ("#version: 0.2\na b\nab c", False), (f"{VERSION}\na b\nab c\n", True)],
)
def test_merges_of_gpt2_and_subword_nmt(write, content, versioned):
    assert read_merges(write(content), versioned=versioned) == [("a", "b"), ("ab", "c")]


def test_merges_of_fastbpe_have_counts_and_a_merge_twice_is_one(write):
    assert read_merges(write("a b 12\nab c</w> 7\na b 3\n")) == [("a", "b"), ("ab", "c</w>")]


@pytest.mark.parametrize(
    ("content", "versioned", "problem"),
    [
        ("a b\nab\n", False, "line 2: 'ab' is not a merge"),
        ("a b c d", False, "line 1: 'a b c d' is not a merge"),
        ("a  b", False, "line 1: 'a  b' is not a merge"),
        ("a b\n\nab c", False, "line 2: '' is not a merge"),
        (f"{VERSION}\na b 3\n", True, "line 2: 'a b 3' is not a merge"),
        ("a b\n", True, "begins with 'a b', not with subword-nmt's '#version: 0.2'"),
        (b"\xff\xfe\n", False, "cannot be read .* it must hold the dictionary's merges in UTF-8"),
    ],
)
def test_what_is_no_file_of_merges(write, content, versioned, problem):
    with pytest.raises(CheckpointError, match=problem):
        read_merges(write(content), versioned=versioned)


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"none\.json: cannot be read \(no such file\); it must hold a vocabulary"
    ):
        read_numbers(tmp_path / "none.json", kind="a vocabulary")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "not valid JSON"),
        ("[1]", "not a vocabulary, an object"),
        ('{"a": "1"}', "not a vocabulary, an object"),
        ('{"a": 1.5}', "not a vocabulary, an object"),
    ],
)
def test_what_is_no_vocabulary(write, content, problem):
    with pytest.raises(CheckpointError, match=problem):
        read_numbers(write(content), kind="a vocabulary")


def test_a_vocabulary(write):
    assert read_numbers(write(json.dumps({"a\u2028": 0, "b": 7})), kind="a vocabulary") == {"a\u2028": 0, "b": 7}


@pytest.mark.slow
@given(st.lists(st.tuples(PIECES, PIECES), max_size=8, unique=True), st.sets(PIECES), st.integers(0, 50))
def test_a_completed_vocabulary_has_what_the_tokenizers_library_needs(merges, tokens, spare):
    vocabulary = {token: number for number, token in enumerate(sorted(tokens))}
    size = len(vocabulary) + spare
    completed = complete(vocabulary, merges, size=size)
    assert completed.items() >= vocabulary.items()
    added = [number for token, number in completed.items() if token not in vocabulary]
    assert added == list(range(size, size + len(added)))  # each a row of its own behind the embeddings
    assert completed.keys() - vocabulary.keys() <= {
        piece for left, right in merges for piece in (left, right, left + right)
    }
    Tokenizer(models.BPE(completed, merges))  # an error without one of them
