"""What the tests of `-m pretrain_ranker` share: a vocabulary of the task's texts, and a tiny encoder that trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from parlai.core.agents import create_agent
from parlai.scripts.train_model import TrainModel

from polyencoder.importing.folder import save_tokenizer
from polyencoder.text.learning import ROLES, PieceSettings, count_characters, learn_pieces
from polyencoder.training.callbacks import LearningCurve
from polyencoder.training.randomness import seed_everything

SIZES = {"embedding_size": 32, "ffn_size": 64, "n_layers": 1, "n_heads": 2, "n_positions": 48}
DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
LEARNING = {"learningrate": 1e-2, "batchsize": 8, "eval_batchsize": 7, "seed": 1, "num_epochs": 40.1}
LEARNING |= {"validation_every_n_epochs": 20.0, "validation_cutoff": 0.0, "log_every_n_secs": -1.0, "loglevel": "error"}


@pytest.fixture(scope="session")
def save_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Iterable[str]], str]:
    """(texts) -> the folder of a vocabulary that is trained on them."""

    def save(texts: Iterable[str]) -> str:
        folder, settings = tmp_path_factory.mktemp("pieces") / "pieces", PieceSettings(size=200)
        said = list(texts)
        save_tokenizer(folder, learn_pieces(said, count_characters(said, settings), settings), special_tokens=ROLES)
        return str(folder)

    return save


@pytest.fixture(scope="session")
def vocabulary(task: dict[str, Any], save_vocabulary: Callable[[Iterable[str]], str]) -> str:
    lines = Path(f"{task['fromfile_datapath']}_train.txt").read_text().replace("\t", "\n").splitlines()
    return save_vocabulary(line.partition(":")[2] for line in lines)


@pytest.fixture(scope="session")
def learn(task: dict[str, Any], vocabulary: str) -> Callable[..., tuple[dict[str, float], dict[str, float]]]:
    """(model_file, **options) -> the reports of the last validation and of the test; a tiny new encoder by default."""

    def run(model_file: Path | str, **options: Any) -> tuple[dict[str, float], dict[str, float]]:
        seed_everything(0)
        goes_on = {"backbone", "init_model"} & options.keys()
        start = {} if goes_on else {"vocabulary": vocabulary, **SIZES}
        data = {} if "task" in options else task
        values = {**LEARNING, **data, **DROPOUT, **start, **options}
        found = TrainModel.main(**values, model="pretrain_ranker", model_file=str(model_file))
        return tuple({name: float(value) for name, value in report.items()} for report in found)

    return run


@pytest.fixture(scope="session")
def fitted(
    learn: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory, undrawn_curves: Callable[..., None]
) -> tuple[Path, dict[str, float]]:
    """The file of an encoder that has learned the task and its curve, not to be written to; and its last validation."""
    path = tmp_path_factory.mktemp("pretrained") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LearningCurve, "draw", undrawn_curves)
        report, _ = learn(path)
    return path, report


@pytest.fixture
def make(task: dict[str, Any], vocabulary: str) -> Callable[..., Any]:
    """(**options) -> an agent that learns."""

    def make(**options: Any) -> Any:
        defaults = {**task, "model": "pretrain_ranker", "datatype": "train", "loglevel": "error"}
        return create_agent(TrainModel.setup_args().parse_kwargs(**{**defaults, **options}))

    return make
