"""The intent classifier of ConveRT's paper (Section 3, Tables 6 and 8): a small head on a frozen encoder's vectors.

    python -m benchmarks.reproduce.intents --model MODEL --train train.csv --test test.csv --seeds 5
    python -m benchmarks.reproduce.intents --model MODEL --train train.csv --test test.csv --grid

prints one JSON object with the accuracy on held-out and on test texts, mean and deviation over the seeds. The files are
CSV with the columns `text` and `category`, as BANKING77's. Each seed draws its own held-out texts and trains its own
head. `examples/intents.py` is shorter, and with logistic regression as accurate: it needs no such head.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyencoder import Ranker
from polyencoder.data.readers import iter_records

RATES = {"adam": 4e-4, "sgd": 0.75}
"""Learning rates of the paper's Table 8; Adam's decays to 0 over the epochs."""
LENGTH = 3.0
"""The length to which vectors are scaled: encoders differ in it, and these learning rates suit this one."""
BATCH_SIZE, MAX_EPOCHS = 32, 100
PATIENCE = 5
"""Epochs without a new best accuracy or loss on the held-out texts, after which training stops."""


@dataclass(frozen=True)
class HeadConfig:
    """A point of the grid; the defaults are those for Table 6."""

    hidden_layers: int = 1
    hidden_size: int = 512
    dropout: float = 0.25
    """Dropout of each hidden layer's inputs."""
    optimizer: str = "sgd"


_NO_HIDDEN_LAYER = HeadConfig(hidden_layers=0, hidden_size=128, dropout=0.0)
TABLE_8 = [
    replace(shape, optimizer=optimizer)
    for optimizer in RATES
    for shape in (
        _NO_HIDDEN_LAYER,
        *(HeadConfig(n, size, rate) for n in (1, 2) for size in (128, 256, 512, 1_024) for rate in (0.75, 0.5, 0.25)),
    )
]
"""Table 8 of the paper: hidden layers, their size, dropout and optimizer; 50 different ones."""


class Vectors(NamedTuple):
    """Vectors of texts [texts, dim] and the numbers of their labels [texts]."""

    vectors: Tensor
    labels: Tensor


class Head(nn.Module):
    """Hidden layers with ReLU and dropout before them, then a linear layer, as in PolyAI's published classifiers.

    Inputs are standardised: each dimension to mean 0, all scaled so that vectors have about `LENGTH`.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, config: HeadConfig, vectors: Tensor, *, num_labels: int) -> None:
        super().__init__()
        deviation = vectors.std(0, unbiased=False)
        self.register_buffer("mean", vectors.mean(0))
        self.register_buffer("scale", torch.where(deviation > 0, LENGTH / vectors.size(1) ** 0.5 / deviation, 0))
        sizes = [vectors.size(1), *[config.hidden_size] * config.hidden_layers]
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Dropout(config.dropout), _build_linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, _build_linear(sizes[-1], num_labels))

    def forward(self, vectors: Tensor) -> Tensor:
        """[texts, dim] -> logits [texts, labels]."""
        logits: Tensor = self.layers((vectors - self.mean) * self.scale)
        return logits


def _build_linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class HeadScore(NamedTuple):
    accuracy: float
    loss: float


@torch.inference_mode()
def score(head: Head, data: Vectors) -> HeadScore:
    logits = head.eval()(data.vectors)
    accuracy = float((logits.argmax(1) == data.labels).float().mean())
    return HeadScore(accuracy, float(F.cross_entropy(logits, data.labels)))


def fit(
    train: Vectors, valid: Vectors, *, num_labels: int, config: HeadConfig, max_epochs: int = MAX_EPOCHS, seed: int
) -> tuple[Head, HeadScore]:
    """Trains a head, and keeps the epoch with the lowest held-out loss: the accuracy of few texts says less.

    Args:
        seed: of the initial weights, the order of texts, and dropout. torch's global random state is left alone.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Head(config, train.vectors, num_labels=num_labels)
        best, waited = score(head, valid), 0
        accuracy, weights = best.accuracy, copy.deepcopy(head.state_dict())
        is_adam = config.optimizer == "adam"
        optimizer = (torch.optim.Adam if is_adam else torch.optim.SGD)(head.parameters(), lr=RATES[config.optimizer])
        decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 - is_adam * n / max_epochs)
        for _ in range(max_epochs):
            head.train()
            for rows in torch.randperm(len(train.labels)).split(BATCH_SIZE):
                loss = F.cross_entropy(head(train.vectors[rows]), train.labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            decay.step()
            reached = score(head, valid)
            improved = reached.accuracy > accuracy or reached.loss < best.loss
            waited, accuracy = 0 if improved else waited + 1, max(accuracy, reached.accuracy)
            if reached.loss < best.loss:
                best, weights = reached, copy.deepcopy(head.state_dict())
            if waited == PATIENCE:
                break
    head.load_state_dict(weights)
    return head, best


def draw_per_label(labels: Sequence[str], count_of: Callable[[int], int], *, seed: int) -> tuple[list[int], list[int]]:
    """Draws numbers of texts from each label, `count_of` its number of texts; returns the drawn ones and the others."""
    texts_of: dict[str, list[int]] = defaultdict(list)
    for number, label in enumerate(labels):
        texts_of[label].append(number)
    rng = np.random.default_rng(seed)
    drawn: set[int] = set()
    for label in sorted(texts_of):
        drawn.update(rng.permutation(texts_of[label])[: count_of(len(texts_of[label]))].tolist())
    return sorted(drawn), [number for number in range(len(labels)) if number not in drawn]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a ranker's folder, or a pre-trained encoder")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--grid", action="store_true", help="search the paper's Table 8 with the first seed")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--per-intent", type=int, help="train on a sample of this many texts per intent")
    parser.add_argument("--max-epochs", type=int, default=MAX_EPOCHS)
    flags = parser.parse_args(arguments)
    print(json.dumps(run(flags)))


