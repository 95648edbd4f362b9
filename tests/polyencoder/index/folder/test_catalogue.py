from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polyencoder.errors import InputError
from polyencoder.index.entries import Candidate
from polyencoder.index.folder.catalogue import Catalogue
from polyencoder.index.folder.database import connect, connect_to_fill
from polyencoder.index.folder.files import DATABASE
from tests.polyencoder.index.filtering import passes

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
    """(candidates) -> a catalogue filled with them, opened from its file."""

    def make(candidates) -> Catalogue:
        (tmp_path / DATABASE).touch()
        with closing(connect_to_fill(tmp_path / DATABASE)) as connection:
            new = Catalogue(connection, tmp_path)
            for candidate in candidates:
                new.put(candidate, index=False)
            new.create_indexes()
        return Catalogue(connect(tmp_path / DATABASE), tmp_path)

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
    assert catalogue.count() == 5
    assert len(ids_of(catalogue, 2)) == 1
    assert catalogue.put(Candidate(None, "no id", {"other": "metadata"})) == 1
    assert len(ids_of(catalogue, 2)) == 2


def test_metadata_comes_back(catalogue):
    metadata = {"nested": [{"ü": None}], "text": "q\"'", "number": 1.5, "true": True}
    catalogue.put(Candidate("m", "text", metadata))
    assert catalogue.entries_of([4]) == {4: [("m", metadata)]}
    assert catalogue.entries_of([3]) == {3: [("d", None)]}


@pytest.mark.parametrize("other", [("hi", {"lang": "en", "n": 1}, "text"), ("hello", {"lang": "en"}, "metadata")])
def test_an_id_that_is_there(make_catalogue, other):
    text, metadata, what = other
    candidates = [*CANDIDATES, Candidate("a", text, metadata, where="c.jsonl, line 7")]
    message = f"c.jsonl, line 7: the id 'a' is that of another candidate .*'hello'.*other {what}"
    with pytest.raises(InputError, match=message):
        make_catalogue(candidates)


def test_the_same_again_is_nothing_new(make_catalogue):
    assert make_catalogue([*CANDIDATES, Candidate("a", "hello", {"n": 1, "lang": "en"})]).count() == 5


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
        (Candidate("x", "x", {"m": 1, "n": float("nan")}), "its metadata n is nan; nan and infinity cannot be kept"),
        (
            Candidate("x", "x", {"n": {"deep": [float("-inf")]}}),
            "its metadata n.deep.0 is -inf; nan and infinity cannot be kept",
        ),
        (Candidate("x", "x", ["n"]), "its metadata is .*; it must be a dict with texts as keys"),
        (Candidate("x", "x", {1: 2, "n": 3}), "its metadata is .*; it must be a dict with texts as keys"),
    ],
)
def test_what_cannot_be_held(catalogue, candidate, message):
    with pytest.raises(InputError, match=f"here: not a candidate that an index can hold: .*{message}"):
        catalogue.put(candidate._replace(where="here"))
    assert catalogue.count() == 5


def test_removing_the_last_entry_of_a_row_makes_it_dead(catalogue):
    assert catalogue.remove("a") == -1
    assert catalogue.dead_rows().tolist() == []
    catalogue.remove("c")
    assert catalogue.dead_rows().tolist() == [0]
    assert catalogue.count() == 3
    catalogue.put(Candidate("again", "hello"))
    assert catalogue.dead_rows().tolist() == []
    assert catalogue.rows == 4


def test_removing_what_is_not_there(catalogue):
    with pytest.raises(InputError, match="no candidate has the id 'zz'"):
        catalogue.remove("zz")
    with pytest.raises(InputError, match="^a file, line 3: .*: no candidate has the id 'zz'"):
        catalogue.put(Candidate("zz", "text", where="a file, line 3"), how="update")
    assert catalogue.count() == 5


def test_putting_in_the_place_of_another(catalogue):
    assert catalogue.put(Candidate("a", "bye"), how="put") == 0
    assert (ids_of(catalogue, 0), ids_of(catalogue, 3)) == (["c"], ["d", "a"])


VALUES = st.sampled_from(
    [
        "x",
        "1",
        "true",
        "[1,2]",
        1,
        1.0,
        2,
        1.5,
        True,
        False,
        None,
        2**63,
        2**63 + 1,
        -(2**63),
        2**64 - 1,
        2**70,
        -(2**70),
        2.0**63,
        -(2.0**63),
        2.0**64,
        2**64,
        2**64 + 1,
        2.0**60,
        2**60 + 1,
        2.0**70,
        1e300,
    ]
)
KEYS = st.sampled_from(["a", "b.c", "d e", "it's", 'quo"te', "back\\slash", "new\nline", "$", "nul\0", ""])
METADATA = st.dictionaries(KEYS, VALUES | st.sampled_from([[1, 2], [True], {"a": 1}]), max_size=3)


