from __future__ import annotations

import shutil
import sqlite3

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.errors import CheckpointError, InputError
from polyencoder.index.base import Candidate
from polyencoder.index.catalogue import CATALOGUE, Catalogue

CANDIDATES = [
    Candidate("a", "hello", {"lang": "en", "n": 1}),
    Candidate("b", "hallo", {"lang": "de"}),
    Candidate("c", "hello", {"lang": "en", "n": 2}),
    Candidate(None, "no id", None),
    Candidate(None, "no id", None),
    Candidate("d", "bye", {}),
]


@pytest.fixture
def make_catalogue(tmp_path):
    """(candidates) -> a catalogue filled with them, opened from its folder."""

    def make(candidates) -> Catalogue:
        new = Catalogue.create(tmp_path / CATALOGUE)
        new.fill(candidates)
        new.close()
        return Catalogue.draft(tmp_path / CATALOGUE)

    return make


@pytest.fixture
def catalogue(make_catalogue) -> Catalogue:
    return make_catalogue(CANDIDATES)


def ids_of(catalogue, row, **filter) -> list[str]:
    return [id_ for id_, _ in catalogue.entries_of([row], filter=filter)[row]]


def test_equal_texts_share_a_row(catalogue):
    assert catalogue.rows == 4
    assert catalogue.texts(0, 10) == ["hello", "hallo", "no id", "bye"]
    assert catalogue.texts(1, 3) == ["hallo", "no id"]
    assert catalogue.text_of([3, 0]) == {3: "bye", 0: "hello"}
    assert ids_of(catalogue, 0) == ["a", "c"]


def test_candidates_without_an_id_are_one_if_equal(catalogue):
    assert len(catalogue) == 5
    assert len(ids_of(catalogue, 2)) == 1
    with catalogue.changing():
        catalogue.put(Candidate(None, "no id", {"other": "metadata"}))
    assert len(ids_of(catalogue, 2)) == 2


def test_metadata_comes_back(catalogue):
    metadata = {"nested": [{"ü": None}], "text": "q\"'", "number": 1.5, "true": True}
    with catalogue.changing():
        catalogue.put(Candidate("m", "text", metadata))
    assert catalogue.entries_of([4]) == {4: [("m", metadata)]}
    assert catalogue.entries_of([3]) == {3: [("d", None)]}


@pytest.mark.parametrize("other", [("hi", {"lang": "en", "n": 1}, "text"), ("hello", {"lang": "en"}, "metadata")])
def test_an_id_that_is_there(make_catalogue, other):
    text, metadata, what = other
    candidates = [*CANDIDATES, Candidate("a", text, metadata, where="c.jsonl, line 7")]
    with pytest.raises(InputError, match=f"c.jsonl, line 7: the id 'a' is that of candidate 1 .*'hello'.*other {what}"):
        make_catalogue(candidates)


def test_the_same_again_is_nothing_new(make_catalogue):
    assert len(make_catalogue([*CANDIDATES, Candidate("a", "hello", {"n": 1, "lang": "en"})])) == 5


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        (Candidate("x", ""), "its text is empty"),
        (Candidate("x", " \n"), "its text is empty"),
        (Candidate("x", None), "its text is None"),
        (Candidate("x", "\ud800"), "surrogates not allowed"),
        (Candidate("\ud800", "x"), "surrogates not allowed"),
        (Candidate("", "x"), "its id is ''"),
        (Candidate(5, "x"), "its id is 5"),
        (Candidate("x", "x", {"m": 1, "n": float("nan")}), "its 'n' is nan; nan and infinity cannot be kept"),
        (Candidate("x", "x", {"n": {"deep": [float("-inf")]}}), "its 'n' is .*-inf.*; nan and infinity cannot be kept"),
        (Candidate("x", "x", ["n"]), "its metadata is .*; it must be a dict with texts as keys"),
        (Candidate("x", "x", {1: 2, "n": 3}), "its metadata is .*; it must be a dict with texts as keys"),
    ],
)
def test_what_cannot_be_held(catalogue, candidate, message):
    with (
        pytest.raises(InputError, match=f"here: not a candidate that an index can hold: .*{message}"),
        catalogue.changing(),
    ):
        catalogue.put(candidate._replace(where="here"))
    assert len(catalogue) == 5


