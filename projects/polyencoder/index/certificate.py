"""Search by lists: an engine proposes candidates by inner product, scores decide, and a bound may prove them right.

Engines of nearest neighbours know inner products of single vectors. A poly-encoder's score is not one: sum_i p_i l_i
over the logits of all codes, weighed for each candidate anew. (MaxSim, which engines for many vectors have, adds up or
takes the largest of what each vector finds: another function, which ranks otherwise.) But a score is a mean of its
logits, so never above the largest: the best are near to some code. So the lists only propose.

A candidate outside all lists has, with every code, an inner product of at most the last in that code's list, and its
score is below the largest of these. Once the k-th best score of the union is above, the result is *certified*: nothing
better exists. This is a proof only where a list truly holds a code's nearest. A graph (HNSW), some lists of many (IVF)
or compressed vectors (PQ) have recall instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyencoder.index.options import Found
from polyencoder.scoring import ContextEncoding, TopK, search

__all__ = ["Answer", "Proposal", "Propose", "search_by_lists"]


class Proposal(NamedTuple):
    """What the lists of one context's codes hold."""

    rows: Tensor
    """int64 [n], the numbers of candidates, each once, in the order that equal scores shall have."""
    vectors: Tensor
    """[n, dim], theirs."""
    proves: Callable[[float], bool]
    """Whether no other candidate can have a score above this one. Always false if the lists are not exact."""


Propose = Callable[[Sequence[int], int], Iterable[Proposal]]
"""From the numbers of some contexts and the length of the lists to what is proposed for each of them."""


class Answer(NamedTuple):
    """The result of one context, best first."""

    scores: Tensor
    """[k], fp32 or float64; fewer only where a scan finds fewer."""
    rows: Tensor
    """int64 [k]."""
    found: Found


def search_by_lists(
    contexts: ContextEncoding,
    *,
    k: int,
    exactness: Found,
    exact_lists: bool,
    length: int,
    longest: int,
    propose: Propose,
    scan: Callable[[ContextEncoding], TopK],
    attention: str = "basic",
) -> list[Answer]:
    """The k best of what is proposed for each context, the lists being doubled until that is good enough.

    Good enough are k candidates, which for "certified" must be proven to be the best. What is still not good enough
    when lists are `longest` is scanned; so is everything where no list can give what is wanted: for "exact", for
    "certified" without exact lists, and under multi-head attention, of whose scores an inner product says nothing.

    Args:
        contexts: the encoded contexts, any number of them.
        k: how many, at least 1; there are so many.
        exactness: what every result must be at least.
        exact_lists: whether lists can prove anything.
        length: of the first lists.
        longest: of the last ones.
        propose: asks the engine; vectors of one context need not be in memory while those of another are.
        scan: scores everything, for some of the contexts.
        attention: as in `polyencoder.scoring.score`.
    """
    device = contexts.vectors.device
    answers: list[Answer | None] = [None] * contexts.batch_size
    waiting = list(range(contexts.batch_size))
    hopeless = exactness == "exact" or (exactness == "certified" and not exact_lists) or contexts.keys is not None
    while waiting and not hopeless and length <= longest:
        for i, proposal in zip(waiting, propose(waiting, length), strict=True):
            if len(proposal.rows) < k:
                continue
            best = search(contexts.select(i), proposal.vectors.to(device), k=k, attention=attention)
            proven = proposal.proves(best.scores[0, -1].item())
            if proven or exactness == "approximate":
                rows = proposal.rows.to(device)[best.indices[0]]
                answers[i] = Answer(best.scores[0], rows, "certified" if proven else "approximate")
        waiting = [i for i in waiting if answers[i] is None]
        length *= 2
    if waiting:
        found = scan(contexts.select(torch.tensor(waiting, device=device)))
        for i, scores, rows in zip(waiting, *found, strict=True):
            answers[i] = Answer(scores, rows, "exact")
    return [answer for answer in answers if answer is not None]
