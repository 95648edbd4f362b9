"""`train_intents`: encodes the texts once, then trains and evaluates a head for each seed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyencoder.config import VectorKind
from polyencoder.encoding.scorer import Scorer
from polyencoder.errors import InputError
from polyencoder.intents.classifier import IntentClassifier
from polyencoder.intents.examples import Labelled, hold_out, sample_per_label
from polyencoder.intents.head import TrainedHead
from polyencoder.intents.logistic import fit_logistic, tfidf_probabilities
from polyencoder.intents.metrics import ClassifierMetrics, evaluate
from polyencoder.intents.mlp import Trial, fit_mlp, grid_search
from polyencoder.settings.intents import FitSettings, HeadConfig


@dataclass(frozen=True)
class SeedResult:
    """The result of one seed, which draws its own texts and held-out part and trains its own head."""

    seed: int
    texts: int
    """Training texts, without those held out."""
    valid: float
    """Accuracy on the held-out texts."""
    epochs: int
    test: ClassifierMetrics | None = None
    baseline: ClassifierMetrics | None = None

    def __str__(self) -> str:
        parts = [f"seed {self.seed}: {self.texts:,} texts, {self.epochs} epochs, held out {self.valid:.1%}"]
        parts += [f"test {self.test.accuracy:.1%}"] if self.test else []
        parts += [f"TF-IDF {self.baseline.accuracy:.1%}"] if self.baseline else []
        return ", ".join(parts)


@dataclass(frozen=True)
class IntentReport:
    """The result of `train_intents`."""

    classifier: IntentClassifier
    """Of the seed with the best accuracy on the held-out texts."""
    config: HeadConfig | None
    """Of the paper's head; None for logistic regression."""
    settings: FitSettings
    results: list[SeedResult]
    trials: list[Trial] = field(default_factory=list)
    """Those of the grid search, best first, if there was one."""

    @property
    def best(self) -> SeedResult:
        """The result of the classifier's seed."""
        return max(self.results, key=lambda one: one.valid)

    def accuracy(self, of: str = "test") -> tuple[float, float] | None:
        """Mean and standard deviation over the seeds of "test", "baseline" or "valid"; None if not measured."""
        values = [getattr(one, of) for one in self.results]
        if None in values:
            return None
        numbers = [value.accuracy if isinstance(value, ClassifierMetrics) else value for value in values]
        return statistics.mean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else 0.0

    def as_dict(self, *, test_texts: int) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        test = self.best.test
        return {
            "labels": len(self.classifier.labels),
            "test_texts": test_texts,
            "head": None if self.config is None else asdict(self.config),
            "settings": asdict(self.settings) | {"learning_rate": self.settings.rate},
            **{name: self._mean(of) for name, of in (("valid", "valid"), ("test", "test"), ("tfidf", "baseline"))},
            "seeds": [
                {"seed": one.seed, "texts": one.texts, "epochs": one.epochs, "valid": one.valid}
                | ({"test": one.test.accuracy} if one.test else {})
                | ({"tfidf": one.baseline.accuracy} if one.baseline else {})
                for one in self.results
            ],
            "grid": [
                asdict(one.config) | {"optimizer": one.settings.optimizer, "valid": one.accuracy} for one in self.trials
            ],
            "saved_seed": self.best.seed,
            "calibration_error": test.calibration_error if test else None,
            "covered": [one._asdict() for one in test.covered] if test else [],
            "confusions": [one._asdict() for one in test.confusions] if test else [],
        }

    def _mean(self, of: str) -> dict[str, float] | None:
        found = self.accuracy(of)
        return None if found is None else {"accuracy": found[0], "deviation": found[1]}


