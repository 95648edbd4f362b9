"""`FolderIndex`: an index in a folder, opened in milliseconds, searched, and changed while others search it.

A change appends: new texts get new rows and a new file of vectors; a removal leaves a dead row. See `database` and
`change` for concurrent reads and writes.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from polyencoder.checks import check_count
from polyencoder.encoding.protocol import Context, TextRanker
from polyencoder.errors import ConfigError, InputError
from polyencoder.index.base import Index
from polyencoder.index.entries import Candidate, WriteMode
from polyencoder.index.faiss.file import TunedSettings
from polyencoder.index.faiss.tuning import SAMPLE, check_recall, sample
from polyencoder.index.filters import Filter
from polyencoder.index.folder.catalogue import Catalogue
from polyencoder.index.folder.change import Change
from polyencoder.index.folder.database import Database, check_exists
from polyencoder.index.folder.files import locked, wrap_io_errors
from polyencoder.index.folder.state import State
from polyencoder.index.hits import TOP_K, Hit
from polyencoder.index.meta import Fingerprints, IndexMeta
from polyencoder.index.model import IndexModel
from polyencoder.index.options import SearchOptions
from polyencoder.index.values import Kind
from polyencoder.index.vectors import Vectors
from polyencoder.search.contexts import Contexts
from polyencoder.search.late import TokenVectors
from polyencoder.text.dialogue import check_contexts

_BATCH_SIZE = 32  # contexts per batch when recall is measured
_log = logging.getLogger(__name__)

T = TypeVar("T")


class FolderIndex(Index):
    """An index that `build_index` made. One process at a time may change it, while any number search.

    A search sees every change that was committed before it began, and never a part of one.
    """

    rolls_back = True

    def __init__(self, folder: Path, ranker: TextRanker | Fingerprints | None) -> None:
        self.folder = folder.absolute()  # independent of later changes of directory
        self._model = IndexModel(ranker)
        self._ranker = self._model.ranker
        self._database = Database(self.folder)
        self._state: State | None = None
        self._mutex = threading.RLock()
        self._change: Change | None = None
        with ExitStack() as failed:
            failed.callback(self.close)
            self._read(lambda state, _: state)
            failed.pop_all()

    @classmethod
    def open(cls, path: str | os.PathLike[str], ranker: TextRanker | Fingerprints | None = None) -> FolderIndex:
        """Opens an index for the model that made it, as `polyencoder.index.open.open_index`.

        Reads neither texts nor vectors. A model's fingerprints are computed.
        """
        return cls(Path(path), ranker)

    def close(self) -> None:
        self._database.close()
        self._state = None  # which has the files of vectors mapped into memory

    @property
    def address(self) -> str:
        return str(self.folder)

    @property
    def state(self) -> State:
        """The newest state. CheckpointError if it is damaged, or was replaced by an index of another model."""
        return self._read(lambda state, _: state)

    @property
    def meta(self) -> IndexMeta:  # type: ignore[override]
        """The description of the newest state."""
        return self.state.meta

    @property
    def vectors(self) -> Vectors:
        """The vectors of the newest state."""
        return self.state.vectors

    def texts(self) -> list[str]:
        """The texts of all rows, including removed ones."""
        return self._read(lambda state, catalogue: catalogue.list_texts(0, state.meta.rows))

    def removed_rows(self) -> set[int]:
        """The rows whose entries were all removed."""
        return set(self._read(lambda _, catalogue: catalogue.find_dead_rows()).tolist())

    def count(self, filter: Filter | None = None) -> int:
        return self._read(lambda state, catalogue: state.meta.entries if filter is None else catalogue.count(filter))

    def count_texts(self, filter: Filter | None = None) -> int:
        def count(state: State, catalogue: Catalogue) -> int:
            allowed = state.select_allowed(catalogue, filter)
            return state.meta.rows if allowed is None else int(allowed.sum())

        return self._read(count)

    @property
    def has_words(self) -> bool:
        return self._read(lambda _, catalogue: catalogue.words is not None)

    def has_field(self, key: str, kinds: Collection[Kind] = ()) -> bool:
        return self._read(lambda _, catalogue: catalogue.has_field(key, kinds))

    def get_texts(self, ids: Iterable[str]) -> dict[str, str]:
        ids = [*ids]  # `_read` may ask twice
        return self._read(lambda _, catalogue: catalogue.get_texts(ids))

    def get_vectors(self, ids: Iterable[str]) -> dict[str, np.ndarray[Any, Any]]:
        ids = [*ids]

        def find(state: State, catalogue: Catalogue) -> dict[str, np.ndarray[Any, Any]]:
            rows = catalogue.get_rows(ids)
            vectors = state.vectors.take(np.array([*rows.values()], dtype=np.int64))
            return dict(zip(rows, vectors, strict=True))

        return self._read(find)

    def token_vectors(self, texts: Iterable[str], fingerprint: str | None) -> dict[str, TokenVectors]:
        texts = [*texts]

        def find(state: State, catalogue: Catalogue) -> dict[str, TokenVectors]:
            if state.meta.tokens is None or state.meta.tokens.fingerprint != fingerprint:
                return {}
            rows = catalogue.find_rows(texts)
            numbers = np.array([*rows.values()], dtype=np.int64)
            if (tokens := state.vectors.read_token_rows(numbers)) is None:
                return {}
            pairs = zip(state.vectors.take(numbers), tokens.list_vectors(), strict=True)
            return {text: TokenVectors(*pair) for text, pair in zip(rows, pairs, strict=True)}

        return self._read(find)

    def _read(self, ask: Callable[[State, Catalogue], T]) -> T:
        """Calls `ask` with the newest state and a snapshot of its database; errors as in `Database.read`."""

        def read_newest(catalogue: Catalogue) -> T:
            state = self._state
            if state is None or state.text != catalogue.read_description():
                state = self._state = State(self.folder, catalogue, self._model, before=state)
            return ask(state, catalogue)

        return self._database.read(read_newest)

    # Searching

    def _search(self, contexts: Contexts, options: SearchOptions) -> list[list[Hit]]:
        def find(state: State, catalogue: Catalogue) -> list[list[Hit]]:
            attention = self._model.get_attention(state.meta, contexts)
            return state.search_by_vectors(catalogue, contexts, options, attention=attention)

        return self._read(find)

    def _search_both(
        self, contexts: Contexts, turns: Sequence[Sequence[str]], options: SearchOptions
    ) -> tuple[list[list[Hit]], list[list[Hit]]]:
        def find(state: State, catalogue: Catalogue) -> tuple[list[list[Hit]], list[list[Hit]]]:
            attention = self._model.get_attention(state.meta, contexts)
            by_vectors: list[list[Hit]] = [[] for _ in turns]
            if not options.words_only:
                by_vectors = state.search_by_vectors(catalogue, contexts, options, attention=attention)
            return by_vectors, state.search_by_words(catalogue, contexts, turns, options, attention=attention)

        return self._read(find)

    def check(self, options: SearchOptions) -> None:
        super().check(options)
        if self.meta.faiss is None and (names := options.list_options):
            raise ConfigError(
                f"{', '.join(names)} given, but it has no FAISS index, which these are for; build one with "
                "`build_faiss` or `polyencoder update`",
                argument=names[0],
                where=self.folder,
            )
        if options.exactness != "exact" and not options.words_only:  # opens it: an error if faiss is not installed
            self._read(lambda state, _: state.meta.faiss and state.faiss)

    # Changing

    @contextmanager
    def changing(self) -> Iterator[None]:
        """See `Index.changing`; waits for another process's change, half a minute at most."""
        with self._mutex:
            if self._change is not None and not self._change.closed:
                with self._change.step():
                    yield
                return
            check_exists(self.folder)
            keep = False
            with locked(self.folder):
                self._read(lambda state, _: state)  # raises for another model's
                try:
                    with wrap_io_errors(self.folder):
                        self._change = Change(self.folder, self._ranker)
                    yield
                    with wrap_io_errors(self.folder):
                        self._change.publish()
                except BaseException as error:
                    keep = not isinstance(error, Exception)  # interrupted; it may be repeated
                    raise
                finally:
                    change, self._change = self._change, None
                    if change is not None:
                        change.close(keep=keep)

    def _enter(self, records: Iterable[Candidate], how: WriteMode) -> int:
        """See `Index.add`. A killed call resumes after the last complete file if repeated with the same records."""
        return self._enter_each(records, lambda catalogue, record: catalogue.put(record, how=how))

    def _remove(self, ids: Iterable[str], *, missing_ok: bool) -> int:
        """See `Index.remove`. The texts and vectors stay on disk until `compact`."""
        return self._enter_each(ids, lambda catalogue, id_: catalogue.remove(id_, missing_ok=missing_ok))

    def _list_ids(self, filter: Filter) -> list[str]:
        assert self._change is not None
        with wrap_io_errors(self.folder):
            return self._change.catalogue.list_ids(filter)

    def _has_field(self, key: str, kinds: Collection[Kind] = ()) -> bool:
        assert self._change is not None
        with wrap_io_errors(self.folder):
            return self._change.catalogue.has_field(key, kinds)

    def compact(self) -> int:
        """Frees dead rows, merges small files, and drops the FAISS index; returns the number of dead rows."""
        with self._step() as change, wrap_io_errors(self.folder):
            return change.compact()

    def add_words(self) -> bool:
        """Adds the words of all texts, for searches by words; every change then keeps them. ConfigError without FTS5.

        Returns False for an index that has words, which is unchanged.
        """
        with self._step() as change, wrap_io_errors(self.folder):
            return change.add_words()

    def build_faiss(self, kind: str = "auto", **overrides: int | str) -> None:
        """Builds a FAISS index: see `polyencoder.index.faiss.file.build_faiss` for kinds and settings."""
        with self._step() as change, wrap_io_errors(self.folder):
            change.build_faiss(kind, **overrides)

    def trust_faiss(self) -> None:
        """Lets searches read a FAISS index that another installation built.

        FAISS is not safe against files that were made to harm: trust only those whose origin you trust.

        Raises:
            ConfigError: there is no FAISS index, or the key that signs its file cannot be made.
            CheckpointError: the file has changed since the index was built.
        """
        with self._step() as change, wrap_io_errors(self.folder):
            change.trust_faiss()

    def tune(
        self, *, recall: float, contexts: Sequence[Context] | None = None, top_k: int = TOP_K, source: str = ""
    ) -> TunedSettings:
        """Tunes the FAISS index to find `recall` of the `top_k` best; the result becomes its searches' default.

        See `polyencoder.index.faiss.tuning.tune`; warns if no settings reach the recall. `tuning.SAMPLE` of the
        contexts are used; without any, texts of the index, which is less reliable, and warned of.

        Raises:
            ConfigError: there is no FAISS index, or its model scores everything anyway.
            InputError: there is no context, or `top_k` is too small, or the index was opened without its model.
        """
        recall, top_k = check_recall(recall), check_count("top_k", top_k)
        if self._ranker is None:
            raise InputError(f"{self.folder}: was opened without its model, which encodes contexts; give a Ranker")
        turns = None if contexts is None else check_contexts(contexts)
        with self._step() as change:
            if turns is None:
                source = "the index's own texts"
                _log.warning(
                    "recall is measured with %s as contexts: contexts from production would be more reliable", source
                )
            texts = change.sample_texts(SAMPLE) if turns is None else sample(turns, SAMPLE)
            batches = (texts[i : i + _BATCH_SIZE] for i in range(0, len(texts), _BATCH_SIZE))
            parts = [replace(self._ranker.encode_contexts(batch), tokens=None) for batch in batches]
            attention = self._ranker.model.config.poly_attention
            with wrap_io_errors(self.folder):
                tuned = change.tune_faiss(parts, recall=recall, top_k=top_k, attention=attention, source=source)
        if not tuned.reached:
            _log.warning("recall %g was not reached: %s", recall, tuned)
        return tuned

    @contextmanager
    def _step(self) -> Iterator[Change]:
        with self.changing():
            assert self._change is not None
            yield self._change

    def _enter_each(self, items: Iterable[T], enter: Callable[[Catalogue, T], int]) -> int:
        with self._step() as change:
            return change.apply_each(items, enter)
