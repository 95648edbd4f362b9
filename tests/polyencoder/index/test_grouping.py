"""Hits limited for each value of a metadata field: those of a plain loop over the whole ranking."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.calibration import Calibration
from polyencoder.errors import ConfigError, InputError
from polyencoder.index.grouping import _select_useful, find_enough, limit_groups
from polyencoder.index.hits import Hit
from polyencoder.index.options import SearchOptions
from tests.parameters import mostly_long
from tests.polyencoder.index.test_hits import TEXTS, drop_considered

CONTEXT = ["do you like dogs ?"]


@pytest.fixture
def index(ranker):
    """The first 60 of 80 candidates are of one document, the others of seven, or of none."""
    best = [hit.text for hit in ranker.rank(CONTEXT, TEXTS)]
    records = [{"id": text, "text": text, "metadata": {"doc": "long", "rank": rank}} for rank, text in enumerate(best)]
    for record in records[60:]:
        record["metadata"]["doc"] = record["metadata"]["rank"] % 7
    for record in records[70:78:2]:
        del record["metadata"]["doc"]
    return ranker.index(records)


def reference(hits: list[Hit], size: int, k: int) -> list[Hit]:
    selected, counts = [], {}
    for hit in hits:
        group = json.dumps(hit.metadata.get("doc"))
        if group == "null":
            selected.append(hit)
        elif counts.setdefault(group, 0) < size:
            counts[group] += 1
            selected.append(hit)
    return selected[:k]


def count_considered(whole: list[Hit], expected: list[Hit], k: int) -> int:
    return len(whole) if len(expected) < k else max(k, whole.index(expected[-1]) + 1)


@pytest.mark.parametrize(
    "options", [{}, {"group_by": "doc"}, {"diversity": 0.5}, {"group_by": "doc", "diversity": 0.5}]
)
def test_no_contexts(ranker, index, options):
    none = ranker.encode_contexts([CONTEXT]).select([])
    assert index.search(none, top_k=3, **options) == []


@given(
    groups=st.lists(st.sampled_from([None, 1, 1.0, True, "1", "a", ["a"], {"b": [2]}, "none"]), max_size=20),
    size=st.integers(1, 3),
)
def test_the_first_of_each_group_stay(groups, size):
    metadata = [None if group == "none" else {"x": group} for group in groups]
    hits = [Hit(str(rank), "t", -rank, fields, "exact") for rank, fields in enumerate(metadata)]
    limited = limit_groups(hits, SearchOptions(group_by="x", group_size=size))
    assert limited == sorted(limited, key=lambda hit: -hit.score)
    keys = [repr(hit.metadata).replace("1.0", "1") for hit in hits]
    for rank, hit in enumerate(hits):
        alone = hit.metadata is None or hit.metadata["x"] is None
        assert (hit in limited) == (alone or keys[:rank].count(keys[rank]) < size)


@pytest.mark.parametrize("size", [None, 1, 3])
@mostly_long("k", [1, 5, 12, 40], quick=2)
def test_more_are_fetched_until_there_are_enough_groups(ranker, index, k, size):
    whole = ranker.search(CONTEXT, index, top_k=80)
    expected = reference(whole, size or 1, k)
    assert (k == 1) or len({hit.metadata.get("doc") for hit in expected}) > 1
    hits = ranker.search(CONTEXT, index, top_k=k, group_by="doc", group_size=size)
    assert drop_considered(hits) == expected
    assert {hit.considered for hit in hits} == {count_considered(whole, expected, k)}
    results = index.search(ranker.encode_contexts([CONTEXT, ["i ski ."]]), top_k=k, group_by="doc", group_size=size)
    assert drop_considered(results[0]) == expected
    assert results[0] == hits
    assert len(results[1]) == len(reference(ranker.search(["i ski ."], index, top_k=80), size or 1, k))


def test_contexts_together_and_with_their_turns_are_as_each_alone(ranker, index):
    """The second context repeats the best candidate, which is left out before groups are counted."""
    (best,) = ranker.search(CONTEXT, index, top_k=1)
    contexts = [CONTEXT, [*CONTEXT, best.text], ["i ski ."]]
    together = ranker.search_many(contexts, index, top_k=6, group_by="doc")
    assert best.text in [hit.text for hit in together[0]]
    for context, hits in zip(contexts, together, strict=True):
        alone, whole = (
            ranker.search(context, index, **how) for how in ({"top_k": 6, "group_by": "doc"}, {"top_k": 80})
        )
        assert drop_considered(alone) == reference(whole, 1, 6)
        assert [(hit.id, hit.considered) for hit in hits] == [(hit.id, hit.considered) for hit in alone]


def test_a_reranker_chooses_the_best_of_a_group(ranker, index, make_ranker):
    search = {"rerank": make_ranker("cross"), "rerank_k": 62}
    whole = ranker.search(CONTEXT, index, top_k=80, **search)
    hits = ranker.search(CONTEXT, index, top_k=6, group_by="doc", **search)
    assert drop_considered(hits) == reference(whole, 1, 6)
    assert drop_considered(hits) != reference(ranker.search(CONTEXT, index, top_k=80), 1, 6)


def test_probabilities_stay_and_diverse_hits_are_of_different_groups(make_ranker, index):
    ranker = make_ranker("poly")
    whole = ranker.search(CONTEXT, index, top_k=80)
    ranker.calibration = Calibration(temperature=1.0, none=0.0, fingerprint="")
    hits = ranker.search(CONTEXT, index, top_k=5, group_by="doc")
    plain = ranker.search(CONTEXT, index, top_k=hits[0].considered)
    probabilities = {hit.id: hit.probability for hit in plain}
    assert [hit.id for hit in hits] == [hit.id for hit in reference(whole, 1, 5)]
    assert all(hit.probability == pytest.approx(probabilities[hit.id], abs=1e-3) for hit in hits)
    for diverse in (
        ranker.search(CONTEXT, index, top_k=5, group_by="doc", diversity=0.5),
        index.search(ranker.encode_contexts([CONTEXT]), top_k=5, group_by="doc", diversity=0.5)[0],
    ):
        assert len(reference(diverse, 1, 5)) == 5
        assert {hit.considered for hit in diverse} == {max(50, hits[0].considered)}


def test_groups_of_those_that_pass_a_filter(ranker, index):
    hits = ranker.search(CONTEXT, index, top_k=5, group_by="doc", filter={"doc": [1, 2]})
    assert sorted(hit.metadata["doc"] for hit in hits) == [1, 2]


def test_as_many_are_looked_at_as_the_limit_allows(monkeypatch):
    """No context waits for the others."""
    monkeypatch.setattr("polyencoder.index.grouping.MAX_CONSIDERED", 100)
    requests = []

    def search(positions, k):
        requests.append(([*positions], k))
        groups = [range(k) if position == 1 else [1] * k for position in positions]
        return [[Hit(str(n), "t", 0.0, {"x": x}, "exact") for n, x in enumerate(values)] for values in groups]

    hits, _ = find_enough(search, SearchOptions(group_by="x"), spoken=[()] * 3, hits=10, groups=10)
    assert [len(context_hits) for context_hits in hits] == [10] * 3
    assert requests == [([0, 1, 2], 10), ([0, 2], 40), ([0, 2], 100)]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"group_size": 2}, ConfigError, "group_size is read only with group_by"),
        ({"group_by": "doc", "group_size": 0}, InputError, "group_size is 0 .*; it must be at least 1"),
        ({"group_by": 3}, InputError, "group_by is 3 .*; it must be a text"),
        ({"group_by": "docs"}, InputError, "cannot group by 'docs': no candidate of the index has this metadata field"),
    ],
)
def test_what_is_refused(ranker, index, options, error, message):
    with pytest.raises(error, match=message):
        ranker.search(CONTEXT, index, **options)
    with pytest.raises(error, match=message):
        index.search(ranker.encode_contexts([CONTEXT]), SearchOptions(**options))


@given(
    docs=st.lists(st.sampled_from([None, "a", "b", "c"]), max_size=12),
    size=st.integers(1, 3),
    first=st.integers(0, 12),
    count=st.integers(1, 12),
)
def test_hits_of_use(docs, size, first, count):
    """The first hits, and those that are chosen behind them; `considered` ends with the last of either."""
    hits = [Hit(str(i), str(i), -float(i), {"doc": doc}, "exact") for i, doc in enumerate(docs)]
    chosen = reference(hits, size, count)
    useful = _select_useful(
        hits, limit_groups(hits, SearchOptions(group_by="doc", group_size=size)), first=first, count=count
    )
    assert [hit._replace(considered=None) for hit in useful] == [
        hit for hit in hits if int(hit.id) < first or hit in chosen
    ]
    ends = [len(hits) if len(chosen) < count else int(chosen[-1].id) + 1, min(first, len(hits))]
    assert {hit.considered for hit in useful} <= {max(ends)}
