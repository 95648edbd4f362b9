"""`Engine`: tokenizes the texts of concurrent requests and computes them in shared batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from polyencoder.checks import check_candidate
from polyencoder.errors import InputError
from polyencoder.index.filters import parse_filter
from polyencoder.serving.config import Limits
from polyencoder.serving.forward import Forward
from polyencoder.serving.metrics import Metrics
from polyencoder.serving.model_thread import Job, ModelThread, WorkItem
from polyencoder.text.dialogue import check_context

T = TypeVar("T")

_PART_CHARACTERS = 20_000  # tokenized in about 10 ms of one core


class Engine:
    """A tokenizer thread and a model thread. A coroutine that is cancelled drops its work that has not begun."""

    def __init__(self, forward: Forward, *, limits: Limits, metrics: Metrics) -> None:
        self.ranker = forward.ranker
        self.limits = limits
        self.metrics = metrics
        self._tokenizer = ThreadPoolExecutor(1, thread_name_prefix="polyencoder-tokenizer")
        self._model = ModelThread(forward, max_tokens=forward.max_tokens, metrics=metrics, start=forward.prepare_thread)

    @property
    def overloaded(self) -> bool:
        """Whether more tokens wait for the model than `Limits.queued_tokens`."""
        return self._model.queued_tokens > self.limits.queued_tokens

    def close(self) -> None:
        """Finishes the accepted jobs, and ends both threads."""
        self._tokenizer.shutdown()
        self._model.close()

    async def tokenize(self, call: Callable[[], T]) -> T:
        """Runs a call that tokenizes or reads the disk on the tokenizer's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenizer, call)

    async def tokenize_queries(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts as contexts of one turn."""
        encoder = self.ranker.text
        return await self._read_in_parts(lambda part: [encoder.tokenize_context([text]) for text in part], texts)

    async def tokenize_candidates(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of candidates."""
        return await self._read_in_parts(partial(self.ranker.text.tokenize_candidates, remember=False), texts)

    async def _read_in_parts(
        self, read: Callable[[Sequence[str]], list[list[int]]], texts: Sequence[str]
    ) -> list[list[int]]:
        """Tokenizes texts in parts; other requests get the tokenizer in between."""
        parts = [await self.tokenize(partial(read, texts[part])) for part in _split(texts)]
        return [*chain.from_iterable(parts)]

    async def build_cut_warnings(self, candidates: Sequence[str], ids: Sequence[Sequence[int]]) -> dict[str, list[str]]:
        """`warnings`, for an answer's `meta`, if ends of candidates are not read. `ids`: their tokens."""
        text, parts = self.ranker.text, _split(candidates)
        count = sum([await self.tokenize(partial(text.count_cut, candidates[part], ids[part])) for part in parts])
        return {"warnings": [text.format_cut_message(count, of=len(candidates))]} if count else {}

    async def run(self, job: Job) -> Any:
        """Computes a job on the model's thread."""
        return await asyncio.wrap_future(self._model.submit(job))

    def check_turns(self, value: Sequence[str], *, name: str = "query") -> list[str]:
        """Checks a context against the limits. InputError that names it."""
        with _attribute_errors(name):
            turns = check_context(name, value)
            self._check_characters(sum(map(len, turns)), name)
        return turns

    def check_texts(self, values: Sequence[str], *, name: str = "documents") -> list[str]:
        """Checks texts, at least one, against the limits. InputError that names the text."""
        if not values:
            raise InputError(f"{name} is empty; it must have at least one text", argument=name)
        self.check_count(values, name=name)
        return [self.check_text(value, name=f"{name}.{position}") for position, value in enumerate(values)]

    def check_count(self, values: Sequence[object], *, name: str) -> None:
        """Raises InputError above the limit of texts."""
        if len(values) > self.limits.documents:
            raise InputError(
                f"{name} has {len(values):,} texts; it must have at most {self.limits.documents:,}", argument=name
            )

    def check_filter(self, filter: Mapping[str, Any] | None) -> None:
        """Raises InputError for an invalid filter, or one above the limit of values."""
        count = sum(len(test.values) for test in parse_filter(filter).iter_tests())
        if count > self.limits.filter_values:
            raise InputError(
                f"filter has {count:,} values; it must have at most {self.limits.filter_values:,}", argument="filter"
            )

    def check_text(self, value: str, *, name: str) -> str:
        """Checks one text against the limits. InputError that names it."""
        with _attribute_errors(name):
            value = check_candidate(name, value)
            self._check_characters(len(value), name)
        return value

    def _check_characters(self, n: int, name: str) -> None:
        if n > self.limits.characters:
            raise InputError(f"{name} has {n:,} characters; it must have at most {self.limits.characters:,}")

    def count_tokens(
        self, items: Sequence[WorkItem], *, name: str = "documents", positions: Sequence[int] | None = None
    ) -> int:
        """Counts the tokens of a request.

        Raises InputError above the limit. It names the first text that exceeds it: `positions` are those of
        the first items' texts in the request; later items have none (None: each item is a text).
        """
        total = 0
        positions = range(len(items)) if positions is None else positions
        for number, item in enumerate(items):
            total += item.cost
            if total > self.limits.tokens:
                where = f"{name}.{positions[number]}" if number < len(positions) else name
                raise InputError(
                    f"{where}: up to it the request has {total:,} tokens; it must have at most "
                    f"{self.limits.tokens:,}: send fewer texts at once",
                    argument=where,
                )
        return total


def _split(texts: Sequence[str]) -> Iterator[slice]:
    """The slices of texts in parts of about `_PART_CHARACTERS`."""
    start = size = 0
    for stop, text in enumerate(texts, 1):
        size += len(text)
        if size >= _PART_CHARACTERS or stop == len(texts):
            yield slice(start, stop)
            start, size = stop, 0


@contextmanager
def _attribute_errors(name: str) -> Iterator[None]:
    """Attributes errors of the block to the request's field of this name."""
    try:
        yield
    except InputError as error:
        error.argument = name
        raise
