"""Scores of vectors in numpy: the formulas of `polyencoder.scoring.exact`."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np

from polyencoder.checks import check_choice
from polyencoder.config import Attention
from polyencoder.errors import InputError
from polyencoder.search.contexts import Array, Contexts

_LOGITS = 1 << 21  # of contexts that are scored at once; a few arrays of this size are in memory


def score(contexts: Contexts, candidates: Array, *, attention: str = "basic") -> Array:
    """Scores candidates [n, dim] for contexts: [contexts, n], float32, or float64 if a side is. See `get_scale`."""
    scale = get_scale(contexts, attention)
    batch_size = max(1, _LOGITS // max(1, contexts.n_codes * len(candidates)))
    if batch_size >= len(contexts):
        return _score_batch(contexts, candidates, scale=scale)
    parts = [slice(i, i + batch_size) for i in range(0, len(contexts), batch_size)]
    return np.concatenate([_score_batch(contexts.select(part), candidates, scale=scale) for part in parts])


def check_scores(scores: Array) -> Array:
    """The scores. InputError for a nan."""
    if np.isnan(scores).any():
        raise InputError("the model's scores are nan: its weights are damaged, or overflow")
    return scores


def attend(logits: Array, mask: Array | None, *, scale: float) -> Array:
    """sum_i p_i l_i over the last dimension, [..., codes] -> [...], with p the softmax of `scale` times the logits.

    A masked logit (False) has weight 0; if all are masked, weights are uniform.
    """
    if logits.shape[-1] == 1:
        return logits[..., 0]
    weights = compute_attention_weights(logits, mask, scale=scale)
    total: Array = (weights * logits).sum(axis=-1)
    return total


def compute_attention_weights(logits: Array, mask: Array | None, *, scale: float = 1.0) -> Array:
    """The softmax of `scale` times the logits over the last dimension."""
    weighing = logits if scale == 1 else logits * logits.dtype.type(scale)
    if mask is not None:  # not -inf: if all codes are masked, weights are uniform, not nan
        weighing = np.where(mask, weighing, np.finfo(weighing.dtype).min)
    weights = np.exp(weighing - weighing.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def get_scale(contexts: Any, attention: str) -> float:
    """The logits' factor in the softmax, also of torch's contexts. ConfigError for no type, InputError for no keys."""
    check_choice("attention", attention, get_args(Attention))
    if contexts.batch_size and (attention == "multihead") != (contexts.keys is not None):
        has = "no keys" if contexts.keys is None else "keys"
        raise InputError(
            f"attention is {attention!r}, but the contexts have {has}; only `multihead` contexts have keys"
        )
    return 1 / math.sqrt(contexts.dim) if attention == "sqrt" else 1.0


def _score_batch(contexts: Contexts, candidates: Array, *, scale: float) -> Array:
    vectors, mask, keys = contexts.vectors, contexts.mask, contexts.keys
    if mask is not None:
        vectors = np.where(mask[..., None], vectors, 0)
    logits = _multiply(vectors, candidates)
    mask = None if mask is None else mask[:, None]
    if keys is None:
        return attend(logits, mask, scale=scale)
    weighing = _multiply(keys.vectors, candidates) + keys.biases[:, None]
    if mask is not None:
        weighing = np.where(mask, weighing, np.finfo(weighing.dtype).min)
    by_head = (*logits.shape[:2], -1, keys.heads)
    logits, weighing = (array.reshape(by_head).swapaxes(2, 3) for array in (logits, weighing))
    total: Array = (compute_attention_weights(weighing, None) * logits).sum(axis=(2, 3))
    return total


def _multiply(vectors: Array, candidates: Array) -> Array:
    """Inner products: [contexts, codes, dim] with [n, dim] -> [contexts, n, codes]."""
    flat = candidates @ vectors.reshape(-1, vectors.shape[-1]).T
    return np.ascontiguousarray(flat.reshape(len(candidates), *vectors.shape[:2]).swapaxes(0, 1))
