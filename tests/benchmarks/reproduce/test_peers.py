"""The peer's training resumes from the last complete checkpoint."""

from __future__ import annotations

from pathlib import Path

from benchmarks.reproduce.peers import last_checkpoint


def test_a_checkpoint_that_a_kill_left_unfinished_is_passed_over(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path / "none yet") is None
    for step in (75, 100, 125):
        (tmp_path / f"checkpoint-{step}").mkdir()
    assert last_checkpoint(tmp_path) is None
    for step in (75, 100):  # 100 is the later one, though not as text
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-100")
