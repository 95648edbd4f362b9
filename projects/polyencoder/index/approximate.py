"""Search with a FAISS index: each code's nearest rows, their union scored exactly, the best of it.

FAISS knows inner products of single vectors, and a poly-encoder's score is not one: sum_i p_i l_i over the logits of
all codes, weighed for each candidate anew. Engines for many vectors (MaxSim) add up, or take the largest of, what each
vector finds; that is another function and ranks otherwise. But no score is above the candidate's largest logit (see
`bounds`), so the best are near to some code. The lists therefore only propose; `polyencoder.scoring` decides.

A row outside all lists has, with every code, an inner product of at most the last in that code's list, so its score is
below the largest of these. Once the k-th best score of the union is above, the result is *certified*: nothing better
exists. This is a proof only where a list truly holds a code's nearest. A graph (HNSW), some lists of many (IVF) or
compressed vectors (PQ) have recall instead.

Where no proof is asked for, codes that are much alike ask together, by their mean (see `groups`).
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyencoder.errors import ConfigError, InputError
from polyencoder.extras import require
from polyencoder.index.base import Found, check_exactness
from polyencoder.index.exact import check_search, scan
from polyencoder.index.faiss_file import FAISS, FaissFile, read_faiss
from polyencoder.index.groups import TOLERANCE, group_means
from polyencoder.index.vectors import Vectors
from polyencoder.scoring.context import ContextEncoding
from polyencoder.scoring.exact import at_least_fp32, scale_of
from polyencoder.scoring.search import TopK, joined, ranked, search

__all__ = ["FaissSearch", "Results"]

# Lists longer than this, and scoring everything is hardly slower.
_LONGEST_LIST = 4096
# The nearest to a group's mean are the nearest to its codes in another order: longer lists make up for that.
_SHORTEST_LIST = 256
# When so few rows, or so small a share of all, are allowed, FAISS would look at a lot to find them: they are scanned.
_SCAN_ROWS = 8192
_SCAN_SHARE = 1 / 64


class Results(NamedTuple):
    """The best rows of each context, best first, and how they were found."""

    scores: Tensor
    """[batch, k], fp32 or float64."""
    rows: Tensor
    """int64 [batch, k]."""
    found: list[Found]
    """[batch]"""


class FaissSearch:
    """An index folder's vectors with the FAISS index that `build_faiss` put beside them.

    Rows that were added after it was built are scanned and merged, so they are found like all others.
    """

    def __init__(self, meta: FaissFile, index: Any, vectors: Vectors) -> None:
        self.meta = meta
        self.vectors = vectors
        self._index = index

    @classmethod
    def open(cls, folder: str | os.PathLike[str], vectors: Vectors, *, name: str = FAISS) -> FaissSearch:
        """The index of this name in a folder, for the vectors of that folder; errors as in `read_faiss`."""
        meta, index = read_faiss(folder, vectors, name=name)
        return cls(meta, index, vectors)

    def over(self, vectors: Vectors) -> FaissSearch:
        """The same index, not read again, for vectors that begin with those that it was made of."""
        return FaissSearch(self.meta, self._index, vectors)

    @torch.no_grad()
    def search(
        self,
        contexts: ContextEncoding,
        *,
        top_k: int,
        allowed: Tensor | None = None,
        attention: str = "basic",
        exactness: Found = "approximate",
        list_length: int | None = None,
        effort: int | None = None,
        tolerance: float = TOLERANCE,
    ) -> Results:
        """The best rows for each context; of equal scores in a list, the lowest row comes first.

        All scores are exact, as `scan` computes them; what can be missing is a row.

        Args:
            contexts: the encoded contexts, any number of them.
            top_k: how many; fewer come back if fewer rows are there or allowed.
            allowed: bool [rows], True for the rows that may be found. If they are few they are scanned.
            attention: "basic", "sqrt" or "multihead", as in `polyencoder.scoring.score`. With "multihead" no list says
                anything of a score: everything is scanned. The certificate holds for the others. But the
                weights of "sqrt" are flatter and its scores lie further below the largest logit: longer lists are
                needed until one holds, and for the same recall.
            exactness: what every result must be at least. "approximate": whatever the lists give. "certified": lists
                are doubled until the certificate holds, then everything is scanned; at once, if the lists of this kind
                of index prove nothing (see `FaissFile.has_exact_lists`). "exact": a scan.
            list_length: how many rows each code, or group of codes, proposes; None for max(4 k, 256).
            effort: how hard FAISS looks: `ef_search` (hnsw) or `nprobe` (ivf); None for the index's own, and more if
                only some rows are allowed. "certified" reads all lists, whatever it is.
            tolerance: which codes ask together, as in `group_means`, where no certificate is wanted.

        Raises:
            ConfigError: `exactness` is unknown, or `effort` given to a flat index.
            InputError: a number is too small, or contexts, `allowed` or attention do not fit.
        """
        check_search(contexts, self.vectors, top_k=top_k, allowed=allowed)
        scale_of(contexts, attention)
        check_exactness(exactness)
        self.check(list_length=list_length, effort=effort, tolerance=tolerance)

        available = len(self.vectors) if allowed is None else int(allowed.sum())
        few = allowed is not None and available <= max(_SCAN_ROWS, _SCAN_SHARE * len(self.vectors))
        unprovable = exactness == "certified" and not self.meta.has_exact_lists
        if exactness == "exact" or few or unprovable or contexts.batch_size == 0 or contexts.keys is not None:
            found = scan(contexts, self.vectors, top_k=top_k, allowed=allowed, attention=attention)
            return Results(*found, ["exact"] * contexts.batch_size)

        query = _Query(
            self,
            k=min(top_k, available),
            allowed=allowed,
            attention=attention,
            parameters=self._parameters(
                allowed, share=available / len(self.vectors), effort=effort, exactness=exactness
            ),
            tolerance=tolerance if exactness == "approximate" else None,
        )
        return self._until_good(contexts, query, length=list_length or max(4 * top_k, _SHORTEST_LIST))

    def check(self, *, list_length: int | None = None, effort: int | None = None, tolerance: float = TOLERANCE) -> None:
        """InputError for a setting of `search` that is too small, ConfigError for one that this kind does not have."""
        for name, value in {"list_length": list_length, "effort": effort}.items():
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        if tolerance < 0:
            raise InputError(f"tolerance must be at least 0, got {tolerance}")
        if effort is not None and self.meta.kind == "flat":
            raise ConfigError("effort is ef_search of an hnsw index or nprobe of an ivf one; a flat index has neither")

    def _until_good(self, contexts: ContextEncoding, query: _Query, *, length: int) -> Results:
        """Double the lists until each context has a result that is good enough, or scan for those that have none."""
        exact_lists = self._reads_everything(query.parameters)
        newer = query.newer_rows(contexts)
        results: list[tuple[TopK, Found] | None] = [None] * contexts.batch_size
        waiting = list(range(contexts.batch_size))
        while waiting and length <= max(_LONGEST_LIST, 2 * query.k):
            part = contexts.select(torch.tensor(waiting, device=contexts.vectors.device))
            unions, outside = self._lists(part, query, length=length)
            for i, rows, highest in zip(waiting, unions, outside.tolist(), strict=True):
                best = query.best_of(contexts.select(i), rows, None if newer is None else _row(newer, i))
                if best.scores.size(1) < query.k:
                    continue
                if exact_lists and best.scores[0, -1].item() >= highest:
                    results[i] = best, "certified"
                elif query.tolerance is not None:
                    results[i] = best, "approximate"
            waiting = [i for i in waiting if results[i] is None]
            length *= 2
        if waiting:
            part = contexts.select(torch.tensor(waiting, device=contexts.vectors.device))
            found = query.scan(part)
            for place, i in enumerate(waiting):
                results[i] = _row(found, place), "exact"
        done = [result for result in results if result is not None]
        scores = torch.cat([best.scores for best, _ in done])
        return Results(scores, torch.cat([best.indices for best, _ in done]), [found for _, found in done])

    def _lists(self, contexts: ContextEncoding, query: _Query, *, length: int) -> tuple[list[Tensor], Tensor]:
        """What the codes propose, or with a tolerance the groups of them.

        Returns:
            for each context the rows of all its lists, each once and ascending (int64, on the CPU); and [batch] the
            highest that the inner product of its codes with a row outside can be (of use if the lists are exact): inf
            if that is not known, -inf if nothing is outside.
        """
        asking, codes = _asking(contexts, tolerance=query.tolerance)
        counts = [len(part) for part in asking]
        queries = torch.cat(asking)  # [all that ask, of all contexts, dim]
        length = min(length, self.meta.rows)
        products, ids = self._index.search(queries.numpy(), length, params=query.parameters)
        last, rows = torch.from_numpy(products[:, -1]), torch.from_numpy(ids)

        # How far two fp32 inner products, FAISS's and ours, can differ by rounding: dim x 2^-24 x |c| |y| for each.
        # Twice that, for the score's softmax and sum.
        rounding = 2 * self.meta.dim * torch.finfo(torch.float32).eps * self.meta.max_norm * queries.norm(dim=1)
        outside = last + rounding
        for part, of_codes in zip(outside.split(counts), codes, strict=True):
            if len(part) < of_codes:  # a mean says little of what is outside for its codes
                part[:] = torch.inf
        # A list with gaps (id -1) or of all rows has nothing outside.
        outside[(rows[:, -1] < 0) | (length == self.meta.rows)] = -torch.inf
        unions = [part[part >= 0].unique() for part in rows.split(counts)]
        highest = [part.max().item() if len(part) else -torch.inf for part in outside.split(counts)]
        return unions, torch.tensor(highest)

    def _parameters(self, allowed: Tensor | None, *, share: float, effort: int | None, exactness: Found) -> Any:
        """FAISS's search parameters. The rows that are not allowed are met all the same: with fewer, look at more."""
        faiss = require("faiss", extra="faiss")
        own: dict[str, Any] = {}
        if allowed is not None:
            bits = np.packbits(allowed[: self.meta.rows].cpu().numpy(), bitorder="little")
            own["sel"] = faiss.IDSelectorBitmap(bits)
        if self.meta.kind == "flat":
            return faiss.SearchParameters(**own)
        setting, most = ("ef_search", self.meta.rows) if self.meta.kind == "hnsw" else ("nprobe", self._index_lists)
        wanted = round((effort or int(self.meta.parameters[setting])) / share)
        if self.meta.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=min(wanted, most), **own)
        return faiss.SearchParametersIVF(nprobe=most if exactness == "certified" else min(wanted, most), **own)

    @property
    def _index_lists(self) -> int:
        return int(self.meta.parameters["nlist"])

    def _reads_everything(self, parameters: Any) -> bool:
        if not self.meta.has_exact_lists:
            return False
        return self.meta.kind == "flat" or parameters.nprobe >= self._index_lists


