"""Runs the tests of a module against its mutants, each in a process forked when all is imported and collected."""

from __future__ import annotations

import gc
import importlib
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.main import pytest_runtestloop

__all__ = ["Runner", "import_packages"]

# Imported once. None of them imports the library.
PACKAGES = ["hypothesis", "torch", "transformers.models.bert.modeling_bert", "scipy.optimize", "sklearn.metrics"]
OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin", "--hypothesis-seed=0"]
WALL = 900  # seconds without an end, whatever the load: a test that waits


def import_packages() -> None:
    """Imports what the library and its tests take longest to import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in PACKAGES:
            importlib.import_module(name)
    gc.freeze()  # pytest collects garbage at its end: seconds for what is imported here


class Runner:
    """The tests of one module, in a copy of the repository."""

    def __init__(self, root: Path, tree: Path, module: str, files: list[str], *, least_seconds: int = 10) -> None:
        self.root, self.tree, self.files = root, tree, files
        self.least_seconds = least_seconds  # of processor time for each mutant
        self.path = tree / "projects" / "polyencoder" / module
        self.source = self.path.read_text(encoding="utf-8")

    def outcomes(self, codes: list[str]) -> list[str]:
        """The outcome of each mutant: "survived" (the tests pass), "killed", "timeout", "import" (no test runs)."""
        session = _Session(self, codes)
        reader, writer = os.pipe()
        session.say = lambda word: os.write(writer, f"{word}\n".encode())
        process = self.fork(lambda: self._pytest(session))
        os.close(writer)
        with open(reader) as lines:
            first, seconds, *outcomes = [line.strip() for line in lines] or ["import", "0"]
        os.waitpid(process, 0)
        if first != "survived":
            log = self.tree.parent / "pytest.log"
            raise SystemExit(f"{' '.join(self.files)}: {first} without a change; see {log}")
        for i, code in enumerate(codes):
            if outcomes[i] == "elsewhere":  # constants, defaults, decorators: all is imported anew
                self.path.write_text(code, encoding="utf-8")
                outcomes[i] = wait(self.fork(lambda: self._pytest(None), seconds=int(seconds)))
                self.path.write_text(self.source, encoding="utf-8")
        return outcomes

    def _pytest(self, session: _Session | None) -> int:
        options = [*OPTIONS, f"--basetemp={self.tree.parent / 'tests'}", *self.files]
        return int(pytest.main(options, plugins=[FastFirst, *([session] if session else [])]))

    def fork(self, function: Callable[[], int], *, seconds: int = -1) -> int:
        """The id of a process whose library and tests are those of the copy; it ends with what the function gives."""
        if process := os.fork():
            return process
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        os.chdir(self.tree)
        with open(self.tree.parent / "pytest.log", "w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        paths = [str(self.tree), str(self.tree / "projects")]
        os.environ.update(PYTHONPATH=os.pathsep.join(paths), PYTHONDONTWRITEBYTECODE="1")
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        sys.dont_write_bytecode = True  # the next mutant may have the same size and second
        sys.path[:] = paths + [path for path in sys.path if Path(path) != self.root]
        for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
            del sys.modules[name]
        os._exit(function())


class FastFirst:
    """A plugin for pytest: most mutants are killed by a fast test."""

    @staticmethod
    def pytest_collection_modifyitems(items: list[Any]) -> None:
        items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


class _Session:
    """A plugin for pytest: runs the collected tests once for the unchanged module and once for each mutant."""

    say: Callable[[object], Any]

    def __init__(self, runner: Runner, codes: list[str]) -> None:
        self.runner, self.codes = runner, codes

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed:
            return None  # a file could not be imported: pytest says so
        runner = self.runner
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        outcome = wait(self._fork(session, []))
        self.say(outcome)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = int(runner.least_seconds + 5 * (ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime))
        self.say(seconds)
        for code in self.codes if outcome == "survived" else []:
            changed = changed_functions(runner.source, code, runner.path)
            if not changed:
                self.say("elsewhere")
                continue
            runner.path.write_text(code, encoding="utf-8")  # for the processes that tests start
            self.say(wait(self._fork(session, changed, seconds=seconds)))
            runner.path.write_text(runner.source, encoding="utf-8")
        return True

    def _fork(self, session: pytest.Session, changed: list[tuple[FunctionType, CodeType]], *, seconds: int = -1) -> int:
        if process := os.fork():
            return process
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        for function, code in changed:
            function.__code__ = code
        failed = True
        try:
            failed = not pytest_runtestloop(session) or session.testsfailed > 0
        finally:
            os._exit(int(failed))


def changed_functions(source: str, mutant: str, path: Path) -> list[tuple[FunctionType, CodeType]]:
    """The functions of an imported module that a mutant changes, with their new code; none if it changes others."""
    before, after = (dict(_codes(compile(code, str(path), "exec"))) for code in (source, mutant))
    if before.keys() != after.keys():
        return []
    changed = {name: code for name, code in after.items() if "<locals>" not in name[0] and code != before[name]}
    functions = [one for one in gc.get_objects() if isinstance(one, FunctionType)]
    here = [one for one in functions if one.__code__.co_filename == str(path)]
    return [(one, changed[name]) for one in here if (name := _name(one.__code__)) in changed]


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """The functions in a compiled module, by qualified name and line; not modules and classes, which have run."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & 2:  # CO_NEWLOCALS
                yield _name(constant), constant
            yield from _codes(constant)


def _name(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def wait(process: int) -> str:
    """The outcome of a process of tests, which is ended after `WALL` seconds."""
    end = time.monotonic() + WALL
    while time.monotonic() < end:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return {0: "survived", 2: "import", -signal.SIGXCPU: "timeout", -signal.SIGKILL: "timeout"}.get(
                code, "killed"
            )
        time.sleep(0.05)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return "timeout"
