"""Encodes many texts with a torch model: batches sorted by length, vectors in the order of the texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from polyencoder.encoding.tokens import tokenize_candidates
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.cpu.heap import return_free_memory
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring.tokens import TokenVectors
from polyencoder.text.batches import cut_into_batches
from polyencoder.text.encoder import TextEncoder
from polyencoder.text.tokens import TokenBatch

BATCH_TOKENS = 1 << 14  # maximum tokens per batch, with padding: one long text does not widen a thousand short ones
CPU_BATCH_TOKENS = 1 << 12  # the same on a CPU, where larger batches take more memory and no less time
RETURN_EVERY = 4  # batches (each of other shapes) after which free memory returns to the system, on a CPU


@torch.no_grad()
def encode_candidates(
    model: RankerModel,
    text: TextEncoder,
    candidates: Sequence[str],
    *,
    batch_size: int = 256,
    remember: bool = True,
    progress: Callable[[int], object] | None = None,
) -> Tensor:
    """Encodes candidates: [candidates, dim] on the model's device, in batches from long to short with little padding.

    `remember` caches the candidates' tokens; `progress` is called with the size of each finished batch.
    """
    ids = tokenize_candidates(text, candidates, remember=remember)
    if not ids:
        return torch.empty(0, model.dim, device=next(model.parameters()).device)
    return encode_ids(model.encode_candidates, ids, text, model, batch_size=batch_size, progress=progress)


@torch.no_grad()
def read_candidates(
    model: RankerModel, text: TextEncoder, ids: Sequence[Sequence[int]], *, max_tokens: int | None = None
) -> Iterator[tuple[list[int], list[TokenVectors]]]:
    """Candidates as `RankerModel.rescore` takes them, with their positions; `max_tokens` of a batch, with padding."""
    for batch, tokens in _iter_batches(ids, text, model, batch_size=256, max_tokens=max_tokens):
        yield batch, model.read_candidates(tokens)


@torch.no_grad()
def encode_token_ids(
    model: RankerModel,
    text: TextEncoder,
    ids: Sequence[Sequence[int]],
    *,
    batch_size: int = 256,
    max_tokens: int | None = None,
) -> ContextEncoding:
    """Encodes contexts, at least one, from their token ids: [contexts, codes, dim] with their mask."""
    encoded: ContextEncoding | None = None
    for batch, tokens in _iter_batches(ids, text, model, batch_size=batch_size, max_tokens=max_tokens):
        part = model.encode_context(tokens)
        if encoded is None:
            encoded = part.build_empty(len(ids))
        elif part.n_codes > encoded.n_codes:  # a shorter context may have more turns
            encoded = encoded.pad_codes(part.n_codes)
        encoded.put(torch.tensor(batch, device=part.vectors.device), part)
    assert encoded is not None
    return encoded


@torch.no_grad()
def encode_ids(
    encode: Callable[[TokenBatch], Tensor],
    ids: Sequence[Sequence[int]],
    text: TextEncoder,
    model: nn.Module,
    *,
    batch_size: int,
    progress: Callable[[int], object] | None = None,
) -> Tensor:
    """Applies `encode` to sequences, at least one, in batches; results in the order of the sequences."""
    encoded: Tensor | None = None
    for batch, tokens in _iter_batches(ids, text, model, batch_size=batch_size):
        vectors = encode(tokens)
        if encoded is None:
            encoded = vectors.new_empty(len(ids), *vectors.shape[1:])
        encoded[torch.tensor(batch, device=vectors.device)] = vectors
        if progress is not None:
            progress(len(batch))
    assert encoded is not None
    return encoded


def _iter_batches(
    ids: Sequence[Sequence[int]], text: TextEncoder, model: nn.Module, *, batch_size: int, max_tokens: int | None = None
) -> Iterator[tuple[list[int], TokenBatch]]:
    """Batches of sequences, from long to short, sized for the model's device: their positions and tokens."""
    device = next(model.parameters()).device
    max_tokens = max_tokens or (CPU_BATCH_TOKENS if device.type == "cpu" else BATCH_TOKENS)
    batches = cut_into_batches([len(row) for row in ids], batch_size=batch_size, max_tokens=max_tokens)
    for number, batch in enumerate(reversed(batches), start=1):
        yield batch, text.pad([ids[position] for position in batch]).to(device)
        if device.type == "cpu" and number % RETURN_EVERY == 0:
            return_free_memory()
