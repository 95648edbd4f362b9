"""The queue: first in first out, shared by clients, a budget of tokens, what nobody waits for dropped."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.serving.metrics import Metrics
from polyencoder.serving.model_thread import Job, ModelThread, WorkItem

SECONDS = 60


class Gate:
    """Computes the double of each number, in passes that it remembers, and only while it is open."""

    def __init__(self) -> None:
        self.passes: list[tuple[str, list[int]]] = []
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)

    def __call__(self, kind, numbers):
        self.entered.release()
        assert self.open.wait(SECONDS)
        self.passes.append((kind, list(numbers)))
        if any(number < 0 for number in numbers):
            raise ValueError("below zero")
        return [2 * number for number in numbers]


@pytest.fixture
def make_thread():
    threads = []

    def make(compute, *, max_tokens=10) -> ModelThread:
        threads.append(ModelThread(compute, max_tokens=max_tokens, metrics=Metrics()))
        return threads[-1]

    yield make
    for thread in threads:
        thread.close()


def results_of(jobs):
    return [list(job.results) for job in jobs]


def job(*numbers, kind="a", cost=1, **fields) -> Job:
    return Job([WorkItem(kind, number, cost) for number in numbers], results_of, **fields)


def blocked(make_thread, **options):
    """A thread that is busy with a first job, so that others wait together."""
    gate = Gate()
    thread = make_thread(gate, **options)
    first = thread.submit(job(0))
    assert gate.entered.acquire(timeout=SECONDS)
    return gate, thread, first


def test_what_waits_is_computed_together_up_to_the_budget(make_thread):
    gate, thread, _ = blocked(make_thread, max_tokens=4)
    futures = [thread.submit(job(1, 2)), thread.submit(job(3, 4, 5)), thread.submit(job(6))]
    assert thread.queued_tokens == 6
    gate.open.set()
    assert [future.result(SECONDS) for future in futures] == [[2, 4], [6, 8, 10], [12]]
    assert gate.passes == [("a", [0]), ("a", [1, 2, 3, 4]), ("a", [5, 6])]
    assert thread.queued_tokens == 0


def test_the_piece_that_came_first_is_in_the_next_pass_and_others_of_its_kind_join_it(make_thread):
    gate, thread, _ = blocked(make_thread)
    futures = [thread.submit(piece) for piece in (job(1, kind="b"), job(2), job(3, kind="b"), job(4))]
    gate.open.set()
    assert [future.result(SECONDS) for future in futures] == [[2], [4], [6], [8]]
    assert gate.passes[1:] == [("b", [1, 3]), ("a", [2, 4])]


def test_what_nobody_waits_for_is_not_computed(make_thread):
    gate, thread, _ = blocked(make_thread)
    dropped, awaited = thread.submit(job(1, 2)), thread.submit(job(3))
    assert dropped.cancel()
    gate.open.set()
    assert awaited.result(SECONDS) == [6]
    assert gate.passes[1:] == [("a", [3])]
    assert thread.queued_tokens == 0
    with pytest.raises(CancelledError):
        dropped.result()


def test_an_error_is_that_of_the_jobs_that_were_in_the_pass_and_the_thread_goes_on(make_thread):
    gate, thread, first = blocked(make_thread, max_tokens=1)
    bad, good = thread.submit(job(-1)), thread.submit(job(1))
    gate.open.set()
    assert good.result(SECONDS) == [2]
    with pytest.raises(ValueError, match="below zero"):
        bad.result(SECONDS)
    assert first.result() == [0]


def test_jobs_that_belong_together_are_finished_together_and_one_that_fails_fails_by_itself(make_thread):
    calls = []

    def finish(jobs):
        calls.append([job.payload for job in jobs])
        if any(job.payload == "bad" for job in jobs):
            raise ValueError("bad")
        return [job.payload for job in jobs]

    gate, thread, _ = blocked(make_thread)
    keys = {"x": "all", "bad": "all", "y": "all", "z": "z"}
    futures = {
        name: thread.submit(Job([WorkItem("a", 1, 1)], finish, group_key=key, payload=name))
        for name, key in keys.items()
    }
    gate.open.set()
    assert [futures[name].result(SECONDS) for name in "xyz"] == ["x", "y", "z"]
    with pytest.raises(ValueError, match="bad"):
        futures["bad"].result(SECONDS)
    assert calls == [["x", "bad", "y"], ["x"], ["bad"], ["y"], ["z"]]


def test_a_thread_that_is_closed_finishes_what_waits_and_takes_no_more():
    gate = Gate()
    thread = ModelThread(gate, max_tokens=10, metrics=Metrics())
    future = thread.submit(job(1))
    gate.open.set()
    thread.close()
    assert future.result() == [2]
    with pytest.raises(RuntimeError, match="closed"):
        thread.submit(job(2))


def test_jobs_that_wait_for_another_machine_keep_the_others_from_nothing(make_thread):
    gate = Gate()
    gate.open.set()
    thread = make_thread(gate)
    groups, entered, leave = [], threading.Event(), threading.Event()

    def finish(jobs):
        groups.append([job.payload for job in jobs])
        entered.set()
        assert leave.wait(SECONDS)
        return results_of(jobs)

    def waiting(number):
        return thread.submit(Job([WorkItem("a", number, 1)], finish, group_key="all", payload=number, blocking_io=True))

    first = waiting(1)
    assert entered.wait(SECONDS)
    meanwhile = [waiting(number) for number in (2, 3, 4)]
    assert thread.submit(job(5)).result(SECONDS) == [10]
    meanwhile[1].cancel()
    leave.set()
    assert [future.result(SECONDS) for future in (first, meanwhile[0], meanwhile[2])] == [[2], [4], [8]]
    assert groups == [[1], [2, 4]]


def test_a_thread_that_is_closed_does_not_wait_for_a_machine_that_nobody_waits_for():
    gate = Gate()
    gate.open.set()
    thread = ModelThread(gate, max_tokens=10, metrics=Metrics())
    entered, leave = threading.Event(), threading.Event()

    def finish(jobs):
        entered.set()
        assert leave.wait(2 * SECONDS)
        return results_of(jobs)

    future = thread.submit(Job([WorkItem("a", 1, 1)], finish, blocking_io=True))
    assert entered.wait(SECONDS)
    closing = threading.Thread(target=thread.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    future.cancel()
    closing.join(SECONDS)
    assert not closing.is_alive()
    leave.set()


@pytest.mark.slow
@given(
    st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9)), min_size=1, max_size=6), max_size=8),
    st.integers(1, 12),
)
def test_whatever_comes_everything_is_computed_once_in_order_and_within_the_budget(requests, max_tokens):
    gate = Gate()
    thread = ModelThread(gate, max_tokens=max_tokens, metrics=Metrics())
    cost: dict[int, int] = {}
    jobs = []
    for items in requests:
        numbered = [WorkItem(kind, len(cost) + i, n) for i, (kind, n) in enumerate(items)]
        cost |= {item.tokens: item.cost for item in numbered}
        jobs.append(Job(numbered, results_of))
    futures = [thread.submit(job) for job in jobs]
    gate.open.set()
    thread.close()
    for job, future in zip(jobs, futures, strict=True):
        assert future.result() == [2 * item.tokens for item in job.items]
    computed = [number for _, numbers in gate.passes for number in numbers]
    assert sorted(computed) == list(cost)
    for kind in "ab":
        of_kind = [number for this, numbers in gate.passes for number in numbers if this == kind]
        assert of_kind == sorted(of_kind)
    assert all(len(numbers) == 1 or sum(cost[n] for n in numbers) <= max_tokens for _, numbers in gate.passes)
