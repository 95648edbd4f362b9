"""An embedded database for all tests of a file, candidates, and what the best of them are."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import numpy as np
import pytest

from polyencoder.index.entries import Candidate
from polyencoder.index.milvus.index import MilvusIndex
from polyencoder.scoring import ContextEncoding
from polyencoder.search.scores import score

CONTEXTS = [["hello , how are you ?"], ["do you ski ?", "no , i have two dogs ."], ["what do you do ?"]]
WORDS = [*"abcdefghijklmnop", "hello", "how", "are", "you", "dogs", "cat", "math", "ski", "mountains"]
names = (f"test_{i}" for i in count())


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> str:
    return f"milvus:{tmp_path_factory.mktemp('milvus')}/test.db"


@pytest.fixture
def where(database) -> str:
    """A collection of its own for each test: a database takes a second to start."""
    return f"{database}#{next(names)}"


@pytest.fixture(scope="module")
def many() -> list[Candidate]:
    """Three hundred candidates; some texts are there twice."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(2, 9))) for _ in range(290)]
    return [Candidate(f"id {i}", text, _metadata(i) if i % 5 else None) for i, text in enumerate([*texts, *texts[:10]])]


def _metadata(i: int) -> dict[str, Any]:
    name = f'"{i % 3}\\'
    return {"n": i % 7, "even": i % 2 == 0, "name": name, "tags": [*(["odd"] if i % 2 else []), i % 7, name]}


@pytest.fixture
def sample(many) -> list[Candidate]:
    return many[:8]


@pytest.fixture
def index(where, ranker, sample) -> MilvusIndex:
    index = MilvusIndex.create(where, ranker, model_name="models/mine")
    index.add(sample)
    return index


@pytest.fixture
def dialogues() -> list[list[str]]:
    return CONTEXTS


@pytest.fixture
def contexts(ranker, dialogues) -> ContextEncoding:
    return ranker.encode_contexts(dialogues)


@pytest.fixture
def assert_best():
    """(hits, ranker, contexts, candidates, *, k, kinds): the hits are the k best, in any order of equal scores."""

    def check(hits, ranker, contexts, candidates, *, k, kinds) -> None:
        vectors = ranker.encode_candidates([candidate.text for candidate in candidates])
        scores = score(contexts, vectors, attention=ranker.model.config.poly_attention)
        positions = {candidate.id: position for position, candidate in enumerate(candidates)}
        for row, best in zip(scores, hits, strict=True):
            assert len({hit.id for hit in best}) == len(best) == min(k, len(candidates))
            for hit in best:
                candidate = candidates[positions[hit.id]]
                assert (hit.text, hit.metadata) == (candidate.text, candidate.metadata)
                assert hit.score == pytest.approx(row[positions[hit.id]], rel=1e-4, abs=1e-3)
            np.testing.assert_allclose([hit.score for hit in best], -np.sort(-row)[: len(best)], rtol=1e-4, atol=1e-3)
        assert {hit.found for context_hits in hits for hit in context_hits} <= kinds

    return check


@pytest.fixture(scope="module")
def shared(database, make_poly, many) -> MilvusIndex:
    """An index of all candidates that tests do not change, with the model of `ranker`."""
    index = MilvusIndex.create(f"{database}#shared", make_poly(), kind="flat")
    index.add(many)
    return index
