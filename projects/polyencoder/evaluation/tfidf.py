"""TF-IDF baseline: cosines of TF-IDF vectors, fitted to responses."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from polyencoder.data.example import Example
from polyencoder.errors import InputError
from polyencoder.evaluation.examples import check_examples, tally_scores
from polyencoder.evaluation.names import HITS_AT


def evaluate_tfidf(
    responses: Iterable[str], examples: Sequence[Example], *, hits_at: Sequence[int] = HITS_AT
) -> dict[str, float]:
    """Evaluates the baseline, fitted to training responses, on last turns; no loss.

    Words are scikit-learn's: lower-cased, of two characters or more. A word of every response counts 1, a rarer one
    more. Candidates of equal words count once.

    Raises:
        InputError: there is no word in the responses that the weights are fitted to; or as in `evaluate`.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer  # takes a second to import

    check_examples(examples)
    texts, vectorizer = list(responses), TfidfVectorizer()
    split_words = vectorizer.build_analyzer()
    if not any(map(split_words, texts)):
        raise InputError(f"no words in {len(texts)} training responses to fit TF-IDF to")
    vectorizer.fit(texts)
    choices = dict.fromkeys(text for example in examples for text in example.choices)
    rows = {text: row for row, text in enumerate(choices)}
    candidates = vectorizer.transform(rows)
    contexts = vectorizer.transform([example.turns[-1] for example in examples])

    def compute_cosines() -> Iterator[Tensor]:
        for i, example in enumerate(examples):
            cosines = candidates[[rows[text] for text in example.choices]] @ contexts[[i]].T.tocsr()
            yield torch.from_numpy(cosines.toarray()[:, 0].astype(np.float32))

    def build_key(text: str) -> Hashable:
        return tuple(split_words(text))

    tally = tally_scores(examples, enumerate(compute_cosines()), keys=build_key, hits_at=hits_at)
    return {name: value for name, value in tally.report().items() if name != "loss"}
