"""A head learns, stops when it should, and the same with the same seed."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.errors import ConfigError, InputError
from polyencoder.intents import FitSettings, HeadConfig, fit_head, fit_logistic
from polyencoder.intents import fitting as module
from polyencoder.intents.fitting import best_temperature


@pytest.fixture
def clouds():
    """Vectors around four points, and which point each is around: 80 to learn from, 40 held out."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 4
    vectors = 3 * torch.nn.functional.one_hot(labels, 6).float() + torch.randn(120, 6, generator=generator)
    return vectors[:80], labels[:80], vectors[80:], labels[80:]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_it_learns(clouds, optimizer, layers):
    config = HeadConfig(layers, 32, 0.25)
    fitted = fit_head(*clouds, n_labels=4, config=config, settings=FitSettings(optimizer, learning_rate=0.02))
    assert fitted.accuracy > 0.8
    logits = fitted.head(clouds[2])
    assert fitted.accuracy == pytest.approx((logits.argmax(1) == clouds[3]).float().mean().item())
    assert fitted.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, clouds[3]).item(), rel=1e-5)
    assert not fitted.head.training


@pytest.mark.parametrize("n_labels", [2, 4])
def test_logistic_regression_is_scikit_learns_of_all_texts(clouds, n_labels):
    from sklearn.linear_model import LogisticRegression

    vectors, labels, valid_vectors, valid_labels = clouds
    labels, valid_labels = labels % n_labels, valid_labels % n_labels
    fitted = fit_logistic(vectors, labels, valid_vectors, valid_labels, n_labels=n_labels)
    everything, right = torch.cat([vectors, valid_vectors]), torch.cat([labels, valid_labels])
    rows = fitted.head.standardised(everything).numpy()
    found = fitted.head(everything).softmax(1).detach().numpy()
    expected = [
        LogisticRegression(C=c, max_iter=1000, tol=1e-3).fit(rows, right).predict_proba(rows) for c in module.STRENGTHS
    ]
    assert min(abs(found - one).max() for one in expected) < 1e-4
    assert fitted.accuracy > 0.7
    assert fitted.temperature > 0


def test_a_seed_decides_all_and_the_global_state_stays(clouds):
    def weights(seed):
        return torch.cat([p.flatten() for p in fit_head(*clouds, n_labels=4, seed=seed).head.parameters()])

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
        return module._Score(*next(scores))

    monkeypatch.setattr(module, "_score", score)
    fitted = fit_head(*clouds, n_labels=4, settings=FitSettings(patience=3))
    assert len(seen) == len(written)  # the sixth epoch was the last improvement
    assert (fitted.accuracy, fitted.loss, fitted.epochs) == (0.5, 0.9, 5)
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
        fit_head(*clouds, n_labels=4, settings=FitSettings(name, patience=9, max_epochs=4))
        assert rates == pytest.approx(expected)


def test_losses_that_are_no_numbers(clouds):
    with pytest.raises(InputError, match="the losses are no numbers after 1 epochs") as raised:
        fit_head(*clouds, n_labels=4, settings=FitSettings(learning_rate=1e17))
    assert raised.value.argument == "learning_rate"


@given(st.floats(0.2, 5), st.integers(0, 5))
def test_the_temperature_is_the_best_of_all(factor, seed):
    """Labels are drawn from the softmax of the logits over a known temperature."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(400, 5, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    found = best_temperature(logits * factor, labels)

    def loss(temperature):
        return torch.nn.functional.cross_entropy(logits.double() * factor / temperature, labels).item()

    assert all(loss(found) <= loss(found * math.exp(step)) + 1e-9 for step in (-0.3, -0.03, 0.03, 0.3))
    assert 0.7 < found / factor < 1.4


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": "lion"},
        {"batch_size": 0},
        {"patience": 0},
        {"max_epochs": 0},
        {"held_out": 0.0},
        {"held_out": 1.0},
        {"learning_rate": -1.0},
    ],
)
def test_what_are_no_settings(fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        FitSettings(**fields)
