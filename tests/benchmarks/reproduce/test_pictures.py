"""Pictures: of the numbers that there are, and the same whenever these are the same."""

from __future__ import annotations

import pytest

from benchmarks.reproduce.page import PICTURES, RunMeasures
from benchmarks.reproduce.pictures import collect_answer_times, draw
from benchmarks.reproduce.scales import read_scale
from benchmarks.reproduce.tables import list_table_names, read_table
from benchmarks.reproduce.values import Value
from tests.parameters import mostly_long

pytest.importorskip("matplotlib", reason="no pictures: pip install matplotlib")

pytestmark = pytest.mark.slow
OURS_ALONE = ("peers", "examples")  # without numbers of a paper
DRAWN = [name for name in list_table_names() if read_table(name).picture and name not in OURS_ALONE]


@mostly_long("name", DRAWN, quick=1)
def test_equal_numbers_give_equal_pictures(name, tmp_path):
    times = collect_answer_times(read_table("poly-5"), read_table("peers"), [])
    first = draw(read_table(name), [], times, tmp_path / "first")
    second = draw(read_table(name), [], times, tmp_path / "second")
    assert first.name == f"{name}.svg"
    assert first.read_bytes() == second.read_bytes()
    assert (PICTURES / first.name).exists()


def test_a_ranker_without_its_milliseconds_is_no_point_and_one_point_is_no_picture(tmp_path):
    table = read_table("convai2")
    assert draw(table, [], {"the paper": {"bi": 160.0}}, tmp_path) is None
    assert draw(table, [], {"the paper": {"bi": 160.0, "poly-16": 678.0}}, tmp_path) is not None
    assert draw(read_table("poly-1"), [], {}, tmp_path) is None


def test_rows_of_the_same_title_in_two_groups_are_two_series(tmp_path):
    table, scale = read_table("convai2"), read_scale("small")
    values = {(row.name, table.columns[0].title): Value(80.0) for row in table.rows}
    times = {"the paper": {}, "small": {"bi": 40.0, "poly-64": 80.0}}
    drawn = draw(table, [RunMeasures(scale, values, {}, {})], times, tmp_path).read_text()
    assert "<!-- here, small: trained on 20,000 examples (the paper's on all) -->" in drawn
    assert "<!-- here, small: trained on all 65,719 available examples -->" in drawn