@pytest.mark.slow
@given(
    entries=st.lists(st.tuples(st.sampled_from("pqrst"), METADATA), min_size=1, max_size=12),
    filter=st.dictionaries(KEYS, VALUES | st.lists(VALUES, max_size=3), max_size=2),
)
@example(entries=[("p", {"a": [1, 2]}), ("q", {"a": [True]})], filter={"a": 1})
@settings(max_examples=60, deadline=None)
def test_filters_against_python(tmp_path_factory, entries, filter):
    path = tmp_path_factory.mktemp("catalogue") / DATABASE
    path.touch()
    catalogue = Catalogue(connect_to_fill(path), path.parent)
    for i, (text, metadata) in enumerate(entries):
        catalogue.put(Candidate(str(i), text, metadata))
    rows = {text: row for row, text in enumerate(dict.fromkeys(text for text, _ in entries))}
    expected = [(rows[text], str(i)) for i, (text, metadata) in enumerate(entries) if passes(metadata, filter)]
    allowed = catalogue.allowed(filter)
    assert (allowed is None) == (not filter)
    assert allowed is None or allowed.nonzero()[0].tolist() == sorted({row for row, _ in expected})
    assert catalogue.count(filter) == len(expected)
    found = catalogue.entries_of(range(len(rows)), filter=filter)
    assert sorted((row, id_) for row, pairs in found.items() for id_, _ in pairs) == sorted(expected)


@pytest.mark.parametrize(
    "filter",
    [
        {"a": {"b": 1}},
        {"a": [["x"]]},
        {"a": object()},
        {"a": float("nan")},
        {"a": [1, float("inf")]},
        {"a": "\ud83d"},
        {"a\ud83d": 1},
        {"a": b"x"},
        {1: 1},
        {1: []},
    ],
)
def test_a_filter_that_makes_no_sense(catalogue, filter):
    with pytest.raises(InputError, match="cannot filter by ('a|1)"):
        catalogue.allowed(filter)


@pytest.mark.parametrize("filter", [["lang"], "lang=en", 5])
def test_what_is_no_filter(catalogue, filter):
    with pytest.raises(InputError, match="it must be a dict"):
        catalogue.allowed(filter)


@pytest.mark.slow
def test_a_list_of_very_many(catalogue):
    values = [*range(2, 20_000), *(f"text {i}" for i in range(20_000)), None, 2**80]  # SQLite has 32,766 parameters
    assert catalogue.count({"n": values}) == 4  # the one with 2, and those without
    assert catalogue.count({"n": list(range(1, 40_000))}) == 2


def test_fields(catalogue):
    assert [catalogue.has_field(key) for key in ("lang", "n", "lagn", "$", "")] == [True, True, False, False, False]


def test_no_more_ids_than_wanted(make_catalogue):
    catalogue = make_catalogue([Candidate(str(i), "the same", {"n": i}) for i in range(50)])
    assert [id_ for id_, _ in catalogue.entries_of([0], limit=3)[0]] == ["0", "1", "2"]
    assert [id_ for id_, _ in catalogue.entries_of([0], limit=3, filter={"n": [7, 9]})[0]] == ["7", "9"]


def test_compacting(catalogue):
    catalogue.remove("b")
    catalogue.put(Candidate("e", "bye", {"x": 1}))
    before = {row: catalogue.entries_of([row])[row] for row in range(4)}
    catalogue.compact()
    assert catalogue.texts(0, 9) == ["hello", "no id", "bye"]
    assert catalogue.dead_rows().tolist() == []
    assert [catalogue.entries_of([row])[row] for row in range(3)] == [before[0], before[2], before[3]]
    assert catalogue.check() is None
    catalogue.put(Candidate("f", "a new one"))
    assert catalogue.texts(3, 9) == ["a new one"]


def test_what_was_not_entered(catalogue, tmp_path):
    assert catalogue.check() is None
    connect(tmp_path / DATABASE).execute("UPDATE texts SET text = 'hallo!' WHERE row = 1")
    assert catalogue.check() == "text 1 was altered"
    connect(tmp_path / DATABASE).execute("DELETE FROM texts WHERE row = 1")
    assert catalogue.check() == "1 entries without a text"


def test_large_numbers(make_catalogue):
    """A float is equal to the whole number that it is, and to no other."""
    numbers = [2**64, 2**64 + 1, 2.0**64, 2**63, 2.0**63, 2**63 - 1]
    catalogue = make_catalogue([Candidate(str(i), str(i), {"n": number}) for i, number in enumerate(numbers)])
    for wanted in numbers:
        expected = [i for i, number in enumerate(numbers) if number == wanted]
        assert catalogue.allowed({"n": wanted}).nonzero()[0].tolist() == expected
