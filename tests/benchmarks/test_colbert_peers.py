"""ColBERTs of other libraries, as benchmarks use them: their scores are MaxSim, the sum of each token's best match."""

from __future__ import annotations

import pytest
import torch

from benchmarks.colbert_peers import PyLate, multi_vector_encoder

pytestmark = pytest.mark.slow

QUESTION = "hello , how are you ?"
TEXTS = ["hello there", "how are you", "i am fine", "what is your name", "good morning"]


@pytest.fixture(params=["sentence-transformers", "sentence-transformers, projected", "pylate"])
def peer(request, bert):
    if request.param == "pylate":
        pytest.importorskip("pylate")
        return PyLate(bert)
    pytest.importorskip("sentence_transformers.multi_vector_encoder")
    return multi_vector_encoder(bert, projected="projected" in request.param)


def test_scores_are_sums_of_the_best_matches(peer):
    context = peer.encode_query([QUESTION], show_progress_bar=False)
    torch.testing.assert_close(context[0].norm(dim=-1), torch.ones(len(context[0])))
    tokens = peer.encode_document(TEXTS, show_progress_bar=False)
    assert len({len(one) for one in tokens}) > 1  # padding counts for nothing
    expected = [float((context[0] @ one.T).max(1).values.sum()) for one in tokens]
    assert peer.similarity(context, tokens)[0].tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("projected", "numbers"), [(False, 16), (True, 128)])
def test_a_new_projection_has_128_numbers(projected, numbers, bert):
    pytest.importorskip("sentence_transformers.multi_vector_encoder")
    peer = multi_vector_encoder(bert, projected=projected)
    assert peer.encode_query(QUESTION, show_progress_bar=False).size(1) == numbers
