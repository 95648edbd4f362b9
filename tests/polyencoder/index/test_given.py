"""Vectors that candidates bring are those of the model that is named, all of them, or an error says which is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyencoder.errors import InputError
from polyencoder.index import Candidate, Fingerprints
from polyencoder.index.given import checked_vector, same_vector, with_vectors

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def ranker(make_ranker):
    return make_ranker("poly", normalize=True)


@pytest.fixture
def given(ranker, sentences) -> list[Candidate]:
    vectors = ranker.encode_candidates(sentences).numpy()
    return [
        Candidate(str(i), text, None, f"row {i}", vector)
        for i, (text, vector) in enumerate(zip(sentences * 2, [*vectors, *vectors], strict=True))
    ]


def test_those_of_the_model_pass(ranker, given):
    records, dim = with_vectors(iter(given), ranker)
    assert dim == 16
    assert [one.vector.tobytes() for one in records] == [one.vector.tobytes() for one in given]
    for kind in (torch.float64, torch.float16, torch.bfloat16):
        other = [one._replace(vector=torch.tensor(one.vector).to(kind)) for one in given]
        assert len(list(with_vectors(iter(other), ranker)[0])) == len(given)


@pytest.mark.parametrize(
    ("place", "change", "problem"),
    [
        (1, lambda v: v[::-1].copy(), "its vector is not the model's vector of its text"),
        (1, lambda v: v[:8], "its vector has 8 numbers, not 16"),
        (12, lambda v: v[:8], "its vector has 8 numbers, not 16"),
        (12, lambda v: 3 * v, "its vector has the length"),
        (12, lambda v: 0 * v, "its vector is zero"),
        (12, lambda v: np.where(np.arange(16) == 3, NAN, v), "its vector is not finite"),
        (12, lambda v: np.where(np.arange(16) == 3, INF, v), "its vector is not finite"),
        (12, lambda v: np.float64(v) * 1e300, "its vector is not finite"),
        (12, lambda v: v.reshape(4, 4), r"its vector has the shape \[4, 4\]"),
        (12, lambda v: ["a", "b"], r"its vector is \[.*it must be numbers"),
        (12, lambda v: None, "has no vector; either all candidates"),
    ],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_which_one_is_wrong(ranker, given, place, change, problem):
    given[place] = given[place]._replace(vector=change(given[place].vector))
    records, _ = with_vectors(iter(given), ranker)
    with pytest.raises(InputError, match=f"^row {place}: {problem}"):
        list(records)


def test_all_or_none(ranker, given, sentences):
    texts = [Candidate(None, text, None, "a text") for text in sentences]
    assert list(with_vectors(iter(texts), ranker)[0]) == texts
    with pytest.raises(InputError, match="^row 0: has a vector"):
        list(with_vectors(iter([*texts, *given]), ranker)[0])
    with pytest.raises(InputError, match="^a text: has no vector, and there is no model to encode"):
        with_vectors(iter(texts), Fingerprints("theirs"))
    assert with_vectors(iter(given), Fingerprints("theirs"))[1] == 16


def test_rounding_is_no_difference():
    vector = torch.randn(64, generator=torch.Generator().manual_seed(0)).numpy()
    assert same_vector(vector, vector.astype(np.float16).astype(np.float32))
    assert same_vector(vector, torch.tensor(vector).bfloat16().float().numpy())
    assert not same_vector(vector, vector[::-1])
    assert checked_vector(Candidate("a", "b", vector=list(vector))).vector.dtype == np.float32
