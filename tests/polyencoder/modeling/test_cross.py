from __future__ import annotations

import pytest
import torch

import polyencoder.modeling.cross as cross
from polyencoder.config import DenseConfig, TextConfig
from polyencoder.text import TokenBatch

CONTEXT_LENGTHS = [9, 2, 1, 6]
CANDIDATE_LENGTHS = [5, 2, 7, 3, 3]


@pytest.fixture(scope="module", params=["first", "max", "mean_first"])
def model(request, make_model):
    return make_model("cross", reduction=request.param, reduction_outputs=4, output_scaling=0.5)


@pytest.fixture(scope="module")
def sequences(make_tokens):
    return make_tokens(CONTEXT_LENGTHS, seed=1), make_tokens(CANDIDATE_LENGTHS, seed=2)


@pytest.fixture(scope="module")
def expected(model, sequences, padded):
    """Scores [contexts, candidates] of each pair by itself, where there is nothing to pad."""
    contexts, candidates = sequences
    with torch.no_grad():
        rows = [[model(padded([a]), padded([b])) for b in candidates] for a in contexts]
    assert all(score.shape == (1, 1) for row in rows for score in row)
    return torch.tensor([[score.item() for score in row] for row in rows])


@pytest.fixture
def seen():
    """(model) -> the list of all batches that go through its transformer."""
    hooks = []

    def watch(model):
        batches = []
        hooks.append(model.tower.register_forward_pre_hook(lambda module, inputs: batches.append(inputs[0])))
        return batches

    yield watch
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("learning", [True, False])
def test_a_batch_gives_the_scores_of_its_pairs(model, sequences, padded, expected, learning):
    contexts, candidates = map(padded, sequences)
    with torch.set_grad_enabled(learning):
        torch.testing.assert_close(model(contexts, candidates), expected, rtol=1e-4, atol=1e-5)
    assert expected.std() > 0.1


@torch.no_grad()
def test_padding_changes_nothing(model, sequences, padded, expected):
    contexts, candidates = sequences
    scores = model(padded(contexts, extra=8, pad_id=7), padded(candidates, extra=5, pad_id=9))
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("learning", [True, False])
def test_places_without_a_candidate_score_minus_infinity(model, sequences, padded, expected, seen, learning):
    """They cost nothing: they never go through the transformer."""
    contexts, candidates = map(padded, sequences)
    index = torch.tensor([[0, 4, -1], [-1, -1, -1], [4, -1, 2], [2, 0, 1]])
    batches = seen(model)
    with torch.set_grad_enabled(learning):
        scores = model(contexts, candidates, index)
    gathered = expected.gather(1, index.clamp(min=0)).masked_fill(index < 0, -torch.inf)
    torch.testing.assert_close(scores, gathered, rtol=1e-4, atol=1e-5)
    assert sum(len(batch) for batch in batches) == 7


def test_places_without_a_candidate_keep_the_gradient_finite(model, sequences, padded):
    contexts, candidates = map(padded, sequences)
    index = torch.tensor([[0, 4, -1], [1, -1, -1], [4, -1, 2], [2, 0, 1]])
    loss = torch.nn.functional.cross_entropy(model(contexts, candidates, index), torch.zeros(4, dtype=torch.long))
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients)


@torch.no_grad()
@pytest.mark.parametrize("budget", [1, 30, 100])
def test_a_budget_changes_the_memory_not_the_scores(monkeypatch, model, sequences, padded, expected, seen, budget):
    monkeypatch.setattr(cross, "PAIR_TOKENS", budget)
    batches = seen(model)
    scores = model(*map(padded, sequences))
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
    assert all(batch.ids.numel() <= budget or len(batch) == 1 for batch in batches)
    assert len(batches) > 1


def test_what_is_trained_on_goes_through_in_one_piece(monkeypatch, model, sequences, padded, seen):
    """There is no limit then: to compute activations again costs time."""
    monkeypatch.setattr(cross, "PAIR_TOKENS", 1)
    batches = seen(model)
    model(*map(padded, sequences))
    assert len(batches) == 1


@pytest.mark.slow
@pytest.mark.parametrize("max_tokens", [1, 30, 100, 10_000])
def test_a_limit_changes_the_memory_not_the_gradients(make_model, sequences, padded, seen, max_tokens):
    model = make_model("cross").train()
    contexts, candidates = map(padded, sequences)
    index = torch.tensor([[0, 4, -1], [1, 2, 3], [4, -1, 2], [2, 0, 1]])

    def gradients(max_tokens):
        scores = model(contexts, candidates, index, max_tokens=max_tokens)
        loss = torch.nn.functional.cross_entropy(scores, torch.zeros(4, dtype=torch.long))
        return loss, torch.autograd.grad(loss, list(model.parameters()))

    plain, batches = gradients(None), seen(model)
    torch.testing.assert_close(gradients(max_tokens), plain, rtol=1e-5, atol=1e-5)
    assert all(batch.ids.numel() <= max_tokens or len(batch) == 1 for batch in batches)
    sizes = [len(batch) for batch in batches]
    assert sum(sizes) == (10 if len(sizes) == 1 else 20), "what fits is not computed again, what does not is, once"
    assert max(float(gradient.abs().max()) for gradient in plain[1]) > 1e-3


