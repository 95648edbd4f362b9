"""Shared by the parts: synthetic examples and models, and the check of a number against a limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.search import systems
from benchmarks.search.texts import make_candidates, make_contexts
from polyencoder.config import Architecture
from polyencoder.data.example import Example
from polyencoder.ranker import Ranker

TINY = {"layers": 2, "dim": 32, "heads": 2}


class Unavailable(Exception):
    """This machine lacks what a part needs; the message says what."""


def make_examples(count: int, *, turns: int = 3) -> list[Example]:
    """Synthetic examples of `turns` turns, which can be learned: half of a response's words are the context's."""
    contexts, replies = make_contexts(count), make_candidates(count)
    examples = []
    for context, reply in zip(contexts, replies, strict=True):
        words, last = reply.split(), context[-1].split()
        mixed = [*last[: len(last) // 2], *words[: len(words) // 2]]
        examples.append(Example(context[-turns:], " ".join(mixed)))
    return examples


def make_ranker(architecture: Architecture, data: Sequence[Example], *, size: dict[str, int], **config: Any) -> Ranker:
    """A ranker with random weights, the same for the same seed, and a vocabulary trained on the examples."""
    texts = [text for example in data for text in (*example.turns, example.label)]
    torch.manual_seed(0)
    return systems.make_ranker(texts, size, architecture=architecture, vocabulary_size=2_000, **config)


def check(name: str, value: float, *, limit: float) -> dict[str, Any]:
    """A row that says whether a number is at most as large as it may be."""
    return {"check": name, "value": value, "limit": limit, "ok": bool(value <= limit)}


def check_equal(name: str, actual: Tensor, expected: Tensor, *, limit: float) -> dict[str, Any]:
    """A check of the largest difference, as a share of the largest number that is expected."""
    actual, expected = actual.detach().float().cpu(), expected.detach().float().cpu()
    return check(name, float((actual - expected).abs().max() / expected.abs().max().clamp_min(1e-12)), limit=limit)
