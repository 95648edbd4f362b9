"""`Index`: the interface of all indexes, independent of the engine that stores the vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from typing_extensions import Self  # typing's, from Python 3.11 on

from polyencoder.checks import check_iterable, check_text
from polyencoder.encoding.protocol import Dialogue, TextRanker
from polyencoder.errors import ConfigError, InputError
from polyencoder.guesses import change_options
from polyencoder.index.documents import DOCUMENT, Split
from polyencoder.index.entries import Candidate, Record, WriteMode, check_records, convert_id
from polyencoder.index.filters import Filter, check_fields, parse_filter
from polyencoder.index.grouping import find_enough, limit_groups
from polyencoder.index.hits import DEPTH, TOP_K, Hit, compute_pool_size, diversify, fuse
from polyencoder.index.meta import Fingerprints, Maker
from polyencoder.index.model import IndexModel
from polyencoder.index.options import SearchOptions
from polyencoder.index.values import Kind
from polyencoder.search.contexts import Contexts
from polyencoder.search.late import TokenVectors
from polyencoder.text.dialogue import to_turns


class Index(ABC):
    """Candidates that are searched with encoded contexts, and changed without encoding the others again.

    Use it as a context manager, or `close` it.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Closes the connection or files, if any; the index cannot be used afterwards."""

    @property
    @abstractmethod
    def address(self) -> str:
        """The address for error messages, without a password."""

    meta: Maker
    """The index's newest description."""

    @property
    def fingerprints(self) -> Fingerprints:
        """The fingerprints of the model that made it."""
        return self.meta.fingerprints

    _model: IndexModel
    """The model that it was opened for."""

    def check_made_by(self, ranker: TextRanker) -> None:
        """Raises CheckpointError unless this ranker's model made the index. Reads its weights, the first time."""
        self._model.check_ranker(ranker, self.fingerprints, where=self.address)

    @property
    def split(self) -> Split | None:
        """How it splits texts into passages; None: not at all. Its searches group passages by their document."""
        return self.meta.split

    @property
    def has_words(self) -> bool:
        """Whether it can be searched by words."""
        return False

    @property
    def remote(self) -> bool:
        """Whether a server stores it, so that calls may wait for long."""
        return False

    def search(
        self,
        contexts: Any,
        options: SearchOptions | None = None,
        *,
        texts: Sequence[Dialogue] | None = None,
        **changes: Any,
    ) -> list[list[Hit]]:
        """The best candidates of each context, best first; fewer if fewer pass the filter.

        All scores are exact; an approximate search may miss a candidate. `Hit.found` says how a hit was found. The
        scores of a hybrid search need not fall: `Hit.fused_score` does.

        Examples:
            >>> index.search(contexts, top_k=5, exactness="certified")
            >>> index.search(numpy.load("queries.npy"), top_k=5)

        Args:
            contexts: the encoded contexts, any number of them; or their vectors, as an array or tensor, [contexts, dim]
                of one vector each or [contexts, codes, dim]. The score of one vector is its inner product with the
                candidate's.
            options: how to search; None for `SearchOptions()`.
            texts: what the contexts say, for a search by words.
            changes: fields of `SearchOptions` that override those of `options`.

        Raises:
            ConfigError: an option is unknown, or does not apply to this index.
            InputError: an option is too small, or the contexts do not fit.
        """
        options = change_options(options or SearchOptions(), changes)
        self.check(options)
        self.check_group(options)
        encoded = replace(Contexts.from_encoding(contexts), tokens=None)
        turns = self._read_turns(texts, options, contexts=encoded.batch_size)
        if not options.diversity and options.group_by is None:
            return self._find(encoded, turns, options)

        def search(positions: Sequence[int], k: int) -> list[list[Hit]]:
            part_texts = [turns[position] for position in positions] if turns else []
            return self._find(encoded.select(positions), part_texts, replace(options, top_k=k))

        k, spoken = options.top_k or TOP_K, [()] * encoded.batch_size  # turns are candidates like others here
        pool = compute_pool_size(k) if options.diversity else k
        results = [
            limit_groups(hits, options) for hits in find_enough(search, options, spoken=spoken, hits=pool, groups=k)[0]
        ]
        if options.diversity:
            results = diversify(results, self.get_vectors, k=k, depth=pool, diversity=options.diversity)
        return [hits[:k] for hits in results]

    def _read_turns(
        self, texts: Sequence[Dialogue] | None, options: SearchOptions, *, contexts: int
    ) -> list[list[str]]:
        """The turns of each context, for a search that reads words; nothing for others."""
        if not options.reads_words:
            return []
        if texts is None:
            raise InputError("a search by words reads what the contexts say: give their texts", argument="texts")
        turns = [to_turns(f"text {position}", text) for position, text in enumerate(texts)]
        if len(turns) != contexts:
            raise InputError(f"{len(turns)} texts for {contexts} contexts", argument="texts")
        return turns

    def _find(self, contexts: Contexts, turns: list[list[str]], options: SearchOptions) -> list[list[Hit]]:
        """`search` with checked options, without groups and diversity."""
        if not options.reads_words:
            return self._search(contexts, options)
        k = options.top_k or TOP_K
        by_vectors, by_words = self._search_both(contexts, turns, replace(options, top_k=max(k, DEPTH)))
        if not options.words_only:
            by_words = [fuse(*lists) for lists in zip(by_vectors, by_words, strict=True)]
        return [hits[:k] for hits in by_words]

    @abstractmethod
    def _search(self, contexts: Contexts, options: SearchOptions) -> list[list[Hit]]:
        """The best by vectors, with checked options."""

    def _search_both(
        self, contexts: Contexts, turns: Sequence[Sequence[str]], options: SearchOptions
    ) -> tuple[list[list[Hit]], list[list[Hit]]]:
        """The best `top_k` by vectors (none with `words_only`) and by words, with both scores, in one state."""
        raise NotImplementedError(f"{type(self).__name__} has no words")

    @abstractmethod
    def check(self, options: SearchOptions) -> None:
        """Raises ConfigError for an option that does not apply to this index. An engine's own calls this one first."""
        if options.reads_words and not self.has_words:
            raise ConfigError(
                "has no words to search by; an index folder has them with `polyencoder index --words` or after "
                "`polyencoder update --words`, a table in PostgreSQL with the former",
                argument="words_only" if options.words_only else "hybrid",
                where=self.address,
            )

    @abstractmethod
    def changing(self) -> AbstractContextManager[None]:
        """Makes all additions, removals and updates of the block one change, applied at its end; none after an error.

        Blocks may be nested; a search inside one does not see its changes.

        Examples:
            >>> with index.changing():
            ...     index.remove(["r5"])
            ...     index.add(records)
        """

    rolls_back: ClassVar[bool] = False
    """Whether a call that fails within `changing` has no effect, so that the calls around it still take effect."""

    takes_vectors: ClassVar[bool] = False
    """Whether added candidates may have vectors."""

    def add(self, records: Iterable[Record]) -> int:
        """Adds new candidates; returns how many changed, as the methods below do. InputError if an id's data differ."""
        return self._enter(self._split_documents(self._check_records(records)), "add")

    def remove(self, ids: Iterable[str], *, missing_ok: bool = False) -> int:
        """Removes candidates, each once. InputError for an unknown id, unless `missing_ok`."""
        items = check_iterable("ids", ids, of="ids")
        different = dict.fromkeys(check_text(f"id {position}", convert_id(id_)) for position, id_ in enumerate(items))
        if self.split is None:
            return self._remove(different, missing_ok=missing_ok)
        with self.changing():
            passages = dict.fromkeys(id_ for name in different for id_ in self._list_passages([name]) or [name])
            return self._remove(passages, missing_ok=missing_ok)

    def remove_where(self, filter: Filter) -> int:
        """Removes the candidates that pass a filter.

        Raises InputError for a filter that all candidates would pass (an empty one, or a test of a field that no
        candidate has), and for a filter that does not fit the candidates.
        """
        if not (tests := [*parse_filter(filter).iter_tests()]):
            raise InputError("filter is empty: all candidates would be removed", argument="filter")
        with self.changing():
            check_fields(filter, has_field=self._has_field)
            if unknown := next((test.key for test in tests if not self._has_field(test.key)), None):
                raise InputError(f"filter: no candidate of the index has the field {unknown!r:.60}", argument="filter")
            return self._remove(self._list_ids(filter), missing_ok=True)

    def update(self, records: Iterable[Record]) -> int:
        """Changes the text or metadata of candidates. InputError for an unknown or missing id."""

        def iter_with_ids() -> Iterator[Candidate]:
            for record in self._check_records(records):
                where = record.where or "a record"
                if record.id is None:
                    raise InputError(f"{where}: has no id; an update needs the id of a candidate")
                check_text(f"{where}: its id", record.id)
                if self.split is not None and not self._list_passages([record.id]):
                    raise InputError(f"no document has the id {record.id!r}", where=record.where or None)
                yield record

        return self._enter(iter_with_ids(), "update") if self.split is None else self._put_documents(iter_with_ids())

    def put(self, records: Iterable[Record]) -> int:
        """Adds candidates, replacing those with the same ids. Equal ones are unchanged."""
        usable = self._check_records(records)
        return self._enter(usable, "put") if self.split is None else self._put_documents(usable)

    def _split_documents(self, records: Iterable[Candidate]) -> Iterable[Candidate]:
        """The candidates, or their passages. InputError if these need a model, and the index was opened without."""
        if self.split is None:
            return records
        if (ranker := self._model.ranker) is None:
            raise InputError("was opened without its model, which splits texts: give a Ranker", where=self.address)
        return self.split.split_candidates(records, ranker.text)

    def _list_passages(self, documents: Sequence[str]) -> list[str]:
        return self._list_ids({DOCUMENT: list(documents)})

    def _put_documents(self, records: Iterable[Candidate]) -> int:
        """Replaces all passages of documents by new ones; if a document occurs several times, the last counts."""
        with self.changing():
            last = {idx if record.id is None else record.id: record for idx, record in enumerate(records)}
            passages = list(self._split_documents(last.values()))
            ids = {passage.id for passage in passages}
            documents = list(dict.fromkeys((passage.metadata or {})[DOCUMENT] for passage in passages))
            obsolete = [id_ for id_ in self._list_passages(documents) if id_ not in ids]
            return self._remove(obsolete, missing_ok=True) + self._enter(passages, "put")

    def _check_records(self, records: Iterable[Record]) -> Iterator[Candidate]:
        for record in check_records(records):
            if record.vector is not None and not self.takes_vectors:
                raise InputError(
                    f"{record.where or repr(record.id)}: has a vector, but here the model encodes what is added; build "
                    "an index of all vectors, or add the text alone"
                )
            yield record

    @abstractmethod
    def _enter(self, records: Iterable[Candidate], how: WriteMode) -> int: ...

    @abstractmethod
    def _remove(self, ids: Iterable[str], *, missing_ok: bool) -> int: ...

    @abstractmethod
    def _list_ids(self, filter: Filter) -> list[str]:
        """The ids of the candidates that pass a filter, with the changes of the block of `changing` around it."""

    @abstractmethod
    def _has_field(self, key: str, kinds: Collection[Kind] = ()) -> bool:
        """`has_field`, with the changes of the block of `changing` around it."""

    def check_group(self, options: SearchOptions) -> None:
        """Raises InputError if no candidate has the field of `group_by`."""
        if options.group_by is not None and not self.has_field(options.group_by) and len(self):
            raise InputError(
                f"cannot group by {options.group_by!r}: no candidate of the index has this metadata field",
                argument="group_by",
            )

    @abstractmethod
    def has_field(self, key: str, kinds: Collection[Kind] = ()) -> bool:
        """Whether the metadata of any candidate has this field; with `kinds`, a value of these, also in a list."""

    @abstractmethod
    def count(self, filter: Filter | None = None) -> int:
        """The number of candidates (ids) that pass the filter."""

    @abstractmethod
    def count_texts(self, filter: Filter | None = None) -> int:
        """The number of different texts of the candidates that pass the filter."""

    @abstractmethod
    def get_texts(self, ids: Iterable[str]) -> dict[str, str]:
        """The texts of the candidates of these ids, as far as they exist."""

    @abstractmethod
    def get_vectors(self, ids: Iterable[str]) -> dict[str, np.ndarray[Any, Any]]:
        """The vectors of the candidates with these ids, float32 [dim], for those that exist."""

    def token_vectors(self, texts: Iterable[str], fingerprint: str | None) -> dict[str, TokenVectors]:
        """The stored token vectors of these texts, if they are of a ranker with this `token_fingerprint`."""
        return {}

    def check_searchable(self) -> None:
        """Raises PolyencoderError if it cannot be searched now."""
        self.count()

    def __repr__(self) -> str:
        candidates = "" if self.remote else f", {len(self):,} candidates"  # a server is not asked for a repr
        return f"<{type(self).__name__} {self.address}{candidates}, model {self.fingerprints.model}>"

    def __len__(self) -> int:
        """The number of candidates (ids)."""
        return self.count()
