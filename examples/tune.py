"""Search a learning rate and a batch size with Optuna: each trial is an ordinary run in a folder of its own.

    pip install optuna
    python examples/tune.py runs/study

The same command adds trials to the study. The best of many trials is also a lucky one: measure it once more on data
that no trial saw (`polyencoder evaluate --data my/test.jsonl`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import optuna

from polyencoder.training import TrainSettings, train_ranker

DATA = Path(__file__).parent / "support"
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"


def main(out: str = "runs/study", *, encoder: str = ENCODER, trials: int = 10, max_updates: int | None = None) -> None:
    def run(trial: optuna.Trial) -> float:
        settings = TrainSettings(
            train=str(DATA / "train.jsonl"),
            valid=str(DATA / "valid.jsonl"),
            out=f"{out}/trial-{trial.number}",
            backbone=encoder,
            architecture="bi",
            text_truncate=64,
            max_updates=max_updates,
            learning_rate=trial.suggest_float("learning_rate", 1e-5, 1e-3, log=True),
            batch_size=trial.suggest_categorical("batch_size", (16, 32)),
        )
        return train_ranker(settings).trained["hits@1"]

    Path(out).mkdir(parents=True, exist_ok=True)
    storage = f"sqlite:///{out}/study.sqlite"
    study = optuna.create_study(storage=storage, study_name="study", direction="maximize", load_if_exists=True)
    study.optimize(run, n_trials=trials)
    print(f"best: trial {study.best_trial.number}, R@1 {study.best_value:.3f} with {study.best_params}")


if __name__ == "__main__":
    main(*sys.argv[1:])
