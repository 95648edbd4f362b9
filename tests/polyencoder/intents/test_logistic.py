from __future__ import annotations

import pytest
import torch

from polyencoder.errors import InputError
from polyencoder.intents import Labelled
from polyencoder.intents.logistic import STRENGTHS, fit_logistic, tfidf_probabilities


def test_it_finds_labels_by_their_words(labelled):
    probabilities, labels = tfidf_probabilities(labelled[::2], labelled[1::2], [one.text for one in labelled])
    assert labels == ["pets", "ski", "work"]
    torch.testing.assert_close(probabilities.sum(1), torch.ones(len(labelled), dtype=probabilities.dtype))
    assert [labels[i] for i in probabilities.argmax(1)] == [one.label for one in labelled]


def test_texts_without_a_word():
    with pytest.raises(InputError, match="there is no word in the 2 training texts"):
        tfidf_probabilities([Labelled("!", "a"), Labelled("?", "b")], [Labelled("!", "a")], ["!"])


@pytest.mark.parametrize("n_labels", [2, 4])
def test_logistic_regression_is_scikit_learns_of_all_texts(clouds, n_labels):
    from sklearn.linear_model import LogisticRegression

    vectors, labels, valid_vectors, valid_labels = clouds
    labels, valid_labels = labels % n_labels, valid_labels % n_labels
    fitted = fit_logistic(vectors, labels, valid_vectors, valid_labels, n_labels=n_labels)
    everything, right = torch.cat([vectors, valid_vectors]), torch.cat([labels, valid_labels])
    rows = fitted.head.standardised(everything).numpy()
    found = fitted.head(everything).softmax(1).detach().numpy()
    expected = [
        LogisticRegression(C=c, max_iter=1000, tol=1e-3).fit(rows, right).predict_proba(rows) for c in STRENGTHS
    ]
    assert min(abs(found - one).max() for one in expected) < 1e-4
    assert fitted.valid.accuracy > 0.7
    assert fitted.temperature > 0
