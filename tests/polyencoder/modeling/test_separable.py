from __future__ import annotations

from itertools import product

import pytest
import torch

from polyencoder import ConfigError, Ranker

KINDS = ["codes", "n_first", "n_last", "first_n_last", "turns"]
CONTEXT_LENGTHS = [9, 2, 1, 6]  # with 4 codes: longer, shorter, a single token, longer
CANDIDATE_LENGTHS = [5, 1, 7, 3, 3]

VARIANTS = [
    *[("bi", {"reduction": reduction}) for reduction in ("first", "max", "mean_first", "mean_except_first")],
    *[
        ("poly", {"context_vectors": kind, "codes_attention": attention, "poly_attention": attention, "turn_end": 9})
        for kind, attention in zip(KINDS, ("basic", "sqrt", "multihead", "basic", "sqrt"), strict=True)
    ],
    ("poly", {"codes_attention": "sqrt", "poly_attention": "sqrt"}),
    ("poly", {"codes_attention": "multihead", "poly_attention": "multihead"}),
    ("bi", {"share_encoders": True, "output_scaling": 0.5}),
    ("bi", {"share_encoders": True, "candidate_mlp": True, "normalize": True}),
    ("poly", {"candidate_mlp": True, "normalize": True, "poly_attention": "multihead"}),
    ("poly", {"share_encoders": True, "output_scaling": 0.5, "n_codes": 1, "reduction": "mean"}),
    ("bi", {"normalize": True, "output_scaling": 4.0, "reduction": "mean"}),
    ("poly", {"normalize": True, "output_scaling": 4.0, "context_vectors": "n_first"}),
]


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda v: "-".join([v[0], *(str(x) for x in v[1].values())]))
def model(request, make_model):
    architecture, fields = request.param
    built = make_model(architecture, **fields)
    if fields.get("context_vectors") == "turns":
        with torch.no_grad():
            built.term_weights.copy_(torch.tensor([0.5, 0.3, 0.2]))
    return built


@pytest.fixture(scope="module")
def sequences(make_tokens):
    return make_tokens(CONTEXT_LENGTHS, seed=1), make_tokens(CANDIDATE_LENGTHS, seed=2)


@pytest.fixture(scope="module")
def expected(model, sequences, padded):
    """Scores [contexts, candidates] of each pair by itself, where there is nothing to pad."""
    contexts, candidates = sequences
    with torch.no_grad():
        vectors = [model.encode_candidates(padded([candidate])) for candidate in candidates]
        encoded = [model.encode_context(padded([context])) for context in contexts]
        rows = [[model.score(context, vector) for vector in vectors] for context in encoded]
    assert all(score.shape == (1, 1) for row in rows for score in row)  # one candidate, however many codes
    return torch.tensor([[score.item() for score in row] for row in rows])


