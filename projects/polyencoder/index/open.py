"""Opens, makes and describes indexes by their address, for every engine."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, cast

from polyencoder.checks import check_place, hide_password
from polyencoder.encoding.protocol import Context, TextRanker
from polyencoder.errors import ConfigError, InputError
from polyencoder.guesses import change_options
from polyencoder.index.base import Index
from polyencoder.index.build_options import IndexOptions
from polyencoder.index.entries import Candidate, Record, check_records
from polyencoder.index.faiss.kinds import parse_faiss
from polyencoder.index.faiss.tuning import check_recall
from polyencoder.index.folder.build import build_index
from polyencoder.index.folder.index import FolderIndex
from polyencoder.index.folder.verify import describe_folder
from polyencoder.index.meta import Fingerprints
from polyencoder.index.milvus.collection import MILVUS, IndexKind
from polyencoder.index.milvus.index import MilvusIndex
from polyencoder.index.postgres.connection import SCHEMES, is_postgres
from polyencoder.index.postgres.index import PostgresIndex
from polyencoder.index.precomputed import check_vectors
from polyencoder.progress import create_progress
from polyencoder.storage.temporary import TemporaryFolder
from polyencoder.text.dialogue import check_contexts

_ADDRESSES = ("milvus", *SCHEMES)


def _find_engine(where: object) -> str | None:
    """The database server, or the file of Milvus Lite, that an address names; None for folders."""
    if str(where).startswith(MILVUS):
        return "milvus"
    return "postgres" if is_postgres(where) else None


def open_index(where: str | os.PathLike[str], ranker: TextRanker | Fingerprints | None = None) -> Index:
    """Opens the index at `where` (a folder, `milvus:...` or `postgres://...`) for the model that made it.

    Examples:
        >>> open_index("replies", ranker)

    Args:
        where: see `FolderIndex.open`, `MilvusIndex.create` and `PostgresIndex.make`.
        ranker: the model; its fingerprints if no texts are added; None, for any model, if searches are by vectors.

    Raises:
        CheckpointError: there is no index, it is damaged, or another model made it.
        PolyencoderError: a server cannot be reached.
    """
    check_place("the index", where, addresses=_ADDRESSES)
    if (engine := _find_engine(where)) is None:
        return FolderIndex.open(where, ranker)
    return (MilvusIndex if engine == "milvus" else PostgresIndex).open(str(where), ranker)


def describe_index(where: str | os.PathLike[str]) -> list[str]:
    """A summary of the index at `where`, in lines; neither its model nor FAISS is needed.

    Raises:
        CheckpointError: there is no finished index, or it is damaged.
        PolyencoderError: a server cannot be reached.
    """
    if (engine := _find_engine(where)) is None:
        return describe_folder(Path(where))
    with (MilvusIndex if engine == "milvus" else PostgresIndex).open(str(where)) as index:
        return index.summarize()


def make_index(
    candidates: Iterable[Record],
    where: str | os.PathLike[str] | None,
    ranker: TextRanker | Fingerprints,
    options: IndexOptions | None = None,
    *,
    contexts: Sequence[Context] | None = None,
    contexts_from: str = "",
    model_name: str = "",
    progress: bool | None = False,
    **changes: Any,
) -> Index:
    """Makes an index of candidates and opens it. See `Ranker.index`; `changes` are fields of the options.

    With fingerprints instead of a model, all candidates must have vectors.
    """
    options = change_options(options or IndexOptions(), changes)
    records = check_records(candidates)
    if where is not None:
        check_place("the index", where, addresses=_ADDRESSES)
    check_tuning(options.recall, contexts, faiss=options.faiss)
    if options.recall is not None and isinstance(ranker, Fingerprints):
        raise ConfigError("recall is measured with contexts, which only a model encodes: give it", argument="recall")
    contexts = None if contexts is None else check_contexts(contexts)
    engine = _find_engine(where)
    options.check_engine(engine, where)
    if engine is not None:
        return _make_on_server(records, str(where), ranker, options, model_name=model_name, progress=progress)
    faiss = None if options.faiss is None else parse_faiss(options.faiss)
    temporary = None
    if where is None:
        temporary = TemporaryFolder()
        where = Path(temporary.name) / Path(temporary.name).name  # a calibration tells indexes apart by name
    build_index(where, records, ranker, options, model_name=model_name, progress=progress)
    index = FolderIndex.open(where, ranker)
    if faiss is not None:
        kind, parameters = faiss
        with _close_after_error(index), index.changing():
            index.build_faiss(kind, **parameters)
            if options.recall is not None:
                index.tune(recall=options.recall, contexts=contexts, source=contexts_from)
    if temporary is not None:
        weakref.finalize(index, temporary.cleanup)
    return index


def check_tuning(recall: float | None, contexts: object, *, faiss: str | None) -> None:
    """Raises ConfigError for a recall without an index to tune, or contexts without a recall."""
    if recall is not None:
        check_recall(recall)
        if faiss is None:
            raise ConfigError("recall is for a FAISS index: give its kind", argument="faiss")
    elif contexts is not None:
        raise ConfigError("contexts are for measuring recall: give a recall", argument="recall")


def _make_on_server(
    records: Iterator[Candidate],
    where: str,
    ranker: TextRanker | Fingerprints,
    options: IndexOptions,
    *,
    model_name: str,
    progress: bool | None,
) -> Index:
    records, dim = check_vectors(records, ranker)
    if (first := next(records, None)) is None:  # before a server is contacted
        raise InputError(f"{hide_password(where)}: not made, as there are no candidates: the input is empty")
    settings: dict[str, Any] = {"model_name": model_name, "dim": dim, "split": options.split_for(ranker)}
    with create_progress(chain([first], records), step="adding", unit="candidates", show=progress) as tracked:
        if is_postgres(where):
            return PostgresIndex.make(where, tracked, ranker, kind=options.postgres, words=options.words, **settings)
        kind = cast("IndexKind | None", options.milvus)  # `create` checks it
        index = MilvusIndex.create(where, ranker, kind=kind, **settings)
        with _close_after_error(index):
            index.add(tracked)
    return index


@contextmanager
def _close_after_error(index: Index) -> Iterator[None]:
    try:
        yield
    except BaseException:
        index.close()
        raise
