"""The head's layers, and what it does to vectors before them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.intents.head import Head, best_temperature
from polyencoder.settings.intents import HeadConfig


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_it_is_a_perceptron_of_standardised_vectors(layers):
    head = Head(HeadConfig(hidden_layers=layers, hidden_size=7, dropout=0.5), inputs=5, labels=3).eval()
    vectors = torch.randn(20, 5) * torch.tensor([1.0, 10, 100, 0.1, 0]) + 4
    head.standardise(vectors)
    weights = [module for module in head.layers if isinstance(module, torch.nn.Linear)]
    assert [tuple(one.weight.shape) for one in weights] == [*[(7, 5), (7, 7)][:layers], (3, 7 if layers else 5)]
    deviation = vectors.std(0, unbiased=False)
    hidden = (vectors - vectors.mean(0)) / deviation.where(deviation > 0, torch.inf) * 3 / 5**0.5
    for layer in weights[:-1]:
        hidden = torch.relu(hidden @ layer.weight.T + layer.bias)
    torch.testing.assert_close(head(vectors), hidden @ weights[-1].weight.T + weights[-1].bias)


def test_the_size_of_vectors_changes_nothing():
    vectors = torch.randn(20, 5)
    logits = []
    for factor in (1, 1000):
        torch.manual_seed(0)
        head = Head(HeadConfig(), inputs=5, labels=3).eval()
        head.standardise(vectors * factor)
        logits.append(head(vectors * factor))
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)


@given(st.floats(0.2, 5), st.integers(0, 5))
def test_the_temperature_is_the_best_of_all(factor, seed):
    """Labels are drawn from the softmax of the logits over a known temperature."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(400, 5, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    found = best_temperature(torch.nn.Identity(), logits * factor, labels)

    def loss(temperature):
        return torch.nn.functional.cross_entropy(logits.double() * factor / temperature, labels).item()

    assert all(loss(found) <= loss(found * math.exp(step)) + 1e-9 for step in (-0.3, -0.03, 0.03, 0.3))
    assert 0.7 < found / factor < 1.4
