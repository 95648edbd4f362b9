"""The words of an index folder: BM25 of the living texts, after any changes; and queries that are no syntax."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import polyencoder.index.folder.words as words_module
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.index import verify
from polyencoder.index.entries import Candidate
from polyencoder.index.folder.build import build_index
from polyencoder.index.folder.catalogue import Catalogue
from polyencoder.index.folder.files import DATABASE
from polyencoder.index.folder.index import FolderIndex
from polyencoder.index.folder.schema import create_tables
from polyencoder.index.folder.words import Words
from polyencoder.index.open import describe_index
from polyencoder.index.words import split_into_words, split_query_words

VOCABULARY = ["ski", "snow", "dog", "cat", "the", "order", "4711", "北京"]
TEXTS = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=6).map(" ".join)
CHANGES = st.lists(st.tuples(st.sampled_from(["put", "remove", "compact"]), st.integers(0, 5), TEXTS), max_size=12)


def bm25(texts, query: list[str]) -> dict[str, float]:
    """BM25 of the texts that have a word of the query: FTS5's documented formula, k1 = 1.2 and b = 0.75."""
    documents = {text: split_into_words(text) for text in {*texts}}
    grams = {text: Counter(words + [f"{a} {b}" for a, b in pairwise(words)])
             for text, words in documents.items()}  # fmt: skip
    mean = sum(map(len, documents.values())) / max(1, len(documents))
    scores: dict[str, float] = {}
    for word in query:
        having = [text for text in documents if grams[text][word]]
        idf = max(1e-6, math.log((len(documents) - len(having) + 0.5) / (len(having) + 0.5)))
        for text in having:
            n, length = grams[text][word], len(documents[text]) / mean
            scores[text] = scores.get(text, 0.0) + idf * n * 2.2 / (n + 1.2 * (0.25 + 0.75 * length))
    return scores


@pytest.fixture
def folder(tmp_path, ranker, candidates):
    build_index(tmp_path / "index", candidates, ranker, shard_size=3, words=True)
    return tmp_path / "index"


