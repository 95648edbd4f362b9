"""The words of an index in PostgreSQL: found as in an index folder, after any change."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.index import open_index
from polyencoder.index.entries import Candidate
from polyencoder.index.open import describe_index
from polyencoder.index.postgres.index import PostgresIndex
from polyencoder.index.postgres.rows import format_tsquery, format_tsvector
from polyencoder.index.words import split_into_words, split_query_words

SAMPLE = [
    Candidate("a", "order 4711 was sent on monday", {"n": 1}),
    Candidate("b", "the order of the day, and of the night", {"n": 1}),
    Candidate("c", "Où est le Café? 我住在北京", {"n": 2}),
    Candidate("d", "?!"),
]


@pytest.fixture
def index(where, ranker) -> PostgresIndex:
    return PostgresIndex.make(where, SAMPLE, ranker, words=True)


def search_words(index, ranker, query: str, **options) -> list[str]:
    (hits,) = index.search(ranker.encode_contexts([query]), texts=[query], words_only=True, top_k=9, **options)
    scores = ranker.score([query], [hit.text for hit in hits])[0].tolist() if hits else []
    assert [hit.score for hit in hits] == pytest.approx(scores, abs=1e-3)
    assert {hit.found for hit in hits} <= {"words"}
    assert [hit.word_score for hit in hits] == sorted((hit.word_score for hit in hits), reverse=True)
    return [hit.id for hit in hits]


@pytest.mark.slow
def test_words_find_texts_through_changes(index, where, ranker):
    assert search_words(index, ranker, "where is order 4711 ?") == ["a", "b"]  # the rarer word counts more
    assert search_words(index, ranker, "of the ORDER") == ["b", "a"]
    assert search_words(index, ranker, "cafe") == search_words(index, ranker, "北京") == ["c"]
    assert search_words(index, ranker, "京北") == search_words(index, ranker, "?! '") == []
    assert search_words(index, ranker, "order", filter={"n": 1}) != []
    assert search_words(index, ranker, "order", filter={"n": 2}) == []
    index.update([Candidate("a", "order 4712 was sent")])
    index.remove(["b"])
    index.add([Candidate("e", "4711 again"), Candidate("f", "word " * 40_000 + "x" * 3000)])
    again = open_index(where, ranker)
    assert sorted(search_words(again, ranker, "order 4711")) == ["a", "e"]
    assert search_words(again, ranker, "word") == ["f"]
    assert "words: of all texts, for hybrid searches" in describe_index(where)


def test_a_hybrid_search_has_both(index, where, ranker):
    hits = ranker.search("where is 4711 ?", index, hybrid=True, top_k=4)
    alone = [hit.id for hit in ranker.search("where is 4711 ?", index, top_k=4)]
    ranks = {id_: 1 / (61 + rank) for rank, id_ in enumerate(alone)}
    ranks["a"] += 1 / 61
    assert {hit.id: hit.fused_score for hit in hits} == pytest.approx(ranks)
    assert [hit.fused_score for hit in hits] == sorted(ranks.values(), reverse=True)


def test_a_table_without_words(where, ranker):
    index = PostgresIndex.make(where, SAMPLE, ranker)
    with pytest.raises(ConfigError, match="has no words to search by"):
        ranker.search("4711", index, hybrid=True)
    with pytest.raises(ConfigError, match="exists, without words; give another #NAME"):
        PostgresIndex.make(where, SAMPLE, ranker, words=True)
    index.meta = replace(index.meta, words=True)  # as of a table with words that this one has replaced
    with pytest.raises(CheckpointError, match="has no words any more; open it again"):
        index.search(ranker.encode_contexts(["4711"]), texts=["4711"], hybrid=True)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30))
def test_a_tsvector_has_each_word_with_its_places(text):
    data, actual = format_tsvector(text), {}
    (n,), data = struct.unpack(">i", data[:4]), data[4:]
    for _ in range(n):
        word, data = data.split(b"\0", 1)
        (many,) = struct.unpack(">H", data[:2])
        actual[word.decode()] = [*struct.unpack(f">{many}H", data[2 : 2 + 2 * many])]
        data = data[2 + 2 * many :]
    assert data == b""
    expected = {}
    for position, word in enumerate(split_into_words(text), start=1):
        expected.setdefault(word, []).append(position)
    assert actual == expected


def test_a_query_has_words_or_neighbours():
    assert [*map(format_tsquery, split_query_words(["cafe 北京"]))] == ["'cafe'", "'北' <-> '京'"]
