"""Search with a FAISS index: its lists are shortlists, which `certificate` rescores and proves."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from polyencoder.errors import CheckpointError, PolyencoderError, get_first_line
from polyencoder.guesses import change_options
from polyencoder.index.certificate import Shortlist, ShortlistSearch, search_shortlists
from polyencoder.index.faiss.file import FaissFile
from polyencoder.index.faiss.library import import_faiss
from polyencoder.index.filters import Exactness
from polyencoder.index.options import SearchOptions
from polyencoder.index.shortlists import Lists, iter_shortlists
from polyencoder.index.vectors import Vectors
from polyencoder.search.contexts import Array, Contexts
from polyencoder.search.scan import TopK, count_available_rows, search
from polyencoder.search.scores import get_scale
from polyencoder.storage.signatures import is_signed

LONGEST_LIST = 4096
"""With longer lists, scoring everything is hardly slower."""
_SHORTEST_LIST = 256
# With at most this number or share of allowed rows, a scan is faster than FAISS.
_SCAN_ROWS = 8192
_SCAN_SHARE = 1 / 64


class Results(NamedTuple):
    """The best rows of each context, best first, with the exactness of each result."""

    scores: Array
    """[batch, k]"""
    rows: Array
    """int64 [batch, k]."""
    exactness: list[Exactness]
    """[batch]"""


def scan_vectors(
    contexts: Contexts,
    vectors: Vectors,
    options: SearchOptions,
    *,
    allowed: Array | None = None,
    attention: str = "basic",
) -> Results:
    """The best rows by scoring all, or all that are `allowed`, bool [rows]; at most `top_k`."""
    k = options.k(count_available_rows(vectors, allowed))
    if k == 0:
        nothing = np.empty((len(contexts), 0))
        return Results(nothing, nothing.astype(np.int64), ["exact"] * len(contexts))
    return Results(*search(contexts, vectors, k=k, allowed=allowed, attention=attention), ["exact"] * len(contexts))


_LIMITS = threading.Lock()  # FAISS has them for the whole process


@contextmanager
def _limit_sizes(size: int) -> Iterator[None]:
    """Limits the bytes that FAISS allocates for a part of what it reads."""
    faiss = import_faiss()
    with _LIMITS:
        before = faiss.get_deserialization_vector_byte_limit(), faiss.get_deserialization_loop_limit()
        try:
            faiss.set_deserialization_vector_byte_limit(size)
            faiss.set_deserialization_loop_limit(size)
            yield
        finally:
            faiss.set_deserialization_vector_byte_limit(before[0])
            faiss.set_deserialization_loop_limit(before[1])


class FaissSearch:
    """An index's vectors with the FAISS index from `build_faiss`: its lists are shortlists.

    The first `meta.rows` of `vectors` are in the FAISS index, `index` if it is open already. Rows that were added later
    are scanned and merged, so they are found like all others.

    Raises:
        ConfigError: faiss is not installed.
        CheckpointError: its file is missing or made from other vectors, or this installation did not write it.
    """

    def __init__(self, meta: FaissFile, vectors: Vectors, *, index: Any = None) -> None:
        self.meta = meta
        self.vectors = vectors
        self._file = vectors.folder / meta.file
        self.index = self._open() if index is None else index

    def _open(self) -> Any:
        """FAISS's index, mapped into memory. Its file's signature is checked first, as FAISS trusts what it reads."""
        faiss, meta = import_faiss(), self.meta
        try:
            if not is_signed(self._file, meta.signature):
                raise CheckpointError(
                    f"{self._file}: another installation wrote it, or it has changed, and FAISS is not safe against "
                    "such files: build it again with `polyencoder update --faiss auto`, or if you trust its origin "
                    "sign it with `polyencoder update --trust-faiss`"
                )
            with _limit_sizes(os.path.getsize(self._file)):  # no array, and no list of parts, is larger
                index = faiss.read_index(str(self._file), getattr(faiss, "IO_FLAG_MMAP_IFC", 0))
        except PolyencoderError:
            raise
        except (RuntimeError, OSError) as error:
            raise CheckpointError(
                f"{self._file} cannot be read ({get_first_line(error)}): build it again with build_faiss"
            ) from None
        if (index.ntotal, index.d) != (meta.rows, self.vectors.dim) or meta.rows > len(self.vectors):
            raise CheckpointError(f"{self._file} was made from other vectors than those in its folder: build it again")
        return index

    @property
    def max_effort(self) -> int:
        """The effort that examines everything."""
        return int(self.meta.parameters["nlist"]) if self.meta.kind.startswith("ivf") else self.meta.rows

    def search(
        self,
        contexts: Contexts,
        options: SearchOptions | None = None,
        *,
        allowed: Array | None = None,
        attention: str = "basic",
        **changes: Any,
    ) -> Results:
        """The best rows for each context; of equal scores in a list, the lowest row comes first.

        All scores are exact, as computed by `polyencoder.search`; an approximate search may miss a row.

        Args:
            options: without `filter`.
            allowed: bool [rows], True for the rows that may be found. If they are few they are scanned; so is
                everything for a `top_k` above 1,024.
            attention: as in `search.scores.score`. Under "multihead" lists do not bound scores: everything is scanned.
                The weights of "sqrt" are flatter, so it needs longer lists for a certificate, and for the same recall.
            changes: fields of the options.

        Raises InputError if a number is too small, or contexts or attention do not fit.
        """
        options = change_options(options or SearchOptions(), changes)
        get_scale(contexts, attention)  # raises for one that does not fit
        available = count_available_rows(self.vectors, allowed)
        count = None if allowed is None else available
        needs_scan = contexts.batch_size == 0 or contexts.keys is not None  # lists tell nothing of multi-head attention
        if needs_scan or self._should_scan(options, k=options.k(available), allowed=count):
            return scan_vectors(contexts, self.vectors, options, allowed=allowed, attention=attention)
        return self.search_lists(contexts, options, allowed=allowed, attention=attention)

    def search_lists(
        self, contexts: Contexts, options: SearchOptions, *, allowed: Array | None = None, attention: str = "basic"
    ) -> Results:
        """`search` of at least one context, by FAISS even if few rows are allowed (at least one)."""
        k = options.k(count_available_rows(self.vectors, allowed))
        engine = _Shortlists(self, contexts, options, k=k, allowed=allowed, attention=attention)
        length = self._choose_length(options, k=k)
        answers = search_shortlists(
            engine,
            exactness=options.exactness or "approximate",
            length=length,
            longest=max(length, LONGEST_LIST, 2 * k),
        )
        scores, rows, exactness = zip(*answers, strict=True)
        return Results(np.stack(scores), np.stack(rows), list(exactness))

    def _choose_length(self, options: SearchOptions, *, k: int) -> int:
        """The number of candidates proposed by each code, or group of codes, for the k best."""
        tuned = self.meta.tuned
        return options.list_length or max(4 * k, _SHORTEST_LIST if tuned is None else tuned.list_length)

    def _should_scan(self, options: SearchOptions, *, k: int, allowed: int | None) -> bool:
        """Whether a search scores everything instead; `allowed` is the number of rows that may be found, None: all."""
        is_sparse = allowed is not None and allowed <= max(_SCAN_ROWS, _SCAN_SHARE * len(self.vectors))
        is_long = not options.list_length and self._choose_length(options, k=k) > LONGEST_LIST
        return is_sparse or is_long

    def search_nearest(self, queries: Array, length: int, parameters: Any) -> tuple[Array, Array]:
        """FAISS's lists for `queries`, float32 [n, dim]: inner products and rows [n, length], a gap being -1."""
        try:
            nearest: tuple[Array, Array] = self.index.search(queries, length, params=parameters)
        except RuntimeError as error:
            raise CheckpointError(
                f"{self._file}: cannot be searched ({get_first_line(error)}); build it again"
            ) from None
        return nearest


