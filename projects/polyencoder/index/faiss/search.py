"""Search with a FAISS index: each code's nearest rows are a shortlist, which `certificate` rescores and proves.

Where no proof is asked for, codes that nearly coincide share one query, their mean. The codes of a trained poly-encoder
are much alike: their nearest candidates are then nearly the same, and 64 queries find little that two or three do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyencoder.errors import CheckpointError, ConfigError, first_line
from polyencoder.index.certificate import Shortlist, search_shortlists
from polyencoder.index.faiss.file import FaissFile, read_faiss
from polyencoder.index.faiss.library import faiss_library
from polyencoder.index.options import Exactness, SearchOptions, changed
from polyencoder.index.vectors import Vectors
from polyencoder.scoring import ContextEncoding, TopK, search
from polyencoder.scoring.exact import scale_of

__all__ = ["LONGEST_LIST", "TOLERANCE", "FaissSearch", "Results", "group_means", "scan_vectors"]

LONGEST_LIST = 4096
"""Lists longer than this, and scoring everything is hardly slower."""
TOLERANCE = 0.4
"""How far a code may be from the first of its group, as a share of the codes' mean length. Codes whose angle is below
some 23 degrees are one group."""
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
    found: list[Exactness]
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
    k = options.k(_available(vectors, allowed))
    if k == 0:
        nothing = contexts.vectors.new_empty(contexts.batch_size, 0)
        return Results(nothing, nothing.long(), ["exact"] * contexts.batch_size)
    dtype = options.compute_dtype
    scores, rows = search(contexts, vectors, k=k, allowed=allowed, attention=attention, compute_dtype=dtype)
    return Results(scores, rows, ["exact" if dtype is None else "approximate"] * contexts.batch_size)


class FaissSearch:
    """An index's vectors with the FAISS index that `build_faiss` put beside them.

    Rows that were added after it was built are scanned and merged, so they are found like all others.

    Args:
        meta: the index's description.
        vectors: they begin with those that it was made of.
        index: of FAISS, if it is open already; else errors are those of `read_faiss`.
    """

    def __init__(self, meta: FaissFile, vectors: Vectors, *, index: Any = None) -> None:
        self.meta = meta
        self.vectors = vectors
        self.index = read_faiss(meta, vectors) if index is None else index

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
            ConfigError: `effort` is given to a flat index, or there is no such option.
            InputError: a number is too small, or contexts, `allowed` or attention do not fit.
        """
        options = changed(options, changes)
        self.check(options)
        scale_of(contexts, attention)  # complains of one that does not fit
        available = _available(self.vectors, allowed)
        few = allowed is not None and available <= max(_SCAN_ROWS, _SCAN_SHARE * len(self.vectors))
        long = not options.list_length and self._list_length(options.k(available)) > LONGEST_LIST
        # Where nothing says how to look, an index that compares everything anyway is slower than the scan, which is
        # exact. But for contexts of many codes it is faster, by groups of these: one that was tuned is used.
        meta = self.meta
        compares_all = meta.kind == "flat" and not (meta.tuned or options.exactness or options.shortlist_options)
        if few or long or compares_all or contexts.batch_size == 0:
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
        k = options.k(_available(self.vectors, allowed))
        length = options.list_length or self._list_length(k)
        answers = search_shortlists(
            _Shortlists(self, contexts, options, k=k, allowed=allowed, attention=attention),
            exactness=options.exactness or "approximate",
            length=length,
            longest=max(length, LONGEST_LIST, 2 * k),
        )
        scores, rows, found = zip(*answers, strict=True)
        return Results(torch.stack(scores), torch.stack(rows), list(found))

    def _list_length(self, k: int) -> int:
        """The default number of candidates that each code, or group of codes, proposes."""
        tuned = self.meta.tuned
        return max(4 * k, _SHORTEST_LIST if tuned is None else tuned.list_length)

    def check(self, options: SearchOptions) -> None:
        """Raise ConfigError for an option that this kind of index has no use for."""
        if options.effort is not None and self.meta.kind == "flat":
            raise ConfigError(
                "effort is ef_search of an hnsw index or nprobe of an ivf one; a flat index has neither",
                argument="effort",
            )

    @property
    def most_effort(self) -> int:
        """The effort that looks at everything."""
        return int(self.meta.parameters["nlist"]) if self.meta.kind.startswith("ivf") else self.meta.rows

    def nearest(self, queries: Tensor, length: int, parameters: Any) -> tuple[Tensor, Tensor]:
        """FAISS's lists for `queries`, fp32 [n, dim]: inner products and rows [n, length], a gap being -1."""
        try:
            products, rows = self.index.search(queries.numpy(), length, params=parameters)
        except RuntimeError as error:
            file = self.vectors.folder / self.meta.file
            raise CheckpointError(f"{file}: cannot be searched ({first_line(error)}); build it again") from None
        return torch.from_numpy(products), torch.from_numpy(rows)


