"""What the tests of `-m convert` share: ConveRTs to start from, small in all sizes: flags set only a few."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from parlai.core.agents import create_agent
from parlai.scripts.train_model import TrainModel

from polyencoder import Ranker
from polyencoder.text.subwords.learning import SubwordSettings, count_words, learn_subwords
from polyencoder.training.randomness import seed_everything

SMALL: dict[str, Any] = {"hidden_size": 16, "attention_limits": (2, 8), "attention_size": 8, "intermediate_size": 32}
SMALL |= {"reduction_size": 8, "head_sizes": (24, 24), "output_size": 64, "scale_batches": 0}
LEARNING = {"optimizer": "adamw", "learningrate": 1e-2, "dropout": 0.0, "weight_decay": 0.0, "label_smoothing": 0.0}
LEARNING |= {"batchsize": 16, "eval_batchsize": 7, "seed": 1, "num_epochs": 24.1, "validation_every_n_epochs": 8.0}
LEARNING |= {"validation_metric": "loss", "validation_cutoff": 0.0, "log_every_n_secs": -1.0, "loglevel": "error"}
LEARNING |= {"repeat_blocking_heuristic": False, "max_train_steps": -1}
LEARNING |= {"final_learning_rate": 0.0, "lr_scheduler": "reduceonplateau"}


@pytest.fixture(scope="session")
def vocabulary_of_the_task(task: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a vocabulary that is trained on the task's texts."""
    texts = Path(f"{task['fromfile_datapath']}_train.txt").read_text().replace("\t", "\n").splitlines()
    tokenizer = learn_subwords(count_words(text.partition(":")[2] for text in texts), SubwordSettings(min_count=3))
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def small(vocabulary_of_the_task: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """(seed=0, **fields) -> the folder of an untrained ConveRT, for `--init-model`."""

    def make(*, seed: int = 0, **fields: Any) -> Path:
        folder = tmp_path_factory.mktemp("small") / "model"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            Ranker.from_vocabulary(vocabulary_of_the_task, device="cpu", **(SMALL | fields)).save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def learn(task: dict[str, Any]) -> Callable[..., dict[str, float]]:
    """(model_file, **options) -> the last validation's report of a run that begins with `init_model=` or anew."""

    def run(model_file: Path | str, **options: Any) -> dict[str, float]:
        seed_everything(0)
        data = {} if "task" in options else task
        report, _ = TrainModel.main(
            **{**LEARNING, **data, "model": "convert", "model_file": str(model_file), **options}
        )
        return {name: float(value) for name, value in report.items()}

    return run


@pytest.fixture(scope="session")
def fitted(
    learn: Callable[..., dict[str, float]], small: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, float]]:
    """The file of a multi-context model that has learned the task, not to be written to; its last validation."""
    path = tmp_path_factory.mktemp("convert") / "model"
    return path, learn(path, init_model=str(small(extra_contexts=3)))


@pytest.fixture
def make(task: dict[str, Any]) -> Callable[..., Any]:
    """(**options) -> an agent."""

    def make(**options: Any) -> Any:
        data = {} if "task" in options else task
        defaults = {**data, "model": "convert", "datatype": "train", "loglevel": "error"}
        return create_agent(TrainModel.setup_args().parse_kwargs(**{**defaults, **options}))

    return make
