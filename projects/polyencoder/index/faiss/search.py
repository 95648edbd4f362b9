"""Search with a FAISS index: each code's nearest rows are a shortlist, which `certificate` rescores and proves.

Without a proof, codes that nearly coincide share one query, their mean. The codes of a trained poly-encoder are
similar: their nearest candidates are nearly the same, and 64 queries find little that two or three do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyencoder.errors import CheckpointError, ConfigError, first_line
from polyencoder.index.certificate import Shortlist, search_shortlists
from polyencoder.index.faiss.description import FaissFile
from polyencoder.index.faiss.file import read_faiss
from polyencoder.index.faiss.library import faiss_library
from polyencoder.index.filters import Exactness
from polyencoder.index.options import SearchOptions, changed
from polyencoder.index.vectors import Vectors
from polyencoder.scoring import ContextEncoding, TopK, search
from polyencoder.scoring.exact import scale_of

LONGEST_LIST = 4096
"""With longer lists, scoring everything is hardly slower."""
TOLERANCE = 0.4
"""Maximum distance of a code from the first of its group, as a share of the codes' mean length: an angle of about
23 degrees."""
# The nearest candidates of a group's mean are those of its codes in another order; longer lists compensate.
_SHORTEST_LIST = 256
# If so few rows, or so small a share, are allowed, a scan is faster than FAISS.
_SCAN_ROWS = 8192
_SCAN_SHARE = 1 / 64


class Results(NamedTuple):
    """The best rows of each context, best first, with the exactness of each result."""

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
    """The best rows by scoring all, or all that are `allowed`, bool [rows]; at most `top_k`."""
    k = options.k(_available(vectors, allowed))
    if k == 0:
        nothing = contexts.vectors.new_empty(contexts.batch_size, 0)
        return Results(nothing, nothing.long(), ["exact"] * contexts.batch_size)
    dtype = options.compute_dtype
    scores, rows = search(contexts, vectors, k=k, allowed=allowed, attention=attention, compute_dtype=dtype)
    return Results(scores, rows, ["exact" if dtype is None else "approximate"] * contexts.batch_size)


class FaissSearch:
    """An index's vectors with the FAISS index from `build_faiss`.

    Rows added after the build are scanned and merged, so they are found like all others.

    Args:
        meta: the index's description.
        vectors: the index's; the first ones are those of the FAISS index.
        index: FAISS's, if it is open already; else errors are those of `read_faiss`.
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
        floors: Sequence[float] | None = None,
        **changes: Any,
    ) -> Results:
        """The best rows for each context; of equal scores in a list, the lowest row comes first.

        All scores are exact, as computed by `polyencoder.scoring`; an approximate search may miss a row.

        Args:
            options: without `filter`.
            allowed: bool [rows], True for the rows that may be found. If they are few they are scanned; so is
                everything for a `top_k` above 1,024 and, without shortlist options, with a flat index.
            attention: "basic", "sqrt" or "multihead", as in `polyencoder.scoring.score`. With "multihead", lists do
                not bound scores: everything is scanned. Certificates hold for the others. But the weights of
                "sqrt" are flatter and its scores lie further below the largest logit, so it needs longer lists for
                a certificate, and for the same recall.
            floors: as in `certificate.search_shortlists`.
            changes: fields of the options.

        Raises:
            ConfigError: `effort` is given for a flat index, or an option is unknown.
            InputError: a number is too small, or contexts, `allowed` or attention do not fit.
        """
        options = changed(options, changes)
        self.check(options)
        scale_of(contexts, attention)  # raises for one that does not fit
        available = _available(self.vectors, allowed)
        few = allowed is not None and available <= max(_SCAN_ROWS, _SCAN_SHARE * len(self.vectors))
        long = not options.list_length and self._list_length(options.k(available)) > LONGEST_LIST
        # Without options, a flat index is slower than the scan, which is exact. But with many codes it is faster, by
        # groups of codes: a tuned one is used.
        meta = self.meta
        compares_all = meta.kind == "flat" and not (meta.tuned or options.exactness or options.shortlist_options)
        if few or long or compares_all or contexts.batch_size == 0:
            return scan_vectors(contexts, self.vectors, options, allowed=allowed, attention=attention)
        return self.search_lists(contexts, options, allowed=allowed, attention=attention, floors=floors)

    def search_lists(
        self,
        contexts: ContextEncoding,
        options: SearchOptions,
        *,
        allowed: Tensor | None = None,
        attention: str = "basic",
        floors: Sequence[float] | None = None,
    ) -> Results:
        """`search` of at least one context, by FAISS even if few rows are allowed (at least one)."""
        k = options.k(_available(self.vectors, allowed))
        length = options.list_length or self._list_length(k)
        answers = search_shortlists(
            _Shortlists(self, contexts, options, k=k, allowed=allowed, attention=attention),
            exactness=options.exactness or "approximate",
            length=length,
            longest=max(length, LONGEST_LIST, 2 * k),
            floors=floors,
        )
        scores, rows, found = zip(*answers, strict=True)
        return Results(torch.stack(scores), torch.stack(rows), list(found))

    def _list_length(self, k: int) -> int:
        """The default number of candidates proposed by each code, or group of codes."""
        tuned = self.meta.tuned
        return max(4 * k, _SHORTEST_LIST if tuned is None else tuned.list_length)

    def check(self, options: SearchOptions) -> None:
        """Raises ConfigError for an option that does not apply to this kind of index."""
        if options.effort is not None and self.meta.kind == "flat":
            raise ConfigError(
                "effort is ef_search of an hnsw index or nprobe of an ivf one; a flat index has neither",
                argument="effort",
            )

    @property
    def most_effort(self) -> int:
        """The effort that examines everything."""
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
    """FAISS as a `certificate.ShortlistSearch`: codes propose, or groups of codes without certificates."""

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
        """As in `certificate.ShortlistSearch`; the rows ascend.

        The bound is the largest possible inner product of a context's codes with a row outside. Each list also has
        the k best of the rows that FAISS lacks.
        """
        asking, codes = self._queries(contexts)
        counts = [len(part) for part in asking]
        queries = torch.cat(asking)  # [queries of all contexts, dim]
        length = min(length, self._meta.rows)
        products, rows = self._searcher.nearest(queries, length, self._parameters)

        # The maximum rounding difference of two fp32 inner products, FAISS's and ours: dim x 2^-24 x |c| |y| for each.
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
                bound = torch.inf  # a mean bounds no row outside for its codes
            else:
                bound = max(of_context.tolist(), default=-torch.inf)
            yield Shortlist(found, self._vectors.take(found), bound)

    def _best_newer(self) -> Tensor:
        """The k best of the rows that FAISS lacks, or all if fewer: int64 [batch, n], ascending."""
        newer = torch.arange(len(self._vectors)) >= self._meta.rows
        if self._allowed is not None:
            newer &= self._allowed.cpu()
        if (k := min(self.k, int(newer.sum()))) == 0:
            return torch.empty(self.contexts.batch_size, 0, dtype=torch.int64)
        found = search(self.contexts, self._vectors, k=k, allowed=newer, attention=self.attention)
        return found.indices.cpu().sort(dim=1).values

    def _queries(self, contexts: ContextEncoding) -> tuple[list[Tensor], list[int]]:
        """The queries of each context, fp32 [n, dim] on the CPU, and the number of its real codes."""
        vectors, mask = contexts.vectors.float().cpu(), contexts.mask
        real = list(vectors) if mask is None else [v[m] for v, m in zip(vectors, mask.cpu(), strict=True)]
        counts = [len(codes) for codes in real]
        if (tolerance := self._tolerance) is None:
            return real, counts
        return [group_means(codes, tolerance=tolerance) if len(codes) > 1 else codes for codes in real], counts

    def _faiss_parameters(self, effort: int | None, *, all: bool) -> Any:
        """FAISS's search parameters, for `all` lists if requested.

        Rows that are not allowed are visited too, so the effort grows if only a share is allowed.
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

    Farthest-first traversal (Gonzalez 1985): the first group starts with the code nearest to the mean; while a code is
    farther than the tolerance from the first of every group, the farthest one starts a new group. Each code then joins
    the nearest. If no two are within the tolerance, the means are the codes themselves, in another order.
    """
    distances = torch.cdist(codes, codes).fill_diagonal_(0)  # rounding makes it positive for many equal codes
    farthest_allowed = tolerance * codes.norm(dim=1).mean()
    firsts = [int((codes - codes.mean(dim=0)).norm(dim=1).argmin())]
    nearest = distances[firsts[0]]
    while nearest.max() > farthest_allowed:
        firsts.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, distances[firsts[-1]])
    group = distances[firsts].argmin(dim=0)  # [m]
    group[firsts] = torch.arange(len(firsts))  # each to its own group, even if another is as near
    sums = codes.new_zeros(len(firsts), codes.size(1)).index_add_(0, group, codes)
    return sums / torch.bincount(group, minlength=len(firsts)).unsqueeze(1)
