"""The keyword baseline against scikit-learn's own vectors."""

from __future__ import annotations

import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer

from polyencoder.data.example import Example
from polyencoder.errors import InputError
from polyencoder.evaluation import tfidf
from polyencoder.evaluation.examples import tally_scores
from polyencoder.evaluation.tfidf import evaluate_tfidf

CONTEXTS = ["do you like dogs ?", "i teach math", "", "über dogs"]


def test_cosines_are_those_of_scikit_learn(sentences, monkeypatch):
    # lists that come again, that overlap, that repeat a text, and with what no response says
    lists = [sentences, sentences[2:5], [*sentences[3:], "zebra", ""], sentences, ["zebra", "", "zebra"]]
    examples = [Example(["i ski", context], texts[0], texts) for texts in lists for context in CONTEXTS]
    scored = []

    def tally(examples, scores, **options):
        scored.extend(scores)
        return tally_scores(examples, scored, **options)

    monkeypatch.setattr(tfidf, "tally_scores", tally)
    evaluate_tfidf(sentences, examples)
    vectorizer = TfidfVectorizer().fit(sentences)
    assert [i for i, _ in scored] == [*range(20)]
    for (_, actual), example in zip(scored, examples, strict=True):
        context, candidates = vectorizer.transform(example.turns[-1:]), vectorizer.transform(example.choices)
        expected = torch.from_numpy((context @ candidates.T).toarray()[0]).float()
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7)


def test_there_must_be_words_to_fit_to():
    with pytest.raises(InputError, match="no words in 2 training responses"):
        evaluate_tfidf(["?", "a"], [Example(["dogs"], "i ski", ["dogs", "i ski"])])


def test_an_example_needs_two_candidates():
    (of_two,) = [Example(["dogs", "cats ski"], "i ski", ["dogs", "i ski"])]  # only the last turn counts
    report = evaluate_tfidf(["i ski", "dogs"], [of_two])
    assert (report["rank"], report["R2@1"]) == (1.0, 1.0)
    assert "loss" not in report
    with pytest.raises(InputError, match="candidate"):
        evaluate_tfidf(["i ski", "dogs"], [Example(["dogs"], "i ski", ["i ski"])])
