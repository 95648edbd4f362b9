"""Gradient caching against the plain step, and against the recipe of its paper written out by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from polyencoder.modeling.trainable import freeze
from polyencoder.text.batches import cut_into_batches
from polyencoder.training.gradient_caching import encode

pytestmark = pytest.mark.slow

CONTEXTS = [9, 3, 17, 5, 30, 2, 11, 8]
CANDIDATES = [4, 12, 3, 7, 9, 5, 2, 6]
KINDS = {
    "bi": {"architecture": "bi"},
    "bi, mean, shared": {"architecture": "bi", "reduction": "mean", "share_encoders": True},
    "poly": {"architecture": "poly"},
    "poly, first outputs": {"architecture": "poly", "context_vectors": "n_first", "n_codes": 7},
    "poly, turns": {"architecture": "poly", "context_vectors": "turns", "turn_end": 3},
    "poly, multi-head": {"architecture": "poly", "poly_attention": "multihead", "codes_attention": "multihead"},
    "poly, last and first outputs": {"architecture": "poly", "context_vectors": "first_n_last", "n_codes": 7},
}


@pytest.fixture
def batch(make_tokens, padded):
    return padded(make_tokens(CONTEXTS, seed=1)), padded(make_tokens(CANDIDATES, seed=2))


def gradients(model, contexts, candidates, *, max_tokens, index=None, bf16=False):
    """The loss and each parameter's gradient, None for what does not learn; back without autocast, as in training."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        context, vectors = encode(model, contexts, candidates, max_tokens=max_tokens)
        scores = model.score(context, vectors if index is None else vectors[index])
    loss = F.cross_entropy(scores.float(), torch.arange(len(contexts)) % scores.size(1))
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def assert_same(left, right, *, tolerance=1e-5):
    torch.testing.assert_close(left[0], right[0], rtol=tolerance, atol=tolerance)
    assert {n: g is None for n, g in left[1].items()} == {n: g is None for n, g in right[1].items()}
    scale = max(float(g.abs().max()) for g in right[1].values() if g is not None)
    assert scale > 1e-3
    for name, gradient in right[1].items():
        if gradient is not None:
            torch.testing.assert_close(left[1][name], gradient, rtol=0, atol=tolerance * max(scale, 1), msg=name)


@pytest.mark.parametrize(("kind", "own_candidates"), [*((kind, False) for kind in KINDS), ("bi", True), ("poly", True)])
def test_pieces_give_the_gradients_of_the_whole(kind, own_candidates, make_model, batch):
    model = make_model(**KINDS[kind]).train()
    index = torch.randint(0, 8, (8, 3)) if own_candidates else None
    plain = gradients(model, *batch, max_tokens=None, index=index)
    assert_same(gradients(model, *batch, max_tokens=40, index=index), plain)


@settings(max_examples=10, deadline=None)
@given(
    budget=st.integers(1, 300),
    lengths=st.lists(st.integers(3, 40), min_size=1, max_size=9),
    others=st.lists(st.integers(3, 20), min_size=2, max_size=9),
)
def test_any_budget_gives_them(budget, lengths, others, make_model, make_tokens, padded):
    model = make_model("poly", context_vectors="n_last", n_codes=5).train()
    batch = padded(make_tokens(lengths, seed=3)), padded(make_tokens(others, seed=4), extra=2)
    assert_same(gradients(model, *batch, max_tokens=budget), gradients(model, *batch, max_tokens=None))


@pytest.mark.parametrize("part", ["top_layer", "all_encoder_layers"])
def test_frozen_parts_stay_frozen(part, make_model, batch):
    model = make_model("bi").train()
    freeze(model, fine_tuned=part)
    assert_same(gradients(model, *batch, max_tokens=40), gradients(model, *batch, max_tokens=None))


def test_one_piece_at_a_time(make_model, batch, padded, make_tokens):
    model = make_model("bi", share_encoders=True).train()
    seen: list[int] = []
    model.context_tower.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].ids.numel()))
    gradients(model, *batch, max_tokens=40)
    pieces = [cut_into_batches(lengths, max_tokens=40) for lengths in (CANDIDATES, CONTEXTS)]
    forward = [len(p) * max(n[i] for i in p) for n, ps in zip((CANDIDATES, CONTEXTS), pieces, strict=True) for p in ps]
    assert max(forward) <= 40
    assert len(forward) > 4
    # each piece once on the way there, and once more, from the last to the first, on the way back
    assert seen == forward + forward[::-1]


def test_what_fits_is_not_computed_again(make_model, batch):
    model = make_model("bi").train()
    passes = []
    model.context_tower.register_forward_hook(lambda *_: passes.append(1))
    gradients(model, *batch, max_tokens=batch[0].ids.numel())
    assert len(passes) == 1


