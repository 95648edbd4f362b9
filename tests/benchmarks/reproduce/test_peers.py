"""The peer's training resumes from the last complete checkpoint; its late-interaction encoder learns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.reproduce import peers
from benchmarks.reproduce.peers import find_last_checkpoint
from tests.parameters import mostly_long


def test_a_checkpoint_that_a_kill_left_unfinished_is_passed_over(tmp_path: Path) -> None:
    assert find_last_checkpoint(tmp_path / "none yet") is None
    for step in (75, 100, 125):
        (tmp_path / f"checkpoint-{step}").mkdir()
    assert find_last_checkpoint(tmp_path) is None
    for step in (75, 100):  # 100 is the later one, though not as text
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    assert find_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-100")


@pytest.mark.slow
@mostly_long("words", [[], ["--no-projection", "--bf16"]], quick=1)
def test_a_late_interaction_encoder_learns_which_reply_belongs_to_a_question(words, bert, convai2, tmp_path, capsys):
    for package in ("sentence_transformers.multi_vector_encoder", "datasets", "accelerate"):
        pytest.importorskip(package)
    words = [*words, "--backbone", str(bert), "--datapath", str(convai2), "--learning-rate", "1e-2"]
    words += ["--examples", "48", "--batch-size", "4", "--out", str(tmp_path)]
    peers.main(["late", *words])
    report = json.loads(capsys.readouterr().out)
    assert (report["updates"], report["examples"]) == (12, 48)
    assert report["R20@1"] > 0.2  # 0.05 by chance
    assert find_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-12")
