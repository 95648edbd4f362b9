"""The paper's rescaling: what saturates a poly-encoder's attention, and that the measured scaling undoes it."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from polyencoder.errors import ConfigError, InputError
from polyencoder.training.callbacks.output_scaling import BERT_OUTPUT_STD, compute_output_std, measure_scaling

pytestmark = pytest.mark.slow

INFLATION = 16.0


@pytest.fixture
def batches(text, sentences):
    """Contexts and candidates as tokens."""
    return text.batch_contexts([[sentence] for sentence in sentences]), text.batch_candidates(sentences)


def inflate(model) -> None:
    """Large gains of the last layer normalisation, as training without weight decay leaves them."""
    towers = [model.tower] if hasattr(model, "tower") else [model.context_tower, model.candidate_tower]
    for norm in {tower.get_layers()[-1].output.LayerNorm for tower in towers}:  # once where the towers are one
        with torch.no_grad():
            norm.weight.mul_(INFLATION)
            norm.bias.mul_(INFLATION)


def rescale(model, batches) -> None:
    model.config = dataclasses.replace(model.config, output_scaling=measure_scaling(model, *batches))


@torch.no_grad()
def code_entropy(model, batches) -> float:
    """The entropy with which candidates attend over context vectors: 0 for one vector alone, 1 for all alike."""
    contexts, candidates = batches
    context = model.encode_context(contexts)
    logits = torch.einsum("bmd,nd->bnm", context.vectors, model.encode_candidates(candidates))
    if context.mask is not None:
        logits = logits.masked_fill(~context.mask.unsqueeze(1), -torch.inf)
    weights = logits.softmax(-1)
    return float(torch.special.entr(weights).sum(-1).mean()) / math.log(logits.size(-1))


@pytest.mark.parametrize("kind", ["codes", "n_first", "first_n_last"])
def test_inflated_weights_saturate_the_attention_and_the_scaling_undoes_it(make_model, batches, kind):
    model = make_model("poly", context_vectors=kind, n_codes=8, reduction="mean")
    inflate(model)
    assert code_entropy(model, batches) < 0.1
    rescale(model, batches)
    assert code_entropy(model, batches) > 0.5


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
@pytest.mark.parametrize("share", [False, True])
def test_scaled_outputs_deviate_as_those_of_bert(make_model, batches, architecture, share):
    model = make_model(architecture, share_encoders=share)
    before = compute_output_std(model, *batches)
    inflate(model)
    assert compute_output_std(model, *batches) == pytest.approx(INFLATION * before, rel=1e-5)
    assert measure_scaling(model, *batches) * compute_output_std(model, *batches) == pytest.approx(BERT_OUTPUT_STD)


def test_the_standard_deviation_is_over_real_tokens_alone(make_model, text, sentences, padded):
    model = make_model("bi")
    contexts, candidates = text.batch_contexts([[sentence] for sentence in sentences]), text.batch_candidates(sentences)
    with torch.no_grad():
        outputs = [model.context_tower(text.batch_contexts([[sentence]])) for sentence in sentences]
        outputs += [model.candidate_tower(text.batch_candidates([sentence])) for sentence in sentences]
    expected = torch.cat([output.flatten() for output in outputs]).std().item()
    assert compute_output_std(model, contexts, candidates) == pytest.approx(expected, rel=1e-5)
    assert compute_output_std(model, padded(contexts.list_sequences(), extra=7), candidates) == pytest.approx(
        expected, rel=1e-5
    )


def test_dropout_does_not_count_and_training_goes_on(make_model, make_backbone_config, batches):
    model = make_model("bi", backbone=make_backbone_config(dropout=0.5))
    expected = compute_output_std(model, *batches)
    model.train()
    assert compute_output_std(model, *batches) == expected
    assert all(module.training for module in model.modules())


def test_what_cannot_be_scaled(make_model, batches):
    with pytest.raises(ConfigError, match="normalize already scales vectors to length 1"):
        measure_scaling(make_model("bi", normalize=True), *batches)
    for gain in (0.0, float("nan")):
        model = make_model("bi")
        for tower in (model.context_tower, model.candidate_tower):
            torch.nn.init.constant_(tower.get_layers()[-1].output.LayerNorm.weight, gain)
        with pytest.raises(InputError, match="standard deviation of (0.0|nan)"):
            measure_scaling(model, *batches)
