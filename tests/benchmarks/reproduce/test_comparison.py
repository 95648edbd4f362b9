"""The numbers of a new run stand beside the paper's and the repository's."""

from __future__ import annotations

import pytest

from benchmarks.reproduce.__main__ import main
from benchmarks.reproduce.page import iter_compared, read_measured
from benchmarks.reproduce.results import RESULTS
from benchmarks.reproduce.scales import read_scale
from benchmarks.reproduce.tables import read_table

SMALL = read_scale("small")
TABLE = read_table("convai2")
COLUMN = "R@1/20"


@pytest.fixture
def lines():
    """(rows, folder) -> the lines, without head."""

    def list_lines(*rows: str, results):
        return list(iter_compared(TABLE, SMALL, [TABLE.get_row(row) for row in rows], results))[3:]

    return list_lines


def test_rows_that_have_a_number_with_the_papers_and_the_repositorys(keep, lines):
    folder = keep("small", "convai2", "bi", [0.7, 0.71, 0.72])
    recorded = read_measured(TABLE, SMALL, RESULTS).values["bi", COLUMN]
    assert lines("bi", "poly-16", results=folder) == [
        f"|  | {COLUMN}, paper | {COLUMN}, docs/results.md | {COLUMN}, {folder} |",
        "| --- | --- | --- | --- |",
        f"| Bi-encoder | 83.3 ± 0.2 | {recorded} ({recorded.count}) | 71.0 ± 1.0 (3) |",
    ]


def test_where_the_paper_has_none_and_where_nothing_is_measured(keep, lines):
    folder = keep("small", "convai2", "all-bi", [0.7])
    assert lines("all-bi", results=folder)[0] == f"|  | {COLUMN}, docs/results.md | {COLUMN}, {folder} |"
    assert lines("poly-16", results=folder) == []


def test_the_repositorys_own_results_stand_there_once(lines):
    assert "docs/results.md" not in lines("bi", results=RESULTS)[0]


def test_the_command_prints_it_and_does_not_take_the_repositorys_results_for_its_own(
    keep, tmp_path, capsys, monkeypatch
):
    keep("small", "convai2", "all-bi", [0.7]).joinpath("small").rename(tmp_path / "kept")
    monkeypatch.chdir(tmp_path)
    nothing = ["convai2", "--row", "all-bi", "--datapath", "nowhere"]
    assert main(nothing) == 1
    assert "convai2-all-bert-bi, seed 0: missing: nowhere/ConvAI2" in capsys.readouterr().out
    (tmp_path / "runs/results").mkdir(parents=True)
    (tmp_path / "kept").rename(tmp_path / "runs/results/small")
    assert main(nothing) == 0
    output = capsys.readouterr().out
    path = "runs/results/small/convai2-all-bert-bi/seed-0.json"
    assert f"its result is in {path}; to rerun it, give another --out and --runs" in output
    assert output.endswith("| 70.0 (1) |\n")
