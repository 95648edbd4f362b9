"""`--objective` and graded labels through ParlAI: what each step is given, and what has no meaning."""

from __future__ import annotations

import math

import pytest
import torch

from polyencoder import ConfigError, InputError
from polyencoder.evaluation.names import NDCG
from polyencoder.training.losses import LABEL_LOSSES, softmax_loss

pytestmark = pytest.mark.slow

CAT, DOG, COW = "my cat is here .", "my dog is here .", "my cow is here ."
GRADED = {
    "text": "where is the cat ?",
    "labels": [DOG, CAT],
    "label_grades": [1, 2],
    "label_candidates": [COW, CAT, DOG],
}
PLAIN = {"text": "where is the cow ?", "labels": [COW], "label_candidates": [COW, CAT, DOG]}


@pytest.mark.parametrize(
    ("model", "objective", "source"),
    [
        ("biencoder", "mse", "inline"),
        ("biencoder", "lambdaloss", "batch"),
        ("polyencoder", "ranknet", "batch-all-cands"),
        ("polyencoder", "softmax", "inline"),
        ("crossencoder", "listnet", "inline"),
    ],
)
def test_a_step_has_the_loss_of_the_messages_grades(model, objective, source, make_agent, respond, steps):
    agent = make_agent(model, candidates=source, objective=objective)
    respond(agent, GRADED, PLAIN)
    ((scores, pool, losses),) = steps
    texts = [pool.list_candidates(row) for row in range(2)]
    labels = torch.tensor(
        [[{CAT: 2.0, DOG: 1.0}.get(text, 0.0) for text in texts[0]], [text == COW for text in texts[1]]]
    )
    loss = LABEL_LOSSES.get(objective, softmax_loss)
    torch.testing.assert_close(losses, loss(scores, labels), rtol=1e-4, atol=1e-5)
    assert CAT in texts[1]
    assert pool.list_candidates(0)[pool.labels[0]] == CAT  # the best


@pytest.mark.parametrize(
    ("grades", "options", "problem"),
    [
        ([1], {}, r"has 2 labels, but label_grades \[1\]: give a number for each"),
        ("2|x", {}, "has label_grades '2|x', which are no numbers"),
        ([1, -1], {}, "the label of 'my cat is here .' is -1.0; give a finite number"),
        ([math.nan, 1], {}, "the label of 'my dog is here .' is nan"),
        ([1, 2], {"objective": "bce"}, "has a label of 2, and --objective bce reads labels as probabilities"),
    ],
)
def test_grades_that_cannot_be_used_are_named(grades, options, problem, make_agent, respond):
    turns = [{**GRADED, "label_grades": grades}, PLAIN]
    with pytest.raises(InputError, match=problem):
        respond(make_agent("biencoder", candidates="inline", **options), *turns)
    agent = make_agent("biencoder", candidates="inline", ignore_bad_candidates=True, **options)
    respond(agent, *turns)
    assert agent.global_metrics.report()["bad_examples"].value() == 1


def test_an_evaluation_has_their_ndcg(make_agent, respond):
    agent = make_agent("biencoder", eval_candidates="inline")
    for grades in ([1, 2], "1|2"):  # as ParlAI reads them from its text files
        turn = {name: value for name, value in GRADED.items() if name != "labels"}
        (reply,) = respond(agent, {**turn, "label_grades": grades, "eval_labels": GRADED["labels"]})
        gains = [{CAT: 2.0, DOG: 1.0}.get(text, 0.0) for text in reply["text_candidates"]]
        dcg = sum(gain / math.log2(2 + position) for position, gain in enumerate(gains))
        assert reply["metrics"][NDCG].value() == pytest.approx(dcg / (2 + 1 / math.log2(3)))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"objective": "listnet", "candidates": "batch"}, "objective listnet has no meaning with candidates 'batch'"),
        ({"objective": "listnet", "candidates": "fixed"}, "--objective listnet has no meaning with --candidates fixed"),
        ({"objective": "mse", "label_smoothing": 0.1}, "--label-smoothing 0.1 is read only with --objective softmax"),
    ],
)
def test_what_has_no_meaning_is_an_error(options, problem, make_agent):
    with pytest.raises(ConfigError, match=problem):
        make_agent("biencoder", **options)
