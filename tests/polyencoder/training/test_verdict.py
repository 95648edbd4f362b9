"""What is said of a run that did not improve its model: real runs, each with another reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyencoder.data.example import Example
from polyencoder.training.trainer import Trainer
from polyencoder.training.verdict import why_no_better
from tests.polyencoder.training.runs import CONFIG, EXAMPLES

LABELS = [example.label for example in EXAMPLES]


@pytest.fixture
def trainer(make_ranker) -> Trainer:
    """After a run of six updates."""
    made = Trainer(make_ranker("bi"), CONFIG, train=EXAMPLES)
    made.fit()
    return made


def measured(recall: float, loss: float = 2.0) -> dict[str, float]:
    return {"R4@1": recall, "hits@1": recall, "loss": loss}


def said(trainer, *, before=None, best=None, of_another=False, responses=LABELS) -> str | None:
    return why_no_better(
        trainer,
        before=before or measured(0.5),
        best=best or measured(0.5),
        of_another=of_another,
        responses=responses,
    )


def test_a_model_that_is_better_has_nothing_to_be_said(trainer):
    """By its recall, whatever the loss."""
    assert said(trainer, best=measured(0.501, loss=9.0)) is None


def test_few_updates(trainer):
    assert said(trainer) == (
        "the trained model is no better than before: R4@1 +0.000. 6 updates are few: give more epochs, or more data"
    )


def test_a_loss_that_rose(trainer):
    line = said(trainer, best=measured(0.25, loss=3.0))
    assert "R4@1 -0.250." in line
    assert "the validation loss rose from 2 to 3: try a lower learning_rate than 0.001" in line
    assert "rose" not in said(trainer, best=measured(0.5, loss=2.03))  # less than 2%


def test_another_models_loss_is_not_compared(trainer):
    line = said(trainer, best=measured(0.25, loss=30.0), of_another=True)
    assert line.startswith("the trained model is no better than a bi-encoder of the backbone: R4@1 -0.250.")
    assert "rose" not in line


@pytest.mark.parametrize(("responses", "is_said"), [(["yes"] * 11, True), (["yes"] * 9 + ["no"], False), ([], False)])
def test_responses_of_which_few_are_different(trainer, responses, is_said):
    assert ("only 1 of the 11 training responses are distinct" in said(trainer, responses=responses)) is is_said


def test_batches_without_negatives_are_counted(make_ranker):
    """Two of three examples have the same label: every other batch or so has one candidate."""
    alike = [Example([f"do you ski {n} ?"], "yes .") for n in range(6)]
    made = Trainer(make_ranker("bi"), replace(CONFIG, batch_size=2), train=[*alike, *EXAMPLES[:2]])
    made.fit()
    assert 0 < made.skipped < made.progress.batches
    share = made.skipped / made.progress.batches
    assert f"{share:.0%} of the batches had a single candidate: give a larger batch_size" in said(made)


@pytest.mark.parametrize("few", [6, 2])
def test_a_run_without_any_of_these_gets_general_advice(trainer, monkeypatch, few):
    monkeypatch.setattr("polyencoder.training.verdict.FEW_UPDATES", few)
    line = said(trainer)
    assert line.endswith(". data that is more like the validation data, another learning_rate or more epochs may help")
