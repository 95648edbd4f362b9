"""The reliability diagram, and files that are equal for equal figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polyencoder.calibration.fitting import Bin, Reliability
from polyencoder.pictures import draw_reliability

pytest.importorskip("matplotlib", reason="no pictures: pip install matplotlib")

pytestmark = pytest.mark.slow


@pytest.fixture
def points(tmp_path):
    """(*bins) -> the lowest point of each circle, from the corner of the picture; all circles are equally large."""

    def drawn(*bins: tuple[float, float]) -> list[tuple[float, float]]:
        measured = Reliability([Bin(*bin_, 1 / len(bins)) for bin_ in bins], error=0.0, brier=0.0)
        draw_reliability(measured, tmp_path / "a.svg")
        svg = (tmp_path / "a.svg").read_text()
        bubbles = svg[svg.index("PathCollection") :].split("</g>")[0]
        return [(float(x), float(y)) for x, y in re.findall(r'<path d="M ([\d.]+) ([\d.]+)', bubbles)]

    return drawn


def test_probabilities_that_are_reached_are_on_the_diagonal_and_too_high_ones_below_it(points):
    (x1, y1), (x2, y2), (x3, y3) = points((0.2, 0.2), (0.6, 0.6), (0.9, 0.5))
    assert x2 - x1 == pytest.approx(y1 - y2, rel=1e-4)  # equal units on both axes
    assert x3 - x1 == pytest.approx((x2 - x1) * 7 / 4, rel=1e-4)
    assert y1 - y3 == pytest.approx((y1 - y2) * 3 / 4, rel=1e-4)


def test_equal_numbers_give_equal_pictures(tmp_path: Path):
    for name in ("a.svg", "b.svg"):
        draw_reliability(Reliability([Bin(0.3, 0.25, 1.0)], error=0.05, brier=0.2), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
