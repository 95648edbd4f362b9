"""Runs the commands of a document in a folder, and looks at what they report.

A command runs in a process of its own, forked from one that has imported torch and ParlAI already (tests/forked.py).
Long ones get smaller limits.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyencoder.training.callbacks.curve import LearningCurve
from tests.docs.snippets import Command
from tests.forked import begin, forkserver

TIMEOUT = 180  # seconds
TAIL = 2000  # characters of a failed command's output, its last

# Behind the command's own flags: the last of a flag counts.
LIMITS = {
    "train_model": "--max-train-steps 2 --warmup-updates 0 --log-every-n-steps 1 --validation-max-exs 20 "
    "--validation-every-n-epochs -1 --short-final-eval true",
    "eval_model": "--num-examples 20",
    "display_model": "--num-examples 5",
    "display_data": "--num-examples 5",
    "polyencoder train": "--max-updates 2",
    "--batch-size 512": "--batch-size 32",
    "-bs 512": "-bs 32",
}
FROM_SCRATCH = "--embedding-size 32 --ffn-size 32 --n-layers 1 --n-heads 2"
CONVERT_FROM_SCRATCH = "--head-sizes 64"
INSTEAD = {"--nproc-per-node": "2"}
SERVE = ("polyencoder", "serve")
PORT = ":8000"  # of the server in documents; here it has one that is free

CONVERTS = "convert_to_json"  # runs a model that repeats the labels
REPORTS = ".reports.json"
TYPED = "hi !\nwhat do you do in winter ?\n"  # in conversations

# What no run worth showing reports: it learns nothing, or from one candidate. R20@1 counts as hits@1.
SUSPECT = {"loss": 0, "mean_loss": 0, "masked_loss": 0, "accuracy": 1, "train_accuracy": 1, "hits@1": 1, "gnorm": 0}


_MEASURE = re.compile(r"""(?<!of )\b(loss|hits@1|R\d+@1)"?:? +(nan|inf|[\d.]+)""")  # in text or JSON; no error of R20@1


class Failure(Exception):
    """A command of a document that does not do what a reader expects."""


class Runner:
    """A user's folder, and what is done in it."""

    _has_trained = False  # any of them

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        self.environment = {**os.environ, **variables, "COLUMNS": "200", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.environment["PARLAI_DATAPATH"] = str(folder / "DATA")
        self.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._server: Any = None
        self._port = PORT

    def close(self) -> None:
        """End the server, if a command has started one."""
        if self._server is not None:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.join()
            self._server = None

    def run(self, command: Command) -> str:
        """What it prints. Raises Failure."""
        if command.arguments[:2] == SERVE:
            return self._serve(command)
        trained = _option(command, "-mf", "--model-file") if "train_model" in command.arguments else None
        if trained and (self.folder / trained).exists():
            raise Failure(f"{command}\ntrains {trained}, which is there already: it would go on with another run")
        output = self.prepare(_limited(command))
        reports = [] if CONVERTS in command.arguments else [*self._reports(trained), *_printed(command, output)]
        problem = _problem(reports, learns=trained is not None)
        if problem:
            raise Failure(f"{command}\n{problem}\n{output[-TAIL:]}")
        return output

    def prepare(self, command: Command) -> str:
        """What a command prints that makes a stand-in: without limits, and with any report. Raises Failure."""
        (self.folder / REPORTS).unlink(missing_ok=True)
        program = _PROGRAMS.get(command.arguments[0])
        if program is None:
            raise Failure(f"{command}\nno way to run {command.arguments[0]!r} here")
        return self._execute(program, command)

    def run_python(self, code: str) -> str:
        """What it prints. Raises Failure."""
        return self._execute(_python, Command(0, ("python", "-c", code)))

    def _serve(self, command: Command) -> str:
        """Start a server, in the place of any before, which runs until the document ends."""
        self.close()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        log = self.folder / ".served"
        more = replace(command, arguments=(*command.arguments, "--port", str(port)))
        self._server, self._port = self._start(_polyencoder, more, log), f":{port}"
        until = time.monotonic() + TIMEOUT
        while self._server.exitcode is None and time.monotonic() < until:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5):
                return log.read_text(encoding="utf-8", errors="replace")
            self._server.join(0.1)
        raise Failure(f"{command}\ndoes not answer\n{log.read_text(encoding='utf-8', errors='replace')[-TAIL:]}")

    def _start(self, program: Callable[[list[str]], object], command: Command, log: Path) -> Any:
        arguments = [argument.replace(PORT, self._port) for argument in command.arguments]
        trains = not {"train", "train_model"}.isdisjoint(arguments)
        draws = not (trains and Runner._has_trained)
        Runner._has_trained |= trains
        surroundings = self.folder, self.environment, log
        process = forkserver().Process(target=_child, args=(program, arguments, *surroundings), kwargs={"draws": draws})
        process.start()
        return process

    def _execute(self, program: Callable[[list[str]], object], command: Command) -> str:
        log = self.folder / ".output"
        process = self._start(program, command, log)
        process.join(TIMEOUT)
        if process.exitcode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
        output = log.read_text(encoding="utf-8", errors="replace")
        if process.exitcode:
            raise Failure(f"{command}\nexit code {process.exitcode}\n{output[-TAIL:]}")
        if "Traceback (most recent call last)" in output:
            raise Failure(f"{command}\na traceback, and yet exit code 0\n{output[-TAIL:]}")
        return output

    def _reports(self, trained: str | None) -> Iterator[dict[str, Any]]:
        """The metrics of training, then those that the command gave back."""
        stats = self.folder / f"{trained}.trainstats"
        if trained and stats.exists():
            reports = json.loads(stats.read_text(encoding="utf-8"))
            yield from reports["train_reports"] + reports["valid_reports"]
        if (self.folder / REPORTS).exists():
            yield from json.loads((self.folder / REPORTS).read_text(encoding="utf-8"))


