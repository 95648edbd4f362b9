"""Encodes many texts: batches sorted by length, vectors in the order of the texts."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from polyencoder.errors import InputError
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.cpu.heap import return_free_memory
from polyencoder.modeling.encoder_config import DROPOUT
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring.tokens import TokenVectors
from polyencoder.storage.digests import fingerprint, weight_parts
from polyencoder.text import TextEncoder, TokenBatch, token_batches

_log = logging.getLogger(__name__)

PART = 1 << 12  # texts tokenized at a time: a tokenizer's output for a text is a hundred times the size of its ids
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
    """Encodes candidates: [candidates, dim] on the model's device.

    Batches of at most `batch_size` texts and `BATCH_TOKENS` tokens, from long to short, have almost no padding.
    `remember` caches the candidates' tokens; `progress` is called with the size of each finished batch.
    """
    ids = candidate_ids(text, candidates, remember=remember)
    found = _encoded(model.encode_candidates, ids, text, model, batch_size=batch_size, progress=progress)
    return torch.empty(0, model.dim, device=next(model.parameters()).device) if found is None else found


def candidate_ids(text: TextEncoder, candidates: Sequence[str], *, remember: bool) -> list[array[int]]:
    """The tokens of many candidates, in little memory; a warning says once how many are cut."""
    parts = (candidates[i : i + PART] for i in range(0, len(candidates), PART))
    rows = [array("i", row) for part in parts for row in text.candidate_ids(part, remember=remember)]
    if not text.warned_of_cut and (message := text.cut_message(candidates, rows)):
        text.warned_of_cut = True
        _log.warning(message)
    return rows


def distinct_candidates(text: TextEncoder, candidates: Iterable[str]) -> tuple[list[str], dict[str, int]]:
    """The first of all candidates with the same tokens, and each candidate's place among these.

    Encoded apart, equal tokens would have vectors and scores that differ in the last bits, by their places in a batch.
    """
    texts = list(dict.fromkeys(candidates))
    rows: dict[bytes, int] = {}
    ids = candidate_ids(text, texts, remember=True)
    place = {one: rows.setdefault(row.tobytes(), len(rows)) for one, row in zip(texts, ids, strict=True)}
    first = {row: one for one, row in reversed(place.items())}
    return [first[row] for row in range(len(rows))], place


@torch.no_grad()
def read_candidates(
    model: RankerModel, text: TextEncoder, ids: Sequence[Sequence[int]], *, max_tokens: int | None = None
) -> Iterator[tuple[list[int], list[TokenVectors]]]:
    """What `RankerModel.rescore` compares of candidates, with their places, batched as in `encode_candidates`.

    `max_tokens` at once, padding included; None for `BATCH_TOKENS`.
    """
    for batch, tokens in _batches(ids, text, model, batch_size=256, max_tokens=max_tokens):
        yield batch, model.read_candidates(tokens)


@torch.no_grad()
def encode_contexts(model: RankerModel, text: TextEncoder, contexts: Sequence[Sequence[str] | str]) -> ContextEncoding:
    """Encodes contexts, batched as in `encode_candidates`: [contexts, codes, dim] with their mask.

    Raises:
        InputError: no contexts.
    """
    if not contexts:
        raise InputError("no context to encode: the list of contexts is empty")
    ids = [array("i", text.context_ids(turns)) for turns in contexts]
    out: ContextEncoding | None = None
    for batch, tokens in _batches(ids, text, model, batch_size=256):
        part = model.encode_context(tokens)
        if out is None:
            out = part.empty(len(ids))
        elif part.n_codes > out.n_codes:  # a shorter context may have more turns
            out = out.padded(part.n_codes)
        out.put(torch.tensor(batch, device=part.vectors.device), part)
    assert out is not None
    return out


@torch.no_grad()
def encode_pooled(
    encode: Callable[[TokenBatch], Tensor],
    model: RankerModel,
    text: TextEncoder,
    contexts: Sequence[Sequence[str] | str],
    *,
    batch_size: int = 256,
    progress: Callable[[int], object] | None = None,
) -> Tensor:
    """Applies `encode` to the tokens of one or more contexts, batched as in `encode_candidates`: [contexts, ...]."""
    ids = [array("i", text.context_ids(turns)) for turns in contexts]
    found = _encoded(encode, ids, text, model, batch_size=batch_size, progress=progress)
    assert found is not None
    return found


def _encoded(
    encode: Callable[[TokenBatch], Tensor],
    ids: Sequence[Sequence[int]],
    text: TextEncoder,
    model: nn.Module,
    *,
    batch_size: int,
    progress: Callable[[int], object] | None,
) -> Tensor | None:
    """Applies `encode` to sequences in batches; results in the order of the sequences, None without any."""
    out: Tensor | None = None
    for batch, tokens in _batches(ids, text, model, batch_size=batch_size):
        vectors = encode(tokens)
        if out is None:
            out = vectors.new_empty(len(ids), *vectors.shape[1:])
        out[torch.tensor(batch, device=vectors.device)] = vectors
        if progress is not None:
            progress(len(batch))
    return out


def _batches(
    ids: Sequence[Sequence[int]], text: TextEncoder, model: nn.Module, *, batch_size: int, max_tokens: int | None = None
) -> Iterator[tuple[list[int], TokenBatch]]:
    """Batches of sequences, from long to short, sized for the model's device: their positions and tokens."""
    device = next(model.parameters()).device
    max_tokens = max_tokens or (CPU_BATCH_TOKENS if device.type == "cpu" else BATCH_TOKENS)
    batches = token_batches([len(row) for row in ids], batch_size=batch_size, max_tokens=max_tokens)
    for number, batch in enumerate(reversed(batches), start=1):
        yield batch, text.pad([ids[i] for i in batch]).to(device)
        if device.type == "cpu" and number % RETURN_EVERY == 0:
            return_free_memory()


def candidate_fingerprint(model: RankerModel, text: TextEncoder) -> str:
    """Digest of everything a candidate's vector depends on: the tower's weights, the reduction, the tokenizer."""
    if model.config.foreign_fingerprint is not None:
        return model.config.foreign_fingerprint
    if model.candidate_fingerprint is not None:  # ONNX graphs store that of the model they were exported from
        return model.candidate_fingerprint
    model = model.merged().as_kept()
    config = model.config
    backbone = {name: value for name, value in config.backbone.items() if name not in DROPOUT}
    convert = None if config.convert is None else replace(config.convert, dropout=0.0)
    pooling = (config.reduction, config.reduction_outputs, (config.prompt_tokens or (0, 0))[1], config.dense)
    lengths = (config.vector_dim, config.normalize, config.output_scaling)
    parts: list[bytes | memoryview | str] = [text.fingerprint(contexts=False)]
    parts.append(repr((backbone, convert, pooling, lengths)))
    for module in model.candidate_modules():
        parts += weight_parts(module.state_dict())
    return fingerprint(parts)
