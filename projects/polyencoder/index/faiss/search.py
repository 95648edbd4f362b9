"""Search with a FAISS index: each code's nearest rows are proposed, `certificate.search_by_lists` scores and proves.

Where no proof is asked for, codes that are much alike ask together, by their mean (see `groups`).
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyencoder.errors import ConfigError
from polyencoder.index.certificate import search_by_lists
from polyencoder.index.faiss.file import FAISS, FaissFile, is_of, read_faiss
from polyencoder.index.faiss.groups import TOLERANCE, group_means
from polyencoder.index.faiss.library import faiss_library
from polyencoder.index.options import Found, SearchOptions, changed
from polyencoder.index.vectors import Vectors
from polyencoder.scoring import ContextEncoding, TopK, search
from polyencoder.scoring.exact import scale_of

__all__ = ["LONGEST_LIST", "FaissSearch", "Results", "scan_vectors"]

LONGEST_LIST = 4096
"""Lists longer than this, and scoring everything is hardly slower."""
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


def scan_vectors(
    contexts: ContextEncoding,
    vectors: Vectors,
    options: SearchOptions,
    *,
    allowed: Tensor | None = None,
    attention: str = "basic",
) -> Results:
    """The best rows by scoring all, or all that are `allowed`, bool [rows]; fewer than `top_k` if they are fewer."""
    k = options.k(len(vectors) if allowed is None else int(allowed.sum()))
    if k == 0:
        nothing = contexts.vectors.new_empty(contexts.batch_size, 0)
        return Results(nothing, nothing.long(), ["exact"] * contexts.batch_size)
    dtype = options.compute_dtype
    scores, rows = search(contexts, vectors, k=k, allowed=allowed, attention=attention, compute_dtype=dtype)
    return Results(scores, rows, ["exact" if dtype is None else "approximate"] * contexts.batch_size)


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

    def over(self, vectors: Vectors) -> FaissSearch | None:
        """The same index, not read again, for vectors that begin with those that it was made of; None for others.

        Whoever keeps it has to know, by its name or an id, that it is the one that these vectors have: its sample of
        them is a safeguard.
        """
        return FaissSearch(self.meta, self._index, vectors) if is_of(self.meta, vectors) else None

    @torch.no_grad()
    def search(
        self,
        contexts: ContextEncoding,
        options: SearchOptions | None = None,
        *,
        allowed: Tensor | None = None,
        attention: str = "basic",
        **changes: Any,
    ) -> Results:
        """The best rows for each context; of equal scores in a list, the lowest row comes first.

        All scores are exact, as `polyencoder.scoring` computes them; what can be missing is a row.

        Args:
            contexts: the encoded contexts, any number of them.
            options: of these `filter` is not for here.
            allowed: bool [rows], True for the rows that may be found. If they are few they are scanned; so is
                everything for a `top_k` above 1,024 and, unless an option says how to look, with a flat index.
            attention: "basic", "sqrt" or "multihead", as in `polyencoder.scoring.score`. With "multihead" no list says
                anything of a score: everything is scanned. The certificate holds for the others. But the
                weights of "sqrt" are flatter and its scores lie further below the largest logit: longer lists are
                needed until one holds, and for the same recall.
            changes: fields of the options.

        Raises:
            ConfigError: `effort` is given to a flat index, or an option is none.
            InputError: a number is too small, or contexts, `allowed` or attention do not fit.
        """
        options = changed(options, changes)
        self.check(options)
        scale_of(contexts, attention)  # complains of one that does not fit
        available = len(self.vectors) if allowed is None else int(allowed.sum())
        few = allowed is not None and available <= max(_SCAN_ROWS, _SCAN_SHARE * len(self.vectors))
        long = not options.list_length and self._list_length(options.k(available)) > LONGEST_LIST
        if few or long or self._compares_all(options) or contexts.batch_size == 0:
            return scan_vectors(contexts, self.vectors, options, allowed=allowed, attention=attention)
        return self.search_lists(contexts, options, allowed=allowed, attention=attention)

    def search_lists(
        self,
        contexts: ContextEncoding,
        options: SearchOptions,
        *,
        allowed: Tensor | None = None,
        attention: str = "basic",
    ) -> Results:
        """`search` of one context at least, by FAISS also where few rows are allowed, at least one."""
        available = len(self.vectors) if allowed is None else int(allowed.sum())
        k = options.k(available)
        lists = _Lists(self, options, k=k, allowed=allowed, attention=attention, available=available)
        length = options.list_length or self._list_length(k)
        answers = search_by_lists(
            contexts,
            lists,
            k=k,
            exactness=options.exactness or "approximate",
            length=length,
            longest=max(length, LONGEST_LIST, 2 * k),
            beside=lists.newer(contexts),
            attention=attention,
        )
        scores, rows, found = zip(*answers, strict=True)
        return Results(torch.stack(scores), torch.stack(rows), list(found))

    def _list_length(self, k: int) -> int:
        """How many candidates each code, or group of codes, proposes unless a search says it."""
        tuned = self.meta.tuned
        return max(4 * k, _SHORTEST_LIST if tuned is None else tuned.list_length)

    def _compares_all(self, options: SearchOptions) -> bool:
        """Whether nothing says how to look, in an index that compares everything anyway: then the scan, which is exact.

        A flat index is faster for contexts of many codes, by groups of these; so one that was tuned is used.
        """
        return self.meta.kind == "flat" and self.meta.tuned is None and not options.exactness and not options.of_lists

    def check(self, options: SearchOptions) -> None:
        """Raise ConfigError for an option that this kind of index has no use for."""
        if options.effort is not None and self.meta.kind == "flat":
            raise ConfigError("effort is ef_search of an hnsw index or nprobe of an ivf one; a flat index has neither")

    @property
    def most_effort(self) -> int:
        """The effort that looks at everything."""
        return int(self.meta.parameters["nlist"]) if self.meta.kind.startswith("ivf") else self.meta.rows

    def nearest(self, queries: Tensor, length: int, parameters: Any) -> tuple[Tensor, Tensor]:
        """FAISS's lists for `queries`, fp32 [n, dim]: inner products and rows [n, length], a gap being -1."""
        products, rows = self._index.search(queries.numpy(), length, params=parameters)
        return torch.from_numpy(products), torch.from_numpy(rows)


