"""From labelled texts to a classifier and a report."""

from __future__ import annotations

import statistics

import pytest
import torch

from polyencoder.errors import InputError
from polyencoder.intents import FitSettings, HeadConfig, Labelled, train_intents
from polyencoder.intents import training as module

LOGISTIC = {"settings": FitSettings(held_out=0.3)}
QUICK = {
    "config": HeadConfig(hidden_layers=1, hidden_size=32, dropout=0.25),
    "settings": FitSettings(max_epochs=30, batch_size=8, held_out=0.3),
}


@pytest.mark.parametrize("head", [LOGISTIC, QUICK])
@pytest.mark.parametrize("architecture", ["bi", "poly", "convert"])
def test_it_learns_with_every_encoder(make_ranker, labelled, architecture, head):
    ranker = make_ranker(architecture) if architecture == "convert" else make_ranker(architecture, reduction="mean")
    before = {name: tensor.clone() for name, tensor in ranker.model.state_dict().items()}
    report = train_intents(ranker, labelled[::2], labelled[1::2], **head)
    assert report.results[0].test.accuracy > 0.6  # chance: a third
    found = report.classifier.predict([one.text for one in labelled[1::2]])
    hits = [one.label == other.label for one, other in zip(found, labelled[1::2], strict=True)]
    assert statistics.mean(hits) == pytest.approx(report.results[0].test.accuracy)
    for name, tensor in ranker.model.state_dict().items():  # the encoder is frozen
        assert torch.equal(tensor, before[name])
        assert not tensor.requires_grad or tensor.grad is None


def test_seeds_are_runs_of_their_own_and_the_best_is_kept(make_ranker, labelled):
    ranker = make_ranker("bi")
    said: list[str] = []
    report = train_intents(ranker, labelled, labelled, seeds=[3, 4, 5], per_intent=6, on_progress=said.append, **QUICK)
    assert [one.seed for one in report.results] == [3, 4, 5]
    assert all(one.texts == 3 * 4 for one in report.results)  # two of six are held out
    mean, deviation = report.accuracy()
    values = [one.test.accuracy for one in report.results]
    assert (mean, deviation) == pytest.approx((statistics.mean(values), statistics.stdev(values)))
    assert report.best.valid == max(one.valid for one in report.results)
    assert report.accuracy("baseline") is None
    assert len(said) == 3
    alone = train_intents(ranker, labelled, labelled, seeds=[4], per_intent=6, **QUICK).results[0]
    assert alone == report.results[1]
    assert report.accuracy("valid") is not None


def test_only_texts_that_are_needed_are_encoded_and_each_once(make_ranker, labelled, monkeypatch):
    ranker, seen = make_ranker("bi"), []
    encode = ranker.encode
    monkeypatch.setattr(ranker, "encode", lambda texts, **given: (seen.extend(texts), encode(texts, **given))[1])
    train_intents(ranker, labelled, labelled[:2], per_intent=3, seeds=[0, 0], **QUICK)
    assert len(seen) == len(set(seen)) <= 9 + 2


def test_tf_idf_beside_it(make_ranker, labelled):
    report = train_intents(make_ranker("bi"), labelled[::2], labelled[1::2], baseline=True, **QUICK)
    assert report.accuracy("baseline")[0] > 0.9  # labels are words


def test_the_grid_chooses_with_the_first_seed(make_ranker, labelled, monkeypatch):
    grid = (
        (HeadConfig(hidden_layers=0, hidden_size=8, dropout=0.0), "sgd"),
        (HeadConfig(hidden_layers=1, hidden_size=8, dropout=0.9), "adam"),
    )
    monkeypatch.setattr(module, "grid_search", lambda *given, **named: GRID_SEARCH(*given, grid=grid, **named))
    report = train_intents(make_ranker("bi"), labelled, seeds=[1, 2], grid=True, settings=FitSettings(max_epochs=30))
    assert len(report.trials) == 2
    assert (report.config, report.settings.optimizer) == (report.trials[0].config, report.trials[0].settings.optimizer)
    assert report.results[0].valid == pytest.approx(report.trials[0].accuracy)
    assert report.results[0].test is None
    assert report.accuracy() is None


GRID_SEARCH = module.grid_search


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([], [], "there is no label in the training texts"),
        ([("x", "a"), ("y", "a")], [], "there is one label in the training texts; a choice needs two"),
        ([("x", "a"), ("y", "b")], [], "no label has two texts"),
        ([("x", "a"), ("y", "a"), ("z", "b")], [("w", "c")], "'w': the label 'c' is that of no training text"),
    ],
)
def test_what_cannot_be_trained(make_ranker, train, test, message):
    with pytest.raises(InputError, match=message):
        train_intents(make_ranker("bi"), [Labelled(*one) for one in train], [Labelled(*one) for one in test])


def test_without_a_seed_there_is_nothing_to_train(make_ranker, labelled):
    with pytest.raises(InputError, match="there is no seed"):
        train_intents(make_ranker("bi"), labelled, seeds=())


def test_a_cross_encoder_has_no_vectors(make_ranker, labelled):
    with pytest.raises(InputError, match="a cross-encoder has no vectors"):
        train_intents(make_ranker("cross"), labelled)
