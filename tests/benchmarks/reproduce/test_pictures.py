"""Pictures: of the numbers that there are, and the same whenever these are the same."""

from __future__ import annotations

import pytest

from benchmarks.reproduce.page import PICTURES
from benchmarks.reproduce.pictures import answer_times, draw
from benchmarks.reproduce.tables import read_table, table_names

pytest.importorskip("matplotlib", reason="no pictures: pip install matplotlib")
DRAWN = [name for name in table_names() if read_table(name).picture]


@pytest.mark.parametrize("name", DRAWN)
def test_equal_numbers_give_equal_pictures(name, tmp_path):
    times = answer_times(read_table("poly-5"), read_table("peers"), [])
    first = draw(read_table(name), [], times, tmp_path / "first")
    second = draw(read_table(name), [], times, tmp_path / "second")
    assert first.name == f"{name}.svg"
    assert first.read_bytes() == second.read_bytes()
    assert (PICTURES / first.name).exists()


def test_a_ranker_without_its_milliseconds_is_no_point_and_one_point_is_no_picture(tmp_path):
    of = read_table("convai2")
    assert draw(of, [], {"the paper": {"bi": 160.0}}, tmp_path) is None
    assert draw(of, [], {"the paper": {"bi": 160.0, "poly-16": 678.0}}, tmp_path) is not None
    assert draw(read_table("poly-1"), [], {}, tmp_path) is None
