"""Results do not depend on what is computed beside them: many requests at once have the results of each alone."""

from __future__ import annotations

import asyncio

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyencoder.index.options import SearchOptions
from polyencoder.serving import rerank, search
from polyencoder.serving.config import Limits
from polyencoder.serving.engine import Engine
from polyencoder.serving.forward import Forward
from polyencoder.serving.metrics import Metrics
from polyencoder.text.passages import split_text
from tests.parameters import mostly_long
from tests.polyencoder.serving.conftest import REPLIES

pytestmark = pytest.mark.slow

WORDS = ["ski", "i", "like", "to", "dogs", "?", "hello", "teacher", "you", "zebra"]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=30).map(" ".join)
REQUESTS = st.lists(
    st.tuples(st.lists(TEXTS, min_size=1, max_size=3), st.lists(TEXTS, min_size=1, max_size=5)), min_size=1, max_size=6
)


@mostly_long("architecture", ["bi", "poly", "cross", "late", "convert"], quick=2)
@given(requests=REQUESTS, batch_tokens=st.sampled_from([1, 7, 40, 4096]))
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_scores_are_those_of_the_ranker_whatever_they_were_batched_with(
    make_ranker, architecture, requests, batch_tokens
):
    ranker = make_ranker(architecture)
    if architecture == "late":
        torch.nn.init.constant_(ranker.model.term_weights, 1e-3)
    engine = Engine(Forward(ranker, max_tokens=batch_tokens), limits=Limits(), metrics=Metrics())

    async def ask():
        return await asyncio.gather(*(rerank.rank(engine, turns, texts) for turns, texts in requests))

    try:
        rankings = asyncio.run(ask())
    finally:
        engine.close()
    for (turns, texts), (order, *_) in zip(requests, rankings, strict=True):
        passages = [split_text(text, ranker.text, tokens=ranker.text.candidate_room) for text in texts]
        best = [torch.as_tensor(ranker.score([turns], parts))[0].max() for parts in passages]
        expected = torch.stack(best).double().sigmoid()
        actual = torch.empty(len(texts), dtype=torch.float64)
        for index, relevance in order:
            actual[index] = relevance
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
        relevances = [relevance for _, relevance in order]
        assert relevances == sorted(relevances, reverse=True)


@pytest.mark.parametrize("architecture", ["bi", "poly"])
def test_searches_that_are_made_together_find_what_each_finds_alone(make_service, architecture):
    service = make_service(architecture)
    contexts = [[" ".join(WORDS[:n])] for n in (1, 9, 3)] + [[REPLIES[0].text]]
    every = [SearchOptions(top_k=2), SearchOptions(top_k=4, filter={"lang": "en"})]

    async def ask():
        searches = [search.find_hits(service, turns, options) for options in every for turns in contexts]
        return await asyncio.gather(*searches)

    answers = iter(asyncio.run(ask()))
    ranker, index = service.engine.ranker, service.index
    for options in every:
        for turns in contexts:
            expected = ranker.search(turns, index, options)
            hits, _, milliseconds, _ = next(answers)
            assert [hit.id for hit in hits] == [hit.id for hit in expected]
            assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in expected], abs=1e-4)
            assert set(milliseconds) == {"tokenize", "queue", "encode", "search"}
