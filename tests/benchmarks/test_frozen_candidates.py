"""The benchmark of a frozen candidate side in miniature."""

from __future__ import annotations

import gzip
import json

import pytest

from benchmarks.frozen_candidates import measure, pairs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]

WORDS = ["dogs", "cat", "teacher", "math", "school", "ski", "mountains", "brother", "pets", "living"]


def test_rows_and_parts(backbone_folder, tmp_path):
    (tmp_path / "dailydialog").mkdir()
    turns = [[f"do you like {word} ?", "yes", f"my {word} {n} ."] for word in WORDS for n in range(12)]
    with gzip.open(tmp_path / "dailydialog" / "dialogues.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"turns": some}) + "\n" for some in turns)
    parts = pairs(tmp_path, tested=10, trained=64)
    assert {part: len(found) for part, found in parts.items()} == {"test": 10, "valid": 12, "train": 64}
    of_parts = [{reply for _, reply in found} for found in parts.values()]
    assert not set.intersection(*of_parts)
    (tmp_path / "run").mkdir()
    rows = measure(str(backbone_folder("bert")), parts, tmp_path / "run", updates=1, codes=2, seed=0)
    assert [row["system"] for row in rows] == [
        *("last turn", "whole conversation", "contexts trained", "contexts trained, poly-2"),
        "both sides trained, indexed again",
    ]
    assert all(row["replies"] == 10 and row["recall10"] == 100 for row in rows)
    assert all(0 <= row["recall1"] <= 100 for row in rows)