class _Shortlists:
    """FAISS as a `certificate.Engine`: codes propose, or groups of codes where no certificate is wanted."""

    most_named = 1 << 22

    def __init__(
        self,
        searcher: FaissSearch,
        contexts: ContextEncoding,
        options: SearchOptions,
        *,
        k: int,
        allowed: Tensor | None,
        attention: str,
    ) -> None:
        self.contexts = contexts
        self.k = k
        self.attention = attention
        self.exact_lists = searcher.meta.has_exact_lists
        self._searcher, self._meta, self._vectors = searcher, searcher.meta, searcher.vectors
        self._allowed = allowed
        certified = options.exactness == "certified"
        self._tolerance = None if certified else TOLERANCE if options.tolerance is None else options.tolerance
        self._parameters = self._faiss_parameters(options.effort, all=certified)
        self._proves = self.exact_lists and (
            self._meta.kind == "flat" or self._parameters.nprobe >= searcher.most_effort
        )
        self._newer = self._best_newer()

    def scan(self, contexts: ContextEncoding) -> TopK:
        return search(contexts, self._vectors, k=self.k, allowed=self._allowed, attention=self.attention)

    def propose(self, contexts: ContextEncoding, places: Sequence[int], length: int) -> Iterator[Shortlist]:
        """As in `certificate.Engine`; the rows ascend.

        The bound is the highest that the inner product of a context's codes with a row outside can be; of rows that
        FAISS does not know, the k best are in each list.
        """
        asking, codes = self._queries(contexts)
        counts = [len(part) for part in asking]
        queries = torch.cat(asking)  # [all that ask, of all contexts, dim]
        length = min(length, self._meta.rows)
        products, rows = self._searcher.nearest(queries, length, self._parameters)

        # How far two fp32 inner products, FAISS's and ours, can differ by rounding: dim x 2^-24 x |c| |y| for each.
        # Twice that, for the score's softmax and sum.
        rounding = 2 * contexts.dim * torch.finfo(torch.float32).eps * self._meta.max_norm * queries.norm(dim=1)
        outside = products[:, -1] + rounding
        # A list with gaps (id -1) or of all rows has nothing outside.
        outside[(rows[:, -1] < 0) | (length == self._meta.rows)] = -torch.inf
        for place, part, of_context, n in zip(places, rows.split(counts), outside.split(counts), codes, strict=True):
            found = part[part >= 0].unique()
            if len(found):
                found = torch.cat([found, self._newer[place]])
            if not self._proves or (len(part) < n and of_context.isfinite().any()):
                bound = torch.inf  # a mean says little of what is outside for its codes
            else:
                bound = max(of_context.tolist(), default=-torch.inf)
            yield Shortlist(found, self._vectors.take(found), bound)

    def _best_newer(self) -> Tensor:
        """The rows of the k best that FAISS does not know, or of all if they are fewer: int64 [batch, n], ascending."""
        newer = torch.arange(len(self._vectors)) >= self._meta.rows
        if self._allowed is not None:
            newer &= self._allowed.cpu()
        if (k := min(self.k, int(newer.sum()))) == 0:
            return torch.empty(self.contexts.batch_size, 0, dtype=torch.int64)
        found = search(self.contexts, self._vectors, k=k, allowed=newer, attention=self.attention)
        return found.indices.cpu().sort(dim=1).values

    def _queries(self, contexts: ContextEncoding) -> tuple[list[Tensor], list[int]]:
        """For each context what is looked for, fp32 [n, dim] on the CPU, and how many real codes it has."""
        vectors, mask = contexts.vectors.float().cpu(), contexts.mask
        real = list(vectors) if mask is None else [v[m] for v, m in zip(vectors, mask.cpu(), strict=True)]
        counts = [len(codes) for codes in real]
        if (tolerance := self._tolerance) is None:
            return real, counts
        return [group_means(codes, tolerance=tolerance) if len(codes) > 1 else codes for codes in real], counts

    def _faiss_parameters(self, effort: int | None, *, all: bool) -> Any:
        """FAISS's search parameters, of `all` lists if asked for.

        The rows that are not allowed are met all the same: where only a share is allowed, look at more.
        """
        faiss, meta = faiss_library(), self._meta
        own: dict[str, Any] = {}
        if self._allowed is not None:
            bits = np.packbits(self._allowed[: meta.rows].cpu().numpy(), bitorder="little")
            own["sel"] = faiss.IDSelectorBitmap(bits)
        if meta.kind == "flat":
            return faiss.SearchParameters(**own)
        most = self._searcher.most_effort
        wanted = round((effort or meta.effort) * len(self._vectors) / _available(self._vectors, self._allowed))
        if meta.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=min(wanted, most), **own)
        return faiss.SearchParametersIVF(nprobe=most if all else min(wanted, most), **own)


def _available(vectors: Vectors, allowed: Tensor | None) -> int:
    return len(vectors) if allowed is None else int(allowed.sum())


def group_means(codes: Tensor, *, tolerance: float = TOLERANCE) -> Tensor:
    """The means [groups, dim] of groups of `codes` [m, dim], at least one.

    Farthest-first traversal (Gonzalez 1985): the group of the code nearest to the mean is first; while any code is
    farther than the tolerance from the first of every group, the farthest of all begins a new one. Each code then
    belongs to the nearest. If no two are within the tolerance, the means are the codes themselves, in another order.
    """
    distances = torch.cdist(codes, codes).fill_diagonal_(0)  # which rounding makes of many codes more than 0
    farthest_allowed = tolerance * codes.norm(dim=1).mean()
    firsts = [int((codes - codes.mean(dim=0)).norm(dim=1).argmin())]
    nearest = distances[firsts[0]]
    while nearest.max() > farthest_allowed:
        firsts.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, distances[firsts[-1]])
    group = distances[firsts].argmin(dim=0)  # [m]
    group[firsts] = torch.arange(len(firsts))  # each to its own, also where another is as near
    sums = codes.new_zeros(len(firsts), codes.size(1)).index_add_(0, group, codes)
    return sums / torch.bincount(group, minlength=len(firsts)).unsqueeze(1)
