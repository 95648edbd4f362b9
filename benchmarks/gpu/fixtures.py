"""Shared by the parts: synthetic examples and models, and the check of a number against a limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.search.texts import make_candidates, make_contexts
from polyencoder.config import Architecture, RankerConfig, TextConfig
from polyencoder.data.example import Example
from polyencoder.modeling.build import build_model
from polyencoder.modeling.encoder_config import build_scratch_config
from polyencoder.ranker import Ranker
from polyencoder.text import TextEncoder, train_tokenizer

BERT_BASE = {"dim": 768, "n_layers": 12, "n_heads": 12, "ffn_dim": 3072}
TINY = {"dim": 32, "n_layers": 2, "n_heads": 2, "ffn_dim": 64}


class Part(Protocol):
    """Runs on a device, in miniature if `quick`; gives `rows`, `summary` and `checks`; each may be missing."""

    def __call__(self, *, device: str, quick: bool) -> dict[str, Any]: ...


class Unavailable(Exception):
    """This machine lacks what a part needs; the message says what."""


def make_examples(count: int, *, turns: int = 3) -> list[Example]:
    """Synthetic examples of `turns` turns, which can be learned: half of a response's words are the context's."""
    contexts, replies = make_contexts(count), make_candidates(count)
    made = []
    for context, reply in zip(contexts, replies, strict=True):
        words, last = reply.split(), context[-1].split()
        mixed = [*last[: len(last) // 2], *words[: len(words) // 2]]
        made.append(Example(context[-turns:], " ".join(mixed)))
    return made


def make_ranker(
    architecture: Architecture, data: Sequence[Example], *, device: str, size: dict[str, int], **config: Any
) -> Ranker:
    """A ranker with random weights, the same for the same seed, and a vocabulary trained on the examples."""
    texts = [text for example in data for text in (*example.turns, example.label)]
    tokenizer = train_tokenizer(texts, vocabulary_size=2_000)
    backbone = build_scratch_config(
        vocabulary_size=tokenizer.get_vocab_size(),
        dim=size["dim"],
        n_layers=size["n_layers"],
        n_heads=size["n_heads"],
        ffn_dim=size["ffn_dim"],
        n_positions=512,
        dropout=config.pop("dropout", 0.0),
    )
    text = TextConfig(text_truncate=config.pop("text_truncate", 360), label_truncate=72)
    torch.manual_seed(0)
    model = build_model(RankerConfig(architecture=architecture, backbone=backbone, text=text, **config))
    return Ranker(model, TextEncoder(tokenizer, text), device=device)


def compute_relative_difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest number that is expected."""
    actual, expected = actual.detach().float().cpu(), expected.detach().float().cpu()
    return float((actual - expected).abs().max() / expected.abs().max().clamp_min(1e-12))


def check(name: str, value: float, *, limit: float) -> dict[str, Any]:
    """A row that says whether a number is at most as large as it may be."""
    return {"check": name, "value": value, "limit": limit, "ok": bool(value <= limit)}