class _Lists:
    """What FAISS proposes for the codes of contexts, or for groups of codes where no certificate is wanted."""

    most_named = 1 << 22

    def __init__(
        self,
        searcher: FaissSearch,
        options: SearchOptions,
        *,
        k: int,
        allowed: Tensor | None,
        attention: str,
        available: int,
    ) -> None:
        self.exact_lists = searcher.meta.has_exact_lists
        self._searcher = searcher
        self._k = k
        self._allowed = allowed
        self._attention = attention
        self._meta, self._vectors = searcher.meta, searcher.vectors
        certified = options.exactness == "certified"
        self._tolerance = None if certified else TOLERANCE if options.tolerance is None else options.tolerance
        self._parameters = self._faiss_parameters(options.effort, share=available / len(self._vectors), all=certified)
        self._proves = self.exact_lists and (
            self._meta.kind == "flat" or self._parameters.nprobe >= searcher.most_effort
        )

    def take(self, rows: Tensor) -> Tensor:
        return self._vectors.take(rows)

    def scan(self, contexts: ContextEncoding) -> TopK:
        return search(contexts, self._vectors, k=self._k, allowed=self._allowed, attention=self._attention)

    def newer(self, contexts: ContextEncoding) -> TopK | None:
        """The best of the rows that FAISS does not know, at most k; None if it knows all of them."""
        newer = torch.arange(len(self._vectors)) >= self._meta.rows
        if self._allowed is not None:
            newer &= self._allowed.cpu()
        k = min(self._k, int(newer.sum()))
        return search(contexts, self._vectors, k=k, allowed=newer, attention=self._attention) if k else None

    def propose(self, contexts: ContextEncoding, length: int) -> tuple[list[Tensor], list[float]]:
        """As in `certificate.Engine`; the rows ascend, int64 on the CPU.

        Of use as a bound is the highest that the inner product of a context's codes with a row outside can be.
        """
        asking, codes = _asking(contexts, tolerance=self._tolerance)
        counts = [len(part) for part in asking]
        queries = torch.cat(asking)  # [all that ask, of all contexts, dim]
        length = min(length, self._meta.rows)
        products, rows = self._searcher.nearest(queries, length, self._parameters)

        # How far two fp32 inner products, FAISS's and ours, can differ by rounding: dim x 2^-24 x |c| |y| for each.
        # Twice that, for the score's softmax and sum.
        rounding = 2 * self._meta.dim * torch.finfo(torch.float32).eps * self._meta.max_norm * queries.norm(dim=1)
        outside = products[:, -1] + rounding
        for part, of_codes in zip(outside.split(counts), codes, strict=True):
            if len(part) < of_codes:  # a mean says little of what is outside for its codes
                part[:] = torch.inf
        # A list with gaps (id -1) or of all rows has nothing outside.
        outside[(rows[:, -1] < 0) | (length == self._meta.rows)] = -torch.inf
        if not self._proves:
            outside[:] = torch.inf
        unions = [part[part >= 0].unique() for part in rows.split(counts)]
        return unions, [part.max().item() if len(part) else -torch.inf for part in outside.split(counts)]

    def _faiss_parameters(self, effort: int | None, *, share: float, all: bool) -> Any:
        """FAISS's search parameters, for `all` lists if told.

        The rows that are not allowed are met all the same: where a `share` is allowed, look at more.
        """
        faiss = faiss_library()
        meta = self._meta
        own: dict[str, Any] = {}
        if self._allowed is not None:
            bits = np.packbits(self._allowed[: meta.rows].cpu().numpy(), bitorder="little")
            own["sel"] = faiss.IDSelectorBitmap(bits)
        if meta.kind == "flat":
            return faiss.SearchParameters(**own)
        most = self._searcher.most_effort
        wanted = round((effort or meta.effort) / share)
        if meta.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=min(wanted, most), **own)
        return faiss.SearchParametersIVF(nprobe=most if all else min(wanted, most), **own)


def _asking(contexts: ContextEncoding, *, tolerance: float | None) -> tuple[list[Tensor], list[int]]:
    """For each context what is looked for, fp32 [n, dim] on the CPU, and how many real codes it has."""
    vectors = contexts.vectors.float().cpu()
    real = list(vectors) if contexts.mask is None else [v[m] for v, m in zip(vectors, contexts.mask.cpu(), strict=True)]
    counts = [len(codes) for codes in real]
    if tolerance is None:
        return real, counts
    return [group_means(codes, tolerance=tolerance) if len(codes) > 1 else codes for codes in real], counts
