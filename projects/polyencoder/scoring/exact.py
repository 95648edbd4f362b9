"""The poly-encoder's score, computed from logits alone.

Section 4.4 of the paper attends over the codes y_1..y_m with the candidate c as the query, and multiplies the result
with c. With l_i = c . y_i and p = softmax(l) that is

    score = (sum_i p_i y_i) . c = sum_i p_i l_i

so the attended vectors [batch, candidates, dim] are never needed: one matrix product gives the logits, and the rest
works on `codes` numbers per pair. The logits also bound the score, with W Lambert's function:

    max_i l_i - W((m - 1) / e) <= score <= max_i l_i
"""

from __future__ import annotations

import torch
from torch import Tensor

from polyencoder.errors import InputError
from polyencoder.scoring.context import ContextEncoding, attend_by_heads
from polyencoder.search.scores import get_scale

# 32 MB on a CPU: fits the last-level cache, and needs few steps. Threads synchronise several times in each step: on a
# busy machine a quarter of this took almost twice as long.
_CPU_ELEMENTS = 2**23
# 256 MB on an accelerator: hides the kernel launches.
_ACCELERATOR_ELEMENTS = 2**26

# With fewer candidates per matrix product, loading the codes costs as much as multiplying them.
_CANDIDATES_WORTH_A_PRODUCT = 512

# Temporaries of each pair of candidate and code: logit, scaled logit, weight, product.
_FLOATS_PER_LOGIT = 4


def score(context: ContextEncoding, candidates: Tensor, *, attention: str = "basic") -> Tensor:
    """Scores all candidates for all contexts: exact, and differentiable with respect to both.

    Without gradients they are scored in chunks, with them all at once.

    Args:
        context: the encoded contexts. A masked code has weight 0, whatever its vector; a context without unmasked
            codes scores 0 with every candidate.
        candidates: [n, dim], shared by the contexts, or [batch, n, dim]. The product runs in the promoted dtype of
            both sides (or autocast's), the softmax in at least fp32.
        attention: "basic", the paper's; "sqrt" divides the logits by sqrt(dim) inside the softmax only; "multihead"
            attends with the contexts' keys (see `Keys`).

    Returns:
        [batch, n] on the contexts' device, fp32 (float64 if a side is float64).

    Raises:
        ConfigError: the attention type is unknown.
        InputError: if shapes, dtypes or the attention type do not fit.
    """
    scale = get_scale(context, attention)
    check_candidates(context, candidates)
    context = context.to(dtype=torch.promote_types(context.vectors.dtype, candidates.dtype))
    if torch.is_grad_enabled() and (context.vectors.requires_grad or candidates.requires_grad):
        return score_chunk(context, candidates, scale=scale)

    n = candidates.size(-2)
    budget = _CPU_ELEMENTS if context.vectors.device.type == "cpu" else _ACCELERATOR_ELEMENTS
    contexts_at_once, candidates_at_once = compute_chunk_sizes(context, candidates, budget=budget)
    scores = context.vectors.new_empty(context.batch_size, n, dtype=promote_dtype(context.vectors.dtype))
    for i in range(0, context.batch_size, contexts_at_once):
        rows = slice(i, i + contexts_at_once)
        part = context.select(rows)
        for j in range(0, n, candidates_at_once):
            columns = slice(j, j + candidates_at_once)
            chunk = candidates[columns] if candidates.dim() == 2 else candidates[rows, columns]
            scores[rows, columns] = score_chunk(part, chunk, scale=scale)
    return scores


def score_chunk(context: ContextEncoding, candidates: Tensor, *, scale: float) -> Tensor:
    """Scores [batch, n] of a chunk of candidates; training and evaluation call it.

    `candidates`, [n, dim] or [batch, n, dim], are converted to the contexts' dtype and device; `scale` multiplies the
    logits inside the softmax. The result is fp32, or float64 for float64 vectors.
    """
    mask, keys = context.mask, context.keys
    candidates = candidates.to(context.vectors)
    logits = _compute_logits(context, candidates)
    if candidates.dim() == 3 and mask is not None:
        mask = mask.unsqueeze(1)
    if keys is None:
        scores = _attend(logits, mask, scale=scale)
    else:
        biases = keys.biases.to(logits.dtype)
        weighing = _multiply(keys.vectors, candidates)
        weighing = weighing + (biases.unsqueeze(1) if candidates.dim() == 3 else biases)
        scores = attend_by_heads(logits, _mask_logits(weighing, mask), heads=keys.heads)
    return scores if candidates.dim() == 3 else scores.t().contiguous()


