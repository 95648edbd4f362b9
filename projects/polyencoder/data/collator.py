"""Collates examples into a batch: tokenized contexts, the candidate pool and its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from polyencoder.data.example import Example
from polyencoder.data.pool import CandidatePool, build_batch_pool
from polyencoder.errors import InputError
from polyencoder.text import TextEncoder, TokenBatch

OWN_CANDIDATES = ("inline", "batch-all-cands")
"""Candidate sources that use each example's own candidates."""


@dataclass(frozen=True)
class Batch:
    """The input of one training step or one evaluation.

    contexts: [batch, length]. pool: the candidates, with the column of each label. candidates: the tokens of the pool's
    texts, [texts, length]; None if the step tokenizes them. turns: the contexts as text, for another model, with its
    own tokenizer.
    """

    contexts: TokenBatch
    pool: CandidatePool
    candidates: TokenBatch | None = None
    turns: Sequence[Sequence[str]] | None = None

    def __len__(self) -> int:
        return len(self.contexts)

    def to(self, device: torch.device) -> Batch:
        candidates = None if self.candidates is None else self.candidates.to(device)
        return replace(self, contexts=self.contexts.to(device), pool=self.pool.to(device), candidates=candidates)


class Collator:
    """Tokenizes the examples of a batch and pools their candidates.

    candidates: "batch", the right texts of the batch; "inline", each example's own; "batch-all-cands", those of all
    examples for each example. with_turns: keep the contexts as text too.
    """

    def __init__(self, text: TextEncoder, candidates: str = "batch", *, with_turns: bool = False) -> None:
        self.text, self.candidates, self._with_turns = text, candidates, with_turns

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """Collates examples, on the CPU. InputError: an example lacks the label or candidates that the source needs."""
        needs_candidates = self.candidates in OWN_CANDIDATES
        pool = build_batch_pool(
            self.candidates,
            labels=[example.label for example in examples],
            candidates=[_get_candidates(example) for example in examples] if needs_candidates else None,
            relevance=[example.labels for example in examples],
        )
        return Batch(
            contexts=self.text.batch_contexts([example.turns for example in examples]),
            pool=pool,
            candidates=self.text.batch_candidates(pool.texts),
            turns=[example.turns for example in examples] if self._with_turns else None,
        )


def _get_candidates(example: Example) -> Sequence[str]:
    if example.candidates is None:
        raise InputError(f"the example with the label {example.label!r} has no candidates, and no sampler draws any")
    for text in example.right:
        if text not in example.candidates:
            raise InputError(f"the label {text!r} is not among its {len(example.candidates)} candidates")
    return example.candidates
