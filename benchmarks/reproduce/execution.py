"""Executes a run's steps for one seed; an interrupted run resumes where it stopped."""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import filelock

from benchmarks.reproduce.reports import read_numbers, read_training_amount
from benchmarks.reproduce.results import Result, describe_environment
from benchmarks.reproduce.runs import PROCESSES, TORCHRUN, Bindings, ReproductionRun, Step
from polyencoder.errors import PolyencoderError
from polyencoder.storage.files import write_text

_GRACE = 60.0  # seconds that a command has to end by itself
PROGRESS = "progress.json"
_LOCK = "run.lock"


class OutOfTime(Exception):
    """The deadline has passed; the same command resumes the run."""


class RunsElsewhere(Exception):
    """Another process is running this seed, or one that it depends on."""


class StepFailed(PolyencoderError):
    """A command failed; its log has the details."""


@dataclass
class _SeedProgress:
    """The progress of one seed, saved beside its models."""

    path: Path
    done: dict[str, dict[str, float]] = field(default_factory=dict)
    """The numbers of the finished steps."""
    seconds: dict[str, float] = field(default_factory=dict)
    pieces: int = 0
    commands: list[str] = field(default_factory=list)
    """The commands that the run started with; it cannot resume with others."""
    bindings: dict[str, str] = field(default_factory=dict)
    """What their placeholders stand for, likewise."""

    def save(self) -> None:
        values = {name: value for name, value in vars(self).items() if name != "path"}
        write_text(self.path, json.dumps(values, indent=2) + "\n")


def execute(run: ReproductionRun, *, scale: str, seed: int, bindings: Bindings, deadline: float | None) -> Result:
    """Execute the unfinished steps of one seed and return its result.

    At the deadline, a time of `time.monotonic()`, the running command is terminated.

    Raises:
        OutOfTime: the deadline has passed.
        RunsElsewhere: another process is running it.
        StepFailed: a command failed.
        PolyencoderError: its report cannot be read, or its folder belongs to a run with other commands.
    """
    folder = bindings.get_folder(run.name, seed)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = filelock.FileLock(folder / _LOCK).acquire(blocking=False)
    except filelock.Timeout:
        raise RunsElsewhere from None
    amount = {"updates": 0, "examples": 0}
    with lock:
        progress = _read_progress(run, seed, bindings)
        progress.pieces += 1
        progress.save()  # before a command writes anything, so that the folder's files belong to these commands
        for step in run.steps:
            if step.name not in progress.done:
                values = _run_step(step, run=run, seed=seed, bindings=bindings, deadline=deadline, progress=progress)
                progress.done[step.name] = values
                progress.save()
            numbers = progress.done[step.name]
            if "training" in step.read:
                amount = _read_training_amount(step, folder, bindings)
                numbers["hours"] = progress.seconds[step.name] / 3600
            if "amount" in step.read:
                amount = {name: int(numbers[name]) for name in amount}
    machine, versions = describe_environment()
    return Result(
        scale=scale,
        run=run.name,
        seed=seed,
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        commands=run.commands,
        metrics={f"{step}/{name}": number for step, values in progress.done.items() for name, number in values.items()},
        **amount,
        seconds={step: round(seconds, 1) for step, seconds in progress.seconds.items()},
        pieces=progress.pieces,
        machine=machine,
        versions=versions,
        places={name: _cut_path(bindings.named[name]) for name in run.models},
    )


def is_finished(run: ReproductionRun, seed: int, *, bindings: Bindings) -> bool:
    """Whether all steps of a seed are done."""
    try:
        progress = _read_progress(run, seed, bindings)
    except PolyencoderError:  # of other commands or bindings; `execute` reports it
        return False
    return all(step.name in progress.done for step in run.steps)


def _cut_path(path: str) -> str:
    """A value as results name it; of a path on this machine, the last part."""
    return Path(path).name if os.path.isabs(os.path.expanduser(path)) else path


