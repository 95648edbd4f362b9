"""What an inspection shows adds up to the model's scores."""

from __future__ import annotations

import re
from itertools import product

import pytest
import torch

from polyencoder.inspection import Inspection, inspect_ranking, render_page
from polyencoder.ranked import Ranked
from tests.html_page import Page
from tests.parameters import mostly_long

ATTENTION = [{}, {"poly_attention": "sqrt"}, {"poly_attention": "multihead"}]
CONTEXT = ["hello , how are you today ?", "i am fine ."]


@mostly_long(
    ("vectors", "attention"),
    [*(("codes", hit) for hit in ATTENTION), *product(("n_last", "n_first", "first_n_last", "turns"), ATTENTION)],
    quick=4,
)
def test_scores_are_the_weighted_logits(make_ranker, sentences, attention, vectors):
    # more codes than the context has tokens
    ranker = make_ranker("poly", context_vectors=vectors, turn_end=3, n_codes=40, **attention)
    inspection = inspect_ranking(ranker, CONTEXT, sentences, top_k=3)
    encoded = ranker.encode_contexts([CONTEXT])
    weights = torch.tensor(inspection.weights)
    torch.testing.assert_close(weights.sum(1), torch.ones(3))
    if attention.get("poly_attention") != "multihead":  # whose heads weigh differently
        logits = ranker.encode_candidates([hit.text for hit in inspection.ranked]) @ encoded.vectors[0].T
        scores = torch.tensor([hit.score for hit in inspection.ranked])
        torch.testing.assert_close((weights * torch.from_numpy(logits)).sum(1), scores, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"normalize": True}, {"output_scaling": 0.5}], ids=str)
@mostly_long("vectors", ["codes", "n_first", "n_last", "first_n_last"], quick=2)
def test_context_vectors_are_the_weighted_outputs(make_ranker, sentences, fields, vectors):
    ranker = make_ranker("poly", context_vectors=vectors, turn_end=3, **fields)
    inspection = inspect_ranking(ranker, CONTEXT, sentences)
    with torch.no_grad():
        outputs = ranker.model.context_tower(ranker.text.batch_contexts([CONTEXT]))[0]
    weighted = torch.tensor(inspection.token_weights) @ outputs
    if fields.get("normalize"):
        weighted = torch.nn.functional.normalize(weighted, dim=-1)
    weighted = weighted * ranker.model.config.output_scaling
    expected = torch.from_numpy(ranker.encode_contexts([CONTEXT]).vectors[0])
    torch.testing.assert_close(weighted, expected, rtol=1e-4, atol=1e-4)
    assert len(inspection.tokens) == outputs.size(0)


def test_a_vector_of_a_turn_shows_the_tokens_of_that_turn(make_ranker, sentences):
    ranker = make_ranker("poly", context_vectors="turns", turn_end=3)
    inspection = inspect_ranking(ranker, CONTEXT, sentences)
    first = len(ranker.text.tokenize_context(CONTEXT[:1]))  # its separator is the end of the shorter context
    both = len(inspection.tokens)
    expected = [[1 / first] * first + [0] * (both - first), [0] * first + [1 / (both - first)] * (both - first)]
    torch.testing.assert_close(torch.tensor(inspection.token_weights), torch.tensor(expected))


def test_codes_of_several_heads(make_ranker, sentences):
    inspection = inspect_ranking(make_ranker("poly", codes_attention="multihead"), CONTEXT, sentences)
    torch.testing.assert_close(torch.tensor(inspection.token_weights).sum(1), torch.ones(4))


def test_a_context_shorter_than_the_vectors(make_ranker, sentences):
    report = inspect_ranking(make_ranker("poly", context_vectors="n_last", n_codes=40), CONTEXT, sentences)
    real = [any(row) for row in report.token_weights]
    assert sum(real) == len(report.tokens)
    assert all(weight == 0 for row in report.weights for weight, is_real in zip(row, real, strict=True) if not is_real)


def test_a_late_encoder_does_not_claim_that_one_vector_makes_its_scores(make_ranker, sentences):
    inspection = inspect_ranking(make_ranker("late"), CONTEXT, sentences)
    assert inspection.weights == []
    assert inspection.missing is not None
    assert "also compares tokens and turns" in inspection.missing


RANKED = [Ranked(1, "<b>yes</b>", 2.0), Ranked(0, "no", 1.0)]


def heats(page: str) -> list[tuple[float, str]]:
    """The colour, from 0 to 1, and the text of each cell with a weight."""
    return [
        (float(hue), text) for hue, text in re.findall(r'class="heat" style="background:[^"]* ([\d.]+)\)">(\d*)<', page)
    ]


def test_weights_of_candidates_and_of_tokens():
    tokens = {"tokens": ["[CLS]", "a&b"], "token_weights": [[0.9, 0.1], [0.002, 0.998]]}
    weights = [[0.8, 0.2], [0.4, 0.6]]
    page = render_page(Inspection("poly-encoder", ["<i>hi</i>"], RANKED, weights=weights, **tokens))
    assert heats(page)[:4] == [(1.0, "80"), (0.25, "20"), (0.5, "40"), (0.75, "60")]
    assert [text for _, text in heats(page)[4:]] == ["90", "", "10", "100"]  # a row for each token; 0.2% is not shown
    assert heats(page)[-1][0] == 1.0
    assert "&lt;b&gt;yes&lt;/b&gt;" in page
    assert "&lt;i&gt;hi&lt;/i&gt;" in page
    assert "a&amp;b" in page


def test_a_model_without_weights_says_why():
    page = render_page(Inspection("cross-encoder", ["hi"], RANKED, "it has none"))
    assert heats(page) == []
    assert "<p>it has none</p>" in page


def test_a_page_escapes_what_it_shows():
    markup = "</title></style><script>alert(1)</script>&amp;"
    page = Page(render_page(Inspection(markup, [markup], RANKED, objectives={markup: [1.0, 2.0]})))
    assert page.words.count(markup) == 4
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.loads == []
