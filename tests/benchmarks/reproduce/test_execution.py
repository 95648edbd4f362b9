"""Runs of real commands: their numbers, resuming after a stop, and runs that are not results."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.reproduce import __main__ as command
from benchmarks.reproduce.execution import OutOfTime, StepFailed, execute
from benchmarks.reproduce.reports import read_numbers
from benchmarks.reproduce.results import read_results, write_result
from benchmarks.reproduce.runs import Bindings, ReproductionRun, Step
from polyencoder.errors import ConfigError, InputError, PolyencoderError

pytestmark = pytest.mark.slow


@pytest.fixture
def bindings(tmp_path):
    return Bindings({"data": str(tmp_path / "data")}, runs=tmp_path / "runs")


def a_run(*steps: Step, **fields) -> ReproductionRun:
    return ReproductionRun("mine", steps, **fields)


def python(name: str, code: str, **read) -> Step:
    return Step(name, ("python", "-c", code), read)


def test_the_numbers_of_all_steps_are_kept_with_what_they_depend_on(bindings):
    run = a_run(
        python("first", 'print(\'{"accuracy": {"mean": 0.5}, "why": null}\')', json=True),
        python("second", "print('12 examples\\n{seed}3 examples')", pattern=r"(?P<examples>\d+) examples"),
    )
    result = execute(run, scale="small", seed=4, bindings=bindings, deadline=None)
    assert result.metrics == {"first/accuracy.mean": 0.5, "second/examples": 43.0}
    assert set(result.seconds) == {"first", "second"}
    assert result.versions["python"]
    assert result.commands[1].startswith("python -c print('12")
    assert "{seed}" in result.commands[1]  # placeholders stay as they are


def test_results_name_no_folder_of_this_machine(tmp_path):
    settings = {"own": str(tmp_path / "mpnet"), "hub": "sentence-transformers/all-mpnet-base-v2"}
    command = ("python", "-c", "print(1)", "--backbone", "{own}", "--backbone", "{hub}")
    run = a_run(Step("first", command, {"pattern": r"(?P<n>\d+)"}))
    result = execute(run, scale="small", seed=0, bindings=Bindings(settings, runs=tmp_path / "runs"), deadline=None)
    assert result.places == settings | {"own": "mpnet"}


def test_a_step_that_fails_says_its_error_and_not_what_it_printed(bindings):
    run = a_run(python("first", "import sys; print('so far so good'); sys.exit('error: too warm')"))
    with pytest.raises(StepFailed, match="mine, seed 0, first: error: too warm"):
        execute(run, scale="small", seed=0, bindings=bindings, deadline=None)
    silent = a_run(python("second", "print('no more'); raise SystemExit(2)"))
    with pytest.raises(StepFailed, match="second: no more"):
        execute(dataclasses.replace(silent, name="other"), scale="small", seed=0, bindings=bindings, deadline=None)


def test_a_step_that_the_system_ended_says_so_and_not_its_last_line(bindings):
    run = a_run(
        python("first", "import os, sys; print('half', file=sys.stderr, flush=True); os.kill(os.getpid(), {seed})")
    )
    for sign, message in (
        (9, r"\(Killed\), as a system out of memory does"),
        (15, r"\(.+\)"),
        (signal.SIGRTMIN, r"\(.+\)"),
    ):
        with pytest.raises(StepFailed, match=rf"first: ended by signal {int(sign)} {message}; the same command"):
            execute(run, scale="small", seed=int(sign), bindings=bindings, deadline=None)


def test_a_step_that_is_done_is_not_run_again(bindings, tmp_path):
    once = f"open(r'{tmp_path / 'calls'}', 'a').write('x'); print('1 thing')"
    again = (
        "import sys, pathlib; p = pathlib.Path(r'{folder}/marker'); sys.exit('not yet') if not p.exists() else print(2)"
    )
    run = a_run(python("first", once, pattern=r"(?P<n>\d+) thing"), python("second", again, pattern=r"(?P<n>\d+)"))
    with pytest.raises(StepFailed, match="mine, seed 0, second: not yet"):
        execute(run, scale="small", seed=0, bindings=bindings, deadline=None)
    (bindings.get_folder("mine", 0) / "marker").touch()
    result = execute(run, scale="small", seed=0, bindings=bindings, deadline=None)
    assert (tmp_path / "calls").read_text() == "x"
    assert result.metrics == {"first/n": 1.0, "second/n": 2.0}
    assert result.pieces == 2


def test_a_step_is_ended_at_the_deadline_with_what_it_started_and_goes_on(bindings, tmp_path):
    code = (
        "import pathlib, subprocess, sys, time\n"
        f"there = pathlib.Path(r'{tmp_path / 'half'}')\n"
        "if there.exists(): print('1 whole'); sys.exit()\n"
        "there.write_text(str(subprocess.Popen(['sleep', '600']).pid)); time.sleep(600)"
    )
    run = a_run(python("train", code, pattern=r"(?P<n>\d+) whole"))
    for seconds in (1, 10, 100, 300):  # the step begins within them, however busy the machine is
        with pytest.raises(OutOfTime):
            execute(run, scale="small", seed=0, bindings=bindings, deadline=time.monotonic() + seconds)
        if (tmp_path / "half").exists():
            break
    child = (tmp_path / "half").read_text()
    assert subprocess.run(["ps", "-o", "stat=", "-p", child], capture_output=True, text=True).stdout.strip()[:1] in (
        "",
        "Z",
    )
    result = execute(run, scale="small", seed=0, bindings=bindings, deadline=None)
    assert result.metrics == {"train/n": 1.0}
    assert result.seconds["train"] > 0.5  # both pieces


def test_a_folder_that_was_begun_with_other_commands_is_left_alone(bindings):
    execute(a_run(python("first", "print(1)")), scale="small", seed=0, bindings=bindings, deadline=None)
    with pytest.raises(PolyencoderError, match="other commands"):
        execute(a_run(python("first", "print(2)")), scale="small", seed=0, bindings=bindings, deadline=None)


def test_a_folder_that_was_begun_with_another_encoder_or_data_is_left_alone(bindings):
    step = python("first", "print('{data}/{encoder}'.count('a'), 'thing')", pattern=r"(?P<n>\d+) thing")
    run = a_run(step)

    def metrics(**changed: str) -> dict[str, float]:
        named = {"encoder": "aa", "data": "a", "other": "x", **changed}
        return execute(run, scale="small", seed=0, bindings=Bindings(named, runs=bindings.runs), deadline=None).metrics

    assert metrics() == metrics(other="y") == {"first/n": 3.0}
    for changed in ({"encoder": "aaaa"}, {"data": "aaaa"}):
        with pytest.raises(PolyencoderError, match="other commands, encoders or data"):
            metrics(**changed)


def test_a_folder_has_its_commands_before_the_first_one_leaves_anything(bindings):
    code = "import json; print(len(json.load(open(r'{folder}/progress.json'))['commands']), 'known')"
    run = a_run(python("first", code, pattern=r"(?P<n>\d+) known"))
    assert execute(run, scale="small", seed=0, bindings=bindings, deadline=None).metrics == {"first/n": 1.0}


def test_a_result_is_read_back_and_one_of_less_than_its_row_asks_for_is_refused(bindings, tmp_path):
    run = a_run(python("first", "print(1)"))
    result = execute(run, scale="small", seed=0, bindings=bindings, deadline=None)
    write_result(tmp_path, result, run)
    assert read_results(tmp_path, "small", run) == [result]
    longer = dataclasses.replace(run, updates=1)
    with pytest.raises(ConfigError, match="0 updates where its row asks for 1"):
        write_result(tmp_path / "other", result, longer)
    assert not (tmp_path / "other").exists()
    with pytest.raises(ConfigError, match=r"seed-0.json: .*not a result"):
        read_results(tmp_path, "small", longer)


def test_a_file_that_is_no_result_says_so(bindings, tmp_path):
    for change, message in [
        ({"seed": 3}, "in the wrong place"),
        ({"format": 2}, "format 1"),
        ({"metrics": 1}, "metrics cannot be"),
        ({"x": 1}, "unknown"),
    ]:
        run = a_run(python("first", "print(1)"))
        path = write_result(tmp_path, execute(run, scale="small", seed=0, bindings=bindings, deadline=None), run)
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        with pytest.raises((InputError, ConfigError), match=message):
            read_results(tmp_path, "small", run)


def test_a_report_without_what_is_asked_is_an_error():
    for read in ({"pattern": "(?P<n>x)"}, {"json": True}, {"rows": ["system"]}):
        with pytest.raises(InputError, match="here"):
            read_numbers(read, printed="nothing", where="here")


def test_rows_of_a_benchmark_are_named_by_their_keys():
    rows = {"rows": [{"system": "bi", "candidates": 1000, "mean_ms": 2.5, "note": None}, {"other": 1}]}
    printed = f"a warning\n{json.dumps(rows, indent=2)}\n"
    assert read_numbers({"rows": ["system", "candidates"]}, printed=printed, where="") == {"bi/1000/mean_ms": 2.5}


def test_a_place_that_nobody_knows_is_an_error_that_says_how_to_give_it(bindings):
    with pytest.raises(ConfigError, match="--set minilm="):
        bindings.fill("{minilm}/model", run="mine", seed=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["poly-10", "--row", "nothing"], "poly-10 has no row nothing"),
        (["poly-10", "--set", "nobody=x"], "must be one of minilm="),
    ],
)
def test_errors_of_the_command_line_are_one_line(arguments, message, capsys):
    assert command.main(arguments) == 1
    assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["poly-11"])


@pytest.mark.usefixtures("forked_commands")
def test_the_module_is_a_command(tmp_path):
    words = ["benchmarks.reproduce", "convai2", "--row", "bi", "--display-commands", "--runs", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=True)
    assert done.stdout.count("parlai train_model -t selection:convai2") == 3


def test_what_ends_the_command_ends_what_it_has_started(tmp_path):
    words = ["benchmarks.reproduce", "convert-2", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    with subprocess.Popen([sys.executable, "-m", *words]) as process:
        while not ((tmp_path / "runs").exists() and (started := children(process.pid))):  # importing has some, too
            assert process.poll() is None
            time.sleep(0.1)
        process.terminate()
        assert process.wait(timeout=60) == 1
    assert started.isdisjoint(line.split()[0] for line in listed("-e") if line.split()[1][0] != "Z")
    assert not (tmp_path / "out").exists()


def children(pid: int) -> set[str]:
    return {line.split()[0] for line in listed("--ppid", str(pid))}


def listed(*which: str) -> list[str]:
    """A line of number and state for each process."""
    done = subprocess.run(["ps", "-o", "pid=,stat=", *which], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()
