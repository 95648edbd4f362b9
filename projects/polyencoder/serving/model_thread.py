"""Dynamic batching: one inference thread, one FIFO queue.

The oldest item is always in the next batch. Later items of its kind, of any request, join it within the token budget.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

from polyencoder.serving.metrics import Metrics


class WorkItem(NamedTuple):
    """One input of the model: a context, a candidate, or a pair of both."""

    kind: str
    tokens: Any
    """The tokens, in the form that `Forward` expects for this kind."""
    cost: int
    """Its number of tokens."""


@dataclass(eq=False)
class Job:
    """A request's items, and the function that computes its result from the items' results."""

    items: Sequence[WorkItem]
    """The inputs, in the order in which `finish` reads their results."""
    finish: Callable[[Sequence[Job]], Sequence[Any]]
    """Returns the results of jobs with the same `group_key`. It runs on the model thread unless it is `blocking_io`."""
    _: KW_ONLY
    group_key: Hashable = None
    """Jobs with an equal key are finished in one call; None: the job is finished alone."""
    payload: Any = None
    """Any data that `finish` needs."""
    blocking_io: bool = False
    """`finish` mostly waits for another machine. It then runs on a separate thread, with the jobs that were computed in
    the meantime."""

    def __post_init__(self) -> None:
        self.results: list[Any] = [None] * len(self.items)
        """The results of the items."""
        self.future: Future[Any] = Future()
        """The result; cancelling it drops what has not been computed."""
        self.seconds = {"queue": 0.0, "encode": 0.0, "score": 0.0}
        """In the queue, in the batches with its items, and in `finish`."""
        self._left = len(self.items)
        self._since = time.perf_counter()

    @property
    def dropped(self) -> bool:
        """Whether it was cancelled or has its result."""
        return self.future.done()


class _QueuedItem(NamedTuple):
    ticket: int
    job: Job
    position: int

    @property
    def cost(self) -> int:
        return self.job.items[self.position].cost


class ModelThread:
    """A thread that computes jobs.

    Args:
        compute: (kind, `tokens` of some items) -> the result of each.
        max_tokens: of a batch; a larger item is computed alone.
        metrics: counts batches and jobs.
        start: called first on each thread.
    """

    def __init__(
        self,
        compute: Callable[[str, Sequence[Any]], Sequence[Any]],
        *,
        max_tokens: int,
        metrics: Metrics,
        start: Callable[[], object] = lambda: None,
    ) -> None:
        self._compute = compute
        self._max_tokens = max_tokens
        self._metrics = metrics
        self._start = start
        self._queues: dict[str, deque[_QueuedItem]] = defaultdict(deque)
        self._tickets = itertools.count()
        self._changed = threading.Condition()
        self._closing = False
        self.queued_tokens = 0
        """Tokens of the items in the queue, including cancelled jobs until their turn."""
        self._computed: list[Job] = []  # of blocking_io, to be finished
        self._waiting: set[Job] = set()  # of blocking_io, without a result
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="polyencoder-model", daemon=True)
        self._thread.start()
        threading.Thread(target=self._run_waiting, name="polyencoder-waiting", daemon=True).start()

    def submit(self, job: Job) -> Future[Any]:
        """Puts a job in the queue. RuntimeError if the thread is closed."""
        with self._changed:
            if self._closing:
                raise RuntimeError("the model thread is closed")
            for position, item in enumerate(job.items):
                self._queues[item.kind].append(_QueuedItem(next(self._tickets), job, position))
                self.queued_tokens += item.cost
            if job.blocking_io:
                self._waiting.add(job)
            self._changed.notify_all()
        if job.blocking_io:

            def forget_future(_: Future[Any]) -> None:
                with self._changed:
                    self._waiting.discard(job)
                    self._changed.notify_all()

            job.future.add_done_callback(forget_future)
        self._metrics.queued_tokens.set(self.queued_tokens)
        return job.future

    def close(self) -> None:
        """Finishes the jobs that are not cancelled, then ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        self._start()
        while (batch := self._take()) is not None:
            self._metrics.queued_tokens.set(self.queued_tokens)
            items = [item for item in batch if not item.job.dropped]
            if items:
                self._pass(items)

    def _take(self) -> list[_QueuedItem] | None:
        """Waits for the items of the next batch; None when the thread should end."""
        with self._changed:
            while not any(self._queues.values()):
                if self._closing:
                    return None
                self._changed.wait()
            queue = min((queue for queue in self._queues.values() if queue), key=lambda waiting: waiting[0].ticket)
            batch: list[_QueuedItem] = []
            tokens = 0
            while queue:
                dropped = queue[0].job.dropped
                if not dropped and batch and tokens + queue[0].cost > self._max_tokens:
                    break
                item = queue.popleft()
                self.queued_tokens -= item.cost
                if not dropped:
                    batch.append(item)
                    tokens += item.cost
            return batch

    def _pass(self, batch: Sequence[_QueuedItem]) -> None:
        start = time.perf_counter()
        jobs = {id(item.job): item.job for item in batch}.values()
        for job in jobs:
            job.seconds["queue"] += start - job._since
        first = batch[0].job.items[batch[0].position]
        try:
            results = self._compute(first.kind, [item.job.items[item.position].tokens for item in batch])
        except BaseException as error:  # any error belongs to the jobs; the thread continues
            for job in jobs:
                _fail(job, error)
            return
        for item, result in zip(batch, results, strict=True):
            item.job.results[item.position] = result
            item.job._left -= 1
        end = time.perf_counter()
        for job in jobs:
            job.seconds["encode"] += end - start
            job._since = end
        self._metrics.count_batch(first.kind, len(batch), sum(item.cost for item in batch), end - start)
        computed = [job for job in jobs if job._left == 0]
        if waiting := [job for job in computed if job.blocking_io]:
            with self._changed:
                self._computed += waiting
                self._changed.notify_all()
        self._finish([job for job in computed if not job.blocking_io])

    def _run_waiting(self) -> None:
        self._start()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._computed or self._closed)
                if not self._computed:
                    return
                jobs, self._computed = self._computed, []
            self._finish(jobs)

    def _finish(self, jobs: Sequence[Job]) -> None:
        groups: dict[Hashable, list[Job]] = defaultdict(list)
        for job in jobs:
            groups[id(job) if job.group_key is None else (job.group_key,)].append(job)
        for whole in groups.values():
            if not (group := [job for job in whole if not job.dropped]):
                continue
            start = time.perf_counter()
            for job in group:
                job.seconds["queue"] += start - job._since
                job._since = start
            try:
                values = group[0].finish(group)
            except BaseException as error:
                if len(group) > 1:  # perhaps caused by a single job
                    for job in group:
                        job.group_key = None
                    self._finish(group)
                    continue
                _fail(group[0], error)
                continue
            seconds = time.perf_counter() - start
            # before a client, which may then request the counts, has its answer
            self._metrics.count_jobs(len(group), seconds)
            for job, value in zip(group, values, strict=True):
                job.seconds["score"] += seconds
                if job.future.set_running_or_notify_cancel():
                    job.future.set_result(value)


def _fail(job: Job, error: BaseException) -> None:
    if not job.dropped and job.future.set_running_or_notify_cancel():
        job.future.set_exception(error)