def test_without_gradients_nothing_is_computed_again(make_model, batch):
    model = make_model("poly")
    with torch.no_grad():
        context, vectors = encode(model, *batch, max_tokens=40)
        torch.testing.assert_close(model.score(context, vectors), model(*batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("architecture", "bf16"), [("bi", False), ("poly", True)])
def test_the_recipe_of_the_paper_by_hand(architecture, bf16, make_model, make_backbone_config, batch):
    """With dropout: no graph, scores, gradients of the vectors; then each piece again with its random state."""
    backbone = make_backbone_config(dropout=0.3, attention_dropout=0.3)
    model = make_model(architecture, backbone=backbone).train()
    torch.manual_seed(5)
    ours = gradients(model, *batch, max_tokens=40, bf16=bf16)

    def steps():
        for encoder, tokens in ((model.encode_candidates, batch[1]), (model.encode_context, batch[0])):
            for rows in cut_into_batches(tokens.mask.sum(1).tolist(), max_tokens=40):
                yield encoder, tokens.select(torch.tensor(rows)), rows

    def run(encoder, tokens):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
            out = encoder(tokens)
        return getattr(out, "vectors", out)

    model.zero_grad()
    torch.manual_seed(5)
    states, vectors = [], {model.encode_candidates: {}, model.encode_context: {}}
    for encoder, tokens, rows in steps():
        states.append(torch.get_rng_state())
        leaf = run(encoder, tokens).detach().requires_grad_()  # with a graph, which is thrown away
        vectors[encoder] |= {row: (leaf, i) for i, row in enumerate(rows)}
    candidates, contexts = (
        torch.stack([leaf[i] for _, (leaf, i) in sorted(rows_of.items())]) for rows_of in vectors.values()
    )
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        scores = model.score(type(model.encode_context(batch[0]))(contexts), candidates)
    loss = F.cross_entropy(scores.float(), torch.arange(8))
    loss.backward()
    for (encoder, tokens, rows), state in zip(steps(), states, strict=True):
        torch.set_rng_state(state)
        run(encoder, tokens).backward(vectors[encoder][rows[0]][0].grad)
    assert_same(ours, (loss.detach(), {name: p.grad for name, p in model.named_parameters()}))

    torch.manual_seed(6)
    other = gradients(model, *batch, max_tokens=40, bf16=bf16)
    assert abs(float(other[0] - ours[0])) > 1e-3  # dropout does something


class Casts(TorchDispatchMode):
    """Counts how often each of these tensors is cast to another type."""

    def __init__(self, tensors):
        super().__init__()
        self.counts = {tensor.data_ptr(): 0 for tensor in tensors}

    def __torch_dispatch__(self, function, types, inputs=(), options=None):
        if function is torch.ops.aten._to_copy.default and inputs[0].data_ptr() in self.counts:
            self.counts[inputs[0].data_ptr()] += 1
        return function(*inputs, **(options or {}))


@pytest.mark.parametrize("architecture", ["bi", "cross"])
def test_each_weight_is_cast_once_a_step(architecture, make_model, batch):
    model = make_model(architecture, **({"share_encoders": True} if architecture == "bi" else {})).train()
    weights = [layer.weight for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    assert model(*batch) is not None  # whether sequences are packed is tried before
    for max_tokens in (None, 60):
        with Casts(weights) as casts, torch.autocast("cpu", torch.bfloat16):
            if architecture == "cross":
                model(*batch, max_tokens=max_tokens).float().sum().backward()
            else:
                gradients(model, *batch, max_tokens=max_tokens, bf16=True)
        assert set(casts.counts.values()) == {1}
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_packing_is_tried_in_the_first_piece(make_model, batch):
    """With weights that are not the model's own."""
    results = []
    for tried_before in (True, False):
        model = make_model("bi", share_encoders=True).train()
        if tried_before:
            assert model.context_tower.packs
        results.append(gradients(model, *batch, max_tokens=40, bf16=True))
        assert model.context_tower.packs
    assert_same(*results, tolerance=1e-7)


@pytest.mark.parametrize("side", [0, 1])
def test_a_side_without_rows(side, make_model, batch):
    model = make_model("poly").train()
    none = batch[side].select(torch.arange(1))
    none = type(none)(none.ids[:0], none.mask[:0])
    sides = [none if i == side else tokens for i, tokens in enumerate(batch)]
    context, vectors = encode(model, *sides, max_tokens=40)
    assert model.score(context, vectors).shape == ((0, 8) if side == 0 else (8, 0))
