from __future__ import annotations

from contextlib import closing

import pytest

from polyencoder.errors import InputError
from polyencoder.index.entries import Candidate
from polyencoder.index.folder.catalogue import Catalogue
from polyencoder.index.folder.database import connect, connect_to_fill
from polyencoder.index.folder.files import DATABASE

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
    return [id_ for id_, _ in catalogue.get_entries([row], filter=filter)[row]]


def test_equal_texts_share_a_row(catalogue):
    assert catalogue.rows == 4
    assert catalogue.list_texts(0, 10) == ["hello", "hallo", "no id", "bye"]
    assert catalogue.list_texts(1, 3) == ["hallo", "no id"]
    assert catalogue.get_row_texts([3, 0]) == {3: "bye", 0: "hello"}
    assert ids_of(catalogue, 0) == ["a", "c"]


def test_candidates_without_an_id_are_one_if_equal(catalogue):
    assert catalogue.count() == 5
    assert len(ids_of(catalogue, 2)) == 1
    assert catalogue.put(Candidate(None, "no id", {"other": "metadata"})) == 1
    assert len(ids_of(catalogue, 2)) == 2


def test_metadata_comes_back(catalogue):
    metadata = {"nested": [{"ü": None}], "text": "q\"'", "number": 1.5, "true": True}
    catalogue.put(Candidate("m", "text", metadata))
    assert catalogue.get_entries([4]) == {4: [("m", metadata)]}
    assert catalogue.get_entries([3]) == {3: [("d", None)]}


@pytest.mark.parametrize("other", [("hi", {"lang": "en", "n": 1}, "text"), ("hello", {"lang": "en"}, "metadata")])
def test_an_id_that_is_there(make_catalogue, other):
    text, metadata, what = other
    candidates = [*CANDIDATES, Candidate("a", text, metadata, where="c.jsonl, line 7")]
    message = f"c.jsonl, line 7: the id 'a' belongs to another candidate .*'hello'.*other {what}"
    with pytest.raises(InputError, match=message):
        make_catalogue(candidates)


def test_the_same_again_is_nothing_new(make_catalogue):
    assert make_catalogue([*CANDIDATES, Candidate("a", "hello", {"n": 1, "lang": "en"})]).count() == 5


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        (Candidate("x", ""), "its text is empty"),
        (Candidate("x", "\ud800"), "surrogates not allowed"),
        (Candidate("\ud800", "x"), "surrogates not allowed"),
        (Candidate("x", "x", {"n": {"deep": [float("-inf")]}}), "its metadata n.deep.0 is -inf; nan and infinity"),
    ],
)
def test_what_cannot_be_held(catalogue, candidate, message):
    with pytest.raises(InputError, match=f"here: not a candidate that an index can hold: .*{message}"):
        catalogue.put(candidate._replace(where="here"))
    assert catalogue.count() == 5


def test_removing_the_last_entry_of_a_row_makes_it_dead(catalogue):
    assert catalogue.remove("a") == -1
    assert catalogue.find_dead_rows().tolist() == []
    catalogue.remove("c")
    assert catalogue.find_dead_rows().tolist() == [0]
    assert catalogue.count() == 3
    catalogue.put(Candidate("again", "hello"))
    assert catalogue.find_dead_rows().tolist() == []
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


@pytest.mark.slow
def test_a_list_of_very_many(catalogue):
    values = [*range(2, 20_000), *(f"text {i}" for i in range(20_000)), None, 2**80]  # SQLite has 32,766 parameters
    assert catalogue.count({"n": values}) == 4  # the one with 2, and those without
    assert catalogue.count({"n": list(range(1, 40_000))}) == 2


def test_no_more_ids_than_wanted(make_catalogue):
    catalogue = make_catalogue([Candidate(str(i), "the same", {"n": i}) for i in range(50)])
    assert [id_ for id_, _ in catalogue.get_entries([0], limit=3)[0]] == ["0", "1", "2"]
    assert [id_ for id_, _ in catalogue.get_entries([0], limit=3, filter={"n": [7, 9]})[0]] == ["7", "9"]


def test_compacting(catalogue):
    catalogue.remove("b")
    catalogue.put(Candidate("e", "bye", {"x": 1}))
    before = {row: catalogue.get_entries([row])[row] for row in range(4)}
    catalogue.compact()
    assert catalogue.list_texts(0, 9) == ["hello", "no id", "bye"]
    assert catalogue.find_dead_rows().tolist() == []
    assert [catalogue.get_entries([row])[row] for row in range(3)] == [before[0], before[2], before[3]]
    assert catalogue.check() is None
    catalogue.put(Candidate("f", "a new one"))
    assert catalogue.list_texts(3, 9) == ["a new one"]


def test_what_was_not_entered(catalogue, tmp_path):
    assert catalogue.check() is None
    connect(tmp_path / DATABASE).execute("UPDATE texts SET text = 'hallo!' WHERE row = 1")
    assert catalogue.check() == "text 1 was altered"
    connect(tmp_path / DATABASE).execute("DELETE FROM texts WHERE row = 1")
    assert catalogue.check() == "1 entries without a text"
