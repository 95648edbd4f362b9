from __future__ import annotations

import copy
import os
import re
import shutil
from itertools import product

import pytest
import torch

from polyencoder.errors import ConfigError
from polyencoder.index.token_rows import StoredTokens
from polyencoder.modeling.build import build_model
from polyencoder.modeling.encoder_config import build_scratch_config
from polyencoder.modeling.loading import build_backbone, load_pretrained
from polyencoder.modeling.separable import BiEncoder
from polyencoder.modeling.trainable import FINE_TUNED, TrainableModel, compile_encoders, freeze
from polyencoder.text.tokens import pad

N_LAYERS = 6


@pytest.fixture
def grown(make_tokens, padded):
    """(model) -> the names of the parameters that get a gradient from one training step."""

    def step(model) -> set[str]:
        model.train()
        contexts, candidates = padded(make_tokens([5, 3, 9])), padded(make_tokens([4, 2, 6], seed=1))
        trained = model.score_objectives(contexts, candidates).values()
        sum(torch.nn.functional.cross_entropy(scores, torch.arange(3)) for scores in trained).backward()
        return {name for name, parameter in model.named_parameters() if parameter.grad is not None}

    return step


def layer_of(name: str) -> int | str:
    """Which part of the model a parameter belongs to: the number of its layer, "embeddings", or "head"."""
    if ".encoder.layer." in name:
        return int(name.split(".encoder.layer.")[1].split(".")[0])
    return "embeddings" if ".embeddings." in name else "head"


LEARNING = {
    "top_layer": {5},
    "top4_layers": {2, 3, 4, 5},
    "all_encoder_layers": {0, 1, 2, 3, 4, 5},
    "all": {"embeddings", 0, 1, 2, 3, 4, 5},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "heads", "fine_tuned"),
    [
        *(("bi", set(), fine_tuned) for fine_tuned in FINE_TUNED),
        ("poly", {"codes.codes"}, "top_layer"),
        ("cross", {"linear.weight", "linear.bias"}, "top4_layers"),
    ],
)
def test_gradients_reach_what_learns_and_nothing_else(
    make_model, make_backbone_config, grown, architecture, heads, fine_tuned
):
    """A trainable parameter without a gradient would stop distributed training."""
    model = make_model(architecture, backbone=make_backbone_config(N_LAYERS))
    freeze(model, fine_tuned=fine_tuned)
    learning = grown(model)
    assert learning == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {layer_of(name) for name in learning - heads} == LEARNING[fine_tuned]
    assert heads <= learning
    whole = {name for name, _ in model.named_parameters() if layer_of(name) in LEARNING[fine_tuned]}
    assert learning == whole | heads  # a layer learns with all that is in it


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        *[("bi", {"reduction": reduction}) for reduction in ("first", "mean")],
        *[("poly", {"context_vectors": kind}) for kind in ("codes", "n_first", "n_last", "first_n_last")],
        ("bi", {"share_encoders": True}),
        ("poly", {"share_encoders": True, "poly_attention": "sqrt", "codes_attention": "sqrt"}),
        *[("cross", {"reduction": reduction}) for reduction in ("first", "mean")],
    ],
)
def test_every_parameter_of_an_unfrozen_model_gets_a_gradient(make_model, grown, architecture, fields):
    model = make_model(architecture, **fields)
    assert grown(model) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize(
    ("kind", "fine_tuned"),
    list(product(["roberta", "modernbert", "distilbert"], ["top_layer", "all_encoder_layers", "all"])),
)
def test_other_backbones(make_config, backbone_folder, text_config, kind, fine_tuned):
    backbone = load_pretrained(backbone_folder(kind))
    embeddings, top = backbone.get_embeddings(), backbone.get_layers()[-1]
    assert len(backbone.get_layers()) == 2
    freeze(BiEncoder(make_config("bi", share_encoders=True), backbone), fine_tuned=fine_tuned)
    assert all(p.requires_grad for p in top.parameters())
    assert all(p.requires_grad == (fine_tuned == "all") for p in embeddings.parameters())
    assert all(p.requires_grad == (fine_tuned != "top_layer") for p in backbone.get_layers()[0].parameters())


def test_the_last_choice_counts(make_model):
    model = make_model("poly")
    freeze(model, fine_tuned="top_layer")
    freeze(model, fine_tuned="all")
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_an_unknown_choice(make_model):
    with pytest.raises(ConfigError, match="'top'; it must be one of top_layer, top4_layers, all_encoder_layers, all"):
        freeze(make_model("bi"), fine_tuned="top")


