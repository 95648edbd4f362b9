"""One thread for the model: what requests ask of it waits in one queue and is computed together.

First in, first out: the piece that came first is always in the next pass. The pieces of its kind that wait behind it,
whoever sent them, join until the pass has its tokens. An empty queue is waited for, not looked at again and again.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

__all__ = ["Job", "ModelThread", "Piece", "Watcher"]


class Piece(NamedTuple):
    """What goes through the model by itself: a context, a candidate, or a pair of both."""

    kind: str
    tokens: Any
    """As `Passes` takes them for this kind."""
    cost: int
    """How many tokens that is."""


class Job:
    """What one request asks of the model: pieces, and what is made of them.

    Args:
        pieces: what has to be computed, in the order in which `finish` reads it.
        finish: is given the jobs that are computed at the same time and have the same `together`; gives what each makes
            of its `results`. It runs on the model thread, unless it waits.
        together: which jobs are finished in one call; None for one by itself.
        about: what else `finish` has to know of it.
        waits: whether `finish` mostly waits for another machine. It then runs on a thread of its own, with what else
            has come to be finished meanwhile, and keeps the model from nothing.

    Attributes:
        results: what the pieces became.
        future: of what `finish` gives; cancelling it drops what has not been computed.
        seconds: how long it waited, was in passes that it had a part in, and was finished.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        finish: Callable[[Sequence[Job]], Sequence[Any]],
        *,
        together: Hashable = None,
        about: Any = None,
        waits: bool = False,
    ) -> None:
        self.pieces = pieces
        self.finish = finish
        self.together = together
        self.about = about
        self.waits = waits
        self.results: list[Any] = [None] * len(pieces)
        self.future: Future[Any] = Future()
        self.seconds = {"queue": 0.0, "encode": 0.0, "score": 0.0}
        self._left = len(pieces)
        self._since = time.perf_counter()

    @property
    def dropped(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.future.done()


class _Waiting(NamedTuple):
    ticket: int
    job: Job
    place: int

    @property
    def cost(self) -> int:
        return self.job.pieces[self.place].cost


class Watcher(Protocol):
    """Is told what the thread does."""

    def queued(self, tokens: int) -> None:
        """So many tokens wait now."""

    def passed(self, kind: str, pieces: int, tokens: int, seconds: float) -> None:
        """So many pieces of a kind, of so many tokens, went through the model together."""

    def finished(self, jobs: int, seconds: float) -> None:
        """So many jobs were finished in one call."""


class ModelThread:
    """A thread that computes jobs.

    Args:
        compute: gives the result of each of some pieces of one kind, from their `tokens`.
        max_tokens: of the pieces that are computed together; a piece of more is computed alone.
        watcher: is told of each pass.
        start: is called on the thread before anything else.
    """

    def __init__(
        self,
        compute: Callable[[str, Sequence[Any]], Sequence[Any]],
        *,
        max_tokens: int,
        watcher: Watcher | None = None,
        start: Callable[[], object] = lambda: None,
    ) -> None:
        self._compute = compute
        self._max_tokens = max_tokens
        self._watcher = watcher
        self._start = start
        self._queues: dict[str, deque[_Waiting]] = defaultdict(deque)
        self._tickets = itertools.count()
        self._changed = threading.Condition()
        self._closing = False
        self._queued_tokens = 0
        self._computed: list[Job] = []  # that wait, and are not begun to be finished
        self._waiting: set[Job] = set()  # that wait, and have not ended
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="polyencoder-model", daemon=True)
        self._thread.start()
        threading.Thread(target=self._run_waiting, name="polyencoder-waiting", daemon=True).start()

    @property
    def queued_tokens(self) -> int:
        """Tokens of the pieces that wait, of dropped jobs too until their turn would have come."""
        return self._queued_tokens

    def submit(self, job: Job) -> Future[Any]:
        """Put a job in the queue. RuntimeError when the thread is closed."""
        with self._changed:
            if self._closing:
                raise RuntimeError("the model thread is closed")
            for place, piece in enumerate(job.pieces):
                self._queues[piece.kind].append(_Waiting(next(self._tickets), job, place))
                self._queued_tokens += piece.cost
            if job.waits:
                self._waiting.add(job)
            self._changed.notify_all()
        if job.waits:
            job.future.add_done_callback(lambda _: self._ended(job))
        self._tell_queued()
        return job.future

    def _ended(self, job: Job) -> None:
        with self._changed:
            self._waiting.discard(job)
            self._changed.notify_all()

    def close(self) -> None:
        """Compute and finish what somebody waits for, and end."""
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
        while (taken := self._take()) is not None:
            self._tell_queued()
            pieces = [one for one in taken if not one.job.dropped]
            if pieces:
                self._pass(pieces)

    def _tell_queued(self) -> None:
        if self._watcher is not None:
            self._watcher.queued(self._queued_tokens)

    def _take(self) -> list[_Waiting] | None:
        """The pieces of the next pass, waited for; None when the thread is to end."""
        with self._changed:
            while not any(self._queues.values()):
                if self._closing:
                    return None
                self._changed.wait()
            queue = min((queue for queue in self._queues.values() if queue), key=lambda one: one[0].ticket)
            taken: list[_Waiting] = []
            tokens = 0
            while queue:
                dropped = queue[0].job.dropped
                if not dropped and taken and tokens + queue[0].cost > self._max_tokens:
                    break
                one = queue.popleft()
                self._queued_tokens -= one.cost
                if not dropped:
                    taken.append(one)
                    tokens += one.cost
            return taken

    def _pass(self, taken: Sequence[_Waiting]) -> None:
        start = time.perf_counter()
        jobs = {id(one.job): one.job for one in taken}.values()
        for job in jobs:
            job.seconds["queue"] += start - job._since
        first = taken[0].job.pieces[taken[0].place]
        try:
            results = self._compute(first.kind, [one.job.pieces[one.place].tokens for one in taken])
        except BaseException as error:  # whatever it is, those who wait are told, and the thread goes on
            for job in jobs:
                _fail(job, error)
            return
        for one, result in zip(taken, results, strict=True):
            one.job.results[one.place] = result
            one.job._left -= 1
        end = time.perf_counter()
        for job in jobs:
            job.seconds["encode"] += end - start
            job._since = end
        if self._watcher is not None:
            self._watcher.passed(first.kind, len(taken), sum(one.cost for one in taken), end - start)
        computed = [job for job in jobs if job._left == 0]
        if waiting := [job for job in computed if job.waits]:
            with self._changed:
                self._computed += waiting
                self._changed.notify_all()
        self._finish([job for job in computed if not job.waits])

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
            groups[id(job) if job.together is None else (job.together,)].append(job)
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
                if len(group) > 1:  # of one among them, perhaps: the others have nothing to do with it
                    for job in group:
                        job.together = None
                    self._finish(group)
                    continue
                _fail(group[0], error)
                continue
            seconds = time.perf_counter() - start
            if self._watcher is not None:  # before anybody has an answer: who then asks for the counts finds it in them
                self._watcher.finished(len(group), seconds)
            for job, value in zip(group, values, strict=True):
                job.seconds["score"] += seconds
                if job.future.set_running_or_notify_cancel():
                    job.future.set_result(value)


def _fail(job: Job, error: BaseException) -> None:
    if not job.dropped and job.future.set_running_or_notify_cancel():
        job.future.set_exception(error)
