"""One batch of a server's items: the results of each alone, in the order in which they came, within the budget."""

from __future__ import annotations

import pytest
import torch

from polyencoder.modeling.base import RankerModel
from polyencoder.serving.batch_forward import BatchForward
from polyencoder.serving.forward import CANDIDATE, CONTEXT, PAIR

CONTEXTS = [["hello"], ["do you ski ?", "no , i have two dogs ."], ["i am a teacher . i teach math ."], ["hi"]]


def ids_of(ranker, contexts) -> list[list[int]]:
    return [ranker.text.context_ids(one) for one in contexts]


@pytest.mark.parametrize("max_tokens", [1, 24, 10_000])
@pytest.mark.parametrize("architecture", ["bi", "poly", "late", "convert"])
def test_contexts_and_candidates_are_those_of_the_ranker(make_ranker, architecture, max_tokens, sentences):
    ranker = make_ranker(architecture)
    forward = BatchForward(ranker, max_tokens=max_tokens)
    expected = ranker.encode_contexts(CONTEXTS)
    for row, found in enumerate(forward(CONTEXT, ids_of(ranker, CONTEXTS))):
        assert found.batch_size == 1
        mask = expected.mask[row] if expected.mask is not None else torch.ones(len(expected.vectors[row]), dtype=bool)
        own = found.vectors[0] if found.mask is None else found.vectors[0][found.mask[0]]
        torch.testing.assert_close(own, expected.vectors[row][mask], rtol=1e-4, atol=1e-5)
    vectors = torch.stack(forward(CANDIDATE, ranker.text.candidate_ids(sentences)))
    torch.testing.assert_close(vectors, ranker.encode_candidates(sentences), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("max_tokens", [1, 30, 10_000])
@pytest.mark.parametrize("architecture", ["cross", "late"])
def test_scores_of_pairs_in_any_order(make_ranker, architecture, max_tokens, sentences):
    """Of contexts that share candidates and of such that do not, mixed."""
    ranker = make_ranker(architecture)
    scores = ranker.score(CONTEXTS, sentences)
    pairs = [(3, 0), (0, 5), (1, 2), (0, 0), (1, 7), (2, 3), (0, 2), (1, 2)]
    contexts, candidates = ids_of(ranker, CONTEXTS), ranker.text.candidate_ids(sentences)
    found = BatchForward(ranker, max_tokens=max_tokens)(PAIR, [(contexts[c], candidates[k]) for c, k in pairs])
    expected = [float(scores[c, k]) for c, k in pairs]
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("max_tokens", [24, 60])
def test_no_pass_has_more_tokens_than_the_budget(make_ranker, monkeypatch, max_tokens, sentences):
    """Padding included; a longer text goes through alone."""
    sizes = []
    ranker = make_ranker("bi")
    encode = type(ranker.model).encode_candidates

    def counted(self: RankerModel, tokens):
        sizes.append(tuple(tokens.ids.shape))
        return encode(self, tokens)

    monkeypatch.setattr(type(ranker.model), "encode_candidates", counted)
    texts = [*sentences, " ".join(sentences[:2]), "hi"]
    BatchForward(ranker, max_tokens=max_tokens)(CANDIDATE, ranker.text.candidate_ids(texts))
    assert sum(rows for rows, _ in sizes) == len(texts)
    assert all(rows == 1 or rows * length <= max_tokens for rows, length in sizes)
    assert len(sizes) < len(texts)  # short texts share a pass


def test_nor_have_the_pairs_of_a_late_encoder(make_ranker, sentences):
    sizes = []
    ranker = make_ranker("late")
    for tower in ranker.model.backbones:
        tower.register_forward_pre_hook(lambda _, inputs: sizes.append(tuple(inputs[0].ids.shape)))
    candidates = ranker.text.candidate_ids(sentences)
    BatchForward(ranker, max_tokens=24)(PAIR, [(ids, one) for ids in ids_of(ranker, CONTEXTS) for one in candidates])
    assert sum(rows for rows, _ in sizes) == len(CONTEXTS) + len(sentences)
    assert all(rows == 1 or rows * length <= 24 for rows, length in sizes)


def test_a_model_in_training_mode_is_so_afterwards_and_computes_without_dropout(make_ranker, make_backbone_config):
    ranker = make_ranker("bi", backbone=make_backbone_config(dropout=0.5))
    ranker.model.train()
    forward, ids = BatchForward(ranker, max_tokens=100), ids_of(ranker, CONTEXTS)
    first, second = (torch.cat([one.vectors for one in forward(CONTEXT, ids)]) for _ in range(2))
    assert first.equal(second)
    assert not first.requires_grad
    assert ranker.model.training
