"""`FederatedIndex`: several indexes, in folders, PostgreSQL and Milvus, searched as one.

Each index searches its own candidates, servers at the same time; the best of all of them are the result. A certificate
holds if it holds in every index, for candidates above the k-th best score of all: below that, nothing needs a proof.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import ChainMap
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch

from polyencoder.checks import without_password
from polyencoder.errors import ConfigError, NoAnswerError
from polyencoder.index.base import Index
from polyencoder.index.filters import Filter, Kind
from polyencoder.index.hits import TOP_K, Hit, HitKey
from polyencoder.index.merging import Answer, best_of, in_first_parts
from polyencoder.index.meta import Fingerprints
from polyencoder.index.options import SearchOptions
from polyencoder.modeling.base import RankerModel
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring.tokens import TokenVectors

T = TypeVar("T")

_AGAIN_SECONDS = 5.0  # after which an index that did not answer is asked again
_log = logging.getLogger(__name__)


class _Part:
    """One of the indexes: opened when it is first asked, as its server may not answer yet."""

    def __init__(self, number: int, where: object, open: Callable[[], Index]) -> None:
        self.number = number
        self.address = without_password(str(where))
        self.again = 0.0
        """When to ask it again, by `time.monotonic`; 0 if it answered the last time."""
        self._open = open
        self._lock = threading.Lock()
        self.index: Index | None = None

    def opened(self) -> Index:
        with self._lock:
            if self.index is None:
                self.index = self._open()
                self.address = self.index.address
            return self.index

    @property
    def remote(self) -> bool:
        return self.index is None or self.index.remote


class FederatedIndex(Index):
    """The candidates of several indexes of one model, to be searched but not changed.

    Ids are unique in an index, not among them: `Hit.part` says which index a hit is from, counted from 1. A candidate
    that several indexes hold alike is found once, in the first of them.
    """

    def __init__(
        self, places: Sequence[object], open: Callable[[Any, Fingerprints | None], Index], *, partial: bool = False
    ) -> None:
        """Opens the indexes.

        Args:
            places: the addresses of the indexes.
            open: opens one, for the model with these fingerprints, None for any model; CheckpointError if another
                model made it.
            partial: search without an index whose server does not answer, and say so in `Hit.missing`.

        Raises:
            ConfigError: there is no index, or one is named twice.
            CheckpointError: another model made one of them.
            NoAnswerError: a server does not answer; with `partial`, all of them.
        """
        if not places:
            raise ConfigError("no index is named: give at least one", argument="index")
        names = [os.path.realpath(str(place)) for place in places]
        if twice := next((place for n, place in enumerate(places) if names[n] in names[:n]), None):
            raise ConfigError(f"{without_password(str(twice))}: is named twice; give each index once", argument="index")
        self.partial = partial
        self._made_by: Fingerprints | None = None
        self._open = open
        self._parts = [
            _Part(n, place, lambda place=place: self._of_one_model(place))  # type: ignore[misc]
            for n, place in enumerate(places, start=1)
        ]
        self._pool = ThreadPoolExecutor(len(places), thread_name_prefix="polyencoder-part")
        try:
            self._all(lambda index: index.fingerprints)
        except BaseException:
            self.close()
            raise

    def _of_one_model(self, place: object) -> Index:
        index = self._open(place, self._made_by)
        self._made_by = self._made_by or index.fingerprints
        return index

    def close(self) -> None:
        self._pool.shutdown()
        for part in self._parts:
            if part.index is not None:
                part.index.close()

    # What it is

    @property
    def address(self) -> str:
        return " and ".join(self.addresses)

    @property
    def addresses(self) -> list[str]:
        return [part.address for part in self._parts]

    @property
    def fingerprints(self) -> Fingerprints:
        assert self._made_by is not None
        return self._made_by

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(part.number for part in self._parts if part.again)

    @property
    def approximates(self) -> bool:
        return any(part.index.approximates for part in self._parts if part.index is not None)

    @property
    def has_words(self) -> bool:
        return all(part.index.has_words for part in self._parts if part.index is not None)

    @property
    def remote(self) -> bool:
        return any(part.remote for part in self._parts)

    def count(self, filter: Filter | None = None) -> int:
        """The sum of the indexes' candidates."""
        return sum(self._all(lambda index: index.count(filter)))

    def count_texts(self, filter: Filter | None = None) -> int:
        """The sum of the indexes' different texts: one that several hold counts in each."""
        return sum(self._all(lambda index: index.count_texts(filter)))

    def has_field(self, key: str, kinds: Collection[Kind] = ()) -> bool:
        """As in `Index.has_field`; an index that does not answer may have it."""
        return any(self._all(lambda index: index.has_field(key, kinds))) or bool(self.missing)

    def texts_of(self, ids: Iterable[str]) -> dict[str, str]:
        """As in `Index.texts_of`; of different candidates with one id the text in the first index."""
        wanted = [*ids]
        return dict(ChainMap(*self._all(lambda index: index.texts_of(wanted))))

    def vectors_of(self, ids: Iterable[str]) -> dict[str, np.ndarray[Any, Any]]:
        """As in `Index.vectors_of`; of different candidates with one id the vector in the first index."""
        wanted = [*ids]
        return dict(ChainMap(*self._all(lambda index: index.vectors_of(wanted))))

    def vectors_of_hits(self, hits: Iterable[Hit]) -> dict[HitKey, np.ndarray[Any, Any]]:
        keys = {hit.key for hit in hits}
        found = self._each(lambda number, index: index.vectors_of([id_ for part, id_ in keys if part == number]))
        return {(number, id_): vector for number, vectors in found for id_, vector in vectors.items()}

    def token_vectors(self, texts: Iterable[str], model: RankerModel) -> dict[str, TokenVectors]:
        wanted = [*texts]
        return dict(ChainMap(*self._all(lambda index: index.token_vectors(wanted, model))))

    def check_searchable(self) -> None:
        self._all(lambda index: index.check_searchable())

    # Searching

    def check(self, options: SearchOptions) -> None:
        """As in `Index.check`, for each of the indexes, and those whose servers answer by now."""
        now = time.monotonic()
        self._ask([part for part in self._parts if part.index is None and part.again <= now], lambda *_: None)
        for part in self._parts:
            if part.index is not None:
                part.index.check(options)
        kinds = {part.index.word_scoring for part in self._parts if part.index is not None}
        if options.reads_words and len(kinds) > 1:
            raise ConfigError(
                f"{self.address}: {' and '.join(sorted(kinds))} do not compare: search by words in index folders "
                "together, or in tables of PostgreSQL together",
                argument="words_only" if options.words_only else "hybrid",
            )
        super().check(options)

    def _search(
        self, contexts: ContextEncoding, options: SearchOptions, *, floors: Sequence[float] | None = None
    ) -> list[list[Hit]]:
        """As in `Index._search`. For certificates a first search gives the k-th best scores that bound a second."""
        likely = replace(options, exactness="approximate") if options.exactness == "certified" else options

        def search(_: int, index: Index) -> Answer:
            return Answer.of(index, index._search(contexts, likely, floors=floors), likely)

        first = dict(self._each(search))
        best = self._merged([*first.items()], contexts, options)
        if options.exactness != "certified":
            return best
        k = options.top_k or TOP_K
        reached = [hits[k - 1].score if len(hits) >= k else -math.inf for hits in best]
        bounds = [*map(max, reached, floors)] if floors is not None else reached

        def prove(number: int, index: Index) -> Answer:
            found = [*first[number].hits]
            places = [place for place in range(len(found)) if first[number].found(place) == "approximate"]
            if places:
                some = contexts.select(torch.tensor(places, device=contexts.vectors.device))
                proven = index._search(some, options, floors=[bounds[place] for place in places])
                for place, hits in zip(places, proven, strict=True):
                    found[place] = hits
            return Answer(found)

        second = self._each(prove, of=first)
        if len(second) < len(first):  # the proofs of the others may rest on scores of one that is gone
            return self._search(contexts, options, floors=floors)
        return self._merged(second, contexts, options)

    def _search_both(
        self, contexts: ContextEncoding, turns: Sequence[Sequence[str]], options: SearchOptions
    ) -> tuple[list[list[Hit]], list[list[Hit]]]:
        """As in `Index._search_both`. Each index counts its own words for the weights of words."""

        def search(_: int, index: Index) -> tuple[Answer, Answer]:
            by_vectors, by_words = index._search_both(contexts, turns, options)
            return Answer.of(index, by_vectors, options), Answer(by_words)

        found = self._each(search)
        by_vectors = self._merged([(number, vectors) for number, (vectors, _) in found], contexts, options)
        by_words = self._merged([(number, words) for number, (_, words) in found], contexts, options)
        for place, lists in enumerate(zip(by_vectors, by_words, strict=True)):
            by_vectors[place], by_words[place] = in_first_parts(*lists)
        return by_vectors, by_words

    def _merged(
        self, found: Sequence[tuple[int, Answer]], contexts: ContextEncoding, options: SearchOptions
    ) -> list[list[Hit]]:
        """The best `top_k` hits of each context, of equal ones those of the first index."""
        answered = {number for number, _ in found}
        missing = tuple(part.number for part in self._parts if part.number not in answered) or None
        return [
            best_of(
                [(number, answer.hits[place], answer.found(place)) for number, answer in found],
                missing,
                k=options.top_k or TOP_K,
            )
            for place in range(contexts.batch_size)
        ]

    def _all(self, ask: Callable[[Index], T]) -> list[T]:
        """`_each` without numbers."""
        return [found for _, found in self._each(lambda _, index: ask(index))]

    def _each(self, ask: Callable[[int, Index], T], *, of: Container[int] | None = None) -> list[tuple[int, T]]:
        """What each index that answers says, by its number; `of` has the numbers of those that are asked.

        Raises:
            NoAnswerError: an index does not answer; if it may be missing, no index answers.
        """
        now = time.monotonic()
        parts = [part for part in self._parts if of is None or part.number in of]
        waiting = [part for part in parts if not self.partial or part.again <= now] or parts
        answers, lost = self._ask(waiting, ask)
        if lost is not None and not answers:
            raise lost
        return answers

    def _ask(
        self, parts: Sequence[_Part], ask: Callable[[int, Index], T]
    ) -> tuple[list[tuple[int, T]], NoAnswerError | None]:
        """The answers, and why one is missing: servers in threads, folders one after the other here."""

        @torch.no_grad()
        def asked(part: _Part) -> T:
            return ask(part.number, part.opened())

        threads: dict[int, Future[T]] = {}
        if self._made_by is not None:  # else the first one that opens says which model all of them need
            threads = {part.number: self._pool.submit(asked, part) for part in parts if part.remote}
        answers: list[tuple[int, T]] = []
        lost: NoAnswerError | None = None
        for part in parts:
            thread = threads.get(part.number)
            try:
                answers.append((part.number, asked(part) if thread is None else thread.result()))
                part.again = 0.0
            except NoAnswerError as error:
                if not self.partial:
                    raise
                lost = error
                if not part.again:
                    _log.warning("index %d does not answer, and is left out: %s", part.number, error)
                part.again = time.monotonic() + _AGAIN_SECONDS
        return answers, lost

    # Changing

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ConfigError(
            "several indexes that are searched as one cannot be changed: change one of them", argument="index"
        )

    changing = _enter = _remove = _usable = _refuse
