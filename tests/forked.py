"""Commands of Python in processes forked from one that has imported torch, transformers and ParlAI already.

Each is a process of its own, as a shell would start it, and five seconds of imports faster. A test whose subject is an
import, an environment that modules read when they are imported, or memory, starts a real one.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing import process, reduction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

__all__ = ["Forked", "begin", "forgetting", "forkserver"]

# What commands import when they need it: a second or more of processor time in each of them.
PRELOADED = [
    *("pytest", "transformers.models.bert.modeling_bert", "sklearn.feature_extraction.text", "sklearn.metrics"),
    *("matplotlib.pyplot", "mpl_toolkits.mplot3d", "parlai.scripts.train_model", "parlai.scripts.eval_model"),
    *("parlai.agents.ranker.model.agent", "parlai.tasks.selection.agents", "PIL.GifImagePlugin", "PIL.PpmImagePlugin"),
    *("parlai.agents.ranker.launch", "polyencoder.cli.train", "polyencoder.training.run", "polyencoder.cli.search"),
    *("polyencoder.index.open", "polyencoder.index.searcher", "polyencoder.pretraining.run"),
    *("torch.distributed.run", "sentence_transformers"),
]
PROGRAMS = {"polyencoder": "polyencoder", "parlai": "parlai", "torchrun": "torch.distributed.run"}  # of which module

_is_forked = False  # this process


def forkserver() -> Any:
    """The context of `multiprocessing` whose processes have the modules."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def forgetting(*packages: str) -> str:
    """Code to run before a command, which then imports these packages anew."""
    return f"""import sys
for name in list(sys.modules):
    if name.split(".")[0] in {packages!r}:
        del sys.modules[name]
"""


def begin(folder: str | os.PathLike[str], environment: Mapping[str, str]) -> None:
    """Makes this process one that a shell has started in `folder`: not even random numbers are those of others.

    What it starts is forked, too: the processes of torchrun.
    """
    global _is_forked
    _is_forked = True
    gc.freeze()  # it need not go through what was imported, nor write to memory that is shared
    subprocess.Popen = subprocess_handler.Popen = Forked  # type: ignore[misc]
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    torch.seed()
    np.random.seed()  # noqa: NPY002 - the old generator is what ParlAI draws from


class Forked(subprocess.Popen[Any]):
    """In the place of `subprocess.Popen`: forks `python -m MODULE`, `python -c CODE`, and the commands of PROGRAMS.

    Other commands are started as ever. A forked process forks itself, so that what it starts are its children.
    """

    _process: Any = None

    def _execute_child(self, args: Any, *others: Any) -> None:
        words = [] if isinstance(args, str | bytes) else [os.fspath(word) for word in args]
        program = _program(words)
        if program is None:
            super()._execute_child(args, *others)  # type: ignore[misc]
            return
        _, _, _, _, cwd, env, _, _, _, *ends = others
        theirs = [ends[1 + 2 * n - (n == 0)] for n in range(3)]  # one of each pair: stdin is read, the others written
        fds = [_Inherited(fd if fd != -1 else n) for n, fd in enumerate(theirs)]
        folder = os.fspath(cwd) if cwd is not None else os.getcwd()
        environment = dict(os.environ if env is None else env)
        context = multiprocessing.get_context("fork") if _is_forked else forkserver()
        self._process = context.Process(target=_child, args=(program, folder, environment, fds))
        self._process.start()
        process._children.discard(self._process)  # type: ignore[attr-defined] # pytest would wait for it to end
        self.pid = self._process.pid
        self._child_created = True
        self._close_pipe_fds(*ends[:6])  # type: ignore[attr-defined]

    def _internal_poll(self, *args: Any, **kwargs: Any) -> int | None:
        if self._process is None:
            return super()._internal_poll(*args, **kwargs)  # type: ignore[misc, no-any-return]
        if self.returncode is None:
            self.returncode = self._process.exitcode
        return self.returncode

    def _wait(self, timeout: float | None) -> int | None:
        if self._process is None:
            return super()._wait(timeout)  # type: ignore[misc, no-any-return]
        self._process.join(timeout)
        if self._internal_poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode


def _program(words: list[str]) -> tuple[str, list[str]] | None:
    """("-m" or "-c", and the arguments behind it) of a command that can be forked."""
    if words[:2] == [sys.executable, "-u"]:  # torchrun's own: the child flushes each line anyway
        words = [sys.executable, *words[2:]]
    if len(words) > 2 and words[0] == sys.executable and words[1] in ("-m", "-c"):
        return words[1], words[2:]
    if words and Path(words[0]).name in PROGRAMS:
        return "-m", [PROGRAMS[Path(words[0]).name], *words[1:]]
    return None


class _Inherited:
    """A file descriptor, which the process that this is sent to gets as one of its own; a fork has it already."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return _detached, (reduction.DupFd(self.fd),)


def _detached(sent: Any) -> int:
    return int(sent.detach())


def _child(program: tuple[str, list[str]], folder: str, environment: Mapping[str, str], fds: list[Any]) -> None:
    begin(folder, environment)
    for mine, sent in enumerate(fds):
        if isinstance(sent, _Inherited):
            os.dup2(sent.fd, mine)
        else:
            os.dup2(sent, mine)
            os.close(sent)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # whoever watches it sees it
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - multiprocessing has put /dev/null in its place
    sys.path.insert(0, "")
    kind, words = program
    try:
        if kind == "-m":
            sys.argv = words
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *words[1:]]
            exec(compile(words[0], "<string>", "exec"), {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()
