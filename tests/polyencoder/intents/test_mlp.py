"""A head learns, stops when it should, and the same with the same seed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polyencoder.errors import InputError
from polyencoder.intents import mlp as module
from polyencoder.intents.head import Head, HeadScore, TrainedHead
from polyencoder.intents.mlp import TABLE_8, fit_mlp, grid_search
from polyencoder.settings.intents import FitSettings, HeadConfig


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_it_learns(clouds, optimizer, layers):
    config = HeadConfig(hidden_layers=layers, hidden_size=32, dropout=0.25)
    fitted = fit_mlp(*clouds, n_labels=4, config=config, settings=FitSettings(optimizer=optimizer, learning_rate=0.02))
    assert fitted.valid.accuracy > 0.8
    logits = fitted.head(clouds[2])
    assert fitted.valid.accuracy == pytest.approx((logits.argmax(1) == clouds[3]).float().mean().item())
    assert fitted.valid.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, clouds[3]).item(), rel=1e-5)
    assert not fitted.head.training


def test_a_seed_decides_all_and_the_global_state_stays(clouds):
    def weights(seed):
        fitted = fit_mlp(*clouds, n_labels=4, config=HeadConfig(), settings=FitSettings(), seed=seed)
        return torch.cat([p.flatten() for p in fitted.head.parameters()])

    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    one = weights(0)
    assert torch.equal(torch.rand(3), expected)
    torch.rand(5)
    assert torch.equal(one, weights(0))
    assert not torch.equal(one, weights(1))


def test_it_ends_after_so_many_epochs_without_a_better_one(clouds, monkeypatch):
    """Scores are written down: the first of the untrained head, then of each epoch; a better loss counts as well."""
    written = [(0.1, 9.0), (0.5, 2.0), (0.5, 1.0), (0.6, 5.0), (0.6, 1.0), (0.5, 0.9), (0.7, 6.0), (0.7, 1.0)]
    written += [(0.1, 3), (0.1, 0.9)]
    scores, seen = iter(written), []

    def score(head, vectors, labels):
        seen.append({name: tensor.clone() for name, tensor in head.state_dict().items()})
        return HeadScore(*next(scores))

    monkeypatch.setattr(module, "score", score)
    fitted = fit_mlp(*clouds, n_labels=4, config=HeadConfig(), settings=FitSettings(patience=3))
    assert len(seen) == len(written)  # the sixth epoch was the last improvement
    assert (fitted.valid.accuracy, fitted.valid.loss, fitted.epochs) == (0.5, 0.9, 5)
    for name, tensor in fitted.head.state_dict().items():
        assert torch.equal(tensor, seen[5][name])


def test_adams_rate_falls_and_that_of_sgd_stays(clouds, monkeypatch):
    rates = []
    learn = module._train_epoch
    monkeypatch.setattr(
        module, "_train_epoch", lambda h, o, *a, **k: (rates.append(o.param_groups[0]["lr"]), learn(h, o, *a, **k))
    )
    for name, expected in (("adam", [4e-4, 3e-4, 2e-4, 1e-4]), ("sgd", [0.75] * 4)):
        rates.clear()
        fit_mlp(
            *clouds, n_labels=4, config=HeadConfig(), settings=FitSettings(optimizer=name, patience=9, max_epochs=4)
        )
        assert rates == pytest.approx(expected)


def test_losses_that_are_no_numbers(clouds):
    with pytest.raises(InputError, match="the losses are not finite after 1 epochs") as raised:
        fit_mlp(*clouds, n_labels=4, config=HeadConfig(), settings=FitSettings(learning_rate=1e17))
    assert raised.value.argument == "learning_rate"


def test_the_table_of_the_paper():
    """Sizes and dropout of a head without hidden layers are the same head."""
    assert len(set(TABLE_8)) == len(TABLE_8) == 2 * (1 + 2 * 4 * 3)
    assert {config.hidden_size for config, _ in TABLE_8 if config.hidden_layers} == {128, 256, 512, 1024}
    assert {config.dropout for config, _ in TABLE_8 if config.hidden_layers} == {0.75, 0.5, 0.25}
    assert {config.hidden_layers for config, _ in TABLE_8} == {0, 1, 2}


def test_the_best_comes_first_and_each_optimizer_has_its_rate():
    grid = [
        (HeadConfig(hidden_layers=1, hidden_size=size, dropout=0.0), name)
        for size in (2, 3)
        for name in ("sgd", "adam")
    ]
    worth = {(2, "sgd"): (0.5, 1.0), (2, "adam"): (0.7, 2.0), (3, "sgd"): (0.7, 1.0), (3, "adam"): (0.1, 0.1)}

    def fit(config, settings):
        assert settings == replace(FitSettings(optimizer=settings.optimizer), max_epochs=3)
        return TrainedHead(
            Head(config, inputs=1, labels=2), HeadScore(*worth[config.hidden_size, settings.optimizer]), 1, 1.0
        )

    said: list[str] = []
    trials = grid_search(fit, FitSettings(max_epochs=3, learning_rate=9.0), grid=grid, on_progress=said.append)
    order = [(one.config.hidden_size, one.settings.optimizer) for one in trials]
    assert order == [(3, "sgd"), (2, "adam"), (2, "sgd"), (3, "adam")]
    assert said[0] == "1 of 4: 1 hidden layer of 2, dropout 0.0, sgd: held out 50.0%"
