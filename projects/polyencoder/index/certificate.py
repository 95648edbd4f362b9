"""Candidate generation, exact rescoring, proof: poly-encoder search on nearest-neighbour engines.

Engines compute inner products of single vectors. A poly-encoder's score is another function: sum_i p_i l_i over the
logits of all codes, with weights that depend on the candidate. (MaxSim, which multi-vector engines offer, ranks
differently.) But a score is a weighted mean of its logits, so it never exceeds the largest: the best candidates are
near some code. So each code's nearest candidates form a shortlist, which is rescored exactly.

A candidate outside all shortlists has, with every code, an inner product of at most the last in that code's list, and
its score is below the largest of these. Once the k-th best score of the union is above, the result is *certified*:
nothing better exists. This is a proof only where a list truly holds a code's nearest. A graph (HNSW), some lists of
many (IVF) or compressed vectors (PQ) have recall instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from polyencoder.index.filters import Exactness
from polyencoder.scoring import ContextEncoding, TopK, search


class Shortlist(NamedTuple):
    """The candidates proposed for one context."""

    rows: Tensor
    """int64 [n], their distinct numbers, in the order for equal scores."""
    vectors: Tensor
    """[n, dim]"""
    bound: float
    """No other candidate has a score above, unless better ones are in the list; inf if unknown."""


class ShortlistSearch(Protocol):
    """A search for the k best candidates of some contexts; it numbers the candidates."""

    contexts: ContextEncoding
    k: int
    """At least 1, and at most the number of candidates."""
    attention: str
    """As in `polyencoder.scoring.score`."""
    exact_lists: bool
    """Whether lists are exact, so that they can prove a result."""
    most_named: int
    """The maximum number of candidates that the lists of a request name."""

    def propose(self, contexts: ContextEncoding, places: Sequence[int], length: int) -> Iterable[Shortlist]:
        """The union of the codes' lists of this length, for each of the `contexts` at these `places`."""
        ...

    def scan(self, contexts: ContextEncoding) -> TopK:
        """The k best of all candidates for each context."""
        ...


class ShortlistResult(NamedTuple):
    """The result of one context, best first."""

    scores: Tensor
    """[k], fp32 or float64; fewer only if a scan finds fewer."""
    rows: Tensor
    """int64 [k]."""
    found: Exactness


def search_shortlists(
    engine: ShortlistSearch,
    *,
    exactness: Exactness,
    length: int,
    longest: int,
    floors: Sequence[float] | None = None,
) -> list[ShortlistResult]:
    """The k best of each context's shortlist; lists are doubled until the result is good enough.

    A result is good enough with k candidates, which for "certified" must be proven the best: the k-th score reaches the
    bound. A context whose result is not good enough at the `longest` lists is scanned; so are all contexts if no list
    can give the result: for "exact", for "certified" without exact lists, and under multi-head attention, whose scores
    are not bounded by inner products.

    Args:
        exactness: the least exactness of every result.
        length: of the first lists.
        longest: of the last ones.
        floors: [contexts], scores that k candidates elsewhere reach, so that what is below needs no proof.
    """
    contexts, k = engine.contexts, engine.k
    device = contexts.vectors.device
    answers: dict[int, ShortlistResult] = {}
    waiting = list(range(contexts.batch_size))
    hopeless = (
        exactness == "exact" or (exactness == "certified" and not engine.exact_lists) or contexts.keys is not None
    )
    while waiting and not hopeless and length <= longest:
        at_once = max(1, engine.most_named // (contexts.n_codes * length))
        for first in range(0, len(waiting), at_once):
            some = waiting[first : first + at_once]
            part = contexts.select(torch.tensor(some, device=device))
            for i, (rows, vectors, bound) in zip(some, engine.propose(part, some, length), strict=True):
                if len(rows) < k:
                    continue
                best = search(contexts.select(i), vectors.to(device), k=k, attention=engine.attention)
                floor = -math.inf if floors is None else floors[i]
                proven = max(floor, best.scores[0, -1].item()) >= bound
                if proven or exactness == "approximate":
                    found: Exactness = "certified" if proven else "approximate"
                    answers[i] = ShortlistResult(best.scores[0], rows.to(device)[best.indices[0]], found)
        waiting = [i for i in waiting if i not in answers]
        length *= 2
    if waiting:
        scanned = engine.scan(contexts.select(torch.tensor(waiting, device=device)))
        answers |= {
            i: ShortlistResult(scores, rows, "exact") for i, scores, rows in zip(waiting, *scanned, strict=True)
        }
    return [answers[i] for i in range(contexts.batch_size)]
