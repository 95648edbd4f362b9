"""Mutants of a small module with tests of its own, from the choice of places to the outcome."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("cosmic_ray", reason="cosmic-ray is not installed")

from tests.mutation.mutants import mutants_of, sample

MODULE = """
import logging
from dataclasses import dataclass

log = logging.getLogger(__name__)
LIMIT = 3

@dataclass(frozen=True)
class Size:
    value: int | None = None

def within(n: int | None, *, scale: int = 1) -> bool:
    assert n != 7
    log.info("%d", n + 1)
    return n * scale < LIMIT
"""
TESTS = """
from polyencoder.small import LIMIT, within

def test_within():
    assert LIMIT == 3
    assert within(2) and not within(4)
    assert within(1, scale=2) and not within(2, scale=3)
"""


def test_what_no_result_depends_on_has_no_mutants():
    lines = MODULE.splitlines()
    changed = {mutant.code(MODULE).splitlines()[mutant.line - 1] for mutant in mutants_of(MODULE)} - set(lines)
    assert changed == {
        *("LIMIT = 4", "LIMIT = 2"),
        *(f"def within(n: int | None, *, scale: int = {n}) -> bool:" for n in (0, 2)),
        *("    return n / scale < LIMIT", "    return n * scale <= LIMIT", "    return n * scale >= LIMIT"),
    }


def test_a_sample_has_one_mutant_a_place_and_keeps_its_choice():
    chosen = sample({"small.py": MODULE}, size=10, seed=0)
    assert len({mutant.line * 1000 + mutant.column for _, mutant in chosen}) == len(chosen) == 4
    assert set(sample({"small.py": MODULE}, size=2, seed=0)) <= set(chosen)
    more = sample({"small.py": "ADDED = True\n" + MODULE}, size=10, seed=0)
    moved = [(mutant.line + 1, mutant.column, mutant.operator) for _, mutant in chosen]
    assert [(mutant.line, mutant.column, mutant.operator) for _, mutant in more][1:] == moved


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason="code has no qualified names before Python 3.11")
def test_outcomes(tmp_path):
    from tests.mutation.running import Runner

    (tmp_path / "tree" / "projects" / "polyencoder").mkdir(parents=True)
    (tmp_path / "tree" / "projects" / "polyencoder" / "small.py").write_text(MODULE)
    (tmp_path / "tree" / "test_small.py").write_text(TESTS)
    runner = Runner(tmp_path, tmp_path / "tree", "small.py", ["test_small.py"], least_seconds=1)
    changes = {
        "n * scale <": "n / scale <",
        "< LIMIT": "<= LIMIT",  # 3 is not tried
        "LIMIT = 3": "LIMIT = 2",
        "scale: int = 1": "scale: int = 2",
        "def within": "def without",
        "return n": "while True: n",
    }
    found = runner.outcomes([MODULE.replace(old, new) for old, new in changes.items()])
    assert found == ["killed", "survived", "killed", "killed", "import", "timeout"]
    assert (tmp_path / "tree" / "projects" / "polyencoder" / "small.py").read_text() == MODULE
