"""`parlai train_model -m convert`, killed and started again with the same command: bit by bit as if it had not been."""

from __future__ import annotations

import math

import pytest

from polyencoder.checkpoint import read_states
from tests.agents.ranker.model.killing import (
    EPISODES,
    TURNS,
    assert_same_run,
    batches,
    finish,
    kill_once_trained,
    start,
    write_conversations,
)


@pytest.mark.long
def test_a_killed_run_goes_on(small, tmp_path):
    """ADADELTA's averages, the cosine, the scale, the ranges of 8 bits and dropout are where they were."""
    write_conversations(tmp_path)
    options = f"-m convert --init-model {small(extra_contexts=3, scale_batches=100)} --num-epochs 2 "
    options += "--quantization-aware true --quantization-update 7 --final-learning-rate 0.001"
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    finish(start(unbroken, tmp_path, options), unbroken)
    kill_once_trained(killed, tmp_path, options, 41)

    count = EPISODES * TURNS * 2 // 4
    fitted = batches(killed)
    assert len(fitted) == count < sum(map(len, fitted.values())), "nothing was done twice: no kill has cost anything"
    assert_same_run(unbroken, killed, "valid_reports", "final_valid_report", "final_test_report")
    states = read_states(f"{killed}.checkpoint")  # of the last validation
    assert int(states["model"]["scale.batches"]) == 45
    groups, updates = states["optimizer"]["param_groups"], states["number_training_updates"]
    assert [group["clip"] for group in groups if "clip" in group] == [1.0]
    rate = 0.001 + 0.009 * (1 + math.cos(math.pi * updates / (count // 2))) / 2
    assert [group["lr"] for group in groups] == pytest.approx([rate] * 3)
