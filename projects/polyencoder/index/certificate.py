"""Candidate generation, exact rescoring, proof: poly-encoder search on nearest-neighbour engines.

Engines compute inner products of single vectors. A poly-encoder's score is another function: sum_i p_i l_i over the
logits of all codes, with weights that depend on the candidate. (MaxSim, which multi-vector engines offer, ranks
differently.) But a score is a weighted mean of its logits, so it never exceeds the largest: the best candidates are
near some code. So each code's nearest candidates form a shortlist, which is rescored exactly.

A candidate outside all shortlists has, with every code, an inner product of at most the last in that code's list, and
its score is below the largest of these. Once the k-th best score of the union is above, the result is *certified*:
nothing better exists. This is a proof only where a list truly holds a code's nearest. A graph (HNSW), some lists of
many (IVF) or compressed vectors (PQ) have recall instead.

Without torch: encoded contexts and arrays are an engine's own, tensors or numpy's.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, get_args

from polyencoder.checks import check_choice, checked_count
from polyencoder.errors import InputError
from polyencoder.index.filters import Exactness, Filter, checked_filter
from polyencoder.index.hits import TOP_K
from polyencoder.search.contexts import Array, Contexts
from polyencoder.search.scan import search

MAX_COUNT = (1 << 31) - 1
"""Of whole numbers that engines take."""


@dataclass(frozen=True, kw_only=True)
class ShortlistOptions:
    """The options of a search by vectors, which need no torch; `SearchOptions`, which has more, describes them.

    Raises:
        ConfigError: an unknown exactness.
        InputError: a number is too small, or the filter is invalid.
    """

    top_k: int | None = None
    filter: Filter | None = None
    exactness: Exactness | None = None
    effort: int | None = None
    list_length: int | None = None
    tolerance: float | None = None

    def __post_init__(self) -> None:
        for name in ("top_k", "list_length", "effort"):
            if (count := getattr(self, name)) is not None:
                checked_count(name, count, most=MAX_COUNT)
        if self.exactness is not None:
            check_choice("exactness", self.exactness, get_args(Exactness))
        if self.tolerance is not None and not (isinstance(self.tolerance, (int, float)) and self.tolerance >= 0):
            raise InputError(
                f"tolerance is {self.tolerance!r:.60}; it must be at least 0, a number", argument="tolerance"
            )
        checked_filter(self.filter)

    @property
    def of_lists(self) -> list[str]:
        """The names of the options that are given and only lists have."""
        return [name for name in ("list_length", "effort", "tolerance") if getattr(self, name) is not None]

    def k(self, available: int) -> int:
        """The number of results of a search in `available` candidates."""
        return min(operator.index(self.top_k or TOP_K), available)


class Shortlist(NamedTuple):
    """The candidates proposed for one context."""

    rows: Any
    """int64 [n], their distinct numbers, in the order for equal scores."""
    vectors: Any
    """[n, dim]"""
    bound: float
    """No other candidate has a score above, unless better ones are in the list; inf if unknown."""


class ShortlistSearch(Protocol):
    """A search for the k best candidates of some contexts; it numbers the candidates."""

    contexts: Any
    """A batch with `batch_size`, `n_codes` and `select`, of places."""
    k: int
    """At least 1, and at most the number of candidates."""
    exact_lists: bool
    """Whether lists are exact, so that they can prove a result."""
    most_named: int
    """The maximum number of candidates that the lists of a request name."""

    def propose(self, contexts: Any, places: Sequence[int], length: int) -> Iterable[Shortlist]:
        """The union of the codes' lists of this length, for each of the `contexts` at these `places`."""
        ...

    def rescored(self, context: Any, shortlist: Shortlist) -> tuple[Any, Any]:
        """The scores [k] and rows [k] of the best of a shortlist, for a batch of one context."""
        ...

    def scan(self, contexts: Any) -> tuple[Any, Any]:
        """The scores and rows of the k best of all candidates for each context: both [contexts, k]."""
        ...


class ShortlistResult(NamedTuple):
    """The result of one context, best first."""

    scores: Any
    """[k], fp32 or float64; fewer only if a scan finds fewer."""
    rows: Any
    """int64 [k]."""
    found: Exactness


def search_shortlists(
    engine: ShortlistSearch,
    *,
    exactness: Exactness,
    length: int,
    longest: int,
) -> list[ShortlistResult]:
    """The k best of each context's shortlist; lists are doubled until the result is good enough.

    A result is good enough with k candidates, which for "certified" must be proven the best: the k-th score reaches the
    bound. A context whose result is not good enough at the `longest` lists is scanned; so are all contexts if no list
    can give the result: for "exact", and for "certified" without exact lists.

    Args:
        exactness: the least exactness of every result.
        length: of the first lists.
        longest: of the last ones.
    """
    contexts, k = engine.contexts, engine.k
    answers: dict[int, ShortlistResult] = {}
    waiting = list(range(contexts.batch_size))
    hopeless = exactness == "exact" or (exactness == "certified" and not engine.exact_lists)
    while waiting and not hopeless and length <= longest:
        at_once = max(1, engine.most_named // (contexts.n_codes * length))
        for first in range(0, len(waiting), at_once):
            some = waiting[first : first + at_once]
            for i, shortlist in zip(some, engine.propose(contexts.select(some), some, length), strict=True):
                if len(shortlist.rows) < k:
                    continue
                scores, rows = engine.rescored(contexts.select([i]), shortlist)
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


class Rescoring:
    """The part of a `certificate.ShortlistSearch` that scores with `polyencoder.search`."""

    contexts: Contexts
    k: int
    attention: str
    """As in `polyencoder.search.scores.score`."""

    def rescored(self, context: Contexts, shortlist: Shortlist) -> tuple[Array, Array]:
        """As in `certificate.ShortlistSearch`."""
        scores, places = search(context, shortlist.vectors, k=self.k, attention=self.attention)
        return scores[0], shortlist.rows[places[0]]
