"""Multi-context models: two texts in one row of tokens, three vectors, and what is left out without a history."""

from __future__ import annotations

import pytest
import torch

from polyencoder.modeling.convert import CONTEXT_VECTORS
from polyencoder.modeling.convert.model import split_contexts
from polyencoder.text.tokens import pad

SEPARATOR = 41  # behind the padding, 40
LAST = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10, 11], []]
EARLIER = [[12, 13, 14, 15, 16, 17], [], [18], [], [19, 20]]


def batch(last=LAST, earlier=EARLIER):
    rows = [[*ids, *([SEPARATOR, *extra] if extra else [])] for ids, extra in zip(last, earlier, strict=True)]
    return pad(rows, pad_id=40)


@pytest.fixture
def model(make_convert):
    return make_convert(multi_context=True, extra_contexts=10)


def test_contexts_are_taken_apart():
    last, earlier, rows = split_contexts(batch(), separator=SEPARATOR)
    assert last.list_sequences() == LAST
    assert rows.tolist() == [0, 2, 4]
    assert earlier.list_sequences() == [EARLIER[i] for i in rows]
    last, earlier, rows = split_contexts(batch(earlier=[[]] * 5), separator=SEPARATOR)
    assert (last.list_sequences(), len(earlier), rows.tolist()) == (LAST, 0, [])
    last, _, _ = split_contexts(batch(last=[[1], [2]], earlier=[[3, SEPARATOR, 4], []]), separator=SEPARATOR)
    assert last.list_sequences() == [[1], [2]]


@torch.no_grad()
def test_without_a_history_its_network_does_not_run_and_its_vector_is_zero(model):
    calls = []
    model.history.head.register_forward_hook(lambda *_: calls.append(1))
    alone = model.encode_objectives(batch(earlier=[[]] * 5))
    assert calls == []
    assert not alone.vectors[:, 2].any()
    assert not alone.mask[:, 2].any()
    mixed = model.encode_objectives(batch())
    assert calls == [1]
    for row, earlier in enumerate(EARLIER):
        assert bool(mixed.mask[row, 2]) == bool(earlier) == bool(mixed.vectors[row, 2].any())
        if not earlier:
            torch.testing.assert_close(mixed.vectors[row], alone.vectors[row], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_immediate_vector_is_the_single_context_models(model, make_convert):
    single = make_convert(seed=1)
    weights = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("history.")}
    single.load_state_dict(weights)
    expected = single.encode_context(pad(LAST, pad_id=40)).vectors
    model.context_vector = "immediate"
    torch.testing.assert_close(model.encode_context(batch()).vectors, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_extra_contexts_go_through_the_shared_encoder_and_a_network_of_their_own(model):
    rows = [0, 2, 4]
    texts = pad([EARLIER[i] for i in rows], pad_id=40)
    expected = model.history.head(model.encoder(texts), model.skip) * model.scale()
    torch.testing.assert_close(model.encode_objectives(batch()).vectors[rows, 2], expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_neither_padding_nor_the_batch_changes_a_vector(model):
    for name in CONTEXT_VECTORS:
        model.context_vector = name
        vectors = model.encode_context(batch()).vectors
        for row in range(5):
            alone = model.encode_context(batch(LAST[row : row + 1], EARLIER[row : row + 1])).vectors
            torch.testing.assert_close(alone[0], vectors[row], rtol=1e-4, atol=1e-5)


def test_every_network_learns(model):
    model.train()
    encoded = model.encode_objectives(batch())
    candidates = model.encode_candidates(pad([[1, 2], [3]], pad_id=40))
    sum(
        model.score(context, candidates)[:, 0].square().sum() for context in model.split_objectives(encoded).values()
    ).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@torch.no_grad()
def test_a_model_in_bfloat16_is_near(model):
    expected = model.encode_context(batch()).vectors
    vectors = model.bfloat16().encode_context(batch()).vectors
    torch.testing.assert_close(vectors.float(), expected, rtol=0, atol=0.05)


def test_each_vector_ranks_by_its_part_of_the_context(make_convert_ranker, sentences):
    ranker = make_convert_ranker(extra_contexts=5)

    def score(vector: str, *context: str) -> torch.Tensor:
        ranker.model.context_vector = vector
        return torch.as_tensor(ranker.score([context], sentences))

    for vector, reads_extra, reads_last in (
        ("combined", True, True),
        ("immediate", False, True),
        ("extra", True, False),
    ):
        scores = score(vector, "hi", "i am fine .", "pets ?")
        assert scores.allclose(score(vector, "i ski", "no .", "pets ?")) != reads_extra
        assert scores.allclose(score(vector, "hi", "i am fine .", "i ski")) != reads_last
