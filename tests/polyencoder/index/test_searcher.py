"""How long the steps of a search take; what it finds: test_hits.py, test_options.py and others."""

from __future__ import annotations

import time

import pytest

from polyencoder.index import open_index
from polyencoder.index.searcher import Searcher


@pytest.mark.parametrize("rerank", [False, True])
def test_the_seconds_of_the_steps_are_those_of_the_search(folder, ranker, make_ranker, rerank):
    index = open_index(folder, ranker)
    searcher = Searcher(ranker, index, reranker=make_ranker("cross") if rerank else None)
    assert searcher.seconds == dict.fromkeys(["encode", "search", "rerank"][: 2 + rerank], 0.0)
    start = time.perf_counter()
    for _ in range(2):
        searcher([["hello ."], ["do you ski ?"]])
    whole = time.perf_counter() - start
    assert searcher.contexts == 4
    assert min(searcher.seconds.values()) > 0
    assert sum(searcher.seconds.values()) < whole


def test_an_index_of_nothing(index, ranker, candidates):
    index.remove([candidate.id for candidate in candidates])
    searcher = Searcher(ranker, index)
    assert searcher(["hello", "do you ski ?"]) == [[], []]
    assert searcher.improbable == [None, None]
