"""The steps of an export: over plain tensors, what the model computes with its own classes."""

from __future__ import annotations

import pytest
import torch

from polyencoder.errors import InputError
from polyencoder.modeling.convert import CONTEXT_VECTORS
from polyencoder.storage.names import CANDIDATES, CONTEXT, SCORER

TURNS = [["hello"], ["do you ski ?", "no , i have two dogs ."], ["i am a teacher ."]]


@torch.no_grad()
@pytest.mark.parametrize(
    ("architecture", "fields", "outputs"),
    [
        ("bi", {}, ("vectors",)),
        ("poly", {}, ("vectors",)),
        ("poly", {"context_vectors": "n_last"}, ("vectors", "codes_mask")),
        ("convert", {}, ("vectors",)),
    ],
)
def test_contexts_and_candidates(make_ranker, sentences, architecture, fields, outputs):
    ranker = make_ranker(architecture, **fields)
    model, text = ranker.model.eval(), ranker.text
    steps = model.export_steps()
    assert set(steps) == {CONTEXT, CANDIDATES}
    contexts, candidates = text.batch_contexts(TURNS), text.batch_candidates(sentences)
    torch.testing.assert_close(
        steps[CANDIDATES](candidates.ids, candidates.mask)[0], model.encode_candidates(candidates)
    )
    step, expected = steps[CONTEXT], model.encode_context(contexts)
    actual = dict(zip(step.outputs, step(contexts.ids, contexts.mask), strict=True))
    assert len(actual) == len(outputs)
    torch.testing.assert_close(actual["vectors"], expected.vectors)
    assert (expected.mask is not None) == ("codes_mask" in outputs)
    if expected.mask is not None:
        assert actual[step.outputs[1]].equal(expected.mask)


def test_multi_head_attention_is_not_exported(make_ranker):
    ranker = make_ranker("poly", poly_attention="multihead", poly_attention_heads=2)
    with pytest.raises(InputError, match="'multihead' is not exported to ONNX: load it with backend torch"):
        ranker.model.export_steps()


@torch.no_grad()
def test_tokens_and_turns(make_ranker, sentences):
    """A late-interaction encoder's steps give as many turns as tokens, and a mask of the turns that exist."""
    ranker = make_ranker("late", turn_end=3)
    model, text = ranker.model.eval(), ranker.text
    steps = model.export_steps()
    contexts, candidates = text.batch_contexts(TURNS), text.batch_candidates(sentences)
    inputs = contexts.ids, contexts.mask
    actual = dict(zip(steps[CONTEXT].outputs, steps[CONTEXT](*inputs), strict=True))
    read, expected = model.read_contexts(contexts), model.encode_context(contexts)
    assert actual["codes_mask"].sum(1).tolist() == [1, 2, 1]
    torch.testing.assert_close(actual["vectors"], expected.vectors)
    for name, tensor in (("vector", read.vectors), ("tokens", read.tokens), ("turns", read.turns)):
        torch.testing.assert_close(actual[name], tensor)
    read_candidates = model.read_candidates(candidates)
    vectors, tokens = steps[CANDIDATES](candidates.ids, candidates.mask)
    torch.testing.assert_close(vectors, torch.stack([candidate.vector for candidate in read_candidates]))
    torch.testing.assert_close(tokens[candidates.mask], torch.cat([candidate.tokens for candidate in read_candidates]))


@torch.no_grad()
def test_pairs(make_ranker, sentences):
    """A cross-encoder's step reads sequences that are joined already: context, then candidate in segment 1."""
    ranker = make_ranker("cross")
    (step,) = ranker.model.export_steps().values()
    assert list(ranker.model.export_steps()) == [SCORER]
    contexts, candidates = (
        ranker.text.batch_contexts(TURNS),
        ranker.text.batch_candidates(sentences[:3]),
    )
    seen = []
    hook = ranker.model.tower.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    expected = ranker.model.eval()(contexts, candidates, torch.arange(3).unsqueeze(1))
    hook.remove()
    scores = torch.cat([step(tokens.ids, tokens.mask, tokens.segments)[0] for tokens in seen])
    assert sorted(scores.tolist()) == pytest.approx(sorted(expected.flatten().tolist()), rel=1e-4)


@torch.no_grad()
def test_both_texts_of_a_context(make_convert_ranker):
    ranker = make_convert_ranker(extra_contexts=3)
    step = ranker.model.export_steps()[CONTEXT]
    last, earlier = ["no , i have two dogs .", "hello"], ["do you ski ?"]
    contexts = ranker.text.batch_contexts([[earlier[0], last[0]], [last[1]]])
    expected = ranker.model.encode_objectives(contexts)
    texts, extra = ranker.text.batch_candidates(last), ranker.text.batch_candidates(earlier)
    room = (0, texts.ids.size(1) - extra.ids.size(1), 0, 1)  # both are [batch, length]
    extra_ids, extra_mask = (torch.nn.functional.pad(tensor, room) for tensor in (extra.ids, extra.mask))
    vectors, mask = step(texts.ids, texts.mask, extra_ids, extra_mask)
    assert vectors.shape[1] == len(CONTEXT_VECTORS)
    torch.testing.assert_close(vectors[mask], expected.vectors[expected.mask])
    assert mask.equal(expected.mask)
    assert mask.tolist() == [[True] * 3, [True, True, False]]


def test_the_names_of_the_axes_that_vary(make_ranker):
    for fields, of_vectors in (({}, ("batch",)), ({"context_vectors": "n_last"}, ("batch", "codes"))):
        step = make_ranker("poly", **fields).model.export_steps()[CONTEXT]
        assert step.list_axes("ids") == step.list_axes("mask") == ("batch", "length")
        assert step.list_axes("vectors") == of_vectors
