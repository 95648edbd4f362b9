"""Examples of ConvAI2, or of any file of pairs, as tokens on a device, and the batches of training and evaluation."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.search.texts import convai2
from benchmarks.uni.contenders import Contexts
from benchmarks.uni.tower import Packed
from polyencoder.data.example import Example
from polyencoder.data.pairs import read_pairs
from polyencoder.data.readers import format_of
from polyencoder.text import TextEncoder, TokenBatch
from polyencoder.text.batches import padded


def read_examples(path: Path) -> list[Example]:
    """The examples of a file: ConvAI2's text format (`.txt`), or whatever `polyencoder train` reads."""
    is_convai2 = format_of(path) == "txt"
    found = [Example(*one) for one in convai2(path)] if is_convai2 else list(read_pairs(path))
    if not found:
        raise SystemExit(f"{path}: has no examples")
    return found


def drawn(examples: Sequence[Example], number: int | None) -> list[Example]:
    """A random sample, always the same; None for all."""
    return list(examples) if number is None else random.Random(0).sample(examples, min(number, len(examples)))


class Data:
    """Tokens of examples: contexts on the device, candidates each different text once.

    Attributes:
        labels: the candidate that is each example's label.
        own: the candidates of each example, each once; empty if it has none.
    """

    def __init__(self, text: TextEncoder, examples: Sequence[Example], *, device: torch.device) -> None:
        ids = [text.context_ids(one.turns) for one in examples]
        table, mask = padded(ids, pad_id=text.pad_id)
        self.device, self.lengths = device, mask.sum(1)
        self._ids, self._mask = torch.from_numpy(table).to(device), torch.from_numpy(mask).to(device)
        texts = list(dict.fromkeys(part for one in examples for part in (one.label, *one.choices)))
        place = {part: number for number, part in enumerate(texts)}
        self.candidates = text.candidate_ids(texts)
        self.labels = np.array([place[one.label] for one in examples])
        self.own = [list(dict.fromkeys(place[part] for part in one.choices)) for one in examples]

    def __len__(self) -> int:
        return len(self.labels)

    def contexts(self, rows: Sequence[int]) -> Contexts:
        lengths = self.lengths[list(rows)].tolist()
        here, width = torch.tensor(rows, device=self.device), max(lengths)
        return Contexts(TokenBatch(self._ids[here, :width], self._mask[here, :width]), lengths)

    def packed(self, candidates: Sequence[int], rows: Sequence[int] | None = None) -> Packed:
        return Packed.of([self.candidates[number] for number in candidates], rows, device=self.device)

    def batches(self, size: int, *, pool: int, seed: int = 0) -> Iterator[tuple[Contexts, Packed, Tensor]]:
        """Endless batches: `size` contexts, the different labels of `pool` examples, and the place of each label."""
        rng = np.random.default_rng(seed)
        size, pool = min(size, len(self)), min(max(size, pool), len(self))
        for _ in count():
            order = rng.permutation(len(self))
            for start in range(0, len(self) - size + 1, size):
                rows = order[start : start + size]
                others = np.take(order, range(start + size, start + pool), mode="wrap")
                texts, place = np.unique(self.labels[np.concatenate([rows, others])], return_inverse=True)
                labels = torch.from_numpy(place[:size]).to(self.device)
                yield self.contexts(rows.tolist()), self.packed(texts.tolist()), labels

    def evaluated(self, size: int) -> Iterator[tuple[list[int], Contexts, Packed, Tensor]]:
        """Every example once, with its own candidates: its numbers, contexts, a row of candidates for each, and their
        places [batch, most candidates], -1 at padding."""
        order = np.argsort(self.lengths, kind="stable").tolist()
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            counts = np.array([len(self.own[row]) for row in rows])
            column = np.arange(counts.max())
            index = np.where(column < counts[:, None], (counts.cumsum() - counts)[:, None] + column, -1)
            packed = self.packed(
                [one for row in rows for one in self.own[row]], np.repeat(range(len(rows)), counts).tolist()
            )
            yield rows, self.contexts(rows), packed, torch.from_numpy(index).to(self.device)
