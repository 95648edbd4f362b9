"""How far a poly-encoder's score may lie below the largest of its logits.

With the logits l_1..l_m of a candidate and p = softmax(l), the score sum_i p_i l_i is a mean of the logits, so never
above the largest. It lies lowest when all other logits are equal and x below the largest: then by
x (m - 1) / (e^x + m - 1), which is greatest at x = 1 + W((m - 1) / e) and is W((m - 1) / e) there, with W Lambert's
function. So

    max_i l_i - W((m - 1) / e) <= score <= max_i l_i

With "sqrt" attention p = softmax(l / s), s = sqrt(dim): score / s is the score of the logits l / s, and the gap
becomes s W((m - 1) / e). The upper bound, on which certificates rest, stays; but the scores lie further below it, so
longer lists are needed until one holds.
"""

from __future__ import annotations

import math

from torch import Tensor

from polyencoder.errors import InputError
from polyencoder.scoring.exact import attention_scale

__all__ = ["lambert_w", "score_bounds", "score_gap"]


def lambert_w(x: float) -> float:
    """The w >= 0 with w e^w = x.

    Raises:
        InputError: if x is negative or not finite.
    """
    if not (math.isfinite(x) and x >= 0):
        raise InputError(f"lambert_w wants a finite number of at least 0, got {x}")
    w = math.log1p(x)  # never below the solution, and w e^w is convex: Newton's steps come down to it
    for _ in range(100):
        step = (w - x * math.exp(-w)) / (1 + w)
        w -= step
        if abs(step) <= 1e-15 * max(1.0, w):
            break
    return w


def score_gap(codes: int, *, attention: str = "basic", dim: int = 1) -> float:
    """The most that a score of `codes` logits can lie below the largest of them; `dim` matters to "sqrt" alone.

    Raises:
        InputError: if `codes` is below 1 or the attention type is unknown.
    """
    if codes < 1:
        raise InputError(f"a context has at least one code, got {codes}")
    if attention == "multihead":
        raise InputError("under multi-head attention the largest logit bounds no score")
    return lambert_w((codes - 1) / math.e) / attention_scale(attention, dim=dim)


def score_bounds(logits: Tensor, *, attention: str = "basic", dim: int = 1) -> tuple[Tensor, Tensor]:
    """What is known of the scores from the largest logit: (lower, upper), [...] for logits [..., codes]."""
    upper = logits.amax(dim=-1)
    return upper - score_gap(logits.size(-1), attention=attention, dim=dim), upper
