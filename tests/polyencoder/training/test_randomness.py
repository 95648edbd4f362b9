"""All generators that training draws from, together."""

from __future__ import annotations

import random

import numpy as np
import torch

from polyencoder.training.randomness import get_random_state, restore_random_state, seed_everything


def drawn(generator: random.Random | None = None) -> list[float]:
    numbers = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]  # noqa: NPY002
    return [*numbers, float(torch.rand(())), 0.0 if generator is None else generator.random()]


def test_a_seed_repeats_what_is_drawn():
    seed_everything(3)
    first = drawn()
    assert drawn() != first
    seed_everything(3)
    assert drawn() == first
    seed_everything(2**32 + 3)  # more than NumPy takes
    assert drawn() != first


def test_a_state_that_is_put_back_repeats_it():
    generator = random.Random(5)
    drawn(generator)  # in the midst of pairs of Gaussian numbers
    state = get_random_state(generator)
    expected = drawn(generator)
    drawn(generator)
    restore_random_state(state, generator)
    assert drawn(generator) == expected


def test_a_state_without_a_generator_of_ones_own():
    state = get_random_state()
    assert state["agent"] is None
    generator = random.Random(5)
    before = generator.getstate()
    restore_random_state(state)
    assert generator.getstate() == before