def _child(
    program: Callable[[list[str]], object],
    arguments: list[str],
    folder: Path,
    environment: Any,
    log: Path,
    *,
    draws: bool,
) -> None:
    begin(folder, environment)
    if not draws:  # of the runs of all documents the first one draws its curve, in half a second
        LearningCurve.draw = lambda _: None  # type: ignore[method-assign]
    if "--onnx" in arguments:  # traced, as in all tests but the exporters' own: the current one takes seconds a graph
        from polyencoder.export.onnx import exporters

        exporters.IS_CURRENT = False
    with open(log, "wb") as file, open(folder / ".typed", "w+") as typed:
        typed.write(TYPED)
        typed.seek(0)
        for mine, theirs in ((0, typed), (1, file), (2, file)):
            os.dup2(theirs.fileno(), mine)
    sys.stdin = os.fdopen(0, closefd=False)  # multiprocessing has put /dev/null in its place
    sys.argv = arguments
    program(arguments)


def _parlai(_: list[str]) -> None:
    from parlai.core.metrics import dict_report
    from parlai.core.script import superscript_main

    returned = superscript_main()  # training gives the reports of its last validation and test, evaluation its own
    reports = [dict_report(report) for report in (returned if isinstance(returned, tuple) else (returned,)) if report]
    Path(REPORTS).write_text(json.dumps(reports), encoding="utf-8")


def _polyencoder(_: list[str]) -> None:
    from polyencoder.cli.main import main

    main()


def _python(arguments: list[str]) -> None:
    sys.path.insert(0, "")
    if arguments[1] == "-m":
        sys.argv = arguments[2:]
        runpy.run_module(arguments[2], run_name="__main__", alter_sys=True)
    else:
        exec(compile(arguments[2], "<snippet>", "exec"), {"__name__": "__main__"})


def _torchrun(arguments: list[str]) -> None:
    from torch.distributed.run import main

    main(arguments[1:])


def _subprocess(arguments: list[str]) -> None:
    raise SystemExit(subprocess.run(arguments, check=False).returncode)


_PROGRAMS = {
    "parlai": _parlai,
    "polyencoder": _polyencoder,
    "python": _python,
    "torchrun": _torchrun,
    "cp": _subprocess,
}


def _option(command: Command, *names: str) -> str | None:
    values = [value for name, value in zip(command.arguments, command.arguments[1:], strict=False) if name in names]
    return values[-1] if values else None


def _limited(command: Command) -> Command:
    """The command with small limits."""
    words = list(command.arguments)
    for name, value in INSTEAD.items():
        if name in words:
            words[words.index(name) + 1] = value
    if words[0] == "torchrun":  # by default all have one port
        words[1:1] = ["--standalone"]
    for name, limits in LIMITS.items():
        if f" {name} " in f" {command} ":
            words += limits.split()
    if "convert" in words and {"train", "train_model"} & set(words) and not {"--init", "--init-model"} & set(words):
        words += CONVERT_FROM_SCRATCH.split()
    if "train_model" in words and not {"--backbone", "--init-model", "convert"} & set(words):
        words += FROM_SCRATCH.split()
    return replace(command, arguments=tuple(words))


def _printed(command: Command, output: str) -> Iterator[dict[str, Any]]:
    """The metrics in each line of what training and evaluation without ParlAI print; not those of other models."""
    if not {"train", "evaluate"} & set(command.arguments[1:2]):
        return
    for line in output.splitlines():
        if not line.startswith(("TF-IDF", "before training")):
            yield {"hits@1" if name[0] == "R" else name: float(value) for name, value in _MEASURE.findall(line)}


def _problem(reports: list[dict[str, Any]], *, learns: bool) -> str | None:
    """What is wrong with the metrics of a command, which may have none unless it `learns`."""
    if learns and not any({"mean_loss", "masked_loss"} & report.keys() for report in reports):
        return "reports no loss of training"
    for report in reports:
        for name, value in report.items():
            if SUSPECT.get(name.rpartition("/")[2]) == value:  # tasks go before the name
                return f"reports {name} {value}: {report}"
            if isinstance(value, float) and not math.isfinite(value):
                return f"reports {name} {value}: {report}"
    return None