def test_removing_the_last_entry_of_a_row_makes_it_dead(catalogue):
    with catalogue.changing():
        catalogue.remove("a")
    assert catalogue.dead_rows().tolist() == []
    with catalogue.changing():
        catalogue.remove("c")
    assert catalogue.dead_rows().tolist() == [0]
    assert len(catalogue) == 3
    with catalogue.changing():
        catalogue.put(Candidate("again", "hello"))
    assert catalogue.dead_rows().tolist() == []
    assert catalogue.rows == 4


def test_removing_what_is_not_there(catalogue):
    def remove_two() -> None:
        with catalogue.changing():
            catalogue.remove("a")
            catalogue.remove("zz")

    with pytest.raises(InputError, match="no candidate has the id 'zz'"):
        remove_two()
    assert ids_of(catalogue, 0) == ["a", "c"]  # nothing of the block


def test_an_error_leaves_everything_as_it_was(catalogue):
    def fail() -> None:
        with catalogue.changing():
            catalogue.put(Candidate("x", "new text"))
            assert catalogue.rows == 5
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (catalogue.rows, len(catalogue)) == (4, 5)
    with catalogue.changing():
        catalogue.put(Candidate("x", "new text"))
    assert catalogue.texts(4, 5) == ["new text"]


VALUES = st.sampled_from(
    ["x", "1", 1, 2, 1.5, True, False, None, 2**63, 2**63 + 1, -(2**63), 2**64 - 1, 2**70, -(2**70)]
)
KEYS = st.sampled_from(["a", "b.c", "d e", "it's", "back\\slash", "new\nline", "$", "nul\0", ""])
METADATA = st.dictionaries(KEYS, VALUES, max_size=3)


@given(
    entries=st.lists(st.tuples(st.sampled_from("pqrst"), METADATA), min_size=1, max_size=12),
    filter=st.dictionaries(KEYS, VALUES | st.lists(VALUES, max_size=3), max_size=2),
)
@settings(max_examples=60, deadline=None)
def test_filters_against_python(tmp_path_factory, entries, filter):
    path = tmp_path_factory.mktemp("catalogue") / CATALOGUE
    catalogue = Catalogue.create(path)
    catalogue.fill(Candidate(str(i), text, metadata) for i, (text, metadata) in enumerate(entries))
    rows = {text: row for row, text in enumerate(dict.fromkeys(text for text, _ in entries))}

    def passes(metadata) -> bool:
        # Python's 1 == True is SQLite's too; text never equals a number in either.
        return all(
            metadata.get(key) in (wanted if isinstance(wanted, list) else [wanted]) for key, wanted in filter.items()
        )

    expected = [(rows[text], str(i)) for i, (text, metadata) in enumerate(entries) if passes(metadata)]
    matching = catalogue.rows_matching(filter)
    assert matching.dtype == torch.int64
    assert matching.tolist() == sorted({row for row, _ in expected})
    found = catalogue.entries_of(range(len(rows)), filter=filter)
    assert sorted((row, id_) for row, pairs in found.items() for id_, _ in pairs) == sorted(expected)


@pytest.mark.parametrize(
    "filter",
    [
        {'a"b': 1},
        {"a": {"b": 1}},
        {"a": [["x"]]},
        {"a": object()},
        {"a": float("nan")},
        {"a": [1, float("inf")]},
        {"a": "\ud83d"},
        {"a\ud83d": 1},
        {"a": b"x"},
        {1: 1},
    ],
)
def test_a_filter_that_makes_no_sense(catalogue, filter):
    with pytest.raises(InputError, match="cannot filter by ('a|1)"):
        catalogue.rows_matching(filter)


@pytest.mark.parametrize("filter", [["lang"], "lang=en", 5])
def test_what_is_no_filter(catalogue, filter):
    with pytest.raises(InputError, match="it must be a dict"):
        catalogue.count(filter)


