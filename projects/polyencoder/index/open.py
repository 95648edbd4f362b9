"""Opens, makes and describes indexes by their address, for every engine."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import cast

from tqdm import tqdm

from polyencoder.checks import check_place, without_password
from polyencoder.errors import ConfigError, InputError
from polyencoder.index.base import Index
from polyencoder.index.entries import Candidate, Record, checked_records
from polyencoder.index.faiss.kinds import parse_faiss
from polyencoder.index.faiss.tuning import checked_recall
from polyencoder.index.federated import FederatedIndex
from polyencoder.index.folder import FolderIndex, described_folder
from polyencoder.index.folder.build import SHARD_SIZE, build_index
from polyencoder.index.folder.shards import Share
from polyencoder.index.given import with_vectors
from polyencoder.index.meta import Fingerprints
from polyencoder.index.milvus import MILVUS, MilvusIndex, described_milvus
from polyencoder.index.milvus.collection import IndexKind
from polyencoder.index.postgres import SCHEMES, PostgresIndex, described_postgres, is_postgres
from polyencoder.index.stored_tokens import TokenDtype
from polyencoder.index.vector_files import VectorDtype
from polyencoder.ranker.protocol import Context, TextRanker
from polyencoder.storage.temporary import TemporaryFolder
from polyencoder.text.dialogue import checked_contexts

Place = str | os.PathLike[str]

_ADDRESSES = ("milvus", *SCHEMES)


def open_index(
    where: Place | Sequence[Place],
    ranker: TextRanker | Fingerprints | None = None,
    *,
    attention: str = "basic",
    partial: bool = False,
) -> Index:
    """Opens the index at `where` (a folder, `milvus:...` or `postgres://...`) for the model that made it.

    Examples:
        >>> open_index("replies", ranker)
        >>> open_index(["replies", "postgres://db/chat#replies"], ranker)  # searched as one

    Args:
        where: see `FolderIndex.open`, `MilvusIndex.create` and `PostgresIndex.make`; several are a `FederatedIndex`.
        ranker: the model; its fingerprints and its `attention` are enough if no texts are added; None, for any model,
            if searches are by vectors.
        attention: a poly-encoder's `poly_attention`; a ranker knows its own.
        partial: search several indexes without one whose server does not answer, which results then say.

    Raises:
        CheckpointError: there is no index, it is damaged, or another model made it.
        ConfigError: `partial` for a single index.
        PolyencoderError: a server cannot be reached.
    """
    if isinstance(where, Sequence) and not isinstance(where, str):
        if len(places := list(where)) != 1:
            for place in places:
                check_place("the index", place, addresses=_ADDRESSES)

            def open_part(place: Place, made_by: Fingerprints | None) -> Index:
                return open_index(place, made_by if ranker is None else ranker, attention=attention)

            return FederatedIndex(places, open_part, partial=partial)
        (where,) = places
    if partial:
        raise ConfigError("partial is for a search of several indexes: name another, too", argument="partial")
    check_place("the index", where, addresses=_ADDRESSES)
    if str(where).startswith(MILVUS):
        return MilvusIndex.open(str(where), ranker, attention=attention)
    if is_postgres(where):
        return PostgresIndex.open(str(where), ranker, attention=attention)
    return FolderIndex.open(where, ranker, attention=attention)


def described(where: str | os.PathLike[str]) -> list[str]:
    """A summary of the index at `where`, in lines; neither its model nor FAISS is needed.

    Raises:
        CheckpointError: there is no finished index, or it is damaged.
        PolyencoderError: a server cannot be reached.
    """
    if is_postgres(where):
        return described_postgres(str(where))
    return described_milvus(str(where)) if str(where).startswith(MILVUS) else described_folder(Path(where))


def make_index(
    candidates: Iterable[Record],
    where: str | os.PathLike[str] | None,
    ranker: TextRanker | Fingerprints,
    *,
    dtype: VectorDtype = "float32",
    store_tokens: TokenDtype | None = None,
    words: bool = False,
    faiss: str | None = None,
    recall: float | None = None,
    contexts: Sequence[Context] | None = None,
    contexts_from: str = "",
    milvus: str | None = None,
    postgres: str | None = None,
    workers: int = 1,
    share: Share | None = None,
    shard_size: int = SHARD_SIZE,
    model_name: str = "",
    progress: bool = False,
) -> Index:
    """Makes an index of candidates and opens it. See `Ranker.index`, and `build_index` for the settings.

    With fingerprints instead of a model, all candidates must have vectors.
    """
    records = checked_records(candidates)
    if where is not None:
        check_place("the index", where, addresses=_ADDRESSES)
    check_tuning(recall, contexts, faiss=faiss)
    if recall is not None and isinstance(ranker, Fingerprints):
        raise ConfigError("recall is measured with contexts, which only a model encodes: give it", argument="recall")
    contexts = None if contexts is None else checked_contexts(contexts)
    engines = {"milvus": (milvus, str(where).startswith(MILVUS)), "postgres": (postgres, is_postgres(where))}
    for engine, (server_kind, is_there) in engines.items():
        if server_kind is not None and not is_there:
            raise ConfigError(
                f"{engine} is {server_kind!r}, the kind of an index in {engine}, but the index is elsewhere",
                argument=engine,
            )
    if where is not None and any(is_there for _, is_there in engines.values()):
        shown = without_password(str(where))
        of_folders: dict[str, tuple[object, object]] = {
            "dtype": (dtype, "float32"),
            "store_tokens": (store_tokens, None),
            "faiss": (faiss, None),
        }
        of_folders |= {"workers": (workers, 1), "shard_size": (shard_size, SHARD_SIZE)}
        if words and not is_postgres(where):
            raise ConfigError(f"{shown}: words are only for index folders and PostgreSQL", argument="words")
        for name, (value, default) in of_folders.items():
            if value != default:
                raise ConfigError(f"{shown}: {name} is only for index folders", argument=name)
        if share is not None and share.processes > 1:
            raise ConfigError(f"{shown}: several torchrun processes are only for index folders; start one")
        return _on_server(
            records,
            str(where),
            ranker,
            kind=postgres if is_postgres(where) else milvus,
            words=words,
            model_name=model_name,
            progress=progress,
        )
    kind, parameters = (None, {}) if faiss is None else parse_faiss(faiss)
    temporary = None
    if where is None:
        if share is not None and share.processes > 1:
            raise ConfigError("a temporary index belongs to its process: give a folder for one that processes share")
        temporary = TemporaryFolder()
        where = Path(temporary.name) / "index"
    build_index(
        where,
        records,
        ranker,
        dtype=dtype,
        store_tokens=store_tokens,
        words=words,
        workers=workers,
        share=share,
        shard_size=shard_size,
        model_name=model_name,
        progress=progress,
    )
    index = FolderIndex.open(where, ranker)
    if kind is not None and (share is None or share.rank == 0):
        with index.changing():
            index.build_faiss(kind, **parameters)
            if recall is not None:
                index.tune(recall=recall, contexts=contexts, source=contexts_from)
    if temporary is not None:
        weakref.finalize(index, temporary.cleanup)
    return index


def check_tuning(recall: float | None, contexts: object, *, faiss: str | None) -> None:
    """Raises ConfigError for a recall without an index to tune, or contexts without a recall."""
    if recall is not None:
        checked_recall(recall)
        if faiss is None:
            raise ConfigError("recall is for a FAISS index: give its kind", argument="faiss")
    elif contexts is not None:
        raise ConfigError("contexts are for measuring recall: give a recall", argument="recall")


def _on_server(
    records: Iterator[Candidate],
    where: str,
    ranker: TextRanker | Fingerprints,
    *,
    kind: str | None,
    words: bool,
    model_name: str,
    progress: bool,
) -> Index:
    records, dim = with_vectors(records, ranker)
    if (first := next(records, None)) is None:  # before a server is contacted
        raise InputError(f"{without_password(where)}: not made, as there are no candidates: the input is empty")
    records = chain([first], records)
    index = None
    if not is_postgres(where):
        index = MilvusIndex.create(  # checks the kind
            where, ranker, kind=cast("IndexKind | None", kind), model_name=model_name, dim=dim
        )
    with tqdm(records, desc="adding", unit=" candidates", unit_scale=True, disable=not progress) as shown:
        if index is None:
            return PostgresIndex.make(where, shown, ranker, kind=kind, words=words, model_name=model_name, dim=dim)
        index.add(shown)
    return index