def _read_progress(run: ReproductionRun, seed: int, bindings: Bindings) -> _SeedProgress:
    folder = bindings.get_folder(run.name, seed)
    path = folder / PROGRESS
    named = {name: bindings.named[name] for _, name in run.placeholders if name in bindings.named}
    if not path.exists():
        return _SeedProgress(path, commands=run.commands, bindings=named)
    progress = _SeedProgress(path, **json.loads(path.read_text(encoding="utf-8")))
    if progress.commands != run.commands or progress.bindings not in (named, {}):
        raise PolyencoderError(f"{folder}: began with other commands, encoders or data: delete it or give other --runs")
    return progress


def _run_step(
    step: Step, *, run: ReproductionRun, seed: int, bindings: Bindings, deadline: float | None, progress: _SeedProgress
) -> dict[str, float]:
    """Run one step and read its numbers."""
    folder = bindings.get_folder(run.name, seed)
    where = f"{run.name}, seed {seed}, {step.name}"
    output, log = folder / f"{step.name}.out", folder / f"{step.name}.log"
    command = _resolve_program(bindings.build_command(step, run=run.name, seed=seed))
    start = time.monotonic()
    try:
        code = _wait(command, output=output, log=log, deadline=deadline)
    finally:
        progress.seconds[step.name] = progress.seconds.get(step.name, 0.0) + time.monotonic() - start
        progress.save()
    printed = output.read_text(encoding="utf-8", errors="replace")
    if code:
        complaints = log.read_text(encoding="utf-8", errors="replace")
        raise StepFailed(f"{where}: {_explain_failure(code, complaints, printed)} (all of it: {log}, {output})")
    read = dict(step.read)
    if "report" in read:
        read["report"] = bindings.fill(read["report"], run=run.name, seed=seed)
    return read_numbers(read, printed=printed, where=where)


def _explain_failure(code: int, complaints: str, printed: str) -> str:
    """Why a command failed: the signal that ended it, else its last error line."""
    if code < 0:
        memory = ", as a system out of memory does" if -code == signal.SIGKILL else ""
        ended = f"ended by signal {-code} ({signal.strsignal(-code)}){memory}"
        return f"{ended}; the same command resumes it"
    lines = (complaints.strip() or printed.strip() or f"exit code {code}").splitlines()
    ours = [line for line in lines if line.startswith(("error: ", "polyencoder: "))]  # torchrun has more to say
    return (ours or lines)[-1]


def _read_training_amount(step: Step, folder: Path, bindings: Bindings) -> dict[str, int]:
    words = step.command
    batch = int(words[words.index("--batchsize") + 1])
    if words[: len(TORCHRUN)] == TORCHRUN:
        batch *= int(bindings.named[PROCESSES])
    return read_training_amount(folder / step.read["training"], batch=batch)


def _resolve_program(command: list[str]) -> list[str]:
    """The command with the programs of this Python environment, whatever the PATH says."""
    program, *rest = command
    if program == "python":
        return [sys.executable, *rest]
    if program == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", *rest]
    beside = Path(sys.executable).with_name(program)
    return [str(beside) if beside.exists() else program, *rest]


def _wait(command: list[str], *, output: Path, log: Path, deadline: float | None) -> int:
    """Run a command; at the deadline, or on an interrupt, terminate its process group."""
    with output.open("w") as out, log.open("a") as err, ThreadPoolExecutor(1) as apart:
        # in a thread, which signals do not interrupt, so that a started process is never lost
        starting = apart.submit(subprocess.Popen, command, stdout=out, stderr=err, start_new_session=True)
        try:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            return starting.result().wait(timeout=left)
        except subprocess.TimeoutExpired:
            _end(starting.result())
            raise OutOfTime from None
        except BaseException:  # an interrupt: leave no process behind
            _end(starting.result())
            raise


def _end(process: subprocess.Popen[bytes]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(timeout=_GRACE)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
