"""Labelled texts whose label is in each of their words."""

from __future__ import annotations

from itertools import islice, product

import pytest
import torch

from polyencoder.intents import Labelled

WORDS = {"pets": ["dogs", "cat", "pets"], "ski": ["ski", "mountains", "brother"], "work": ["teach", "math", "school"]}


def made() -> list[Labelled]:
    """45 texts of three labels, each of four words."""
    return [
        Labelled(" ".join(words), label, f"{label} {number}")
        for label, three in WORDS.items()
        for number, words in enumerate(islice(product(three, repeat=4), 0, 75, 5))
    ]


@pytest.fixture(scope="session")
def labelled() -> list[Labelled]:
    return made()


@pytest.fixture
def clouds():
    """Vectors around four points, and which point each is around: 80 to learn from, 40 held out."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 4
    vectors = 3 * torch.nn.functional.one_hot(labels, 6).float() + torch.randn(120, 6, generator=generator)
    return vectors[:80], labels[:80], vectors[80:], labels[80:]
