"""The baselines of a run: measured once, by the evaluations that a user would run, and without a trace in training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polyencoder.data.example import Example
from polyencoder.evaluation.examples import evaluate
from polyencoder.evaluation.tfidf import evaluate_tfidf
from polyencoder.training.callbacks.baselines import Baselines, explain_no_better
from polyencoder.training.trainer import Trainer
from tests.polyencoder.training.runs import CONFIG, EXAMPLES, VALID, Losses

pytestmark = pytest.mark.slow


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
    """The comparison must not take random numbers of dropout."""

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
def test_a_model_stands_in_architecture_stands_in_and_is_not_kept(make_ranker, architecture, caplog):
    reports = []
    callback = baselines(make_ranker("bi"), on_untrained=lambda run, report: reports.append(report))
    with caplog.at_level("INFO", "polyencoder"):
        trained(make_ranker(architecture), callback)
    stands_in = architecture == "poly"
    assert callback.stands_in is stands_in
    assert reports == ([] if stands_in else [callback.before])
    assert ("before training, a bi-encoder of the backbone: " in caplog.text) is stands_in


def test_responses_without_words_have_no_tfidf(make_ranker, caplog):
    callback = baselines(make_ranker("bi"), responses=lambda: ["!", "?"])
    with caplog.at_level("INFO", "polyencoder"):
        trained(make_ranker("bi"), callback)
    assert callback.before
    assert callback.tfidf == {}
    assert "no comparison with TF-IDF: " in caplog.text


LABELS = [example.label for example in EXAMPLES]


@pytest.fixture(scope="module")
def trainer(make_ranker) -> Trainer:
    """After a run of six updates, which tests only read."""
    trainer = Trainer(make_ranker("bi"), CONFIG, train=EXAMPLES)
    trainer.fit()
    return trainer


def measured(recall: float, loss: float = 2.0) -> dict[str, float]:
    return {"R4@1": recall, "hits@1": recall, "loss": loss}


def get_advice(trainer, *, before=None, best=None, stands_in=False, responses=LABELS) -> str | None:
    reports = {"before": before or measured(0.5), "best": best or measured(0.5)}
    return explain_no_better(trainer, **reports, stands_in=stands_in, responses=responses)


def test_a_model_that_is_better_has_nothing_to_be_said(trainer):
    """Its recall decides, whatever the loss."""
    assert get_advice(trainer, best=measured(0.501, loss=9.0)) is None


def test_few_updates(trainer):
    assert get_advice(trainer) == (
        "the trained model is no better than before: R4@1 +0.000. 6 updates are few: give more epochs, or more data"
    )


def test_a_loss_that_rose(trainer):
    line = get_advice(trainer, best=measured(0.25, loss=3.0))
    assert "R4@1 -0.250." in line
    assert "the validation loss rose from 2 to 3: try a lower learning_rate than 0.001" in line
    assert "rose" not in get_advice(trainer, best=measured(0.5, loss=2.03))  # less than 2%


def test_another_models_loss_is_not_compared(trainer):
    line = get_advice(trainer, best=measured(0.25, loss=30.0), stands_in=True)
    assert line.startswith("the trained model is no better than a bi-encoder of the backbone: R4@1 -0.250.")
    assert "rose" not in line


@pytest.mark.parametrize(("responses", "alike"), [(["yes"] * 11, True), (["yes"] * 9 + ["no"], False), ([], False)])
def test_responses_of_which_few_are_different(trainer, responses, alike):
    advice = get_advice(trainer, responses=responses)
    assert ("only 1 of the 11 training responses are distinct" in advice) is alike


def test_batches_without_negatives_are_counted(make_ranker):
    """Two of three examples have the same label: every other batch or so has one candidate."""
    alike = [Example([f"do you ski {n} ?"], "yes .") for n in range(6)]
    trainer = Trainer(make_ranker("bi"), replace(CONFIG, batch_size=2), train=[*alike, *EXAMPLES[:2]])
    trainer.fit()
    assert 0 < trainer.skipped < trainer.progress.batches
    share = trainer.skipped / trainer.progress.batches
    assert f"{share:.0%} of the batches had a single candidate: give a larger batch_size" in get_advice(trainer)


@pytest.mark.parametrize("few_updates", [6, 2])
def test_a_run_without_any_of_these_gets_general_advice(trainer, monkeypatch, few_updates):
    monkeypatch.setattr("polyencoder.training.callbacks.baselines.MIN_UPDATES", few_updates)
    line = get_advice(trainer)
    assert line.endswith(". data that is more like the validation data, another learning_rate or more epochs may help")
