"""`FolderIndex`: an index in a folder, opened in milliseconds, searched, and changed while others search it.

A change appends: new texts get new rows and a new file of vectors; what is removed leaves a dead row. See `state` and
`change` for how readers and a writer keep out of each other's way.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.index.approximate import scan_vectors
from polyencoder.index.base import Candidate, Hit, Index, check_contexts
from polyencoder.index.catalogue import Catalogue
from polyencoder.index.change import OF_AN_INDEX, Change, explained, lock
from polyencoder.index.faiss_file import FaissFile, Tuned
from polyencoder.index.meta import META, Fingerprints, IndexMeta
from polyencoder.index.options import TOP_K, Filter, SearchOptions
from polyencoder.index.state import State, newest
from polyencoder.index.tuning import SAMPLE, check_recall, sample, tune
from polyencoder.index.vectors import Vectors
from polyencoder.protocol import Context, TextRanker
from polyencoder.scoring import ContextEncoding
from polyencoder.text.dialogue import checked_contexts

_AT_ONCE = 32  # contexts that recall is measured with together
_log = logging.getLogger(__name__)


class FolderIndex(Index):
    """An index that `build_index` made. One process at a time may change it, while any number search.

    A search sees all of a change or nothing of it, and every one that had ended when the search began.
    """

    def __init__(
        self, folder: Path, fingerprints: Fingerprints, ranker: TextRanker | None, *, attention: str = "basic"
    ) -> None:
        self.folder = folder
        self.attention = attention
        self._fingerprints = fingerprints
        self._ranker = ranker
        self._state = newest(folder, fingerprints)
        self._mutex = threading.RLock()
        self._change: Change | None = None

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], ranker: TextRanker | Fingerprints, *, attention: str = "basic"
    ) -> FolderIndex:
        """Open an index for the model that made it.

        Reads neither texts nor vectors.

        Args:
            path: the folder.
            ranker: the model, whose fingerprints are computed; or its fingerprints, from who has them already and does
                not add texts.
            attention: a poly-encoder's `poly_attention`; a ranker knows its own.

        Raises:
            CheckpointError: if there is no finished index, it is damaged, or another model made it.
        """
        folder = Path(path)
        _mend(folder)
        if isinstance(ranker, Fingerprints):
            return cls(folder, ranker, None, attention=attention)
        return cls(folder, Fingerprints.of(ranker), ranker, attention=ranker.model.config.poly_attention)

    @property
    def state(self) -> State:
        """The newest. CheckpointError if one was put into its place that another model made, or that is damaged."""
        self._state = newest(self.folder, self._fingerprints, before=self._state)
        return self._state

    @property
    def meta(self) -> IndexMeta:
        """The description of the newest state."""
        return self.state.meta

    @property
    def catalogue(self) -> Catalogue:
        """The texts and entries of the newest state."""
        return self.state.catalogue

    @property
    def vectors(self) -> Vectors:
        """The vectors of the newest state."""
        return self.state.vectors

    @property
    def faiss(self) -> FaissFile | None:
        """What its FAISS index is, and how it searches; None if there is none."""
        name = self.meta.faiss
        return None if name is None else FaissFile.read(self.folder, name=name)

    def count(self, filter: Filter | None = None) -> int:
        catalogue = self.catalogue
        return catalogue.count(filter) if filter else len(catalogue)

    def count_texts(self, filter: Filter | None = None) -> int:
        state = self.state
        allowed = state.allowed_rows(filter)
        return len(state.vectors) if allowed is None else int(allowed.sum())

    def has_field(self, key: str) -> bool:
        return self.catalogue.has_field(key)

    # Searching

    def _search(self, contexts: ContextEncoding, options: SearchOptions) -> list[list[Hit]]:
        """With the FAISS index if the folder has one, else by scoring everything."""
        check_contexts(contexts, dim=self.vectors.dim)
        while True:
            state = self.state
            try:
                return self._of_state(state, contexts, options)
            except CheckpointError:  # its FAISS index may be gone, opened as it is when first needed
                if state is self.state:
                    raise

    def _of_state(self, state: State, contexts: ContextEncoding, options: SearchOptions) -> list[list[Hit]]:
        options = replace(options, top_k=max(1, options.k(len(state.catalogue))))
        allowed = state.allowed_rows(options.filter)
        if options.exactness == "exact" or state.meta.faiss is None:
            found = scan_vectors(contexts, state.vectors, options, allowed=allowed, attention=self.attention)
        else:
            found = state.faiss.search(contexts, options, allowed=allowed, attention=self.attention)
        return state.hits(*found, options)

    def check(self, options: SearchOptions) -> None:
        """As in `Index.check`: what is told about lists needs a FAISS index."""
        if options.of_lists and self.meta.faiss is None:
            raise ConfigError(
                f"{self.folder}: {', '.join(options.of_lists)} given, but it has no FAISS index that this would be of "
                "use to; build one by `build_faiss` or `polyencoder update`",
                argument=next(iter(options.of_lists)),
            )
        if options.effort is not None:
            self.state.faiss.check(options)

    # Changing

    @contextmanager
    def changing(self) -> Iterator[None]:
        """As in `Index.changing`; another process's change is waited for, half a minute at most."""
        with self._mutex:
            if self._change is not None:
                yield
                return
            with explained(self.folder):
                held = lock(self.folder)
            try:
                with explained(self.folder):
                    self._change = Change(self.state, self._ranker)
                try:
                    yield
                    with explained(self.folder):
                        self._change.publish()
                except BaseException as error:
                    self._change.discard(vectors=isinstance(error, Exception))  # not when it was interrupted
                    raise
            finally:
                self._change = None
                held.release()

    def _add(self, records: Iterable[Candidate]) -> None:
        """As in `Index.add`. Killed and started again with the same records, it goes on from the last whole file."""
        with self._entries() as catalogue:
            for record in records:
                catalogue.put(record)

    def _remove(self, ids: Iterable[str], *, missing_ok: bool) -> None:
        """As in `Index.remove`. Their texts and vectors stay on disk until `compact`."""
        with self._entries() as catalogue:
            for id_ in ids:
                catalogue.remove(id_, missing_ok=missing_ok)

    def _update(self, records: Iterable[Candidate]) -> None:
        with self._entries() as catalogue:
            for record in records:
                assert record.id is not None
                catalogue.remove(record.id)
                catalogue.put(record)

    def _put(self, records: Iterable[Candidate]) -> None:
        with self._entries() as catalogue:
            for record in records:
                catalogue.put(record, replace=True)

    def compact(self) -> None:
        """Give the space of dead rows back, and make full files of small ones. Nothing is encoded again.

        An approximate index of the old rows goes with them.
        """
        with self._making() as change:
            change.compact()

    def build_faiss(self, kind: str = "auto", **overrides: int | str) -> None:
        """Make the search indexed, by FAISS: see `polyencoder.index.faiss_file.build_faiss` for kinds and settings."""
        with self._making() as change:
            change.build_faiss(kind, **overrides)

    def tune(
        self, *, recall: float, contexts: Sequence[Context] | None = None, top_k: int = TOP_K, source: str = ""
    ) -> Tuned:
        """Measure what the FAISS index needs to find `recall` of the `top_k` best; its searches use that unless told.

        Args:
            recall: such as 0.99.
            contexts: a sample of those that will be asked for, of which `tuning.SAMPLE` are used; None for texts of the
                index, as contexts of one turn, which says less, and is said in a warning.
            top_k: how many are the best.
            source: where the contexts are from, to be remembered.

        Returns:
            The settings and what was measured. Where nothing reaches the recall, that is a warning.

        Raises:
            ConfigError: there is no FAISS index, or its model scores everything anyway.
            InputError: there is no context, or the index was opened without its model.
        """
        check_recall(recall)
        contexts = None if contexts is None else checked_contexts(contexts)
        if self._ranker is None:
            raise InputError(f"{self.folder}: was opened without its model, which reads contexts; give a Ranker")
        with self._making() as change:
            if contexts is None:
                source = "the index's own texts"
                _log.warning(
                    "recall is measured with %s as contexts: give contexts such as will be asked for, or trust it less",
                    source,
                )
            texts = change.some_texts(SAMPLE) if contexts is None else sample(contexts, SAMPLE)
            parts = [self._ranker.encode_contexts(texts[i : i + _AT_ONCE]) for i in range(0, len(texts), _AT_ONCE)]
            measured = partial(
                tune, contexts=parts, recall=recall, top_k=top_k, attention=self.attention, source=source
            )
            tuned = change.tune_faiss(lambda searcher, living: measured(searcher, allowed=living))
        if not tuned.reached:
            _log.warning("recall %g was not reached: %s", recall, tuned)
        return tuned

    @contextmanager
    def _making(self) -> Iterator[Change]:
        with self.changing(), explained(self.folder):
            assert self._change is not None
            yield self._change

    @contextmanager
    def _entries(self) -> Iterator[Catalogue]:
        """The next state's, of which all is changed or, after an error, nothing."""
        with self._making() as change, change.catalogue.changing():
            yield change.catalogue


def remove_index(folder: str | os.PathLike[str]) -> None:
    """Remove an index, finished or not, if there is one. InputError if other things are there, which stay."""
    path = Path(folder)
    if not path.exists():
        return
    names = [] if path.is_file() else sorted(entry.name for entry in path.iterdir())
    strange = [name for name in names if not OF_AN_INDEX.fullmatch(name)]
    if path.is_file() or strange:
        what = f"has {strange[0]} in it" if strange else "is a file"
        raise InputError(f"{path}: {what}, which belongs to no index; give another folder for the index")
    (path / META).unlink(missing_ok=True)  # first: what a kill leaves is then no index any more
    shutil.rmtree(path)


def _mend(folder: Path) -> None:
    """Finish what an earlier version, which compacted into a folder beside, was killed in between its two renames."""
    absolute = folder.absolute()
    new, old = (absolute.parent / f".{absolute.name}.{what}" for what in ("compacted", "replaced"))
    if not folder.exists() and (new / META).is_file():
        new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
