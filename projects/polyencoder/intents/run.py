"""`train_intents`: vectors once, then a head for each seed, and what they reach."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from polyencoder.errors import InputError
from polyencoder.intents.baseline import TfidfBaseline
from polyencoder.intents.classifier import IntentClassifier
from polyencoder.intents.examples import Labelled, few_of_each, held_out
from polyencoder.intents.fitting import FitSettings, Fitted, fit_head, fit_logistic
from polyencoder.intents.grid import Tried, grid_search
from polyencoder.intents.head import HeadConfig
from polyencoder.intents.measures import Measures, measured
from polyencoder.ranker.encoding import VectorKind
from polyencoder.ranker.scorer import Scorer

__all__ = ["IntentReport", "SeedResult", "train_intents"]

Progress = Callable[[str], object]


@dataclass(frozen=True)
class SeedResult:
    """What one seed gave: its texts, its held-out part and its head are its own."""

    seed: int
    texts: int
    """That were learnt from, without those held out."""
    valid: float
    """Accuracy on what was held out."""
    epochs: int
    test: Measures | None = None
    baseline: Measures | None = None


@dataclass(frozen=True)
class IntentReport:
    """What `train_intents` did."""

    classifier: IntentClassifier
    """That of the seed with the best accuracy on what was held out."""
    config: HeadConfig | None
    """Of the paper's head; None for logistic regression."""
    settings: FitSettings
    results: list[SeedResult]
    tried: list[Tried] = field(default_factory=list)
    """All of the grid, best first, if there was one."""

    @property
    def best(self) -> SeedResult:
        """That of the classifier."""
        return max(self.results, key=lambda one: one.valid)

    def accuracy(self, of: str = "test") -> tuple[float, float] | None:
        """Mean and deviation over the seeds of "test", "baseline" or "valid"; None where nothing was measured."""
        values = [one.valid if of == "valid" else getattr(one, of) for one in self.results]
        if None in values:
            return None
        numbers = [value.accuracy if isinstance(value, Measures) else value for value in values]
        return statistics.mean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else 0.0


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
    batch_size: int = 256,
    progress: bool = False,
    said: Progress | None = None,
) -> IntentReport:
    """Classifiers of intents on the vectors of a frozen encoder (Section 3 of ConveRT's paper).

    Args:
        encoder: any ranker but a cross-encoder.
        train: labelled texts, of two labels at least. A part of them is held out.
        test: others, of the same labels.
        config: the shape of the paper's head, a perceptron; None for logistic regression.
        settings: how it is trained.
        grid: try the paper's Table 8 with the first seed, in place of `config` and the optimizer of `settings`.
        per_intent: train on this many texts of each label, those held out among them; other ones for each seed.
        seeds: of the texts that are drawn and held out, and of the head.
        kind: of the vectors that the head reads.
        baseline: also measure TF-IDF on `test`, for each seed.
        batch_size: texts that go through the encoder together.
        progress: show a bar of the encoding on standard error.
        said: told in a line of each step that is done.

    Raises:
        InputError: there are fewer than two labels, no label has two texts, or a label of `test` is none of `train`.
    """
    labels = sorted({one.label for one in train})
    _check(train, test, labels)
    said = said or (lambda line: None)
    settings = settings or FitSettings()
    parts = {seed: _parts(train, seed, per_intent=per_intent, share=settings.held_out) for seed in dict.fromkeys(seeds)}
    needed = [train[row] for rows, out in parts.values() for row in (*rows, *out)]
    texts = list(dict.fromkeys(one.text for one in (*needed, *test)))
    vectors = encoder.encode(texts, kind=kind, batch_size=batch_size, progress=progress)
    data = _Data(encoder, train, test, labels, kind=kind, vectors=dict(zip(texts, vectors, strict=True)))
    tried: list[Tried] = []
    if grid:
        first = next(iter(parts))
        tried = grid_search(lambda one, own: data.fit(parts[first], one, own, seed=first), settings, said=said)
        config, settings = tried[0].config, tried[0].settings
    results: list[SeedResult] = []
    best: tuple[Fitted, SeedResult] | None = None
    for seed, (rows, out) in parts.items():
        fitted = data.fit((rows, out), config, settings, seed=seed)
        classifier = data.classifier(fitted)
        found = SeedResult(
            seed,
            len(rows),
            fitted.accuracy,
            fitted.epochs,
            measured(classifier.of_vectors(data.vectors_of(test)), labels, test) if test else None,
            data.baseline(rows, out) if test and baseline else None,
        )
        results.append(found)
        said(_line(found))
        if best is None or found.valid > best[1].valid:
            best = fitted, found
    assert best is not None
    return IntentReport(data.classifier(best[0]), config, settings, results, tried)


