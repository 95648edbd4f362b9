"""Logistic regression by scikit-learn: the default head, and the TF-IDF baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyencoder.errors import InputError
from polyencoder.intents.examples import Labelled
from polyencoder.intents.head import Head, TrainedHead, best_temperature, score
from polyencoder.settings.intents import HeadConfig

STRENGTHS = (1.0, 10.0, 100.0)
"""Inverse strengths of L2 regularization, of which the held-out texts choose one."""


def fit_logistic(
    vectors: Tensor, labels: Tensor, valid_vectors: Tensor, valid_labels: Tensor, *, n_labels: int
) -> TrainedHead:
    """Trains a linear head; once its regularization is chosen, on all texts, the held-out ones too.

    Args:
        vectors: [texts, dim], float32, to train on.
        labels: [texts], 0 to `n_labels` - 1, each of which occurs.
        valid_vectors, valid_labels: the same of the held-out texts.
    """
    head = Head(HeadConfig(hidden_layers=0), inputs=vectors.size(1), labels=n_labels)
    head.standardise(torch.cat([vectors, valid_vectors]))
    rows, valid = (head.standardised(some).numpy() for some in (vectors, valid_vectors))
    model = _best(rows, labels.numpy(), valid, valid_labels.numpy(), tolerance=1e-3)
    head.copy_logistic(model)
    found = score(head, valid_vectors, valid_labels)
    temperature = best_temperature(head, valid_vectors, valid_labels)
    model.fit(np.concatenate([rows, valid]), torch.cat([labels, valid_labels]).numpy())
    head.copy_logistic(model)
    return TrainedHead(head, found, int(model.n_iter_.max()), temperature)


def tfidf_probabilities(
    train: Sequence[Labelled], valid: Sequence[Labelled], texts: Sequence[str]
) -> tuple[Tensor, list[str]]:
    """Classifies texts by TF-IDF of words and pairs of words: probabilities [texts, labels], and the labels.

    Args:
        valid: texts of the same labels that choose the regularization.

    Raises:
        InputError: there is no word in the training texts.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer  # takes a second to import

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    try:
        rows = vectorizer.fit_transform([one.text for one in train])
    except ValueError:
        raise InputError(f"there is no word in the {len(train)} training texts for TF-IDF to weigh") from None
    held_out = vectorizer.transform([one.text for one in valid])
    model = _best(rows, [one.label for one in train], held_out, [one.label for one in valid])
    return torch.from_numpy(model.predict_proba(vectorizer.transform(texts))), list(map(str, model.classes_))


def _best(rows: Any, labels: Any, valid_rows: Any, valid_labels: Any, *, tolerance: float = 1e-4) -> Any:
    """scikit-learn's model with the regularization that is most accurate on the held-out rows."""
    from sklearn.linear_model import LogisticRegression  # takes a second to import

    trained = [LogisticRegression(C=c, max_iter=1_000, tol=tolerance).fit(rows, labels) for c in STRENGTHS]
    return max(trained, key=lambda model: model.score(valid_rows, valid_labels))