def test_a_list_of_very_many(catalogue):
    values = [*range(2, 100_000), *(f"text {i}" for i in range(100_000)), None, 2**80]
    assert catalogue.count({"n": values}) == 4  # the one with 2, and those without
    assert catalogue.count({"n": list(range(1, 100_000))}) == 2


def test_fields(catalogue):
    assert [catalogue.has_field(key) for key in ("lang", "n", "lagn", "$", "")] == [True, True, False, False, False]


def test_blocks_in_blocks(catalogue):
    def fail() -> None:
        with catalogue.changing():
            catalogue.remove("x")
            catalogue.remove("zz")

    with catalogue.changing():
        catalogue.put(Candidate("x", "new text"))
        with pytest.raises(InputError, match="no candidate has the id 'zz'"):
            fail()
        catalogue.put(Candidate("y", "newer text"))
    assert catalogue.texts(4, 9) == ["new text", "newer text"]
    assert len(catalogue) == 7


def test_a_copy_is_changed_alone(catalogue, tmp_path):
    copy = Catalogue.copied(catalogue.path, tmp_path / "copy.sqlite")
    with copy.changing():
        copy.remove("a")
        copy.put(Candidate("x", "new text"))
    assert (catalogue.rows, len(catalogue)) == (4, 5)
    assert (copy.rows, len(copy), copy.changes) == (5, 5, 2)


def test_reading_leaves_the_files_of_others_alone(catalogue, tmp_path):
    """A journal that is not of this state, which SQLite takes for its own by its name."""
    reader = Catalogue.open(catalogue.path)
    (tmp_path / f"{CATALOGUE}-journal").write_bytes(b"another's")
    assert reader.texts(0, 1) == ["hello"]
    assert len(reader) == 5
    assert (tmp_path / f"{CATALOGUE}-journal").read_bytes() == b"another's"
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.put(Candidate("x", "new text"))


def test_a_change_in_its_place_that_was_killed(catalogue, tmp_path):
    """As versions without states made it: the journal takes it back."""
    with sqlite3.connect(catalogue.path) as connection:
        connection.execute("PRAGMA cache_spill = 1")
        connection.execute("PRAGMA cache_size = 1")
        for i in range(100):
            connection.execute("INSERT INTO texts VALUES (?, ?, ?)", (10 + i, str(i), "half " * 1000))
        for path in tmp_path.glob(f"{CATALOGUE}*"):
            shutil.copy(path, tmp_path / f"killed-{path.name}")
        connection.rollback()
    connection.close()
    assert Catalogue.open(tmp_path / f"killed-{CATALOGUE}").rows == 4


def test_a_copy_of_the_living(catalogue, tmp_path):
    with catalogue.changing():
        catalogue.remove("b")
        catalogue.put(Candidate("e", "bye", {"x": 1}))
    folder = tmp_path / "new"
    folder.mkdir()
    catalogue.copy_living(folder / CATALOGUE)
    copy = Catalogue.open(folder / CATALOGUE)
    assert copy.texts(0, 9) == ["hello", "no id", "bye"]
    assert copy.dead_rows().tolist() == []
    for new, old in enumerate([0, 2, 3]):
        assert copy.entries_of([new])[new] == catalogue.entries_of([old])[old]
    assert len(copy) == len(catalogue)


def test_damaged_or_missing(tmp_path):
    with pytest.raises(CheckpointError, match="catalogue.sqlite: missing or damaged"):
        Catalogue.open(tmp_path / CATALOGUE)
    (tmp_path / CATALOGUE).write_bytes(b"no database" * 100)
    with pytest.raises(CheckpointError, match="catalogue.sqlite: missing or damaged"):
        Catalogue.open(tmp_path / CATALOGUE)


def test_opening_reads_no_texts(tmp_path):
    """A hole in the rows would show a scan or a count; the last row alone says how many there are."""
    Catalogue.create(tmp_path / CATALOGUE).close()
    with sqlite3.connect(tmp_path / CATALOGUE) as connection:
        connection.execute("INSERT INTO texts VALUES (9999999, x'00', 'last')")
    connection.close()
    assert Catalogue.open(tmp_path / CATALOGUE).rows == 10_000_000
