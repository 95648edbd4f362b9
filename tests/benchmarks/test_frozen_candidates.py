"""The benchmark of a frozen candidate side in miniature."""

from __future__ import annotations

import gzip
import json

import pytest

from benchmarks.frozen_candidates import measure, measure_foreign, pairs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]

WORDS = ["dogs", "cat", "teacher", "math", "school", "ski", "mountains", "brother", "pets", "living"]


@pytest.fixture
def parts(tmp_path):
    (tmp_path / "dailydialog").mkdir()
    turns = [[f"do you like {word} ?", "yes", f"my {word} {n} ."] for word in WORDS for n in range(12)]
    with gzip.open(tmp_path / "dailydialog" / "dialogues.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"turns": some}) + "\n" for some in turns)
    (tmp_path / "run").mkdir()
    return pairs(tmp_path, tested=10, trained=64)


def test_rows_and_parts(backbone_folder, tmp_path, parts):
    assert {part: len(found) for part, found in parts.items()} == {"test": 10, "valid": 12, "train": 64}
    of_parts = [{reply for _, reply in found} for found in parts.values()]
    assert not set.intersection(*of_parts)
    rows = measure(str(backbone_folder("bert")), parts, tmp_path / "run", updates=1, codes=2, seed=0)
    assert [row["system"] for row in rows] == [
        *("last turn", "whole conversation", "contexts trained", "contexts trained, poly-2"),
        "both sides trained, indexed again",
    ]
    assert all(row["replies"] == 10 and row["recall10"] == 100 for row in rows)
    assert all(0 <= row["recall1"] <= 100 for row in rows)


def test_rows_of_a_foreign_encoder(backbone_folder, tmp_path, parts):
    encoder, foreign = str(backbone_folder("bert")), str(backbone_folder("distilbert"))
    rows = measure_foreign(encoder, foreign, parts, tmp_path / "run", updates=1, codes=2, seed=0)
    assert [row["system"] for row in rows] == [
        *("last turn", "whole conversation", "regression, last turn", "regression, whole conversation"),
        *("contexts trained", "contexts trained, poly-2"),
    ]
    assert all(row["replies"] == 10 and row["recall10"] == 100 for row in rows)
