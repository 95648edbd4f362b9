"""The benchmark of ranking lists in miniature."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import ranking
from polyencoder import Ranker
from polyencoder.modeling.late import SPEED

pytestmark = pytest.mark.slow


def test_rows_and_what_stored_tokens_cost(bert, tmp_path, capsys):
    late = Ranker.from_backbone(bert, "late")
    with torch.no_grad():
        late.model.exits.fill_(0.5 / SPEED)
    late.save_pretrained(tmp_path / "late")
    words = ["--backbone", str(bert), "--model", str(tmp_path / "late"), "--contexts", "4", "--texts", "30"]
    ranking.main(["--json", "--quick", *words])
    report = json.loads(capsys.readouterr().out)
    (row,) = report["rows"]
    assert row["candidates"] == 20
    assert all(row[name] > 0 for name in ranking.SYSTEMS)
    summary = report["summary"]
    assert summary["cross / late, stored, 20"] == pytest.approx(row["cross"] / row["late, stored"])
    assert summary["float16: share of the ten best"] == 1
    assert 0 < summary["float16: largest difference of a score"] < summary["int8: largest difference of a score"] < 0.2
    assert summary["int8: bytes per text, vectors included"] < summary["float16: bytes per text, vectors included"]
    assert 0 < summary["float16, 100 of 30 reranked: the same best"] <= 1
    assert summary["float16, 100 of 30 reranked: share of the ten best"] == 1
