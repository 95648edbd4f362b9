"""Runs that several processes share, and those that wait for others."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import filelock
import pytest

from benchmarks.reproduce.plan import Planned
from benchmarks.reproduce.results import get_result_path, read_results
from benchmarks.reproduce.runs import Bindings, ReproductionRun, Step
from benchmarks.reproduce.schedule import MORE_TO_DO, run_all

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path):
    """(runs, seeds) -> the exit code of running all of them."""
    bindings = Bindings({"data": str(tmp_path)}, runs=tmp_path / "runs")

    def start(*runs: ReproductionRun, seeds: int = 1) -> int:
        planned = [Planned(run, seeds) for run in runs]
        return run_all(planned, scale="small", bindings=bindings, out=tmp_path / "results", deadline=None)

    return start


@pytest.fixture
def a_run(tmp_path):
    """(name, needs) -> a run that notes each time that it is run, and does something more."""

    def make(name: str, also: str = "", **needs: bool) -> ReproductionRun:
        code = f"open(r'{tmp_path / 'notes'}', 'a').write('{name}-{{seed}} '); print(1); {also}"
        folders = (f"{{model:{need}}}" if each else f"{{folder:{need}}}" for need, each in needs.items())
        step = Step("only", ("python", "-c", code, *folders), {"pattern": r"(?P<n>\d+)"})
        return ReproductionRun(name, [step])

    return make


def hold_seed(tmp_path, name: str, seed: int = 0) -> filelock.BaseFileLock:
    folder = tmp_path / "runs" / name / f"seed-{seed}"
    folder.mkdir(parents=True)
    return filelock.FileLock(folder / "run.lock")


def test_processes_at_the_same_time_run_each_seed_once(start, a_run, tmp_path):
    runs = [a_run("one"), a_run("two"), a_run("three")]
    with ThreadPoolExecutor(3) as pool:  # locks are an open file's: threads exclude each other as processes do
        codes = [future.result() for future in [pool.submit(start, *runs, seeds=2) for _ in range(3)]]
    assert 0 in codes
    assert set(codes) <= {0, MORE_TO_DO}
    assert sorted((tmp_path / "notes").read_text().split()) == sorted(f"{run.name}-{n}" for run in runs for n in (0, 1))
    assert all(len(read_results(tmp_path / "results", "small", run)) == 2 for run in runs)


def test_what_another_process_has_is_left_to_it_with_all_that_needs_it(start, a_run, tmp_path, capsys):
    runs = [a_run("base"), a_run("upon", base=True), a_run("free")]
    with hold_seed(tmp_path, "base"):
        assert start(*runs) == MORE_TO_DO
    assert "another process is running, or waits for: base, seed 0, upon, seed 0" in capsys.readouterr().out
    assert (tmp_path / "notes").read_text().split() == ["free-0"]
    assert start(*runs) == 0
    assert (tmp_path / "notes").read_text().split() == ["free-0", "base-0", "upon-0"]


def test_a_seed_waits_for_that_seed_or_for_the_first_where_there_is_only_one(start, a_run, tmp_path):
    with hold_seed(tmp_path, "base", seed=1):
        assert start(a_run("base"), a_run("each", base=True), a_run("all", base=False), seeds=2) == MORE_TO_DO
    assert sorted((tmp_path / "notes").read_text().split()) == ["all-0", "all-1", "base-0", "each-0"]


def test_what_another_process_has_finished_in_the_meantime_is_not_waited_for(start, a_run, tmp_path):
    base, upon = a_run("base"), a_run("upon", base=True)
    assert start(base) == 0
    left = [tmp_path / "runs/base/seed-0/progress.json", get_result_path(tmp_path / "results", "small", "base", 0)]
    for path in left:
        path.rename(path.with_suffix(".later"))
    finish = "; ".join(f"__import__('os').rename(r'{path.with_suffix('.later')}', r'{path}')" for path in left)
    with filelock.FileLock(tmp_path / "runs/base/seed-0/run.lock"):
        assert start(base, a_run("free", also=finish), upon) == 0
    assert (tmp_path / "notes").read_text().split() == ["base-0", "free-0", "upon-0"]


def test_a_result_without_its_models_is_run_again_for_what_needs_them_and_stays(start, a_run, tmp_path, capsys):
    base, upon, other = a_run("base"), a_run("upon", base=True), a_run("other")
    assert start(base, other) == 0
    base_result = get_result_path(tmp_path / "results", "small", "base", 0)
    before = base_result.read_text()
    shutil.rmtree(tmp_path / "runs")
    capsys.readouterr()
    assert start(base, other, upon) == 0
    output = capsys.readouterr().out
    other_result = get_result_path(tmp_path / "results", "small", "other", 0)
    assert output.startswith(
        f"other, seed 0: its result is in {other_result}; to rerun it, give another --out and --runs\n"
    )
    assert (tmp_path / "notes").read_text().split() == ["base-0", "other-0", "base-0", "upon-0"]
    assert base_result.read_text() == before
    assert start(base, other, upon) == 0
    assert len((tmp_path / "notes").read_text().split()) == 4


def test_nothing_is_run_again_for_what_cannot_be_had(start, a_run, tmp_path, capsys):
    base, never = a_run("base"), replace(a_run("never", base=True), missing="not at hand")
    assert start(base) == 0
    shutil.rmtree(tmp_path / "runs")
    assert start(base, never) == 0
    assert (tmp_path / "notes").read_text().split() == ["base-0"]
    assert start(never) == 1
    assert "never, seed 0: missing: not at hand" in capsys.readouterr().out


def test_a_word_that_names_two_runs_needs_both():
    step = Step("train", ("parlai", "train_model", "--teacher-model", "{folder:one}/model,{model:other}"), {})
    run = ReproductionRun("x", [step])
    assert run.needs == {"one": False, "other": True}
