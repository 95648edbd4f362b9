"""The baseline of words: TF-IDF and logistic regression, by scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyencoder.errors import InputError
from polyencoder.intents.examples import Labelled
from polyencoder.intents.fitting import best_logistic

__all__ = ["TfidfBaseline"]


class TfidfBaseline:
    """Words and pairs of neighbours, weighed by TF-IDF, into labels by logistic regression: a linear head."""

    def __init__(self, train: Sequence[Labelled], valid: Sequence[Labelled]) -> None:
        """Train on labelled texts; `valid`, of the same labels, chooses the regularization.

        Raises:
            InputError: there is no word in the texts.
        """
        from sklearn.feature_extraction.text import TfidfVectorizer  # takes a second to import

        self._vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        try:
            rows = self._vectorizer.fit_transform([one.text for one in train])
        except ValueError:
            raise InputError(f"there is no word in the {len(train)} training texts for TF-IDF to weigh") from None
        held_out = self._vectorizer.transform([one.text for one in valid])
        self._model = best_logistic(rows, [one.label for one in train], held_out, [one.label for one in valid])
        self.labels = [str(label) for label in self._model.classes_]

    def probabilities(self, texts: Sequence[str]) -> Tensor:
        """Those of each of `labels`, [texts, labels]."""
        return torch.from_numpy(self._model.predict_proba(self._vectorizer.transform(texts)))