def search_words(index: FolderIndex, ranker, query: str, **options) -> dict[str, float]:
    contexts = ranker.encode_contexts([query])
    (hits,) = index.search(contexts, texts=[query], words_only=True, top_k=100, **options)
    assert {hit.found for hit in hits} <= {"words"}
    scores = [hit.word_score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    return {hit.text: hit.word_score for hit in hits}


@settings(max_examples=40, deadline=None)
@given(changes=CHANGES, query=st.sets(st.sampled_from([*VOCABULARY[:-1], "北 京"]), min_size=1))
def test_scores_are_bm25_of_the_living_texts(changes, query):
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create_tables(connection, words=True)
        catalogue, living = Catalogue(connection, "made"), {}
        for change, number, text in changes:
            if change == "put":
                catalogue.put(Candidate(str(number), text), how="put")
                living[str(number)] = text
            elif change == "remove":
                catalogue.remove(str(number), missing_ok=True)
                living.pop(str(number), None)
            else:
                catalogue.compact()
        assert catalogue.check() is None
        rows = catalogue.words.find(sorted(query), k=100, allowed=None)
        texts = catalogue.get_row_texts(row for row, _ in rows)
        assert {texts[row]: score for row, score in rows} == pytest.approx(bm25(living.values(), sorted(query)))
        assert rows == sorted(rows, key=lambda match: (-match[1], match[0]))
        assert rows[:2] == catalogue.words.find(sorted(query), k=2, allowed=None)


TWO = ["we ski and fall", "a near and dear or not so dear cat"]


@settings(max_examples=60, deadline=None)
@given(query=st.text(max_size=30))
@example(query='"')
@example(query="ski* NEAR(snow, 2) AND NOT dog OR words:cat ^the")
@example(query="' OR 1=1 --")
@example(query="🙂 … ?!")
@example(query="")
@example(query="\x00ski")
@example(query="ski " * 3000 + " ".join(f"w{n}" for n in range(2000)))
def test_no_query_is_syntax(query):
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        words = Words(connection.execute)
        words.create()
        words.fill(enumerate(TWO))
        rows = {row for row, _ in words.find(split_query_words([query]), k=5, allowed=None)}
        query_words = {*split_query_words([query])}
        assert rows >= {row for row, text in enumerate(TWO) if {*text.split()} & query_words}


@given(text=st.text())
def test_every_word_of_a_text_finds_it(text):
    """SQLite reads words as `split_into_words` writes them."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        words = Words(connection.execute)
        words.create()
        words.fill([(0, text), (1, "another")])
        for word in split_query_words([text]):
            assert 0 in {row for row, _ in words.find([word], k=5, allowed=None)}, word


def test_common_words_are_left_out_where_they_match_too_many_rows(make_words, monkeypatch):
    words = make_words(["the dog", "the cat", "the 北 京", "the ski", "the snow"])
    every = words.find(["the", "dog", "北 京"], k=9, allowed=None)
    assert {row for row, _ in every} == {0, 1, 2, 3, 4}
    monkeypatch.setattr(words_module, "MAX_MATCHES", 6)
    assert [row for row, _ in words.find(["the", "dog", "北 京"], k=9, allowed=None)] == [0, 2]
    assert len(words.find(["the"], k=9, allowed=None)) == 5  # the only one
    assert words.find(["none"], k=9, allowed=None) == []


@pytest.fixture
def make_words():
    """(texts) -> the words of a table of these rows."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:

        def make(texts) -> Words:
            words = Words(connection.execute)
            words.create()
            words.fill(enumerate(texts))
            return words

        yield make


def change_and_fail(index: FolderIndex) -> None:
    with index.changing():
        index.update([Candidate("same", "no number")])
        index.remove(["nobody"])


def test_changes_filters_and_removed_candidates(folder, ranker, candidates):
    index = FolderIndex.open(folder, ranker)
    index.add([Candidate("new", "order 4711 was sent", {"n": 3}), Candidate("same", "order 4711 was sent", {"n": 4})])
    assert [*search_words(index, ranker, "4711 ?")] == ["order 4711 was sent"]
    (hits,) = index.search(ranker.encode_contexts(["4711"]), texts=["4711"], words_only=True, filter={"n": 4})
    assert [hit.id for hit in hits] == ["same"]
    assert search_words(index, ranker, "4711", filter={"n": 5}) == {}
    index.remove(["new"])
    assert len(search_words(index, ranker, "4711")) == 1  # another id has the text
    with pytest.raises(InputError, match="no candidate has the id 'nobody'"):
        change_and_fail(index)
    assert len(search_words(FolderIndex.open(folder, ranker), ranker, "4711")) == 1
    index.update([Candidate("same", "order 4712 was sent")])
    assert search_words(index, ranker, "4711") == {}
    index.compact()
    living = {*index.texts()}
    assert search_words(index, ranker, "4712 sent") == pytest.approx(bm25(living, ["4712", "sent"]))
    verify(folder)
    assert "words: of all texts, for hybrid searches" in describe_index(folder)


def test_any_number_of_results(folder, ranker):
    with FolderIndex.open(folder, ranker) as index:
        (hits,) = index.search(ranker.encode_contexts(["ski"]), texts=["ski"], words_only=True, top_k=2**31 - 1)
        assert len(hits) == 2


def test_words_of_an_index_that_had_none(tmp_path, ranker, candidates, folder):
    build_index(tmp_path / "plain", candidates, ranker, shard_size=3)
    index, other = FolderIndex.open(tmp_path / "plain", ranker), FolderIndex.open(folder, ranker)
    with pytest.raises(
        ConfigError, match="plain: has no words .*polyencoder index --words.*polyencoder update --words"
    ):
        search_words(index, ranker, "ski")
    index.remove(["3"])
    other.remove(["3"])
    files = index.state.files
    assert index.add_words()
    assert index.state.files == files  # nothing is encoded
    query = " ".join(text for text in index.texts())
    assert search_words(index, ranker, query) == search_words(other, ranker, query) != {}
    version = index.meta.version
    assert not index.add_words()
    assert index.meta.version == version
    build_index(tmp_path / "third", candidates, ranker)
    with pytest.raises(InputError, match="third: has an index without words; `polyencoder update --words` adds them"):
        build_index(tmp_path / "third", candidates, ranker, words=True)


def of_another_unicode(text: str) -> list[str]:
    """The words of a Unicode version to which "é" is no letter."""
    return split_into_words(text.replace("é", " "))


def test_words_of_another_unicode_version_go_with_their_text(folder, ranker, monkeypatch):
    index = FolderIndex.open(folder, ranker)
    with monkeypatch.context() as patch:
        patch.setattr(words_module, "split_into_words", of_another_unicode)
        index.add([Candidate("old", "un éléphant")])
    assert [*search_words(index, ranker, "phant")] == ["un éléphant"]
    index.update([Candidate("old", "un chat")])
    index.add([Candidate("new", "un éléphant")])
    assert search_words(index, ranker, "phant") == {}
    assert search_words(index, ranker, "un elephant") == pytest.approx(bm25(index.texts(), ["un", "elephant"]))
    verify(folder)


def test_other_changes_go_on_after_words_could_not_be_added(tmp_path, ranker, candidates, monkeypatch):
    build_index(tmp_path / "plain", candidates, ranker)
    index = FolderIndex.open(tmp_path / "plain", ranker)

    def words_or_fail(text: str) -> list[str]:
        if text == candidates[-1].text:
            raise MemoryError
        return split_into_words(text)

    with index.changing():
        with monkeypatch.context() as patch:
            patch.setattr(words_module, "split_into_words", words_or_fail)
            with pytest.raises(MemoryError):
                index.add_words()
        index.add([Candidate("new", "order 4711")])
        assert index.add_words()
        index.remove(["0"])
    assert [*search_words(index, ranker, "4711")] == ["order 4711"]
    verify(tmp_path / "plain")


def test_a_block_that_fails_takes_its_words_with_it(tmp_path, ranker, candidates):
    build_index(tmp_path / "plain", candidates, ranker)
    index = FolderIndex.open(tmp_path / "plain", ranker)
    with index.changing():
        with suppress(LookupError), index.changing():
            index.add_words()
            index.remove([candidate.id for candidate in candidates])
            raise LookupError
        index.add([Candidate("new", "order 4711")])
    assert not index.has_words
    assert len(index) == len(candidates) + 1
    assert index.add_words()
    assert [*search_words(index, ranker, "4711")] == ["order 4711"]
    verify(tmp_path / "plain")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("DROP TABLE words; CREATE VIRTUAL TABLE words USING fts5(text, digest);", "has the table 'words'"),
        ("DROP TABLE words; CREATE TABLE words(terms);", "has no valid table 'words"),
        ("DROP TABLE words_docsize; CREATE TABLE words_docsize(id, sz);", "has no valid table 'words_docsize'"),
    ],
)
def test_a_table_that_is_made_up(folder, ranker, script, message):
    with closing(sqlite3.connect(folder / DATABASE)) as connection:
        connection.executescript(script)
    with pytest.raises(CheckpointError, match=f"damaged, its database {message}"):
        FolderIndex.open(folder, ranker)


