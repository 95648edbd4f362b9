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

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from polyencoder.index.filters import Exactness
from polyencoder.search.contexts import Array, Contexts
from polyencoder.search.scan import TopK, search


class Shortlist(NamedTuple):
    """The candidates proposed for one context."""

    rows: Array
    """int64 [n], their distinct numbers, in the order for equal scores."""
    vectors: Array
    """[n, dim]"""
    bound: float
    """No other candidate has a score above, unless better ones are in the list; inf if unknown."""


class ShortlistSearch(ABC):
    """A search for the k best candidates of some contexts; it numbers the candidates."""

    contexts: Contexts
    k: int
    """At least 1, and at most the number of candidates."""
    attention: str
    """The attention type of `polyencoder.search.scores.score`."""
    exact_lists: bool
    """Whether lists are exact, so that they can prove a result."""
    max_named: int
    """The maximum number of candidates that the lists of a request name."""

    @abstractmethod
    def propose(self, contexts: Contexts, positions: Sequence[int], length: int) -> Iterable[Shortlist]:
        """The union of the codes' lists of this length, for each of the `contexts` at these `positions`."""

    @abstractmethod
    def scan(self, contexts: Contexts) -> TopK:
        """The scores and rows of the k best of all candidates for each context: both [contexts, k]."""

    def rescore_shortlist(self, context: Contexts, shortlist: Shortlist) -> tuple[Array, Array]:
        """The scores [k] and rows [k] of the best of a shortlist, for a batch of one context."""
        scores, positions = search(context, shortlist.vectors, k=self.k, attention=self.attention)
        return scores[0], shortlist.rows[positions[0]]


class ShortlistResult(NamedTuple):
    """The result of one context, best first."""

    scores: Array
    """[k], fp32 or float64; fewer only if a scan finds fewer."""
    rows: Array
    """int64 [k]."""
    exactness: Exactness


def search_shortlists(
    engine: ShortlistSearch, *, exactness: Exactness, length: int, longest: int
) -> list[ShortlistResult]:
    """The k best of each context's shortlist; lists are doubled until the result is good enough.

    A result is good enough with k candidates, which for "certified" must be proven the best: the k-th score reaches the
    bound. A context whose result is not good enough at the `longest` lists is scanned; so are all contexts if no list
    can give the result: for "exact", and for "certified" without exact lists.

    Every result has at least this `exactness`. Lists begin with `length` candidates, and have at most `longest`.
    """
    contexts, k = engine.contexts, engine.k
    answers: dict[int, ShortlistResult] = {}
    waiting = list(range(contexts.batch_size))
    hopeless = exactness == "exact" or (exactness == "certified" and not engine.exact_lists)
    while waiting and not hopeless and length <= longest:
        batch_size = max(1, engine.max_named // (contexts.n_codes * length))
        for first in range(0, len(waiting), batch_size):
            part = waiting[first : first + batch_size]
            for i, shortlist in zip(part, engine.propose(contexts.select(part), part, length), strict=True):
                if len(shortlist.rows) < k:
                    continue
                scores, rows = engine.rescore_shortlist(contexts.select([i]), shortlist)
                proven = float(scores[-1]) >= shortlist.bound
                if proven or exactness == "approximate":
                    answers[i] = ShortlistResult(scores, rows, "certified" if proven else "approximate")
        waiting = [i for i in waiting if i not in answers]
        length *= 2
    if waiting:
        scanned = engine.scan(contexts.select(waiting))
        answers |= {
            i: ShortlistResult(scores, rows, "exact") for i, scores, rows in zip(waiting, *scanned, strict=True)
        }
    return [answers[i] for i in range(contexts.batch_size)]
