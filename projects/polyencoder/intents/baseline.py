"""The baseline of words: TF-IDF and logistic regression, by scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from polyencoder.errors import InputError
from polyencoder.intents.examples import Labelled

__all__ = ["TfidfBaseline"]

STRENGTHS = (1.0, 10.0, 100.0)
"""Inverse strengths of the L2 regularization, of which what is held out chooses."""


class TfidfBaseline:
    """Words and pairs of neighbours, weighed by TF-IDF, into labels by logistic regression: a linear head."""

    def __init__(self, train: Sequence[Labelled], valid: Sequence[Labelled]) -> None:
        """Learn from labelled texts; `valid`, of the same labels, chooses the regularization.

        Raises:
            InputError: there is no word in the texts.
        """
        from sklearn.feature_extraction.text import TfidfVectorizer  # takes a second to import

        self._vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        try:
            rows = self._vectorizer.fit_transform([one.text for one in train])
        except ValueError:
            raise InputError(f"there is no word in the {len(train)} training texts for TF-IDF to weigh") from None
        held = self._vectorizer.transform([one.text for one in valid])
        names, right = [one.label for one in train], [one.label for one in valid]
        fitted = [_regression(strength).fit(rows, names) for strength in STRENGTHS]
        self._model = max(fitted, key=lambda model: model.score(held, right))
        self.labels = [str(label) for label in self._model.classes_]

    def probabilities(self, texts: Sequence[str]) -> Tensor:
        """Those of each of `labels`, [texts, labels]."""
        return torch.from_numpy(self._model.predict_proba(self._vectorizer.transform(texts)))


def _regression(strength: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=strength, max_iter=1_000)