@torch.no_grad()
def compute_attention_weights(context: ContextEncoding, candidates: Tensor, *, attention: str = "basic") -> Tensor:
    """Attention weights of each candidate over the context vectors, averaged over heads: [batch, n, codes].

    A candidate's weights sum to 1. `candidates` are [n, dim], shared by the contexts; errors as in `score`.
    """
    scale = get_scale(context, attention)
    check_candidates(context, candidates)
    expanded = candidates.to(context.vectors).expand(context.batch_size, *candidates.shape[-2:])
    mask = None if context.mask is None else context.mask.unsqueeze(1)
    if context.keys is None:
        return torch.softmax(_mask_logits(_compute_logits(context, expanded) * scale, mask), dim=-1)
    logits = _multiply(context.keys.vectors, expanded) + context.keys.biases.unsqueeze(1)
    return _mask_logits(logits, mask).unflatten(-1, (-1, context.keys.heads)).softmax(dim=-2).mean(dim=-1)


def _compute_logits(context: ContextEncoding, candidates: Tensor) -> Tensor:
    vectors = context.vectors
    if context.mask is not None:
        # Logits of masked codes are 0, so their terms (weight 0) are 0 in the gradient, too, even for inf or nan.
        vectors = vectors.masked_fill(~context.mask.unsqueeze(-1), 0)
    return _multiply(vectors, candidates)


def _multiply(vectors: Tensor, candidates: Tensor) -> Tensor:
    """Inner products in at least fp32: [batch, n, codes] for own candidates, [n, batch, codes] for shared ones.

    Candidates first: one product for the whole batch, and the softmax runs over contiguous memory.
    """
    dtype = promote_dtype(vectors.dtype)
    if candidates.dim() == 3:
        return (candidates @ vectors.transpose(1, 2)).to(dtype)
    return (candidates @ vectors.flatten(0, 1).t()).to(dtype).unflatten(1, vectors.shape[:2])


def _attend(logits: Tensor, mask: Tensor | None, *, scale: float) -> Tensor:
    """sum_i p_i l_i over the last dimension, [..., codes] -> [...]; `mask` (False: padding) broadcasts to `logits`."""
    if logits.size(-1) == 1:
        return logits.squeeze(-1)  # the weight of one code is 1
    attention = _mask_logits(logits if scale == 1 else logits * scale, mask)
    return (torch.softmax(attention, dim=-1) * logits).sum(dim=-1)


def _mask_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Masks with the lowest finite number, not -inf: if all codes are masked, weights are uniform, not nan."""
    return logits if mask is None else logits.masked_fill(~mask, torch.finfo(logits.dtype).min)


def check_candidates(context: ContextEncoding, candidates: Tensor) -> None:
    """Raises InputError unless `candidates` are [n, dim] or [batch, n, dim] for these contexts."""
    fits = candidates.dim() == 2 or (candidates.dim() == 3 and candidates.size(0) == context.batch_size)
    if not fits or candidates.size(-1) != context.dim or not candidates.is_floating_point():
        raise InputError(
            f"candidates must be floating point [n, {context.dim}] or [{context.batch_size}, n, {context.dim}] for "
            f"context vectors {list(context.vectors.shape)}, got {candidates.dtype} {list(candidates.shape)}"
        )


def promote_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of logits and scores for vectors of this dtype."""
    return torch.promote_types(dtype, torch.float32)


def replace_nan(scores: Tensor) -> Tensor:
    """Replaces nan by -inf, so that scores can be sorted."""
    return scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def select_best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest scores of each row [..., n], best first, and their columns: both [..., min(k, n)].

    Equal scores are ordered by column; `topk` orders them arbitrarily. A nan counts as -inf, as in searches.
    """
    scores = replace_nan(scores)
    k = min(k, scores.size(-1))
    values, columns = scores.topk(k)
    tied_within = (values[..., 1:] == values[..., :-1]).any()
    if k and (tied_within or ((scores >= values[..., -1:]).sum(-1) > k).any()):
        ordered, columns = scores.sort(dim=-1, descending=True, stable=True)
        return ordered[..., :k], columns[..., :k]
    return values, columns


def compute_chunk_sizes(context: ContextEncoding, candidates: Tensor, *, budget: int) -> tuple[int, int]:
    """The number of contexts and candidates to score in one step, both at least 1.

    A step has at most `budget` floats for temporaries, unless a single context and candidate exceed it, and copies its
    part of the candidates if their dtype or device is not the contexts'.
    """
    n = max(candidates.size(-2), 1)
    copied = candidates.dtype != context.vectors.dtype or candidates.device != context.vectors.device
    for_copy = context.dim if copied else 0
    logits = context.n_codes * (1 if context.keys is None else 2)
    if candidates.dim() == 3:  # each context has its own candidates
        for_context, for_candidate = _FLOATS_PER_LOGIT * logits + for_copy, 0
    else:
        for_context, for_candidate = _FLOATS_PER_LOGIT * logits, for_copy

    contexts = (budget // min(n, _CANDIDATES_WORTH_A_PRODUCT) - for_candidate) // for_context
    contexts = max(1, min(contexts, context.batch_size))
    return contexts, max(1, min(budget // (contexts * for_context + for_candidate), n))
