"""What an architecture has without a line of its own: it refuses what it lacks, and stores its tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyencoder.errors import ConfigError, InputError
from polyencoder.modeling.base import RankerModel
from polyencoder.scoring import ContextEncoding


class OfLengths(RankerModel):
    """Vectors are the number of tokens, times a weight."""

    title, dim = "length-encoder", 1

    def __init__(self, config):
        super().__init__(config)
        self.weight = nn.Parameter(torch.tensor([2.0]))

    def encode_context(self, tokens):
        return ContextEncoding(self.encode_candidates(tokens).unsqueeze(1))

    def encode_candidates(self, tokens):
        return tokens.mask.sum(dim=1, keepdim=True) * self.weight


@pytest.fixture
def model(make_ranker):
    return OfLengths(make_ranker("bi").model.config)


def test_what_it_lacks_is_refused_by_its_name(model):
    for call in (lambda: model.pooled(None), lambda: model.truncate_vectors(torch.ones(1, 1), 1), model.refuse):
        with pytest.raises(InputError, match="a length-encoder has no"):
            call()
    with pytest.raises(ConfigError, match="a length-encoder cannot be quantized"):
        model.quantize()
    with pytest.raises(ConfigError, match="compares more than single vectors"):
        model.truncate(1)


def test_its_tensors_are_stored_in_the_dtype_asked_for(model):
    weights = model.get_state_dict_to_save(torch.bfloat16)
    assert {name: tensor.dtype for name, tensor in weights.items()} == {"weight": torch.bfloat16}
    assert not weights["weight"].requires_grad
    assert model.describe_weights("bfloat16") == "1, stored in bfloat16"
    assert model.merge_adapters() is model
    assert model.copy_for_saving() is model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "fields"),
    [("bi", {}), ("poly", {}), ("poly", {"poly_attention": "multihead"}), ("late", {}), ("convert", {})],
    ids=["bi", "poly", "multihead", "late", "convert"],
)
def test_autocast_rounds_vectors_but_no_score(make_ranker, sentences, architecture, fields):
    ranker = make_ranker(architecture, **fields)
    model, text = ranker.model.eval(), ranker.text
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            contexts = model.encode_context(text.batch_contexts([[sentence] for sentence in sentences]))
            candidates = model.encode_candidates(text.batch_candidates(sentences))
            scores = model.score(contexts, candidates)
        expected = model.score(contexts.to(dtype=torch.float32), candidates.float())
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, expected)