class _Shortlists(ShortlistSearch):
    """FAISS as a `certificate.ShortlistSearch`: codes propose, or groups of codes without certificates."""

    max_named = 1 << 22

    def __init__(
        self,
        searcher: FaissSearch,
        contexts: Contexts,
        options: SearchOptions,
        *,
        k: int,
        allowed: Array | None,
        attention: str,
    ) -> None:
        self.contexts = contexts
        self.k = k
        self.attention = attention
        self.exact_lists = searcher.meta.has_exact_lists
        self._searcher, self._vectors, self._covered = searcher, searcher.vectors, searcher.meta.rows
        self._allowed = allowed
        self._all_lists = options.exactness == "certified"
        self._parameters = _make_parameters(searcher, options.effort, allowed=allowed, all_lists=self._all_lists)
        self._proves = self.exact_lists and self._parameters.nprobe >= searcher.max_effort

    def scan(self, contexts: Contexts) -> TopK:
        return search(contexts, self._vectors, k=self.k, allowed=self._allowed, attention=self.attention)

    def propose(self, contexts: Contexts, positions: Sequence[int], length: int) -> Iterator[Shortlist]:
        """See `certificate.ShortlistSearch`; each list also has the k best of the rows that FAISS lacks."""
        length = min(length, self._covered)

        def search_nearest(queries: Array) -> Lists:
            products, rows = self._searcher.search_nearest(queries, length, self._parameters)
            outside = products[:, -1].astype(np.float64) if self._proves else np.full(len(queries), np.inf)
            if self._proves:  # a list with gaps (id -1) or of all rows has nothing outside
                outside[(rows[:, -1] < 0) | (length == self._covered)] = -np.inf
            return Lists([nearest[nearest >= 0] for nearest in rows], outside)

        max_norm = self._searcher.meta.max_norm
        lists = iter_shortlists(contexts.list_codes(), search_nearest, grouped=not self._all_lists, max_norm=max_norm)
        for position, (rows, bound) in zip(positions, lists, strict=True):
            candidates = np.concatenate([rows, self._newer[position]]) if len(rows) else rows
            yield Shortlist(candidates, self._vectors.take(candidates), bound)

    @cached_property
    def _newer(self) -> Array:
        """The k best of the rows that FAISS lacks, or all if fewer: int64 [batch, n], ascending."""
        nothing = np.empty((len(self.contexts), 0), dtype=np.int64)
        if self._covered == len(self._vectors):  # without a look at every row
            return nothing
        newer = np.arange(len(self._vectors)) >= self._covered
        if self._allowed is not None:
            newer &= self._allowed
        if (k := min(self.k, int(newer.sum()))) == 0:
            return nothing
        top = search(self.contexts, self._vectors, k=k, allowed=newer, attention=self.attention)
        return np.sort(top.rows, axis=1)


def _make_parameters(searcher: FaissSearch, effort: int | None, *, allowed: Array | None, all_lists: bool) -> Any:
    """FAISS's search parameters. Rows that are not allowed are visited too, so the effort grows with them."""
    faiss, meta = import_faiss(), searcher.meta
    settings: dict[str, Any] = {}
    if allowed is not None:
        settings["sel"] = faiss.IDSelectorBitmap(np.packbits(allowed[: meta.rows], bitorder="little"))
    available = len(searcher.vectors) if allowed is None else int(allowed.sum())
    scaled = min(round((effort or meta.effort) * len(searcher.vectors) / available), searcher.max_effort)
    if meta.kind == "hnsw":
        return faiss.SearchParametersHNSW(efSearch=scaled, **settings)
    return faiss.SearchParametersIVF(nprobe=searcher.max_effort if all_lists else scaled, **settings)
