"""Pre-training and its evaluation in two processes, joined as torchrun joins them."""

from __future__ import annotations

import json

import pytest
from parlai.scripts.eval_model import EvalModel

from tests.agents.pretrain_ranker.conftest import DROPOUT, SIZES
from tests.task_files import write


@pytest.mark.slow
def test_two_processes_learn_together(launched, save_vocabulary, tmp_path):
    """Each from its share, of which the last batches have no example in one of them; and evaluate alike."""
    animals = ["cat", "dogs", "pets", "school", "math", "ski", "teacher", "brother", "sister"]
    pairs = [{"context": ["hello !", f"where is the {one} ?"], "response": f"my {one} is here ."} for one in animals]
    for split in ("train", "valid", "test"):
        write(tmp_path / f"{split}.jsonl", pairs)
    vocabulary = save_vocabulary(text for pair in pairs for text in (*pair["context"], pair["response"]))
    data = {"task": "selection:jsonl", "selection_folder": str(tmp_path), "loglevel": "error", "batchsize": 2}
    options = {**data, "model": "pretrain_ranker", "vocabulary": vocabulary, **SIZES, **DROPOUT}
    options |= {"seed": 3, "learningrate": 1e-2, "num_epochs": 20.0, "log_every_n_steps": 1, "warmup_updates": 5}
    options |= {"validation_every_n_epochs": 10.0, "validation_cutoff": 0.0, "model_file": str(tmp_path / "model")}
    reports = launched("train_model", options, options)
    stats = json.loads((tmp_path / "model.trainstats").read_text())
    losses = [report["masked_loss"] for report in stats["train_reports"] if "masked_loss" in report]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    evaluation = {**data, "model_file": str(tmp_path / "model"), "datatype": "valid"}
    alone = EvalModel.main(**evaluation)
    together = launched("eval_model", evaluation, evaluation)
    for found in (*(valid for valid, _ in reports), *together):
        assert float(found["exs"]) == len(animals)
        for name in ("masked_loss", "masked_accuracy", "ppl"):
            assert float(found[name]) == pytest.approx(float(alone[name]), rel=1e-4), name
