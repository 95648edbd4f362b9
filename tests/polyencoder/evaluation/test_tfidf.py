"""The keyword baseline against scikit-learn's own vectors, whatever is remembered."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from polyencoder.data.example import Example
from polyencoder.errors import InputError
from polyencoder.evaluation.tfidf import Tfidf, evaluate_tfidf

CONTEXTS = ["do you like dogs ?", "i teach math", "", "über dogs"]


@pytest.mark.parametrize("memory", [0, 500, 1 << 20])
def test_cosines_are_those_of_scikit_learn(sentences, memory):
    theirs, ours = TfidfVectorizer().fit(sentences), Tfidf(sentences, memory=memory)
    # lists that come again, that overlap, and with what no response says
    for candidates in (sentences, sentences[2:5], [*sentences[3:], "zebra", ""], sentences, ["zebra"], sentences[::-1]):
        expected = (theirs.transform(CONTEXTS) @ theirs.transform(candidates).T).toarray()
        found = ours.compute_cosines(CONTEXTS, candidates)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_there_must_be_words_to_fit_to():
    with pytest.raises(InputError, match="no words in 2 training responses"):
        Tfidf(["?", "a"])


def test_an_example_needs_two_candidates():
    (of_two,) = [Example(["dogs", "cats ski"], "i ski", ["dogs", "i ski"])]  # only the last turn counts
    report = evaluate_tfidf(["i ski", "dogs"], [of_two])
    assert (report["rank"], report["R2@1"]) == (1.0, 1.0)
    assert "loss" not in report
    with pytest.raises(InputError, match="candidate"):
        evaluate_tfidf(["i ski", "dogs"], [Example(["dogs"], "i ski", ["i ski"])])