class TestFrozenCandidates:
    def test_gradients_reach_the_side_of_contexts_alone(self, make_model, grown):
        for architecture, trained in (
            ("bi", set()),
            ("poly", {"codes"}),
            ("late", {"term_weights", "search_weights", "token_weight"}),
        ):
            model = make_model(architecture)
            freeze(model, fine_tuned="all", freeze_candidates=True)
            learning = grown(model)
            assert learning == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
            assert {name.split(".")[0] for name in learning} == {"context_tower"} | trained

    @pytest.mark.parametrize("token_dim", [None, 8])
    def test_stored_tokens_of_a_late_encoder_stay_valid(self, make_model, make_tokens, padded, token_dim):
        """The weight of each token in the score is not stored, and is trained."""
        model = build_model(make_model("late", token_dim=token_dim).config)
        candidates = padded(make_tokens([4, 2, 6], seed=1))

        def store():
            with torch.no_grad():
                return StoredTokens.from_model(model, "int8"), model.eval().read_candidates(candidates)

        stored, read = store()
        freeze(model, fine_tuned="all", freeze_candidates=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
        with torch.no_grad():
            model.term_weights.fill_(model.term_weights[0].item())  # tokens count, and get gradients
        scores = model.train()(padded(make_tokens([5, 3, 9])), candidates)
        torch.nn.functional.cross_entropy(scores, torch.arange(3)).backward()
        optimizer.step()
        assert model.token_weight.any()
        after, again = store()
        assert after == stored
        for actual, expected in zip(again, read, strict=True):
            assert torch.equal(actual.tokens, expected.tokens)
            assert torch.equal(actual.vector, expected.vector)

    def test_of_a_shared_tower_the_codes_are_trained(self, make_model, grown):
        model = make_model("poly", share_encoders=True)
        freeze(model, fine_tuned="all", freeze_candidates=True)
        assert grown(model) == {"codes.codes"}

    def test_they_are_computed_without_dropout(self, make_model, make_backbone_config, make_tokens, padded):
        noisy = {**make_backbone_config(2), "hidden_dropout_prob": 0.5}
        model, tokens = make_model("bi", backbone=noisy), padded(make_tokens([5, 3]))
        freeze(model, fine_tuned="all", freeze_candidates=True)
        expected = model.eval().encode_candidates(tokens)
        model.train()
        assert torch.equal(model.encode_candidates(tokens), expected)
        assert not torch.equal(model.encode_context(tokens).vectors, model.encode_context(tokens).vectors)
        freeze(model, fine_tuned="all")
        assert not torch.equal(model.train().encode_candidates(tokens), expected)

    def test_a_cross_encoder_has_none(self, make_model):
        with pytest.raises(ConfigError, match="no vectors of candidates to keep"):
            freeze(make_model("cross"), fine_tuned="all", freeze_candidates=True)


COMPILER = os.environ.get("CXX") or "g++"


def holding(encoder) -> TrainableModel:
    """A model of this encoder alone."""
    model = TrainableModel()
    model.encoder = encoder
    return model


NEW_ENOUGH = hasattr(torch.compiler, "is_exporting")


@pytest.mark.long
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler")
@pytest.mark.skipif(not NEW_ENOUGH, reason="torch 2.6 cannot compile transformers' masks")
def test_a_compiled_encoder_is_the_same_encoder():
    """Outputs, gradients and names, for batches of several lengths."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = build_backbone(
        build_scratch_config(vocabulary_size=20, dim=8, n_layers=1, n_heads=2, ffn_dim=16, n_positions=12)
    ).eval()
    compiled = copy.deepcopy(plain)
    compile_encoders(holding(compiled))
    for width in (5, 8):
        tokens = pad([list(range(4, 4 + width)), [9, 8, 7]], pad_id=0)
        for backbone in (plain, compiled):
            backbone.zero_grad()
            backbone(tokens)[tokens.mask].square().sum().backward()
        torch.testing.assert_close(compiled(tokens)[tokens.mask], plain(tokens)[tokens.mask], rtol=1e-4, atol=1e-5)
        for (name, theirs), (same, ours) in zip(plain.named_parameters(), compiled.named_parameters(), strict=True):
            assert same == name
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)
    assert compiled.state_dict().keys() == plain.state_dict().keys()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


@pytest.mark.slow
def test_torch_before_2_7_is_named(backbone_folder, monkeypatch):
    model = holding(load_pretrained(backbone_folder("bert")))
    monkeypatch.delattr("torch.compiler.is_exporting", raising=False)
    with pytest.raises(ConfigError, match=f"needs torch 2.7 or later, this is {re.escape(torch.__version__)}"):
        compile_encoders(model)


@pytest.mark.slow
@pytest.mark.skipif(not NEW_ENOUGH, reason="torch 2.6 is refused first")
def test_without_a_compiler_the_error_says_what_to_do(backbone_folder, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="^compiling needs a C\\+\\+ compiler, but no-such-compiler is missing"):
        compile_encoders(holding(load_pretrained(backbone_folder("bert"))))


@pytest.mark.slow
@pytest.mark.skipif(not NEW_ENOUGH, reason="torch 2.6 is refused first")
def test_a_gpu_needs_triton(backbone_folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="on a GPU needs the package `triton`"):
        compile_encoders(holding(load_pretrained(backbone_folder("bert"))), device="cuda")