@pytest.mark.slow
@torch.no_grad()
def test_a_batch_gives_the_scores_of_its_pairs(model, sequences, padded, expected):
    contexts, candidates = map(padded, sequences)
    torch.testing.assert_close(model(contexts, candidates), expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.1  # the scores do differ, or nothing here means anything


@torch.no_grad()
def test_padding_changes_nothing(model, sequences, padded, expected):
    """Neither its amount nor the id that it is made of."""
    contexts, candidates = sequences
    scores = model(padded(contexts, extra=8, pad_id=7), padded(candidates, extra=5, pad_id=9))
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_an_index_names_each_contexts_candidates(model, sequences, padded, expected):
    contexts, candidates = map(padded, sequences)
    index = torch.tensor([[0, 4, 1], [1, 1, 1], [4, 3, 2], [2, 0, 0]])
    scores = model(contexts, candidates, index)
    torch.testing.assert_close(scores, expected.gather(1, index), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_steps_make_the_forward_pass(model, sequences, padded):
    contexts, candidates = map(padded, sequences)
    vectors = model.encode_candidates(candidates)
    assert vectors.shape == (5, model.dim)
    context = model.encode_context(contexts)
    assert context.dim == model.dim
    assert torch.equal(model.score(context, vectors), model(contexts, candidates))
    expanded = vectors.expand(4, -1, -1)
    torch.testing.assert_close(model.score(context, expanded), model(contexts, candidates), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["bi", "poly"])
def test_two_towers_start_equal_and_learn_apart(make_model, padded, make_tokens, architecture):
    model = make_model(architecture)
    assert model.context_tower is not model.candidate_tower
    towers = model.context_tower.state_dict(), model.candidate_tower.state_dict()
    assert towers[0].keys() == towers[1].keys()
    assert all(torch.equal(a, b) for a, b in zip(*map(dict.values, towers), strict=True))

    model.encode_candidates(padded(make_tokens([4, 5]))).sum().backward()
    assert all(parameter.grad is None for parameter in model.context_tower.parameters())
    assert any(parameter.grad is not None for parameter in model.candidate_tower.parameters())


@pytest.mark.parametrize("architecture", ["bi", "poly"])
def test_one_tower_for_both(make_model, architecture):
    model = make_model(architecture, share_encoders=True)
    assert model.context_tower is model.candidate_tower
    assert not any("candidate" in name for name in model.state_dict())  # saved once


def test_a_bi_encoder_scores_with_a_dot_product(make_model, make_tokens, padded):
    model = make_model("bi", share_encoders=True, output_scaling=0.5)
    tokens = padded(make_tokens([4, 6]))
    first = 0.5 * model.context_tower(tokens)[:, 0]
    torch.testing.assert_close(model(tokens, tokens), first @ first.T)


@pytest.mark.slow
@pytest.mark.parametrize(("codes_attention", "poly_attention"), list(product(("basic", "sqrt"), repeat=2)))
def test_a_poly_encoder_scores_as_the_paper_says(make_model, make_tokens, padded, codes_attention, poly_attention):
    """Section 4.4, written out: codes attend over the outputs, the candidate over what they found."""
    fields = {"codes_attention": codes_attention, "poly_attention": poly_attention, "output_scaling": 0.5}
    model = make_model("poly", n_codes=3, **fields)
    for_codes, for_candidates = (1 / 4 if a == "sqrt" else 1 for a in (codes_attention, poly_attention))  # sqrt(16)
    contexts, candidates = make_tokens([7, 3], seed=1), make_tokens([5, 2, 4], seed=2)
    scores = model(padded(contexts), padded(candidates))
    for i, j in product(range(2), range(3)):
        outputs = 0.5 * model.context_tower(padded([contexts[i]]))[0]
        candidate = 0.5 * model.candidate_tower(padded([candidates[j]]))[0, 0]
        vectors = [torch.softmax(for_codes * (outputs @ code), 0) @ outputs for code in model.codes.codes]
        weights = torch.softmax(for_candidates * torch.stack([vector @ candidate for vector in vectors]), 0)
        attended = sum(weight * vector for weight, vector in zip(weights, vectors, strict=True))
        torch.testing.assert_close(scores[i, j], attended @ candidate, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_normalized_vectors_score_with_a_scaled_cosine(make_model, make_tokens, padded):
    contexts, candidates = padded(make_tokens(CONTEXT_LENGTHS)), padded(make_tokens(CANDIDATE_LENGTHS))
    plain = make_model("bi", reduction="mean")
    scaled = make_model("bi", reduction="mean", normalize=True, output_scaling=4.0)
    cosines = torch.nn.functional.cosine_similarity(
        plain.encode_context(contexts).vectors,
        torch.as_tensor(plain.encode_candidates(candidates)).unsqueeze(0),
        dim=-1,
    )
    torch.testing.assert_close(scaled(contexts, candidates), 16 * cosines, rtol=1e-4, atol=1e-4)

    poly = make_model("poly", normalize=True, output_scaling=4.0, context_vectors="codes")
    lengths = poly.encode_context(contexts).vectors.norm(dim=-1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, 4.0), rtol=1e-4, atol=1e-4)


TURNS = ["hello .", "how are you ?", "i like to ski .", "what do you do ?"]


@pytest.fixture
def turns_ranker(backbone_folder):
    """(weights, **fields) -> a poly-encoder with a vector for each turn, at most 3."""

    def make(*weights, **fields):
        options = {"context_vectors": "turns", "reduction": "mean", "n_codes": 3, **fields}
        ranker = Ranker.from_backbone(backbone_folder("bert"), "poly", device="cpu", **options)
        if weights:
            with torch.no_grad():
                ranker.model.term_weights.copy_(torch.tensor(weights))
        return ranker

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"turn_separator": "newline"},
        {"normalize": True, "output_scaling": 4.0},
        {"output_scaling": 0.5, "reduction": "first"},
        {"poly_attention": "multihead"},
        {"share_encoders": True, "candidate_mlp": True},
    ],
)
def test_the_whole_context_alone_ranks_as_the_bi_encoder(backbone_folder, turns_ranker, sentences, fields):
    poly = turns_ranker(1.0, 0.0, 0.0, **fields)
    bi_fields = {name: value for name, value in fields.items() if name not in ("poly_attention", "candidate_mlp")}
    bi = Ranker.from_backbone(backbone_folder("bert"), "bi", device="cpu", **{"reduction": "mean", **bi_fields})
    if "candidate_mlp" in fields:
        bi.model.candidate_mlp = poly.model.candidate_mlp
    for n in (1, 4):
        expected = torch.as_tensor(bi.score(TURNS[:n], sentences))
        torch.testing.assert_close(torch.as_tensor(poly.score(TURNS[:n], sentences)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fields", [{}, {"normalize": True, "output_scaling": 4.0}, {"turn_separator": "newline"}])
def test_each_turn_gives_a_vector(turns_ranker, fields):
    """z_j = w_1 x + w_2 y_j + w_3 y_m, from the outputs of the context's tokens."""
    ranker = turns_ranker(0.5, 0.3, 0.2, **fields)
    model, ids = ranker.model, ranker.text.tokenize_context(TURNS)
    tokens = ranker.text.batch_contexts([TURNS])
    outputs = model.context_tower(tokens)[0].detach()
    x = outputs.mean(0) * model.config.output_scaling
    if model.config.normalize:
        x = 4.0 * x / x.norm()
    ends = [i + 1 for i, token in enumerate(ids) if token in ranker.text.separator_ids][:4]
    bounds = list(zip([0, *ends[:3]], [*ends[:3], len(ids)], strict=True))[-3:]
    means = [outputs[first:last].mean(0) for first, last in bounds]
    y = [x.norm() * mean / mean.norm() for mean in means]
    expected = torch.stack([0.5 * x + 0.3 * turn + 0.2 * y[-1] for turn in y])
    encoded = model.encode_context(tokens)
    assert encoded.list_codes()[0].shape == (3, model.dim)
    torch.testing.assert_close(encoded.list_codes()[0].detach(), expected, rtol=1e-4, atol=1e-4)
    assert [ranker.encode_contexts([TURNS[:n]]).n_codes for n in (1, 2, 4)] == [1, 2, 3]


def test_a_context_of_one_turn_is_its_pooled_vector(turns_ranker, backbone_folder, sentences):
    """With one turn, x and y are the same vector, which is multiplied by the sum of the weights: of new ones 1."""
    poly = turns_ranker()
    bi = Ranker.from_backbone(backbone_folder("bert"), "bi", device="cpu", reduction="mean")
    torch.testing.assert_close(
        torch.as_tensor(poly.score(TURNS[:1], sentences)), torch.as_tensor(bi.score(TURNS[:1], sentences))
    )


def test_turns_are_searched_exactly(turns_ranker, sentences, tmp_path):
    ranker = turns_ranker(0.5, 0.3, 0.2)
    index = ranker.index(sentences, tmp_path / "index")
    for exactness in ("exact", "certified"):
        hits = ranker.search(TURNS, index, top_k=5, exactness=exactness)
        assert [hit.text for hit in hits] == [hit.text for hit in ranker.rank(TURNS, sentences, top_k=5)]


def test_vectors_that_are_sums_are_not_shortened(make_model):
    model = make_model("poly", context_vectors="turns", turn_end=3, normalize=True)
    with pytest.raises(ConfigError, match="cannot be shortened") as error:
        model.truncate(8)
    assert error.value.argument == "vector_dim"


def test_turns_need_a_separator(backbone_folder):
    with pytest.raises(ConfigError, match="nothing separates the turns of a context"):
        Ranker.from_backbone(backbone_folder("bert"), "poly", turn_separator="none", context_vectors="turns")
