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

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from polyencoder.index.options import Found
from polyencoder.scoring import ContextEncoding, TopK, search
from polyencoder.scoring.topk import ranked

__all__ = ["Answer", "Engine", "search_by_lists"]


class Engine(Protocol):
    """What proposes candidates, by numbers of its own."""

    @property
    def exact_lists(self) -> bool:
        """Whether any list can prove anything."""
        ...

    @property
    def most_named(self) -> int:
        """How many candidates the lists of contexts may name that are asked for together."""
        ...

    def propose(self, contexts: ContextEncoding, length: int) -> tuple[Sequence[Tensor], Sequence[float]]:
        """What lists of this length hold for each context, and a bound of each.

        Returns:
            rows: int64 [n], the numbers of candidates, each once, in the order that equal scores shall have.
            bounds: no other candidate has a score above; inf where that is not known, so that nothing is proven.
        """
        ...

    def take(self, rows: Tensor) -> Tensor:
        """The vectors [n, dim] of rows that were just proposed for a context."""
        ...

    def scan(self, contexts: ContextEncoding) -> TopK:
        """The k best of all for each context."""
        ...


class Answer(NamedTuple):
    """The result of one context, best first."""

    scores: Tensor
    """[k], fp32 or float64; fewer only where a scan finds fewer."""
    rows: Tensor
    """int64 [k]."""
    found: Found


def search_by_lists(
    contexts: ContextEncoding,
    engine: Engine,
    *,
    k: int,
    exactness: Found,
    length: int,
    longest: int,
    beside: TopK | None = None,
    attention: str = "basic",
) -> list[Answer]:
    """The k best of what is proposed for each context, the lists being doubled until that is good enough.

    Good enough are k candidates, which for "certified" must be proven to be the best: the k-th score reaches the bound.
    What is still not good enough when lists are `longest` is scanned; so is everything where no list can give what is
    wanted: for "exact", for "certified" without exact lists, and under multi-head attention, of whose scores an inner
    product says nothing.

    Args:
        contexts: the encoded contexts, any number of them.
        engine: proposes candidates.
        k: how many, at least 1; there are so many.
        exactness: what every result must be at least.
        length: of the first lists.
        longest: of the last ones.
        beside: the best for each context of candidates that no list holds; of equal scores they come last.
        attention: as in `polyencoder.scoring.score`.
    """
    device = contexts.vectors.device
    answers: dict[int, Answer] = {}
    waiting = list(range(contexts.batch_size))
    hopeless = (
        exactness == "exact" or (exactness == "certified" and not engine.exact_lists) or contexts.keys is not None
    )
    while waiting and not hopeless and length <= longest:
        at_once = max(1, engine.most_named // (contexts.n_codes * length))
        for first in range(0, len(waiting), at_once):
            some = waiting[first : first + at_once]
            part = contexts.select(torch.tensor(some, device=device))
            for i, rows, bound in zip(some, *engine.propose(part, length), strict=True):
                if len(rows) == 0 or len(rows) + (0 if beside is None else beside.scores.size(1)) < k:
                    continue
                vectors = engine.take(rows).to(device)
                best = search(contexts.select(i), vectors, k=min(k, len(rows)), attention=attention)
                best = best._replace(indices=rows.to(device)[best.indices])
                if beside is not None:
                    both = zip(best, beside, strict=True)
                    best = ranked(TopK(*(torch.cat([one, other[i : i + 1]], 1) for one, other in both)), k)
                proven = best.scores[0, -1].item() >= bound
                if proven or exactness == "approximate":
                    answers[i] = Answer(best.scores[0], best.indices[0], "certified" if proven else "approximate")
        waiting = [i for i in waiting if i not in answers]
        length *= 2
    if waiting:
        found = engine.scan(contexts.select(torch.tensor(waiting, device=device)))
        answers |= {i: Answer(scores, rows, "exact") for i, scores, rows in zip(waiting, *found, strict=True)}
    return [answers[i] for i in range(contexts.batch_size)]
