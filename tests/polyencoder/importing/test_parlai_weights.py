"""The weights and options of ParlAI's rankers as ours: what is carried over, and what cannot be."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from polyencoder.errors import CheckpointError

pytest.importorskip("parlai", reason="compares with ParlAI, which is not installed")
from parlai.agents.transformer.modules import LAYER_NORM_EPS

from tests.polyencoder.importing.parlai_rankers import NULL, OPT, TEXT, convert, theirs


def test_half_precision_weights_become_float32():
    agent = theirs("bi")
    _, weights = convert(agent, "bi", state={k: v.half() for k, v in agent.model.state_dict().items()})
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


def test_what_scores_do_not_show_is_carried_over():
    agent = theirs("poly", dropout=0.3, attention_dropout=0.2)
    config, weights = convert(agent, "poly")
    # Keys' biases add the same to all logits of a query, so the softmax takes them out again.
    bias = agent.model.encoder_ctxt.layers[1].attention.k_lin.bias
    assert torch.equal(weights["context_tower.model.encoder.layer.1.attention.self.key.bias"], bias)
    assert config.backbone["layer_norm_eps"] == LAYER_NORM_EPS
    assert config.text == TEXT
    assert config.backbone["hidden_dropout_prob"] == 0.3
    assert config.backbone["attention_probs_dropout_prob"] == 0.2
    assert config.backbone["pad_token_id"] == NULL


ENCODERS = {"bi": "cand_encoder", "poly": "encoder_ctxt", "cross": "encoder"}


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
@pytest.mark.parametrize(
    "tensor", ["layers.1.attention.out_lin.bias", "segment_embeddings.weight", "embeddings.weight"]
)
def test_a_missing_tensor_is_named(architecture, tensor):
    agent = theirs(architecture)
    state = agent.model.state_dict()
    del state[f"{ENCODERS[architecture]}.{tensor}"]
    with pytest.raises(CheckpointError, match=f"^model: .*: {ENCODERS[architecture]}.{tensor} is missing$"):
        convert(agent, architecture, state=state)


@pytest.mark.parametrize(("architecture", "tensor"), [("poly", "codes"), ("cross", "linear_layer.bias")])
def test_a_missing_tensor_outside_the_encoders_is_named(architecture, tensor):
    agent = theirs(architecture)
    state = agent.model.state_dict()
    del state[tensor]
    with pytest.raises(CheckpointError, match=f"{tensor} is missing$"):
        convert(agent, architecture, state=state)


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
@pytest.mark.parametrize("tensor", ["{}.layers.2.norm1.bias", "mlp.weight", "memory_transformer.mlp.weight"])
def test_a_tensor_without_a_place_is_named(architecture, tensor):
    agent = theirs(architecture)
    tensor = tensor.format(ENCODERS[architecture])
    state = agent.model.state_dict() | {tensor: torch.zeros(32)}
    with pytest.raises(CheckpointError, match=f"{tensor} is not a tensor of this model$"):
        convert(agent, architecture, state=state)


def test_weights_of_another_kind_of_model():
    """The first of many problems is named, the others are counted."""
    with pytest.raises(CheckpointError, match=r"context_encoder.embeddings.weight is missing \(and \d+ more\)$"):
        convert(theirs("poly"), "bi")


@pytest.mark.parametrize(
    ("shared", "second", "first"),
    [
        (False, "embeddings.weight", "context_encoder.embeddings.weight"),
        (False, "cand_embeddings.weight", "cand_encoder.embeddings.weight"),
        (True, "cand_encoder.embeddings.weight", "context_encoder.embeddings.weight"),
        (False, "memory_transformer.layers.0.norm1.bias", "context_encoder.layers.0.norm1.bias"),
    ],
)
def test_second_names_of_a_bi_encoder_must_be_equal(shared, second, first):
    agent = theirs("bi", share_word_embeddings=shared)
    state = agent.model.state_dict()
    state[second] = state[second] + 1
    with pytest.raises(CheckpointError, match=f"{second} differs from {first}, "):
        convert(agent, "bi", state=state)


def test_second_names_of_a_bi_encoder_may_be_absent():
    agent = theirs("bi")
    state = agent.model.state_dict()
    subset = {k: v for k, v in state.items() if k.startswith(("context_encoder.", "cand_encoder."))}
    assert len(subset) < len(state)
    whole, alone = convert(agent, "bi")[1], convert(agent, "bi", state=subset)[1]
    assert whole.keys() == alone.keys()
    assert all(torch.equal(whole[name], alone[name]) for name in whole)


@pytest.mark.parametrize(
    ("architecture", "option", "value"),
    [
        ("bi", "use_memories", True),
        ("bi", "variant", "another"),
        ("poly", "variant", "another"),
        ("poly", "poly_attention_type", "cosine"),
        ("poly", "codes_attention_type", "cosine"),
        ("cross", "activation", "swish"),
        ("cross", "reduction_type", "none_with_pos_embs"),
    ],
)
def test_options_that_cannot_be_carried_over(architecture, option, value):
    """The option is named even though ParlAI's weights for it are others too."""
    agent = SimpleNamespace(opt=OPT | {option: value})
    with pytest.raises(CheckpointError, match=f"^model: .*{option} {value}, "):
        convert(agent, architecture, state={})


def test_codes_attention_without_codes_does_not_matter():
    config, _ = convert(theirs("poly", polyencoder_type="n_first", codes_attention_type="multihead"), "poly")
    assert config.context_vectors == "n_first"


def test_an_absent_option():
    """ParlAI's own default when it has one: `variant` is then aiayn. Else the option is named."""
    agent = theirs("cross", variant="aiayn")
    opt = {name: value for name, value in agent.opt.items() if name != "variant"}
    assert convert(agent, "cross", opt=opt)[0].backbone["embedding_norm"] is False
    opt.pop("n_heads")
    with pytest.raises(CheckpointError, match="no `n_heads`"):
        convert(agent, "cross", opt=opt)