class _Query:
    """What stays the same while lists grow: how many are wanted, of which rows, by which score, and how FAISS looks.

    `tolerance` is None where a certificate is wanted, for which each code asks by itself.
    """

    def __init__(
        self,
        searcher: FaissSearch,
        *,
        k: int,
        allowed: Tensor | None,
        attention: str,
        parameters: Any,
        tolerance: float | None,
    ) -> None:
        self.k = k
        self.vectors = searcher.vectors
        self.covered = searcher.meta.rows
        self.allowed = allowed
        self.attention = attention
        self.parameters = parameters
        self.tolerance = tolerance

    def scan(self, contexts: ContextEncoding) -> TopK:
        return scan(contexts, self.vectors, top_k=self.k, allowed=self.allowed, attention=self.attention)

    def newer_rows(self, contexts: ContextEncoding) -> TopK | None:
        """The best of the rows that FAISS does not know; None if it knows all of them."""
        if len(self.vectors) == self.covered:
            return None
        newer = torch.ones(len(self.vectors), dtype=torch.bool) if self.allowed is None else self.allowed.cpu().clone()
        newer[: self.covered] = False
        return scan(contexts, self.vectors, top_k=self.k, allowed=newer, attention=self.attention)

    def best_of(self, context: ContextEncoding, rows: Tensor, newer: TopK | None) -> TopK:
        """The best of these rows, [1, at most k], and of the newer ones."""
        context = context.to(dtype=at_least_fp32(context.vectors.dtype))
        device = context.vectors.device
        if len(rows) == 0:
            nothing = context.vectors.new_empty(1, 0)
            best = TopK(nothing, nothing.long())
        else:
            vectors = self.vectors.take(rows).to(device)
            best = search(context, vectors, k=min(self.k, len(rows)), attention=self.attention)
            best = TopK(best.scores, rows.to(device)[best.indices])
        return best if newer is None else ranked(joined(best, newer), self.k)


def _asking(contexts: ContextEncoding, *, tolerance: float | None) -> tuple[list[Tensor], list[int]]:
    """For each context what is looked for, fp32 [n, dim] on the CPU, and how many real codes it has."""
    vectors = contexts.vectors.float().cpu()
    real = list(vectors) if contexts.mask is None else [v[m] for v, m in zip(vectors, contexts.mask.cpu(), strict=True)]
    counts = [len(codes) for codes in real]
    if tolerance is None:
        return real, counts
    return [group_means(codes, tolerance=tolerance) if len(codes) > 1 else codes for codes in real], counts


def _row(found: TopK, i: int) -> TopK:
    return TopK(found.scores[i : i + 1], found.indices[i : i + 1])
