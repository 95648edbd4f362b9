"""Writes a million vectors to disk: real ones and noisy copies of them, or random ones without a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from polyencoder.index.vectors import VectorDtype, Vectors, quantize, write_vectors
from polyencoder.scoring import ContextEncoding
from polyencoder.search.contexts import Array, to_array

SHARD = 1 << 16
LENGTH = 20**0.5  # of all drawn vectors: logits up to 20, as of models that are trained with cosines times 20
PERTURBED = 0.35  # the length of the noise, as a share, when a real vector is copied
DRAWN = (
    "Drawn: topics, one for each 100 rows, and 0.8 noise, both with variances that fall as 1 / (1 + i / 16) over the "
    "dimensions i. A context's codes: 0.7 one row, 0.5 another row for each code, 0.4 noise."
)
GROWN = f"Real vectors, and copies of them with noise of {PERTURBED} times their length, of the same length as they."


def store(folder: Path, shards: Iterator[Tensor | Array], *, dtype: VectorDtype = "float32") -> Vectors:
    """Write vectors in the format of an index folder, and open them."""
    folder.mkdir()
    row, dim, names = 0, 0, []
    for shard in shards:
        names.append(write_vectors(folder, row, *quantize(to_array(shard), dtype)).name)
        row, dim = row + len(shard), int(shard.shape[1])
    return Vectors.open(folder, names, dim=dim, dtype=dtype)


def compute_size_mb(vectors: Vectors) -> float:
    """The size of the files in MB (2**20 bytes)."""
    return sum(path.stat().st_size for path in vectors.folder.glob("vectors-*")) / 2**20


def grow(real: Tensor, rows: int) -> Iterator[Tensor]:
    """The real vectors [n, dim], then copies of random ones of them, as `GROWN` says, in shards."""
    for first in range(0, rows, SHARD):
        n = min(SHARD, rows - first)
        exact = real[first : first + n]
        copied = real[torch.randint(len(real), (n - len(exact),))]
        length = copied.norm(dim=1, keepdim=True)
        noisy = copied + PERTURBED * length * torch.nn.functional.normalize(torch.randn_like(copied), dim=1)
        yield torch.cat([exact, noisy * length / noisy.norm(dim=1, keepdim=True)])


def draw(rows: int, dim: int) -> Iterator[Tensor]:
    """Vectors as `DRAWN` says, in shards."""
    topics = _draw_noise(max(1, rows // 100), dim)
    for first in range(0, rows, SHARD):
        n = min(SHARD, rows - first)
        yield _normalize(topics[torch.randint(len(topics), (n,))] + 0.8 * _draw_noise(n, dim))


def draw_contexts(vectors: Vectors, contexts: int, codes: int) -> ContextEncoding:
    """Contexts that are near to some of the vectors, as `DRAWN` says."""

    def sample(n: int) -> Tensor:
        return torch.from_numpy(vectors.take(torch.randint(len(vectors), (n,)).numpy())) / LENGTH

    answer = sample(contexts).unsqueeze(1)
    other = sample(contexts * codes).unflatten(0, (contexts, codes))
    return ContextEncoding(_normalize(0.7 * answer + 0.5 * other + 0.4 * _draw_noise(contexts, codes, vectors.dim)))


def _normalize(vectors: Tensor) -> Tensor:
    return LENGTH * torch.nn.functional.normalize(vectors, dim=-1)


def _draw_noise(*size: int) -> Tensor:
    """Normal, of mean length 1, with few large directions, as real vectors have."""
    deviation = (1 + torch.arange(size[-1]) / 16).rsqrt()
    return torch.randn(*size) * deviation / deviation.norm()
