"""Our rankers give the scores and gradients of ParlAI's own, with the same random weights."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from polyencoder.checkpoint import CONFIG_KEY
from polyencoder.errors import CheckpointError
from polyencoder.importing import read_ranker_config
from polyencoder.importing.parlai_weights import explain_batch_dependence

pytest.importorskip("parlai", reason="compares with ParlAI, which is not installed")

from tests.parameters import mostly_long
from tests.polyencoder.importing.parlai_rankers import (
    CANDIDATE_LENGTHS,
    CONTEXT_LENGTHS,
    OPT,
    assert_same_scores,
    convert,
    inline,
    ours,
    scores_of_both,
    sequences,
    theirs,
)

pytestmark = pytest.mark.slow

# At 0.06, ParlAI's setting, outputs are so small that scores hardly tell a poly-encoder's attention from an average;
# at 1 the attention is sharp and the scores are large.
SCALINGS = pytest.mark.parametrize("output_scaling", [0.06, 1.0])


def check_scores(architecture, context_lengths=CONTEXT_LENGTHS, candidate_lengths=CANDIDATE_LENGTHS, **options) -> None:
    """ParlAI and we give the same scores to candidates of each context's own."""
    contexts = sequences(context_lengths, seed=1)
    candidates, index = inline(len(contexts), candidate_lengths)
    assert_same_scores(*scores_of_both(architecture, contexts, candidates, index, **options))


@mostly_long(("n_codes", "output_scaling"), [(5, 0.06), (1, 1.0), (20, 1.0)], quick=1)
@pytest.mark.parametrize("poly_attention", ["basic", "sqrt", "multihead"])
@pytest.mark.parametrize(
    ("kind", "codes_attention"), [("codes", "basic"), ("codes", "sqrt"), ("codes", "multihead"), ("n_first", "basic")]
)
def test_poly_encoder_of_every_kind(kind, codes_attention, poly_attention, n_codes, output_scaling):
    check_scores(
        "poly",
        polyencoder_type=kind,
        codes_attention_type=codes_attention,
        poly_attention_type=poly_attention,
        poly_n_codes=n_codes,
        output_scaling=output_scaling,
    )


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_heads_and_gradients_of_multi_head_attention(heads):
    """The gradients too are ParlAI's, of the codes and both attentions."""
    options = {"poly_attention_type": "multihead", "poly_attention_num_heads": heads, "output_scaling": 0.5}
    options |= {"codes_attention_type": "multihead", "codes_attention_num_heads": 8 // heads}
    agent = theirs("poly", **options)
    model = ours(agent, "poly")
    contexts, candidates = sequences(CONTEXT_LENGTHS, seed=1), sequences(CANDIDATE_LENGTHS, seed=2)
    expected = agent.score_candidates(SimpleNamespace(text_vec=contexts.ids, memory_vecs=None), candidates.ids)
    actual = model(contexts, candidates)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * expected.abs().max().item())
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3))
    (expected * upstream).sum().backward()
    (actual * upstream).sum().backward()
    pairs = [(agent.model.codes, model.codes.codes)]
    attentions = [(agent.model.attention, model.attention), (agent.model.code_attention, model.codes.attention)]
    for their_part, our_part in attentions:
        names = {"q_lin": "query", "k_lin": "key", "v_lin": "value", "out_lin": "output"}
        pairs += [(getattr(their_part, a).weight, getattr(our_part, b).weight) for a, b in names.items()]
    size = max(weight.grad.abs().max().item() for weight, _ in pairs)
    for their_weight, our_weight in pairs:
        largest = their_weight.grad.abs().max().item()
        torch.testing.assert_close(our_weight.grad, their_weight.grad, rtol=0, atol=1e-3 * largest + 1e-6 * size)
        assert largest > 0


@SCALINGS
@pytest.mark.parametrize("reduction", ["first", "mean"])
@mostly_long("architecture", ["bi", "poly", "cross"], quick=2)
def test_reductions_on_padded_batches(architecture, reduction, output_scaling):
    check_scores(architecture, reduction_type=reduction, output_scaling=output_scaling)


@SCALINGS
@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
def test_max_without_padding(architecture, output_scaling):
    """On padded batches ParlAI's `max` is another function: it takes the zeros at padding for outputs.

    Its cross-encoder pads pairs together, so that without padding all contexts, and all candidates, are of one length.
    """
    check_scores(architecture, (6, 6, 6), (4, 4, 4, 4), reduction_type="max", output_scaling=output_scaling)


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
def test_one_context_of_one_token(architecture):
    check_scores(architecture, (1,), output_scaling=1.0)


@pytest.mark.parametrize(
    ("architecture", "kind"), [("poly", "codes"), ("poly", "n_first"), ("bi", "-"), ("cross", "-")]
)
def test_one_candidate_for_each_context(architecture, kind):
    """ParlAI's poly-encoder then squeezes a dimension too many: [batch, batch] scores, the right ones the diagonal."""
    contexts = sequences(CONTEXT_LENGTHS, seed=1)
    candidates, index = inline(len(contexts), (3,))
    options = {"polyencoder_type": kind} if architecture == "poly" else {}
    expected, actual = scores_of_both(architecture, contexts, candidates, index, output_scaling=1.0, **options)
    assert actual.shape == (len(contexts), 1)
    right = expected.diagonal()[:, None] if architecture == "poly" else expected
    torch.testing.assert_close(actual, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["bi", "cross"])
