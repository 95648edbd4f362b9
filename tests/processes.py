"""Fixtures that run a test's commands and functions in processes of their own, and a disk that is full."""

from __future__ import annotations

import faulthandler
import itertools
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from polyencoder.training.lock import TrainingLock

__all__ = ["forked_commands", "full_disk", "in_processes", "killed_after", "locked_elsewhere"]

SECONDS = 60  # for a process that has answered, to end
DEADLINE = 200  # seconds for an answer: more than the group's own timeout, far less than pytest's


@contextmanager
def full_disk(size: int = 1000) -> Iterator[None]:
    """No file grows beyond this number of bytes in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def forked_commands(monkeypatch):
    """Commands of Python that a test starts are forked, with their imports done: see tests/forked.py."""
    from tests.forked import Forked  # imported only by the tests that start commands

    monkeypatch.setattr(subprocess, "Popen", Forked)


def import_training() -> None:
    """Imports what a first training imports, in 6 s of a processor: before a fork, so that no child has to."""
    import torch._dynamo  # noqa: F401
    import transformers.models.bert.modeling_bert  # noqa: F401

    with suppress(ImportError):
        import sklearn.metrics  # noqa: F401 - by transformers and ParlAI, if it is installed


def answer_in_group(function, rank: int, count: int, rendezvous: Path, pipe: Connection) -> None:
    """In a forked process: joins the group, calls the function and sends what it returns."""
    with open(f"{rendezvous}.{rank}", "w") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks)
        try:
            dist.init_process_group(
                "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=count, timeout=timedelta(seconds=120)
            )
            # plain pickle sends a tensor's values, `send` a handle that ends with this process
            pipe.send_bytes(pickle.dumps((True, function(rank))))
            dist.barrier()  # another one may still be joining, or wait for what this one sent
            dist.destroy_process_group()
        except BaseException:
            pipe.send_bytes(pickle.dumps((False, traceback.format_exc())))


def answers_of_group(function, count: int, rendezvous: Path) -> list[tuple[bool, Any]]:
    """For each process, whether it succeeded, and what the function returned or the traceback."""
    context = multiprocessing.get_context("fork")
    started, answers = [], []
    for rank in range(count):
        ours, theirs = context.Pipe()
        child = context.Process(target=answer_in_group, args=(function, rank, count, rendezvous, theirs), daemon=True)
        child.start()
        theirs.close()
        started.append((child, ours))
    end = time.monotonic() + DEADLINE
    try:
        for _, pipe in started:
            if not pipe.poll(max(0, end - time.monotonic())):
                for child, _ in started:
                    os.kill(child.pid, signal.SIGUSR1)
                time.sleep(1)  # for the stacks to be written
                pytest.fail(
                    "no answer\n" + "\n".join(Path(f"{rendezvous}.{rank}").read_text() for rank in range(count))
                )
            answers.append(pipe.recv())
    except EOFError:
        pytest.fail("a process ended without a word")
    finally:
        if len(answers) < count or not all(ok for ok, _ in answers):
            for child, _ in started:
                child.kill()
        for child, _ in started:
            child.join(SECONDS)  # gloo's threads may wait for each other when a process ends
            child.kill()
    return answers


@pytest.fixture
def in_processes(tmp_path):
    """(function, count=2) -> what function(rank) gives in each of so many processes of one gloo group.

    The processes are forked, so that the function may use what the test has and nothing is imported anew. Where
    one gives no answer the test fails with all stacks.
    """
    numbers = itertools.count()

    def run(function, count=2):
        answers = answers_of_group(function, count, tmp_path / f"group{next(numbers)}")
        for ok, value in answers:
            if not ok:
                pytest.fail(value)
        return [value for _, value in answers]

    return run


@pytest.fixture
def killed_after():
    """(renames, function) -> runs function in a process of its own, which is killed before its next rename."""

    def run(renames, function):
        if (process := os.fork()) == 0:
            done = 0

            def or_die(rename):
                def renamed(*paths):
                    nonlocal done
                    if done == renames:
                        os._exit(0)
                    done += 1
                    rename(*paths)

                return renamed

            os.replace, os.rename = or_die(os.replace), or_die(os.rename)
            try:
                function()
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0

    return run


@pytest.fixture
def locked_elsewhere():
    """model_file -> the id of a process that has its lock, until it is killed."""
    children = []

    def start(model_file):
        receiver, sender = os.pipe()
        if (child := os.fork()) == 0:
            try:
                lock = TrainingLock.get_or_create(model_file)
                os.write(sender, b"locked")
                signal.pause()
                lock.release()
            finally:
                os._exit(1)
        children.append(child)
        os.close(sender)
        assert os.read(receiver, 6) == b"locked"
        os.close(receiver)
        return child

    yield start
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