def test_words_that_are_missing_or_damaged(folder, ranker):
    with closing(sqlite3.connect(folder / DATABASE)) as connection, connection:
        connection.execute("DELETE FROM words_docsize WHERE id = 2")
    with pytest.raises(CheckpointError, match="words of 1 texts are missing"):
        verify(folder)
    with closing(sqlite3.connect(folder / DATABASE)) as connection, connection:
        connection.execute("UPDATE words_data SET block = x'ffffffffff'")
    with pytest.raises(CheckpointError, match="index.sqlite: (cannot be read|damaged or not readable)"):
        search_words(FolderIndex.open(folder, ranker), ranker, "hello you dogs")


def test_without_fts5(monkeypatch, tmp_path, ranker, candidates):
    monkeypatch.setattr(words_module, "TABLE", words_module.TABLE.replace("fts5", "no_fts5"))
    with pytest.raises(ConfigError, match="words need SQLite with FTS5, which this Python's .* lacks"):
        build_index(tmp_path / "index", candidates, ranker, words=True)
    assert not (tmp_path / "index").exists()


def test_a_full_disk_is_not_taken_for_a_lack_of_fts5():
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("PRAGMA max_page_count = 2")
        with pytest.raises(sqlite3.OperationalError, match="fts5|full"):
            Words(connection.execute).create()
