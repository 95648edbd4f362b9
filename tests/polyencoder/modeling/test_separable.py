from __future__ import annotations

from itertools import product
from typing import get_args

import pytest
import torch

from polyencoder import ConfigError, Ranker
from polyencoder.config import Reduction
from polyencoder.modeling.separable import BiEncoder, PolyEncoder

KINDS = ["codes", "n_first", "n_last", "first_n_last", "turns"]
CONTEXT_LENGTHS = [9, 2, 1, 6]  # with 4 codes: longer, shorter, a single token, longer
CANDIDATE_LENGTHS = [5, 1, 7, 3, 3]

VARIANTS = [
    *[("bi", {"reduction": reduction}) for reduction in get_args(Reduction)],
    *[
        ("poly", {"context_vectors": kind, "codes_attention": attention, "poly_attention": attention, "turn_end": 9})
        for kind, attention in product(KINDS, ("basic", "sqrt", "multihead"))
    ],
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
    return make_model(architecture, **fields)


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
def test_permuting_permutes(model, sequences, padded, expected):
    contexts, candidates = sequences
    rows, columns = [2, 0, 3, 1], [4, 2, 0, 1, 3]
    scores = model(padded([contexts[i] for i in rows]), padded([candidates[i] for i in columns]))
    torch.testing.assert_close(scores, expected[rows][:, columns], rtol=1e-4, atol=1e-4)


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
    own = vectors.expand(4, -1, -1)
    torch.testing.assert_close(model.score(context, own), model(contexts, candidates), rtol=1e-4, atol=1e-4)


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


def test_a_poly_encoder_with_its_first_output_alone_is_a_bi_encoder(make_model, make_tokens, padded):
    bi, poly = make_model("bi"), make_model("poly", context_vectors="n_first", n_codes=1)
    assert isinstance(bi, BiEncoder)
    assert isinstance(poly, PolyEncoder)
    poly.load_state_dict(bi.state_dict())
    contexts, candidates = padded(make_tokens([6, 1, 3])), padded(make_tokens([2, 5], seed=3))
    torch.testing.assert_close(poly(contexts, candidates), bi(contexts, candidates))


@torch.no_grad()
def test_normalized_vectors_score_with_a_scaled_cosine(make_model, make_tokens, padded):
    contexts, candidates = padded(make_tokens(CONTEXT_LENGTHS)), padded(make_tokens(CANDIDATE_LENGTHS))
    plain = make_model("bi", reduction="mean")
    scaled = make_model("bi", reduction="mean", normalize=True, output_scaling=4.0)
    cosines = torch.nn.functional.cosine_similarity(
        plain.encode_context(contexts).vectors, plain.encode_candidates(candidates).unsqueeze(0), dim=-1
    )
    torch.testing.assert_close(scaled(contexts, candidates), 16 * cosines, rtol=1e-4, atol=1e-4)

    poly = make_model("poly", normalize=True, output_scaling=4.0, context_vectors="codes")
    lengths = poly.encode_context(contexts).vectors.norm(dim=-1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, 4.0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("turn_separator", ["sep", "newline"])
def test_each_turn_gives_a_vector(backbone_folder, tmp_path, sentences, turn_separator):
    """A poly-encoder of one turn's mean ranks as the bi-encoder does; a longer one is searched exactly."""
    fields = {"context_vectors": "turns", "reduction": "mean", "n_codes": 3}
    folder = backbone_folder("bert")
    ranker = Ranker.from_backbone(folder, "poly", device="cpu", turn_separator=turn_separator, **fields)
    bi = Ranker.from_backbone(folder, "bi", device="cpu", turn_separator=turn_separator, reduction="mean")
    torch.testing.assert_close(ranker.score(["hello ."], sentences), bi.score(["hello ."], sentences))
    turns = ["hello .", "how are you ?", "i like to ski .", "what do you do ?"]
    assert [ranker.encode_contexts([turns[:n]]).n_codes for n in (1, 2, 4)] == [1, 2, 3]
    index = ranker.index(sentences, tmp_path / "index")
    assert [hit.text for hit in ranker.search(turns, index, top_k=5)] == [
        one.text for one in ranker.rank(turns, sentences, top_k=5)
    ]


def test_turns_need_a_separator(backbone_folder):
    with pytest.raises(ConfigError, match="nothing separates the turns of a context"):
        Ranker.from_backbone(backbone_folder("bert"), "poly", turn_separator="none", context_vectors="turns")
