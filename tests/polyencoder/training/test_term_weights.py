"""Weights of a new score's terms: against the conditions of a minimum, and in a run of one process or several."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.data.collator import Collator
from polyencoder.data.pool import build_inline_pool, build_shared_pool
from polyencoder.training.building import build_objective
from polyencoder.training.term_weights import fit_weights
from polyencoder.training.trainer import Trainer
from tests.parameters import mostly_long
from tests.polyencoder.training.runs import EXAMPLES, PLAIN, Losses

pytestmark = pytest.mark.slow

START = torch.tensor([1.0, 0.0, 0.0])
STILL = replace(PLAIN, optimizer=replace(PLAIN.optimizer, learning_rate=1e-12))


def shared(n: int):
    texts = [str(i) for i in range(n)]
    return build_shared_pool(texts, texts)


def linear(terms):
    """The scores by weights of [batch, n, k] terms."""
    return lambda weights: terms.double() @ weights


def is_minimum(weights, terms) -> bool:
    """The loss is convex: where its slope is 0 or, of a weight of 0, upwards, it is the minimum."""
    weights = weights.clone().requires_grad_()
    loss = F.cross_entropy(terms @ weights, torch.arange(len(terms)), reduction="sum")
    (slope,) = torch.autograd.grad(loss + (weights - START).square().sum(), weights)
    tolerance = 2e-3 * float(terms.abs().max())
    return all(
        abs(component) < tolerance if weight > 1e-9 else component > -tolerance
        for weight, component in zip(weights.tolist(), slope.tolist(), strict=True)
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 12), st.sampled_from([0.1, 3.0, 20.0]))
def test_no_other_weights_fit_better(seed, n, scale):
    """Where 0 of all would, as it may for random terms, the weights stay what they were."""
    terms = scale * torch.randn(n, n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weights = fit_weights(linear(terms), shared(n), start=START.double())
    assert bool((weights >= 0).all())
    stayed = torch.equal(weights, START.double())
    assert is_minimum(weights, terms) or (stayed and is_minimum(torch.zeros_like(weights), terms))


def test_examples_that_any_large_weight_ranks_right_do_not_make_it_grow():
    terms = torch.stack([20 * torch.eye(4), torch.zeros(4, 4), torch.zeros(4, 4)], dim=-1)
    assert fit_weights(linear(terms), shared(4), start=START).tolist() == pytest.approx([1, 0, 0], abs=1e-3)


def test_padding_and_examples_without_a_right_candidate_do_not_count():
    terms = 5 * torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(0))
    candidates, labels = [["a", "b", "c"], ["a", "b"], ["b", "c"]], ["a", "b", "c"]
    pool = build_inline_pool(candidates, labels)
    expected = fit_weights(linear(terms), pool, start=START)
    other = terms.clone()
    other[1:, 2] = 100.0  # where the second and third have no candidate
    torch.testing.assert_close(fit_weights(linear(other), pool, start=START), expected)
    none = replace(pool, relevance=torch.tensor([[1.0, 0, 0], [0, 0, 0], [0, 1, 0]]))
    other[1] = -terms[1]
    torch.testing.assert_close(
        fit_weights(linear(other), none, start=START), fit_weights(linear(terms), none, start=START)
    )


def test_terms_that_are_not_finite_change_nothing():
    terms = torch.full((2, 2, 3), float("nan"))
    assert torch.equal(fit_weights(linear(terms), shared(2), start=START), START)


def test_not_all_weights_become_0():
    """Else no gradient would reach an encoder that ranks worse than chance, such as an untrained one."""
    terms = -20 * torch.eye(4).unsqueeze(-1).expand(-1, -1, 3)
    assert torch.equal(fit_weights(linear(terms), shared(4), start=START), START)


@pytest.fixture
def examples():
    return EXAMPLES[:4]


def test_a_new_models_training_begins_at_the_weights_that_fit_its_first_batch(make_ranker, examples):
    ranker = make_ranker("late")
    model, text = ranker.model, ranker.text
    contexts, candidates = (
        text.batch_contexts([example.turns for example in examples]),
        text.batch_candidates([example.label for example in examples]),
    )
    scores, start = model.build_weighted_scorer(contexts, candidates), model.term_weights.detach().clone()
    with torch.no_grad():
        torch.testing.assert_close(scores(start.double()).float(), model(contexts, candidates))  # the bi-encoder's
    assert model.has_new_terms
    expected = fit_weights(scores, shared(4), start=start)
    search = model.score_objectives(contexts, candidates)["search"]
    losses = Losses()
    trainer = Trainer(ranker, STILL, train=examples, callbacks=[losses])
    trainer.step(Collator(text)(examples))
    assert not model.has_new_terms
    torch.testing.assert_close(model.term_weights.detach(), expected)
    loss = sum(F.cross_entropy(each, torch.arange(4)).item() for each in (scores(expected.double()), search))
    assert losses.values[0] == pytest.approx(loss, rel=1e-4)
    trainer.step(Collator(text)(EXAMPLES[4:]))  # no other batch has a say
    torch.testing.assert_close(model.term_weights.detach(), expected)


def test_weights_that_were_trained_are_left(make_ranker, examples):
    ranker, trained = make_ranker("late"), torch.tensor([0.9, 0.1, 0.0, 0.2, 0.0])
    with torch.no_grad():
        ranker.model.term_weights.copy_(trained)
    build_objective(ranker, STILL)(Collator(ranker.text)(examples))
    torch.testing.assert_close(ranker.model.term_weights.detach(), trained)


@mostly_long("gather", [True, False], quick=1)
def test_processes_fit_the_examples_of_all(make_ranker, in_processes, gather):
    """Equal weights in all, also without an example; with gathered negatives, the weights of one process."""

    def run(parts):
        ranker = make_ranker("late")
        build_objective(ranker, replace(STILL, gather_negatives=gather))(parts and Collator(ranker.text)(parts))
        return ranker.model.term_weights.tolist()

    first, second = in_processes(lambda rank: run(EXAMPLES[:3] if rank == 0 else EXAMPLES[3:5]))
    assert first == second
    alone = run(EXAMPLES[:5])
    assert (first == pytest.approx(alone, abs=1e-4)) == gather
    first, second = in_processes(lambda rank: run(EXAMPLES[:5] if rank == 0 else None))
    assert first == second == pytest.approx(alone, abs=1e-4)
