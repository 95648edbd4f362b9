"""The benchmark of the selector in miniature."""

from __future__ import annotations

import csv
import gzip
import json

import pytest

from benchmarks.select import measure, read

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]

WORDS = ["dogs", "cat", "teacher", "math", "school", "ski", "mountains", "brother"]


def test_rows_and_groups(backbone_folder, tmp_path):
    (tmp_path / "banking77").mkdir()
    (tmp_path / "conversations").mkdir()
    for split, count in (("train", 15), ("test", 6)):
        with open(tmp_path / "banking77" / f"{split}.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["text", "category"])
            table.writerows([f"my {word} {split} {n} ?", word] for word in WORDS for n in range(count))
    for name, said in (("schema_guided", "do you like to ski ?"), ("taskmaster4", "my bank , please .")):
        with gzip.open(tmp_path / "conversations" / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps({"turns": [said, "yes", "ok", f"{n}"]}) + "\n" for n in range(12))
    data = read(tmp_path, tested=10, fitted=30, trained=32)
    assert {group: len(found) for group, found in data.asked.items()} == {
        "answered": 10,
        "left out": 10,
        "about else": 10,
    }
    assert all(turns[0].startswith("do you") for turns, _ in data.asked["about else"])
    texts = [{turns[0] for turns, _ in part} for part in (data.train, data.fitted, data.asked["left out"])]
    assert not texts[0] & texts[1] | texts[1] & texts[2]
    assert not any(text in tool["description"] for text in texts[0] | texts[1] for tool in data.tools)
    (tmp_path / "run").mkdir()
    rows = measure(str(backbone_folder("bert")), data, tmp_path / "run", updates=1)
    assert [row["system"] for row in rows] == ["cosine with a threshold", "selector", "selector, trained"]
    for row in rows:
        assert row["accuracy"] == pytest.approx((row["right_answered"] + 2 * row["right_none"]) / 3)
        assert row["ms"] > 0