def test_the_second_time_is_like_the_first(make_model, make_backbone_config, sequences, padded):
    """With dropout: each piece draws again what it drew, so the gradients are those of the scores."""
    model = make_model("cross", backbone=make_backbone_config(dropout=0.3, attention_dropout=0.3)).train()
    contexts, candidates = map(padded, sequences)
    torch.manual_seed(1)
    limited = model(contexts, candidates, max_tokens=30)
    ours = torch.autograd.grad(limited.square().sum(), list(model.parameters()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross, "Pieces", lambda model: lambda function, tokens: function(tokens))
        torch.manual_seed(1)
        plain = model(contexts, candidates, max_tokens=30)
    expected = torch.autograd.grad(plain.square().sum(), list(model.parameters()))
    torch.testing.assert_close(plain, limited)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pair_start", [False, True, "end", "same_segment"])
def test_a_pair_is_the_context_then_the_candidate_in_segments_0_and_1(make_model, padded, seen, pair_start):
    model = make_model("cross", pair_start=pair_start)
    batches = seen(model)
    model(padded([[2, 10, 3, 11, 3], [2, 12, 3]]), padded([[2, 20, 21, 3]]))
    ((batch),) = batches
    start = {True: [2], "end": [3]}.get(pair_start, [])
    pairs = {(*ids,): segments for ids, segments in zip(batch.list_sequences(), batch.segments.tolist(), strict=True)}
    for context in ([2, 10, 3, 11, 3], [2, 12, 3]):
        candidate = [*start, 20, 21, 3]
        segments = pairs[(*context, *candidate)]
        second = int(pair_start in (False, True))  # such pairs have one segment
        assert segments[: len(context) + len(candidate)] == [0] * len(context) + [second] * len(candidate)


@pytest.mark.parametrize("pair_start", [False, True, "end"])
def test_a_candidate_is_cut_to_what_a_long_context_leaves(make_model, padded, seen, pair_start):
    model = make_model(
        "cross", pair_start=pair_start, pair_truncate=9, text=TextConfig(text_truncate=6, label_truncate=24)
    )
    batches = seen(model)
    model(padded([[2, 10, 3, 11, 3], [2, 12, 3]]), padded([[2, 20, 21, 22, 23, 24, 25, 3], [2, 20, 3]]))
    start = {True: [2], "end": [3]}.get(pair_start, [])
    words = [20, 21, 22, 23, 24, 25]
    expected = [
        [*context, *start, *words[: 8 - len(context) - len(start)], 3] for context in ([2, 10, 3, 11, 3], [2, 12, 3])
    ]
    expected += [[2, 10, 3, 11, 3, *start, 20, 3], [2, 12, 3, *start, 20, 3]]
    assert sorted(ids for batch in batches for ids in batch.list_sequences()) == sorted(expected)


@pytest.mark.parametrize("pair_start", [False, True])
def test_candidates_without_a_start_token_keep_their_first_word(make_model, padded, seen, pair_start):
    layout = TextConfig(text_truncate=40, label_truncate=24, truncation="tokens", surround=False)
    model = make_model("cross", pair_start=pair_start, text=layout)
    batches = seen(model)
    model(padded([[10, 11]]), padded([[20, 21]]))
    assert batches[0].list_sequences() == [[10, 11, 20, 21]]


@torch.no_grad()
def test_scores_are_not_rounded_in_bfloat16(make_model, padded, make_tokens):
    model = make_model("cross", output_scaling=40.0)
    contexts, candidates = padded(make_tokens([9, 5], seed=1)), padded(make_tokens([7, 6, 5, 4], seed=2))
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(contexts, candidates)
    assert scores.dtype == torch.float32
    assert not torch.equal(scores, scores.bfloat16().float())


@pytest.mark.parametrize("norm_eps", [None, 1e-5])
def test_a_hidden_layer_before_the_last(make_model, make_tokens, padded, norm_eps):
    """A trained reranker's layer: activation(V h_1), normalized where ModernBERT does."""
    dense = DenseConfig(size=8, activation="tanh", norm_eps=norm_eps)
    model, vectors = make_model("cross", dense=(dense,), output_scaling=0.5), []
    model.dense.register_forward_pre_hook(lambda module, inputs: vectors.append(inputs[0]))
    score = model(padded(make_tokens([6], seed=1)), padded(make_tokens([4], seed=2)))[0, 0]
    hidden = torch.tanh(model.dense[0](vectors[0]))
    hidden = hidden if norm_eps is None else torch.nn.functional.layer_norm(hidden, (8,))
    torch.testing.assert_close(score, 0.5 * model.linear.weight[0] @ hidden[0] + model.linear.bias[0])
    assert model.next_utterance_head is None  # of another size


@pytest.mark.parametrize("reduction", ["first", "mean"])
def test_a_score_is_linear_in_the_reduced_outputs(make_model, make_tokens, padded, reduction):
    """Section 4.3, written out for one pair."""
    model = make_model("cross", reduction=reduction, output_scaling=0.5)
    (context,), (candidate,) = make_tokens([6], seed=1), make_tokens([4], seed=2)
    pair = TokenBatch(
        torch.tensor([context + candidate[1:]]), torch.ones(1, 9, dtype=torch.bool), torch.tensor([[0] * 6 + [1] * 3])
    )
    outputs = model.tower(pair)[0]
    vector = 0.5 * (outputs[0] if reduction == "first" else outputs.mean(dim=0))
    expected = model.linear.weight[0] @ vector + model.linear.bias[0]
    torch.testing.assert_close(model(padded([context]), padded([candidate]))[0, 0], expected)
