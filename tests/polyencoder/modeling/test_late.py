"""The late-interaction encoder against its formula, written out in float64; and what never changes a score."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyencoder.errors import ConfigError
from polyencoder.modeling import late
from polyencoder.modeling.late import LateEncoder
from polyencoder.modeling.transfer import transfer_weights
from polyencoder.ranker import Ranker
from polyencoder.scoring import tokens as token_scoring
from polyencoder.scoring.context import stack_contexts
from polyencoder.text import TextEncoder
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

CONTEXTS = [
    ["hello , how are you today ?", "i am fine , thank you .", "do you have any pets ?"],
    ["hello"],
    ["i like to ski in the mountains .", "what do you do for a living ?"],
]
WEIGHTS = torch.tensor([0.9, 0.5, 0.3, 0.4, 0.2])


@pytest.fixture
def make_late(make_model, text):
    """(**fields) -> a tiny late-interaction encoder, all of whose terms count."""

    def make(**fields) -> LateEncoder:
        model = make_model("late", turn_end=text.separator_ids[-1], reduction="mean", **fields)
        with torch.no_grad():
            model.term_weights.copy_(WEIGHTS)
            model.token_weight.normal_()
        return model

    return make


def cosine(a, b):
    return torch.dot(a, b) / (a.norm() * b.norm())


def reference(model: LateEncoder, text: TextEncoder, turns: list[str], response: str) -> torch.Tensor:
    """One pair's score by the docstring's formula, token after token."""
    (context,), (candidate,) = [text.tokenize_context(turns)], text.tokenize_candidates([response])
    xs = model.context_tower(text.pad([context]))[0]
    cs = model.candidate_tower(text.pad([candidate]))[0]
    x, c = xs.mean(0), cs.mean(0)
    scale, tokens = late.DOT_SCALE, (lambda outputs: outputs)
    if model.config.normalize:
        x, c, scale = x / x.norm(), c / c.norm(), model.config.output_scaling**2
    if model.token_map is not None:
        tokens = model.token_map
    xt, ct = tokens(xs), tokens(cs)
    similarities = torch.stack([torch.stack([cosine(a, b) for b in ct]) for a in xt])  # [context, candidate]
    logits = torch.stack([torch.dot(t / t.norm(), model.token_weight) for t in ct]) * ct.size(1) ** 0.5
    forth = sum(p * best for p, best in zip(logits.softmax(0), similarities.max(0).values, strict=True))
    back = similarities.max(1).values.mean()
    groups, turn = [], []
    for token, output in zip(context, xs, strict=True):
        turn.append(output)
        if token == model.config.turn_end:
            groups.append(turn)
            turn = []
    groups += [turn] if turn else []
    cosines = [cosine(torch.stack(group).mean(0), c) for group in groups]
    parts = torch.stack([forth, back, torch.stack(cosines).max(), cosines[-1]])
    bi = torch.dot(x, c) * model.config.output_scaling**2
    return model.term_weights[0] * bi + scale * (model.term_weights[1:] * parts).sum()


@mostly_long("fields", [{}, {"normalize": True, "output_scaling": 3.0}, {"token_dim": 5}], quick=1)
def test_scores_and_gradients_are_those_of_the_formula(make_late, text, sentences, fields, monkeypatch):
    monkeypatch.setattr(token_scoring, "SIMILARITIES", 200)  # many blocks
    model, replies = make_late(**fields).double(), sentences[:4]
    scores = model(text.batch_contexts(CONTEXTS), text.batch_candidates(replies))
    expected = torch.stack([torch.stack([reference(model, text, c, r) for r in replies]) for c in CONTEXTS])
    torch.testing.assert_close(scores, expected)
    pull = torch.randn_like(scores)
    gradients = torch.autograd.grad((scores * pull).sum(), list(model.parameters()), allow_unused=True)
    expected_gradients = torch.autograd.grad((expected * pull).sum(), list(model.parameters()), allow_unused=True)
    for gradient, exact in zip(gradients, expected_gradients, strict=True):
        assert (gradient is None) == (exact is None)
        if gradient is not None:
            torch.testing.assert_close(gradient, exact, rtol=1e-4, atol=1e-5)  # layers have sums in float32


def test_a_new_model_scores_as_the_bi_encoder_that_it_starts_from(make_model, text, sentences):
    for fields in ({}, {"normalize": True, "output_scaling": 4.47}, {"candidate_mlp": True}):
        bi = make_model("bi", **fields)
        new = make_model("late", seed=1, token_dim=8, **fields)
        transfer_weights(new, bi.state_dict(), origin="bi")
        contexts, candidates = text.batch_contexts(CONTEXTS), text.batch_candidates(sentences)
        with torch.no_grad():
            torch.testing.assert_close(new(contexts, candidates), bi(contexts, candidates))


@pytest.mark.parametrize("index", [[[0, 3, -1], [7, 7, 1], [-1, -1, 2]], [[5, 4], [1, 0], [2, -1]]])
def test_each_contexts_own_candidates(make_late, text, sentences, index, monkeypatch):
    model, contexts, candidates = make_late(), text.batch_contexts(CONTEXTS), text.batch_candidates(sentences)
    index = torch.tensor(index)
    every = model(contexts, candidates)
    expected = every.gather(1, index.clamp(min=0)).masked_fill(index < 0, -torch.inf)
    torch.testing.assert_close(model(contexts, candidates, index), expected)
    monkeypatch.setattr(late, "TOKENS_IN_MEMORY", 30)  # a context or two at a time, candidates in parts
    with torch.no_grad():
        torch.testing.assert_close(model(contexts, candidates, index), expected)
        torch.testing.assert_close(model(contexts, candidates), every)


@given(data=st.data())
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_texts_that_were_read_one_by_one_score_as_together(make_late, text, sentences, data):
    model = make_late(token_dim=5).eval()
    contexts = data.draw(st.lists(st.sampled_from(CONTEXTS), min_size=1, max_size=4))
    texts = data.draw(st.lists(st.sampled_from([*sentences, "no"]), min_size=1, max_size=9))
    with torch.no_grad():
        encoded = stack_contexts([model.encode_context(text.batch_contexts([turns])) for turns in contexts])
        read = [model.read_candidates(text.batch_candidates([response]))[0] for response in texts]
        expected = model(text.batch_contexts(contexts), text.batch_candidates(texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(late, "TOKENS_IN_MEMORY", data.draw(st.integers(1, 200)))
        torch.testing.assert_close(model.rescore(encoded, read), expected, rtol=1e-4, atol=1e-4)
    last = torch.arange(len(contexts)).flip(0)[:2]
    torch.testing.assert_close(model.rescore(encoded.select(last), read), expected[last], rtol=1e-4, atol=1e-4)


def test_pieces_have_the_gradients_of_the_whole(make_late, text, sentences):
    model, contexts, candidates = make_late(), text.batch_contexts(CONTEXTS), text.batch_candidates(sentences)

    def gradients(max_tokens):
        model.zero_grad()
        model(contexts, candidates, max_tokens=max_tokens).square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    for whole, pieces in zip(gradients(None), gradients(30), strict=True):
        torch.testing.assert_close(whole, pieces, rtol=1e-3, atol=1e-4)


def test_bfloat16_keeps_scores_in_float32(make_late, text, sentences):
    model, contexts, candidates = make_late(), text.batch_contexts(CONTEXTS), text.batch_candidates(sentences)
    exact = model(contexts, candidates)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(contexts, candidates)
    assert rounded.dtype == torch.float32
    assert (rounded - exact).abs().max() < 0.05 * exact.abs().max()


def test_weights_never_become_negative(make_late):
    model = make_late()
    with torch.no_grad():
        model.term_weights.sub_(0.5)
    model.after_batch()
    assert model.term_weights.tolist() == pytest.approx([0.4, 0, 0, 0, 0], abs=1e-6)


def test_candidates_that_contexts_share_are_read_once(make_late, text, sentences, monkeypatch):
    monkeypatch.setattr(late, "TOKENS_IN_MEMORY", 150)  # all contexts, or the candidates of one
    model, read = make_late().eval(), []
    contexts, candidates = text.batch_contexts(CONTEXTS), text.batch_candidates(sentences)
    inner = model._read_candidate
    monkeypatch.setattr(model, "_read_candidate", lambda tokens: read.append(len(tokens)) or inner(tokens))
    with torch.no_grad():
        model(contexts, candidates, torch.arange(7).expand(len(CONTEXTS), -1))  # the last one is nobody's
    assert sum(read) == 7


def test_its_index_holds_the_bi_encoders_vectors_and_the_best_are_read_again(make_ranker, text, sentences, tmp_path):
    ranker = make_ranker("late", turn_end=text.separator_ids[-1])
    with torch.no_grad():
        ranker.model.term_weights.copy_(WEIGHTS)
    index = ranker.index(sentences, tmp_path / "index")
    vectors = ranker.encode_candidates(sentences)
    first = (-ranker.encoder.score(ranker.encode_contexts([CONTEXTS[0]]), vectors)[0]).argsort().tolist()
    hits = ranker.search(CONTEXTS[0], index, top_k=3, keep_turns=True)
    best = ranker.rank(CONTEXTS[0], sentences, top_k=3)
    assert [hit.text for hit in hits] == [hit.text for hit in best]
    assert [hit.rerank_score for hit in hits] == pytest.approx([hit.score for hit in best])
    hits = ranker.search(CONTEXTS[0], index, top_k=8, rerank_k=3, keep_turns=True)
    assert {hit.text for hit in hits[:3]} == {sentences[i] for i in first[:3]}
    assert [hit.text for hit in hits[3:]] == [sentences[i] for i in first[3:]]


@mostly_long("apart", [True, False], quick=1)
@mostly_long("fields", [{"normalize": True, "output_scaling": 3.0}, {}], quick=1)
def test_an_index_is_searched_as_that_of_a_poly_encoder_of_turns(make_late, make_model, text, sentences, fields, apart):
    """By a score that is trained, also where it has no part in the whole score."""
    model = make_late(**fields)
    poly = make_model(
        "poly", context_vectors="turns", n_codes=9, turn_end=model.config.turn_end, reduction="mean", **fields
    )
    transfer_weights(poly, model.state_dict(), origin="late")
    with torch.no_grad():
        for weights in (model.search_weights, poly.term_weights):
            weights.copy_(torch.tensor([0.6, 0.5, 0.4]))
    contexts, candidates = text.batch_contexts(CONTEXTS), text.batch_candidates(sentences)
    index = torch.tensor([[0, 3, -1], [7, 7, 1], [-1, -1, 2]]) if apart else None
    expected = poly(contexts, candidates)
    if apart:
        expected = expected.gather(1, index.clamp(min=0)).masked_fill(index < 0, -torch.inf)
    scores = model.score_objectives(contexts, candidates, index)
    assert list(scores) == ["", "search"]
    torch.testing.assert_close(scores[""], model(contexts, candidates, index))
    torch.testing.assert_close(scores["search"], expected)
    encoded = model.encode_context(contexts)
    assert encoded.mask.sum(1).tolist() == [len(turns) for turns in CONTEXTS]
    plain = model.score(replace(encoded, tokens=None), model.encode_candidates(candidates))
    torch.testing.assert_close(plain, poly(contexts, candidates))
    scores["search"][torch.isfinite(expected)].sum().backward()
    assert model.search_weights.grad.all()
    assert next(model.context_tower.parameters()).grad.any()


def test_embeddings_are_those_of_its_bi_encoder(make_model, make_late, text):
    model = make_late()
    bi = make_model("bi", reduction="mean")
    transfer_weights(bi, model.state_dict(), origin="late")
    contexts = text.batch_contexts(CONTEXTS)
    with torch.no_grad():
        vectors = model.get_context_vectors(model.encode_context(contexts))
        expected = bi.encode_context(contexts).vectors.squeeze(1)
    torch.testing.assert_close(vectors, expected)


def test_what_it_does_not_do_is_an_error(make_late, make_config):
    with pytest.raises(ConfigError, match="token_dim is 0; it must be at least 1"):
        make_config("late", token_dim=0)


@pytest.mark.parametrize("turn_separator", ["sep", "newline", "none"])
def test_from_a_backbone_its_turns_end_where_the_tokenizer_says(backbone_folder, tmp_path, turn_separator):
    ranker = Ranker.from_backbone(backbone_folder("bert"), "late", device="cpu", turn_separator=turn_separator)
    end = ranker.text.separator_ids[-1] if turn_separator != "none" else None
    assert ranker.model.config.turn_end == end
    ranker.save_pretrained(tmp_path / "late")
    again = Ranker.from_pretrained(tmp_path / "late", device="cpu")
    read = again.model.read_contexts(again.text.batch_contexts(CONTEXTS))
    assert read.turns.size(1) == (1 if turn_separator == "none" else 3)
    assert torch.equal(
        torch.as_tensor(again.score(CONTEXTS, ["hello"])), torch.as_tensor(ranker.score(CONTEXTS, ["hello"]))
    )
