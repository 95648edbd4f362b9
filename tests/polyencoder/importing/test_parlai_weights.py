"""Our rankers against ParlAI's own, built and run by ParlAI's agents, with the same random weights."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from parlai.agents.transformer.biencoder import BiencoderAgent
from parlai.agents.transformer.crossencoder import CrossencoderAgent
from parlai.agents.transformer.modules import LAYER_NORM_EPS
from parlai.agents.transformer.polyencoder import PolyencoderAgent

from polyencoder.checkpoint import load_weights
from polyencoder.config import TextConfig
from polyencoder.errors import CheckpointError
from polyencoder.importing.parlai_weights import batch_dependence, convert_parlai
from polyencoder.modeling import build_model
from polyencoder.text.tokens import pad

AGENTS = {"bi": BiencoderAgent, "poly": PolyencoderAgent, "cross": CrossencoderAgent}
NULL = 0
VOCABULARY = 60
TEXT = TextConfig(text_truncate=24, label_truncate=8)
OPT = {
    "embedding_size": 32,
    "ffn_size": 48,
    "n_layers": 2,
    "n_heads": 4,
    "n_positions": 32,
    "n_segments": 2,
    "variant": "xlm",
    "activation": "gelu",
    "learn_positional_embeddings": True,
    "embeddings_scale": False,
    "embedding_type": "random",
    "learn_embeddings": True,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "relu_dropout": 0.0,
    "output_scaling": 0.06,
    "reduction_type": "first",
    "share_encoders": False,
    "share_word_embeddings": False,
    "use_memories": False,
    "memory_attention": "sqrt",
    "normalize_sent_emb": False,
    "polyencoder_type": "codes",
    "poly_n_codes": 5,
    "poly_attention_type": "basic",
    "poly_attention_num_heads": 4,
    "codes_attention_type": "basic",
    "codes_attention_num_heads": 4,
}

# At 0.06, ParlAI's setting, outputs are so small that scores hardly tell a poly-encoder's attention from an average;
# at 1 the attention is sharp and the scores are large.
SCALINGS = pytest.mark.parametrize("output_scaling", [0.06, 1.0])

# Contexts of one token, shorter than 5 codes, and longer; candidates of one token and more
CONTEXT_LENGTHS = (1, 3, 12, 7)
CANDIDATE_LENGTHS = (1, 6, 2, 4, 3)


class Dictionary:
    """What ParlAI's models ask of a dictionary: its size, and the index of its padding token."""

    null_token = "__null__"

    def __len__(self):
        return VOCABULARY

    def __getitem__(self, token):
        assert token == self.null_token
        return NULL


def theirs(architecture, **options):
    """ParlAI's agent around its model, no weight of which is what ParlAI starts with."""
    torch.manual_seed(7)
    agent = AGENTS[architecture].__new__(AGENTS[architecture])
    agent.opt, agent.dict, agent.NULL_IDX, agent.use_cuda = OPT | options, Dictionary(), NULL, False
    agent.history_reversed = False
    agent.model = agent.build_model().eval()
    with torch.no_grad():
        for weight in agent.model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return agent


def convert(agent, architecture, *, state=None, opt=None):
    state = agent.model.state_dict() if state is None else state
    return convert_parlai(state, opt or agent.opt, architecture=architecture, text=TEXT, origin="model")


def ours(agent, architecture):
    """Our model with the agent's weights."""
    config, weights = convert(agent, architecture)
    model = build_model(config).eval()
    load_weights(model, weights, origin="model")
    return model


def sequences(lengths, *, seed):
    """A batch of sequences of these lengths, of random tokens, none of them padding."""
    generator = torch.Generator().manual_seed(seed)
    return pad([torch.randint(1, VOCABULARY, (n,), generator=generator).tolist() for n in lengths], pad_id=NULL)


def inline(batch, lengths, *, seed=2):
    """Candidates of their own for each context, as one batch of sequences, and the index [batch, n] of their rows."""
    candidates = sequences(lengths * batch, seed=seed)
    return candidates, torch.arange(batch * len(lengths)).view(batch, -1)


@torch.no_grad()
def scores_of_both(architecture, contexts, candidates, index=None, **options):
    """Scores [batch, n] by ParlAI and by us. Without an index all contexts share the candidates."""
    agent = theirs(architecture, **options)
    model = ours(agent, architecture)
    candidate_vecs = candidates.ids if index is None else candidates.ids[index]
    expected = agent.score_candidates(SimpleNamespace(text_vec=contexts.ids, memory_vecs=None), candidate_vecs)
    return expected, model(contexts, candidates, index)


