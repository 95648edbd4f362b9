"""The lists of a FAISS index: the rows that are nearest to each code of a context, and what they prove.

Without torch: vectors, masks and rows are numpy's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyencoder.errors import CheckpointError, ConfigError, first_line
from polyencoder.index.certificate import ShortlistOptions, ShortlistResult, ShortlistSearch, search_shortlists
from polyencoder.index.faiss.file import FaissFile
from polyencoder.index.faiss.library import faiss_library
from polyencoder.index.shortlists import TOLERANCE, Lists, shortlists
from polyencoder.storage.signatures import is_signed

Array = np.ndarray[Any, Any]

LONGEST_LIST = 4096
"""With longer lists, scoring everything is hardly slower."""
_SHORTEST_LIST = 256
# If so few rows, or so small a share, are allowed, a scan is faster than FAISS.
_SCAN_ROWS = 8192
_SCAN_SHARE = 1 / 64


class FaissLists:
    """The FAISS index of an index folder, opened; it covers the first rows.

    Args:
        meta: its description.
        folder: the index's.
        dim: of the vectors.
        rows: of the index, at least those that FAISS covers.
        index: FAISS's, if it is open already.

    Raises:
        ConfigError: faiss is not installed.
        CheckpointError: its file is missing or made from other vectors, or this installation did not write it.
    """

    def __init__(self, meta: FaissFile, folder: Path, *, dim: int, rows: int, index: Any = None) -> None:
        self.meta = meta
        self.rows = rows
        self._file = folder / meta.file
        self.index = self._opened(dim) if index is None else index

    def _opened(self, dim: int) -> Any:
        """FAISS's index, mapped into memory. Its file's signature is checked first, as FAISS trusts what it reads."""
        faiss, meta = faiss_library(), self.meta
        try:
            if not is_signed(self._file, meta.signature):
                raise CheckpointError(
                    f"{self._file}: another installation wrote it, or it has changed, and FAISS is not safe against "
                    "such files: build it again with `polyencoder update --faiss auto`, or if you trust its origin "
                    "sign it with `polyencoder update --trust-faiss`"
                )
            index = faiss.read_index(str(self._file), getattr(faiss, "IO_FLAG_MMAP_IFC", 0))
        except (RuntimeError, OSError) as error:
            raise CheckpointError(
                f"{self._file} cannot be read ({first_line(error)}): build it again with build_faiss"
            ) from None
        if (index.ntotal, index.d) != (meta.rows, dim) or meta.rows > self.rows:
            raise CheckpointError(f"{self._file} was made from other vectors than those in its folder: build it again")
        return index

    @property
    def most_effort(self) -> int:
        """The effort that examines everything."""
        return int(self.meta.parameters["nlist"]) if self.meta.kind.startswith("ivf") else self.meta.rows

    def list_length(self, options: ShortlistOptions, *, k: int) -> int:
        """The number of candidates proposed by each code, or group of codes, for the k best."""
        tuned = self.meta.tuned
        return options.list_length or max(4 * k, _SHORTEST_LIST if tuned is None else tuned.list_length)

    def scans(self, options: ShortlistOptions, *, k: int, allowed: int | None) -> bool:
        """Whether a search scores everything instead; `allowed` is the number of rows that may be found, None: all."""
        few = allowed is not None and allowed <= max(_SCAN_ROWS, _SCAN_SHARE * self.rows)
        long = not options.list_length and self.list_length(options, k=k) > LONGEST_LIST
        return few or long

    def search(self, engine: ShortlistSearch, options: ShortlistOptions) -> list[ShortlistResult]:
        """The results of an engine that asks these lists."""
        length = self.list_length(options, k=engine.k)
        return search_shortlists(
            engine,
            exactness=options.exactness or "approximate",
            length=length,
            longest=max(length, LONGEST_LIST, 2 * engine.k),
        )

    def nearest(self, queries: Array, length: int, parameters: Any) -> tuple[Array, Array]:
        """FAISS's lists for `queries`, float32 [n, dim]: inner products and rows [n, length], a gap being -1."""
        try:
            found: tuple[Array, Array] = self.index.search(queries, length, params=parameters)
        except RuntimeError as error:
            raise CheckpointError(f"{self._file}: cannot be searched ({first_line(error)}); build it again") from None
        return found


class FaissRequest:
    """What a search asks of FAISS: queries by its options, among the rows that it allows.

    Args:
        allowed: bool [rows of the index]; None for all.
    """

    def __init__(self, lists: FaissLists, options: ShortlistOptions, *, allowed: Array | None) -> None:
        self._lists, meta = lists, lists.meta
        certified = options.exactness == "certified"
        self._tolerance = None if certified else TOLERANCE if options.tolerance is None else options.tolerance
        self._parameters = _parameters(lists, options.effort, allowed=allowed, all=certified)
        self._proves = meta.has_exact_lists and self._parameters.nprobe >= lists.most_effort

    def lists(self, codes: Sequence[Array], length: int) -> Iterator[tuple[Array, float]]:
        """For the codes of each context, float32 [n, dim], what `shortlists` gives of lists of this length."""
        meta = self._lists.meta
        length = min(length, meta.rows)

        def nearest(queries: Array) -> Lists:
            products, rows = self._lists.nearest(queries, length, self._parameters)
            outside = products[:, -1].astype(np.float64) if self._proves else np.full(len(queries), np.inf)
            if self._proves:  # a list with gaps (id -1) or of all rows has nothing outside
                outside[(rows[:, -1] < 0) | (length == meta.rows)] = -np.inf
            return Lists([own[own >= 0] for own in rows], outside)

        return shortlists(codes, nearest, tolerance=self._tolerance, max_norm=meta.max_norm)


def check_shortlists(options: ShortlistOptions, meta: FaissFile | None, *, folder: Path) -> None:
    """Raises ConfigError for an option that is not for this index; `meta` is that of its FAISS index, if any."""
    if meta is None and options.of_lists:
        raise ConfigError(
            f"{', '.join(options.of_lists)} given, but it has no FAISS index, which these are for; build one with "
            "`build_faiss` or `polyencoder update`",
            argument=options.of_lists[0],
            where=folder,
        )


def _parameters(lists: FaissLists, effort: int | None, *, allowed: Array | None, all: bool) -> Any:
    """FAISS's search parameters, for `all` lists if requested.

    Rows that are not allowed are visited too, so the effort grows if only a share is allowed.
    """
    faiss, meta = faiss_library(), lists.meta
    own: dict[str, Any] = {}
    if allowed is not None:
        own["sel"] = faiss.IDSelectorBitmap(np.packbits(allowed[: meta.rows], bitorder="little"))
    available = lists.rows if allowed is None else int(allowed.sum())
    wanted = min(round((effort or meta.effort) * lists.rows / available), lists.most_effort)
    if meta.kind == "hnsw":
        return faiss.SearchParametersHNSW(efSearch=wanted, **own)
    return faiss.SearchParametersIVF(nprobe=lists.most_effort if all else wanted, **own)
