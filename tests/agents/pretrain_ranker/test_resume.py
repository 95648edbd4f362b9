"""A pre-training that is killed and started again with the same command: bit by bit as if it had not been."""

from __future__ import annotations

import pytest

from tests.agents.pretrain_ranker.conftest import SIZES
from tests.agents.ranker.model.killing import (
    EPISODES,
    LEARNING,
    TURNS,
    assert_same_run,
    batches,
    finish,
    kill_once_trained,
    start,
    write_conversations,
)


@pytest.mark.slow
def test_a_killed_run_goes_on(save_vocabulary, tmp_path):
    """Masks, dropout, the objective whose turn it is, and the responses of which one does not follow."""
    write_conversations(tmp_path)
    lines = (tmp_path / "ConvAI2" / "train_self_original_no_cands.txt").read_text().replace("\t", "\n").splitlines()
    options = f"-m pretrain_ranker --vocabulary {save_vocabulary(lines)} --num-epochs 2 --optimizer adam "
    options += " ".join(f"--{name.replace('_', '-')} {size}" for name, size in SIZES.items())
    learning = LEARNING.replace("--eval-candidates batch", "")
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    finish(start(unbroken, tmp_path, options, learning=learning), unbroken)
    kill_once_trained(killed, tmp_path, options, 11, 42, learning=learning)
    count = EPISODES * TURNS * 2 // 4
    fitted = batches(killed)
    assert len(fitted) == count < sum(map(len, fitted.values())), "nothing was done twice: no kill has cost anything"
    assert all(one == repeated[0] for repeated in fitted.values() for one in repeated)
    assert_same_run(unbroken, killed, "valid_reports", "final_valid_report", "final_test_report")