def assert_same_scores(expected, found):
    """Equal to 1e-5 of the largest score, and scores worth the name: between candidates they differ by far more.

    Both sides compute in float32, in another order: they were seen to differ by at most 1e-6 of the largest score.
    """
    assert found.shape == expected.shape
    size = expected.abs().max().item()
    assert expected.std(dim=1).min() > 0.01 * size
    assert len(expected) == 1 or expected.std(dim=0).min() > 0.01 * size
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * size)


@SCALINGS
@pytest.mark.parametrize("n_codes", [1, 5, 20])
@pytest.mark.parametrize("poly_attention", ["basic", "sqrt", "multihead"])
@pytest.mark.parametrize(
    ("kind", "codes_attention"), [("codes", "basic"), ("codes", "sqrt"), ("codes", "multihead"), ("n_first", "basic")]
)
def test_poly_encoder_of_every_kind(kind, codes_attention, poly_attention, n_codes, output_scaling):
    contexts = sequences(CONTEXT_LENGTHS, seed=1)
    candidates, index = inline(len(contexts), CANDIDATE_LENGTHS)
    expected, found = scores_of_both(
        "poly",
        contexts,
        candidates,
        index,
        polyencoder_type=kind,
        codes_attention_type=codes_attention,
        poly_attention_type=poly_attention,
        poly_n_codes=n_codes,
        output_scaling=output_scaling,
    )
    assert_same_scores(expected, found)


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_heads_and_gradients_of_multi_head_attention(heads):
    """The gradients too are ParlAI's, of the codes and both attentions."""
    options = {"poly_attention_type": "multihead", "poly_attention_num_heads": heads, "output_scaling": 0.5}
    options |= {"codes_attention_type": "multihead", "codes_attention_num_heads": 8 // heads}
    agent = theirs("poly", **options)
    model = ours(agent, "poly")
    contexts, candidates = sequences(CONTEXT_LENGTHS, seed=1), sequences(CANDIDATE_LENGTHS, seed=2)
    expected = agent.score_candidates(SimpleNamespace(text_vec=contexts.ids, memory_vecs=None), candidates.ids)
    found = model(contexts, candidates)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * expected.abs().max().item())
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3))
    (expected * upstream).sum().backward()
    (found * upstream).sum().backward()
    pairs = [(agent.model.codes, model.codes.codes)]
    for one, another in ((agent.model.attention, model.attention), (agent.model.code_attention, model.codes.attention)):
        names = {"q_lin": "query", "k_lin": "key", "v_lin": "value", "out_lin": "output"}
        pairs += [(getattr(one, a).weight, getattr(another, b).weight) for a, b in names.items()]
    size = max(one.grad.abs().max().item() for one, _ in pairs)
    for one, another in pairs:
        own = one.grad.abs().max().item()
        torch.testing.assert_close(another.grad, one.grad, rtol=0, atol=1e-3 * own + 1e-6 * size)
        assert own > 0


@SCALINGS
@pytest.mark.parametrize("reduction", ["first", "mean"])
@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
def test_reductions_on_padded_batches(architecture, reduction, output_scaling):
    contexts = sequences(CONTEXT_LENGTHS, seed=1)
    candidates, index = inline(len(contexts), CANDIDATE_LENGTHS)
    expected, found = scores_of_both(
        architecture, contexts, candidates, index, reduction_type=reduction, output_scaling=output_scaling
    )
    assert_same_scores(expected, found)


@SCALINGS
@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
def test_max_without_padding(architecture, output_scaling):
    """On padded batches ParlAI's `max` is another function: it takes the zeros at padding for outputs.

    Its cross-encoder pads pairs together, so that without padding all contexts, and all candidates, are of one length.
    """
    contexts = sequences((6, 6, 6), seed=1)
    candidates, index = inline(len(contexts), (4, 4, 4, 4))
    expected, found = scores_of_both(
        architecture, contexts, candidates, index, reduction_type="max", output_scaling=output_scaling
    )
    assert_same_scores(expected, found)


@pytest.mark.parametrize("architecture", ["bi", "poly"])
def test_candidates_shared_by_the_batch(architecture):
    contexts, candidates = sequences(CONTEXT_LENGTHS, seed=1), sequences(CANDIDATE_LENGTHS, seed=2)
    expected, found = scores_of_both(architecture, contexts, candidates, output_scaling=1.0)
    assert_same_scores(expected, found)


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
def test_one_context_of_one_token(architecture):
    contexts = sequences((1,), seed=1)
    candidates, index = inline(1, CANDIDATE_LENGTHS)
    expected, found = scores_of_both(architecture, contexts, candidates, index, output_scaling=1.0)
    assert_same_scores(expected, found)