@mostly_long(
    "options",
    [
        {"n_segments": 0},
        {"n_segments": 1},
        {"n_segments": 3},
        {"embeddings_scale": True},
        {"activation": "relu"},
        {"learn_positional_embeddings": False},
        {"n_encoder_layers": 3},
        {"share_word_embeddings": True},
        {"n_positions": 50},
        {"variant": "aiayn"},
        {"variant": "bart", "n_segments": 0},
        {"variant": "prelayernorm"},
        {"variant": "prelayernorm", "n_segments": 0, "embeddings_scale": True, "learn_positional_embeddings": False},
        {"variant": "aiayn", "reduction_type": "mean", "activation": "relu", "n_segments": 0},
    ],
    ids=lambda options: ",".join(f"{name}={value}" for name, value in options.items()),
    quick=7,
)
def test_other_options(architecture, options):
    check_scores(architecture, output_scaling=1.0, **options)


# ---- the bi-encoder's defaults in ParlAI


@pytest.mark.parametrize(
    "options", [{}, {"output_scaling": 0.06}, {"normalize_sent_emb": True, "output_scaling": 0.06}]
)
@pytest.mark.parametrize("variant", ["aiayn", "xlm"])
@pytest.mark.parametrize("memories", [{}, {"wrap_memory_encoder": True, "share_word_embeddings": False}])
def test_shared_encoders(options, variant, memories):
    """A perceptron stands behind the candidates' encoder. With fixed and batch candidates each has length 1."""
    contexts, candidates = sequences(CONTEXT_LENGTHS, seed=1), sequences(CANDIDATE_LENGTHS, seed=2)
    options = {"share_encoders": True, "reduction_type": "mean", "variant": variant, **options, **memories}
    expected, actual = scores_of_both("bi", contexts, candidates, **options)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * expected.abs().max().item())
    assert expected.std(dim=0).min() > 1e-4 * expected.abs().max()
    config, _ = convert(theirs("bi", **options), "bi")
    assert config.share_encoders
    assert config.candidate_mlp


def test_normalized_vectors():
    contexts, candidates = sequences(CONTEXT_LENGTHS, seed=1), sequences(CANDIDATE_LENGTHS, seed=2)
    expected, actual = scores_of_both("bi", contexts, candidates, normalize_sent_emb=True)
    assert_same_scores(expected, actual)
    assert actual.abs().max() <= 1 + 1e-5


def test_inline_candidates_of_normalized_vectors():
    """ParlAI divides each dimension by its length over an example's candidates; there is no such vector of one."""
    contexts = sequences(CONTEXT_LENGTHS, seed=1)
    candidates, index = inline(len(contexts), CANDIDATE_LENGTHS)
    expected, actual = scores_of_both("bi", contexts, candidates, index, normalize_sent_emb=True)
    assert (expected - actual).abs().max() > 0.1
    assert explain_batch_dependence(OPT | {"normalize_sent_emb": True}, "bi")
    assert not explain_batch_dependence(OPT | {"normalize_sent_emb": True}, "poly")  # which does not look at it


def test_mean_of_the_variant_that_normalizes_last():
    """ParlAI does not mask behind its last normalization: padding counts with the normalization's bias."""
    options = {"variant": "prelayernorm", "reduction_type": "mean"}
    check_scores("bi", (6, 6, 6), (4, 4, 4, 4), **options)
    contexts = sequences((6, 6, 6), seed=1)
    candidates, index = inline(len(contexts), CANDIDATE_LENGTHS)
    expected, actual = scores_of_both("bi", contexts, candidates, index, **options)
    assert (expected - actual).abs().max() > 1e-3
    assert explain_batch_dependence(OPT | options, "bi")
    assert not explain_batch_dependence(OPT | options | {"variant": "aiayn"}, "bi")


@pytest.mark.parametrize("variant", ["aiayn", "xlm", "prelayernorm"])
def test_training_reaches_all_weights_of_a_shared_model(variant):
    """Packed for learning, too, outputs are the same, and every parameter has a gradient."""
    model = ours(theirs("bi", share_encoders=True, variant=variant), "bi")
    contexts, candidates = sequences(CONTEXT_LENGTHS, seed=1), sequences(CANDIDATE_LENGTHS, seed=2)
    with torch.no_grad():
        expected = model(contexts, candidates)
    actual = model(contexts, candidates)
    torch.testing.assert_close(actual, expected)
    actual.sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


def test_the_configuration_is_that_of_the_file_as_it_is_now(make_config, tmp_path):
    path, new = tmp_path / "model", tmp_path / "new"
    for time, n_codes in enumerate((4, 5, 4)):
        torch.save({"model": {}, CONFIG_KEY: make_config("poly", n_codes=n_codes).to_json()}, new)
        os.utime(new, ns=(time, time))  # a clock may not tell them apart
        new.replace(path)
        assert read_ranker_config(path).n_codes == n_codes
    assert read_ranker_config(path) is read_ranker_config(path)  # a file that is the same is not read again
    path.unlink()
    with pytest.raises(CheckpointError, match="model: no such model file"):
        read_ranker_config(path)
