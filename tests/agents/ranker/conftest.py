"""What the tests of several processes share: a run of training that is small."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ANIMALS = ["cat", "dog", "cow", "hen", "pig", "bee", "owl", "fox", "ant", "elk", "emu", "rat"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Options of a task of pairs; two examples share each label."""
    folder = tmp_path_factory.mktemp("pairs")
    for split in ("train", "valid", "test"):
        lines = [
            json.dumps({"context": f"{words} {animal} " * (1 + n), "response": f"my {animal} is here ."})
            for n, animal in enumerate(ANIMALS)
            for words in ("where is the", "i look for a")
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"task": "selection:jsonl", "selection_folder": str(folder), "num_negatives": 5}


@pytest.fixture
def options(pairs, make_agent, tmp_path) -> dict[str, Any]:
    """Options of a run of four epochs that starts from the same weights each time and notes the loss of every step."""
    start = tmp_path / "start"
    make_agent("polyencoder", n_positions=64).save(str(start))
    learning = {"optimizer": "adam", "learningrate": 1e-3, "warmup_updates": -1, "seed": 3}
    learning |= {"text_truncate": 48, "label_truncate": 16, "poly_n_codes": 4, "num_epochs": 4.0}
    learning |= {"log_every_n_steps": 1, "validation_every_n_epochs": 2.0}
    learning |= {"validation_metric": "loss", "validation_cutoff": 0.0, "eval_batchsize": 5, "dict_maxtokens": 400}
    return {**pairs, **learning, "model": "polyencoder", "candidates": "batch", "init_model": str(start)}


@pytest.fixture
def losses() -> Callable[[Path], list[float]]:
    """A model file -> the loss of every step of its training."""

    def read(model_file: Path) -> list[float]:
        reports = json.loads(Path(f"{model_file}.trainstats").read_text())["train_reports"]
        return [report["mean_loss"] for report in reports]

    return read