def train_intents(
    encoder: Scorer,
    train: Sequence[Labelled],
    test: Sequence[Labelled] = (),
    *,
    config: HeadConfig | None = None,
    settings: FitSettings | None = None,
    grid: bool = False,
    per_intent: int | None = None,
    seeds: Sequence[int] = (0,),
    kind: VectorKind = "pooled",
    baseline: bool = False,
    progress: bool = False,
    on_progress: Callable[[str], object] = lambda line: None,
) -> IntentReport:
    """Trains intent classifiers on the vectors of a frozen encoder (Section 3 of ConveRT's paper).

    Args:
        encoder: any ranker but a cross-encoder.
        train: labelled texts, of two labels at least. A part of them is held out.
        test: other texts with the same labels.
        config: the shape of the paper's head, a perceptron; None for logistic regression.
        grid: search the paper's Table 8 with the first seed, instead of `config` and the optimizer of `settings`.
        per_intent: train on a sample of this many texts per label, held-out texts included; another for each seed.
        seeds: of the sample, of the held-out texts, and of the head.
        kind: of the vectors that the head reads.
        baseline: also evaluate TF-IDF on `test`, for each seed.
        progress: show a bar of the encoding on standard error.
        on_progress: called with one line per finished head.

    Raises:
        InputError: there is no seed; there are fewer than two labels, no label has two texts, or a label of `test` is
            none of `train`.
    """
    labels = sorted({one.label for one in train})
    if len(labels) < 2:
        raise InputError(f"there is {'one label' if labels else 'no label'} in the training texts; a choice needs two")
    place_of = {label: place for place, label in enumerate(labels)}
    for one in test:
        if one.label not in place_of:
            where = one.where or repr(one.text[:60])
            raise InputError(f"{where}: the label {one.label!r} is that of no training text")
    if not seeds:
        raise InputError("there is no seed; each trains one head", argument="seeds")
    settings = settings or FitSettings()
    splits = {seed: _split(train, seed, per_intent=per_intent, share=settings.held_out) for seed in seeds}
    texts = list(dict.fromkeys(one.text for parts in (*splits.values(), (test,)) for part in parts for one in part))
    vector_of = dict(zip(texts, encoder.encode(texts, kind=kind, progress=progress), strict=True))

    def tensors(examples: Sequence[Labelled]) -> tuple[Tensor, Tensor]:
        """Vectors [examples, dim] and places of labels [examples]."""
        vectors = np.stack([vector_of[one.text] for one in examples])
        return torch.from_numpy(vectors), torch.tensor([place_of[one.label] for one in examples])

    def fit(seed: int, config: HeadConfig | None, settings: FitSettings) -> TrainedHead:
        data = [tensor for part in splits[seed] for tensor in tensors(part)]
        if config is None:
            return fit_logistic(*data, n_labels=len(labels))
        return fit_mlp(*data, n_labels=len(labels), config=config, settings=settings, seed=seed)

    trials: list[Trial] = []
    if grid:
        first = next(iter(splits))
        trials = grid_search(lambda *point: fit(first, *point), settings, on_progress=on_progress)
        config, settings = trials[0].config, trials[0].settings
    results: list[SeedResult] = []
    classifiers: list[IntentClassifier] = []
    for seed, (kept, out) in splits.items():
        trained = fit(seed, config, settings)
        classifier = IntentClassifier(encoder, trained.head, labels, kind=kind, temperature=trained.temperature)
        tested = evaluate(classifier.of_vectors(tensors(test)[0]), labels, test) if test else None
        tfidf = None
        if test and baseline:
            tfidf = evaluate(*tfidf_probabilities(kept, out, [one.text for one in test]), test)
        results.append(SeedResult(seed, len(kept), trained.valid.accuracy, trained.epochs, tested, tfidf))
        classifiers.append(classifier)
        on_progress(str(results[-1]))
    best = max(range(len(results)), key=lambda i: results[i].valid)
    return IntentReport(classifiers[best], config, settings, results, trials)


def _split(
    train: Sequence[Labelled], seed: int, *, per_intent: int | None, share: float
) -> tuple[list[Labelled], list[Labelled]]:
    """The texts to train on, and those held out."""
    if per_intent is not None:
        train = [train[i] for i in sample_per_label([one.label for one in train], per_intent, seed=seed)]
    kept, out = hold_out([one.label for one in train], share, seed=seed)
    if not out:
        raise InputError(
            "no label has two texts, so that none can be held out to see when to stop", argument="per_intent"
        )
    return [train[i] for i in kept], [train[i] for i in out]