def run(flags: argparse.Namespace) -> dict[str, object]:
    """Encodes the texts once, then trains and tests a head for each seed."""
    train, test = _read_texts(flags.train), _read_texts(flags.test)
    names = sorted({label for _, label in train})
    encoded = Ranker.load(flags.model).encode([text for text, _ in (*train, *test)], kind="pooled", progress=True)
    labels = torch.tensor([names.index(label) for _, label in (*train, *test)])
    data = Vectors(torch.from_numpy(encoded), labels)
    tested = Vectors(data.vectors[len(train) :], data.labels[len(train) :])

    def split(seed: int) -> tuple[Vectors, Vectors]:
        """Vectors to train on, and vectors of a held-out tenth of each label's texts."""
        numbers = list(range(len(train)))
        if flags.per_intent:
            numbers, _ = draw_per_label([label for _, label in train], lambda _: flags.per_intent, seed=seed)
        held_out, used = draw_per_label([train[number][1] for number in numbers], _compute_tenth, seed=seed)
        parts = [torch.tensor([numbers[i] for i in part]) for part in (used, held_out)]
        return Vectors(data.vectors[parts[0]], labels[parts[0]]), Vectors(data.vectors[parts[1]], labels[parts[1]])

    def fit_seed(seed: int, config: HeadConfig) -> tuple[Head, HeadScore]:
        used, held_out = split(seed)
        head, valid = fit(used, held_out, num_labels=len(names), config=config, max_epochs=flags.max_epochs, seed=seed)
        print(f"seed {seed}: {config}, held out {valid.accuracy:.1%}", file=sys.stderr)
        return head, valid

    config = HeadConfig()
    if flags.grid:
        reached = {point: fit_seed(0, point)[1] for point in TABLE_8}
        config = min(TABLE_8, key=lambda point: (-reached[point].accuracy, reached[point].loss))
    results = [fit_seed(seed, config) for seed in range(flags.seeds)]
    return {
        "labels": len(names),
        "test_texts": len(test),
        "head": asdict(config),
        "settings": {
            "batch_size": BATCH_SIZE,
            "patience": PATIENCE,
            "max_epochs": flags.max_epochs,
            "learning_rate": RATES[config.optimizer],
        },
        "valid": _average([valid.accuracy for _, valid in results]),
        "test": _average([score(head, tested).accuracy for head, _ in results]),
    }


def _read_texts(path: Path) -> list[tuple[str, str]]:
    """(text, category) of each row; white space between words counts as one space."""
    return [(" ".join(row["text"].split()), row["category"].strip()) for _, row in iter_records(path)]


def _compute_tenth(count: int) -> int:
    """How many of a label's texts are held out; one at least, and one at least is kept."""
    return min(max(math.floor(0.1 * count + 0.5), 1), count - 1)


def _average(values: list[float]) -> dict[str, float]:
    return {"accuracy": statistics.mean(values), "deviation": statistics.stdev(values) if len(values) > 1 else 0.0}


if __name__ == "__main__":
    main()
