"""The baselines of a run: measured once, by the evaluations that a user would run, and without a trace in training."""

from __future__ import annotations

import pytest
import torch

from polyencoder.evaluation.examples import evaluate
from polyencoder.evaluation.tfidf import evaluate_tfidf
from polyencoder.training.callbacks.baselines import Baselines
from polyencoder.training.trainer import Trainer
from tests.polyencoder.training.runs import CONFIG, EXAMPLES, VALID, Losses


def baselines(ranker, **others) -> Baselines:
    labels = [example.label for example in EXAMPLES]
    return Baselines(VALID, **({"untrained": lambda: ranker, "responses": lambda: labels} | others))


def trained(ranker, *callbacks) -> tuple[list[float], Trainer]:
    losses = Losses()
    trainer = Trainer(ranker, CONFIG, train=EXAMPLES, callbacks=[*callbacks, losses])
    trainer.fit()
    return losses.values, trainer


def test_the_metrics_are_those_before_the_first_update(make_ranker):
    ranker = make_ranker("bi")
    expected = evaluate(make_ranker("bi"), VALID).report()
    callback = baselines(ranker)
    trained(ranker, callback)
    assert callback.before == pytest.approx(expected)
    assert evaluate(ranker, VALID).report()["loss"] < expected["loss"]
    assert callback.tfidf == evaluate_tfidf([example.label for example in EXAMPLES], VALID)
    assert callback.tfidf["hits@1"] == 1  # each response repeats a word of its context
    assert not callback.stands_in


def test_training_is_the_same_with_and_without(make_ranker, make_backbone_config):
    """With dropout, whose random numbers the comparison must not take."""

    def make():
        return make_ranker("bi", backbone=make_backbone_config(dropout=0.3))

    def draws():
        torch.rand(7)
        return make()

    torch.manual_seed(1)
    plain, _ = trained(make())
    torch.manual_seed(1)
    compared, _ = trained(make(), baselines(None, untrained=draws))
    assert plain == compared


def test_a_resumed_run_measures_nothing_again(make_ranker):
    first = baselines(make_ranker("bi"))
    trained(make_ranker("bi"), first)
    second = baselines(None, untrained=lambda: pytest.fail("measured again"))
    second.load_state_dict(first.state_dict())
    trained(make_ranker("bi"), second)
    assert (second.before, second.tfidf, second.stands_in) == (first.before, first.tfidf, False)


@pytest.mark.parametrize("architecture", ["bi", "poly"])
def test_a_model_of_another_architecture_stands_in_and_is_not_kept(make_ranker, architecture, caplog):
    told = []
    callback = baselines(make_ranker("bi"), on_untrained=lambda run, report: told.append(report))
    with caplog.at_level("INFO", "polyencoder"):
        trained(make_ranker(architecture), callback)
    stands_in = architecture == "poly"
    assert callback.stands_in is stands_in
    assert told == ([] if stands_in else [callback.before])
    assert ("before training, a bi-encoder of the backbone: " in caplog.text) is stands_in


def test_responses_without_words_have_no_tfidf(make_ranker, caplog):
    callback = baselines(make_ranker("bi"), responses=lambda: ["!", "?"])
    with caplog.at_level("INFO", "polyencoder"):
        trained(make_ranker("bi"), callback)
    assert callback.before
    assert callback.tfidf == {}
    assert "no comparison with TF-IDF: " in caplog.text