@pytest.mark.parametrize("kind", ["codes", "n_first"])
def test_one_candidate_for_each_context(kind):
    """ParlAI then squeezes a dimension too many: [batch, batch] scores, the right ones on the diagonal."""
    contexts = sequences(CONTEXT_LENGTHS, seed=1)
    candidates, index = inline(len(contexts), (3,))
    expected, found = scores_of_both("poly", contexts, candidates, index, polyencoder_type=kind, output_scaling=1.0)
    assert found.shape == (len(contexts), 1)
    torch.testing.assert_close(found.squeeze(1), expected.diagonal(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["bi", "cross"])
def test_one_candidate_for_each_context_elsewhere(architecture):
    contexts = sequences(CONTEXT_LENGTHS, seed=1)
    candidates, index = inline(len(contexts), (3,))
    expected, found = scores_of_both(architecture, contexts, candidates, index, output_scaling=1.0)
    assert found.shape == (len(contexts), 1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
@pytest.mark.parametrize(
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
)
def test_other_options(architecture, options):
    contexts = sequences(CONTEXT_LENGTHS, seed=1)
    candidates, index = inline(len(contexts), CANDIDATE_LENGTHS)
    expected, found = scores_of_both(architecture, contexts, candidates, index, output_scaling=1.0, **options)
    assert_same_scores(expected, found)


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
    with pytest.raises(CheckpointError, match=f"{tensor} has no place in this model$"):
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
    kept = {k: v for k, v in state.items() if k.startswith(("context_encoder.", "cand_encoder."))}
    assert len(kept) < len(state)
    whole, alone = convert(agent, "bi")[1], convert(agent, "bi", state=kept)[1]
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
    expected, found = scores_of_both("bi", contexts, candidates, **options)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * expected.abs().max().item())
    assert expected.std(dim=0).min() > 1e-4 * expected.abs().max()
    config, _ = convert(theirs("bi", **options), "bi")
    assert config.share_encoders
    assert config.candidate_mlp


def test_normalized_vectors():
    contexts, candidates = sequences(CONTEXT_LENGTHS, seed=1), sequences(CANDIDATE_LENGTHS, seed=2)
    expected, found = scores_of_both("bi", contexts, candidates, normalize_sent_emb=True)
    assert_same_scores(expected, found)
    assert found.abs().max() <= 1 + 1e-5


def test_inline_candidates_of_normalized_vectors():
    """ParlAI divides each dimension by its length over an example's candidates; there is no such vector of one."""
    contexts = sequences(CONTEXT_LENGTHS, seed=1)
    candidates, index = inline(len(contexts), CANDIDATE_LENGTHS)
    expected, found = scores_of_both("bi", contexts, candidates, index, normalize_sent_emb=True)
    assert (expected - found).abs().max() > 0.1
    assert batch_dependence(OPT | {"normalize_sent_emb": True}, "bi")
    assert not batch_dependence(OPT | {"normalize_sent_emb": True}, "poly")  # which does not look at it


def test_mean_of_the_variant_that_normalizes_last():
    """Behind its last normalization ParlAI does not mask: padding counts with that one's bias."""
    contexts = sequences((6, 6, 6), seed=1)
    options = {"variant": "prelayernorm", "reduction_type": "mean"}
    candidates, index = inline(len(contexts), (4, 4, 4, 4))
    expected, found = scores_of_both("bi", contexts, candidates, index, **options)
    assert_same_scores(expected, found)
    candidates, index = inline(len(contexts), CANDIDATE_LENGTHS)
    expected, found = scores_of_both("bi", contexts, candidates, index, **options)
    assert (expected - found).abs().max() > 1e-3
    assert batch_dependence(OPT | options, "bi")
    assert not batch_dependence(OPT | options | {"variant": "aiayn"}, "bi")


@pytest.mark.parametrize("variant", ["aiayn", "xlm", "prelayernorm"])
def test_training_reaches_all_weights_of_a_shared_model(variant):
    """Packed for learning, too, outputs are the same, and every parameter has a gradient."""
    model = ours(theirs("bi", share_encoders=True, variant=variant), "bi")
    contexts, candidates = sequences(CONTEXT_LENGTHS, seed=1), sequences(CANDIDATE_LENGTHS, seed=2)
    with torch.no_grad():
        expected = model(contexts, candidates)
    found = model(contexts, candidates)
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []
