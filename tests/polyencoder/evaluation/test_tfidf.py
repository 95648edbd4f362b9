"""The keyword baseline against scikit-learn's own vectors, whatever is remembered."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from polyencoder.data.example import Example
from polyencoder.errors import CheckpointError, InputError
from polyencoder.evaluation.tfidf import Tfidf, evaluate_tfidf

CONTEXTS = ["do you like dogs ?", "i teach math", "", "über dogs"]


@pytest.mark.parametrize("ngrams", [1, 2])
@pytest.mark.parametrize("memory", [0, 500, 1 << 20])
def test_cosines_are_those_of_scikit_learn(sentences, ngrams, memory):
    theirs = TfidfVectorizer(ngram_range=(1, ngrams)).fit(sentences)
    fitted = Tfidf.fit(sentences, ngrams=ngrams)
    ours = Tfidf(
        terms=fitted.terms, idf=fitted.idf, ngrams=ngrams, responses=fitted.responses, task=fitted.task, memory=memory
    )
    assert (ours.responses, ours.task) == (len(sentences), "train")
    # lists that come again, that overlap, and with what no response says
    for candidates in (sentences, sentences[2:5], [*sentences[3:], "zebra", ""], sentences, ["zebra"], sentences[::-1]):
        expected = (theirs.transform(CONTEXTS) @ theirs.transform(candidates).T).toarray()
        found = ours.cosines(CONTEXTS, candidates)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_what_is_saved_gives_the_same_cosines(tmp_path, sentences):
    ours = Tfidf.fit([*sentences, "größe"], ngrams=2, task="selection:jsonl")
    ours.save(str(tmp_path / "model"))
    again = Tfidf.read(str(tmp_path / "model"))
    assert (again.ngrams, again.responses, again.task) == (2, len(sentences) + 1, "selection:jsonl")
    assert np.array_equal(again.cosines(CONTEXTS, sentences), ours.cosines(CONTEXTS, sentences))


@pytest.mark.parametrize(
    "damage", [lambda values: values.pop("terms"), lambda values: values["idf"].pop(), lambda values: values.clear()]
)
def test_a_file_of_something_else_is_refused(tmp_path, sentences, damage):
    path = tmp_path / "model"
    Tfidf.fit(sentences).save(str(path))
    values = json.loads(path.read_text())
    damage(values)
    for content in (json.dumps(values), "[1]", "no JSON"):
        path.write_text(content)
        with pytest.raises(CheckpointError, match=r"model: not a model file of -m tfidf"):
            Tfidf.read(str(path))


def test_there_must_be_words_to_fit_to():
    with pytest.raises(InputError, match="no words in its 2 training labels"):
        Tfidf.fit(["?", "a"])


def test_an_example_needs_two_candidates():
    (of_two,) = [Example(["dogs", "cats ski"], "i ski", ["dogs", "i ski"])]  # only the last turn counts
    report = evaluate_tfidf(["i ski", "dogs"], [of_two])
    assert (report["rank"], report["R2@1"]) == (1.0, 1.0)
    assert "loss" not in report
    with pytest.raises(InputError, match="candidate"):
        evaluate_tfidf(["i ski", "dogs"], [Example(["dogs"], "i ski", ["i ski"])])
