"""One function scores texts with a ranker of any kind, and a ranker leaves its model unchanged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModel

from polyencoder.encoding.scorer import score_lists, tokenize_contexts
from polyencoder.encoding.tokens import tokenize_candidates
from polyencoder.modeling.backbone import Backbone
from polyencoder.ranker import Ranker

CONTEXTS = [["hello , how are you ?", "fine . you ?"], ["do you ski ?"], ["do you have pets ?"]]


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross", "late"])
def test_each_context_has_the_candidates_of_its_row(architecture, make_ranker, sentences):
    """The reference scores one pair at a time."""
    ranker = make_ranker(architecture)
    index = np.array([[3, 1, -1, 3], [0, 2, 3, 5], [-1, 2, -1, -1]])
    ids = tokenize_contexts(ranker.text, CONTEXTS), tokenize_candidates(ranker.text, sentences, remember=True)
    scores = ranker.encoder.score_ids(*ids, index)
    assert scores.dtype == np.float32
    for context, row, row_scores in zip(CONTEXTS, index.tolist(), scores, strict=True):
        alone = [ranker.score([context], [sentences[column]]).item() if column >= 0 else -np.inf for column in row]
        np.testing.assert_allclose(row_scores, alone, rtol=1e-4, atol=1e-4)
    every = ranker.encoder.score_ids(*ids)
    np.testing.assert_allclose(every, ranker.score(CONTEXTS, sentences), rtol=1e-6)
    np.testing.assert_allclose(every[0, 3], scores[0, 0], rtol=1e-4, atol=1e-4)
    lists = [[sentences[column] for column in row if column >= 0] for row in index.tolist()]
    for row, row_scores, list_scores in zip(index, scores, score_lists(ranker, CONTEXTS, lists), strict=True):
        np.testing.assert_allclose(list_scores, row_scores[row >= 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross", "late"])
@pytest.mark.parametrize("training", [True, False])
def test_a_model_keeps_its_mode_and_scores_as_in_evaluation(make_ranker, architecture, training):
    source = make_ranker(architecture)
    frozen = next(iter(source.model.children()))
    model = source.model.train(training)
    frozen.eval()  # a part may be in another mode
    modes = [module.training for module in model.modules()]
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    ranker = Ranker(model, source.text)
    first, second = (torch.as_tensor(ranker.score(["hello !"], ["i love dogs .", "my cat ."])) for _ in range(2))
    assert torch.equal(first, second)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross", "late"])
def test_equal_candidates_are_read_once_and_keep_their_order(make_ranker, sentences, architecture, monkeypatch):
    ranker, read = make_ranker(architecture), []
    score_ids = ranker.encoder.score_ids
    monkeypatch.setattr(ranker.encoder, "score_ids", lambda *ids: read.append(ids[1]) or score_ids(*ids))
    candidates = [*sentences, *map(str.upper, sentences[::-1])]  # the same tokens
    scores = torch.as_tensor(ranker.score(["hi", "hello"], candidates))
    assert read == [tokenize_candidates(ranker.text, [*dict.fromkeys(sentences)], remember=True)]
    assert torch.equal(scores, scores.flip(1))
    torch.testing.assert_close(scores[:, : len(sentences)], torch.as_tensor(ranker.score(["hi", "hello"], sentences)))
    order = [hit.index for hit in ranker.rank("hi", candidates)]
    assert all(order.index(i) < order.index(len(candidates) - 1 - i) for i in range(len(sentences)))


def test_remembered_tokens_are_those_of_the_list_and_the_configuration(make_ranker, sentences):
    ranker = make_ranker("bi")
    whole, part = ranker.score(["hi"], sentences), ranker.score(["hi"], sentences[:2])
    np.testing.assert_allclose(part, whole[:, :2], rtol=1e-5)
    np.testing.assert_array_equal(ranker.score(["hi"], sentences), whole)
    ranker.text.lay_out(replace(ranker.text.config, label_truncate=3))
    cut = ranker.score(["hi"], sentences)
    assert not np.allclose(cut, whole)
    np.testing.assert_array_equal(Ranker(ranker.model, ranker.text).score(["hi"], sentences), cut)


def test_an_encoder_keeps_its_pooler(backbone_folder):
    model = AutoModel.from_pretrained(backbone_folder("bert"))
    backbone = Backbone(model)
    assert model.pooler is not None
    assert not any("pooler" in name for name in backbone.state_dict())
    assert backbone.model.embeddings.word_embeddings.weight is model.embeddings.word_embeddings.weight
