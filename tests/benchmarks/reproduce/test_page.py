"""docs/results.md says what the tables' files and the results that are kept say, and nothing that was a try."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.reproduce.__main__ import main
from benchmarks.reproduce.page import PAGE, generate_page, read_measured
from benchmarks.reproduce.plan import plan
from benchmarks.reproduce.results import RESULTS
from benchmarks.reproduce.scales import read_scale
from benchmarks.reproduce.tables import read_table
from polyencoder.errors import ConfigError

pytestmark = pytest.mark.slow


def test_the_page_is_that_of_today():
    assert PAGE.read_text(encoding="utf-8") == generate_page(RESULTS), "python -m benchmarks.reproduce all --write-docs"


def test_a_folder_that_does_not_exist_empties_no_page(monkeypatch, tmp_path, capsys):
    for name in ("PAGE", "PICTURES"):
        monkeypatch.setattr(f"benchmarks.reproduce.__main__.{name}", tmp_path / name)
    assert main(["all", "--write-docs", "--out", str(tmp_path / "gone")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path}/gone: no such folder of results\n"
    assert not [*tmp_path.iterdir()]


def line_of(text: str, table: str, row: str) -> str:
    section = text.split(f"\n## {table}:")[1].split("\n## ")[0]
    return next(line for line in section.splitlines() if line.startswith(f"| {row} |"))


def test_ours_stand_beside_the_papers_with_mean_and_deviation(keep):
    folder = keep("small", "poly-2", "31", [0.701, 0.711, 0.721])
    text = generate_page(folder)
    assert line_of(text, "poly-2", "31") == "| 31 | 81.0 | 71.1 ± 1.0 (3) |"
    assert "a processor, 1 thread, 2026-11-20 to 2026-11-22; 3 runs, median 1.5 hours." in text


def test_each_number_has_its_seeds_and_the_same_run_is_in_all_of_its_tables(keep):
    folder = keep("small", "poly-10", "bert-bi", [0.75])
    text = generate_page(folder)
    assert line_of(text, "poly-10", "Bi-encoder").split("|")[2:4] == [" 83.3 ± 0.2 ", " 75.0 (1) "]
    assert line_of(text, "convai2", "Bi-encoder").split("|")[3] == " 75.0 (1) "
    assert line_of(text, "poly-2", "63").split("|")[3] == " 75.0 (1) "


def test_a_table_of_many_rows_has_another_task_at_a_scale_and_says_so(keep):
    text = generate_page(keep("small", "poly-7", "first", [0.7]))
    assert line_of(text, "poly-7", "first output").split("|")[3] == " 70.0 (1) "
    assert "small: trained on 5,000 examples" in text.partition("## poly-7")[2].partition("## poly-8")[0]
    paper = plan(read_table("poly-7"), read_scale("paper"), [read_table("poly-7").get_row("first")], seeds=None)
    assert [entry.run.name for entry in paper] == ["convai2-bert-bi"]


def test_the_papers_own_settings_are_compared(keep):
    keep("paper", "poly-7", "first", [0.832] * 5)
    text = generate_page(keep("paper", "poly-7", "first-16", [0.79] * 5))
    for row, verdict in (("first output", "the same"), ("average of the first 16 outputs", "**not the same**")):
        assert line_of(text, "poly-7", row).split("|")[3].strip().split(", ")[1] == verdict


def test_what_rows_read_and_start_from_is_said(keep):
    keep("base", "convai2-base", "all-bi", [0.86])
    text = generate_page(keep("base", "convai2-base", "all-late", [0.9]))
    section = text.partition("## convai2-base")[2].partition("\n## ")[0]
    assert "base: all-mpnet-base-v2, 256 + 72 tokens, `--turn-separator none` (Bi-encoder)." in section
    assert "256 + 72 tokens, `--turn-separator sep` (Late-interaction encoder)." in section
    reddit = text.partition("## poly-10")[2].partition("\n## ")[0]
    assert "base: all-mpnet-base-v2, 256 + 72 tokens" in reddit


def test_a_try_is_refused(keep):
    with pytest.raises(ConfigError, match="not a result"):
        keep("small", "poly-2", "31", [0.7], examples=100)


def test_a_column_that_cannot_be_had_stays_the_papers(keep):
    scale, table = read_scale("small"), read_table("poly-10")
    folder = keep("small", "poly-10", "bert-bi", [0.75])
    measured = read_measured(table, scale, folder)
    assert set(measured.values) == {("bert-bi", "ConvAI2 valid, R@1/20")}


def test_seeds_are_the_rows_then_the_tables_then_the_scales():
    small, paper = read_scale("small"), read_scale("paper")
    layers, convai2 = read_table("poly-3"), read_table("convai2")

    def seeds(table, scale, row, number=None):
        return {entry.run.name: entry.seeds for entry in plan(table, scale, [table.get_row(row)], seeds=number)}

    assert seeds(layers, paper, "top-4") == {"convai2-bert-bi-top-4-layers": 5, "convai2-bert-cross-top-4-layers": 3}
    assert seeds(convai2, small, "poly-360") == {"convai2-bert-poly-360": 1}
    assert seeds(convai2, small, "cross-from-bi") == {"convai2-bert-bi": 1, "convai2-bi-cross": 1}
    assert seeds(convai2, small, "all-cross", 2) == {"convai2-all-bert-bi": 2, "convai2-all-bi-cross": 2}
    taught = seeds(read_table("distillation"), small, "taught")
    assert taught == {"convai2-bert-bi": 1, "convai2-bi-cross": 1, "convai2-fewest-bert-poly-16-taught": 3}
    assert seeds(read_table("poly-5"), small, "bi", 3)["answering-cpu"] == 1


def test_what_is_not_at_hand_has_nothing_run_for_it():
    table = read_table("convert-3")
    row = table.get_row("single")
    amazonqa = dataclasses.replace(table, columns=table.columns[1:])
    planned = plan(amazonqa, read_scale("small"), [dataclasses.replace(row, paper=row.paper[1:])], seeds=None)
    assert [entry.run.name for entry in planned] == ["amazonqa-reddit-convert-convert"]