def _parts(
    train: Sequence[Labelled], seed: int, *, per_intent: int | None, share: float
) -> tuple[list[int], list[int]]:
    """The places of the texts that are learnt from, and of those held out."""
    rows = list(range(len(train)))
    if per_intent is not None:
        rows = few_of_each([one.label for one in train], per_intent, seed=seed)
    kept, out = held_out([train[row].label for row in rows], share, seed=seed)
    if not out:
        raise InputError(
            "no label has two texts, so that none can be held out to see when to stop", argument="per_intent"
        )
    return [rows[i] for i in kept], [rows[i] for i in out]


class _Data:
    """Texts, the vectors of those that are needed, and the places of their labels."""

    def __init__(
        self,
        encoder: Scorer,
        train: Sequence[Labelled],
        test: Sequence[Labelled],
        labels: list[str],
        *,
        kind: VectorKind,
        vectors: Mapping[str, np.ndarray],
    ) -> None:
        self.encoder, self.labels, self.kind, self._vectors = encoder, labels, kind, vectors
        self.train, self.test = train, test
        self._place = {label: i for i, label in enumerate(labels)}

    def vectors_of(self, examples: Sequence[Labelled]) -> Tensor:
        """[examples, dim]."""
        return torch.from_numpy(np.stack([self._vectors[one.text] for one in examples]))

    def labels_of(self, examples: Sequence[Labelled]) -> Tensor:
        """[examples]."""
        return torch.tensor([self._place[one.label] for one in examples])

    def fit(
        self, parts: tuple[list[int], list[int]], config: HeadConfig | None, settings: FitSettings, *, seed: int
    ) -> Fitted:
        data = [of([self.train[row] for row in rows]) for rows in parts for of in (self.vectors_of, self.labels_of)]
        if config is None:
            return fit_logistic(*data, n_labels=len(self.labels))
        return fit_head(*data, n_labels=len(self.labels), config=config, settings=settings, seed=seed)

    def classifier(self, fitted: Fitted) -> IntentClassifier:
        return IntentClassifier(self.encoder, fitted.head, self.labels, kind=self.kind, temperature=fitted.temperature)

    def baseline(self, rows: list[int], out: list[int]) -> Measures:
        learnt = TfidfBaseline([self.train[i] for i in rows], [self.train[i] for i in out])
        return measured(learnt.probabilities([one.text for one in self.test]), learnt.labels, self.test)


def _line(found: SeedResult) -> str:
    parts = [f"seed {found.seed}: {found.texts:,} texts, {found.epochs} epochs, held out {found.valid:.1%}"]
    parts += [f"test {found.test.accuracy:.1%}"] if found.test else []
    parts += [f"TF-IDF {found.baseline.accuracy:.1%}"] if found.baseline else []
    return ", ".join(parts)


def _check(train: Sequence[Labelled], test: Sequence[Labelled], labels: Sequence[str]) -> None:
    if len(labels) < 2:
        raise InputError(f"there is {'one label' if labels else 'no label'} in the training texts; a choice needs two")
    known = Counter(one.label for one in train)
    for one in test:
        if one.label not in known:
            raise InputError(f"{one.where or repr(one.text[:60])}: the label {one.label!r} is that of no training text")
