from __future__ import annotations

import pytest
import torch

from polyencoder.errors import InputError
from polyencoder.intents import Labelled, TfidfBaseline


def test_it_finds_labels_by_their_words(labelled):
    baseline = TfidfBaseline(labelled[::2], labelled[1::2])
    assert baseline.labels == ["pets", "ski", "work"]
    probabilities = baseline.probabilities([one.text for one in labelled])
    torch.testing.assert_close(probabilities.sum(1), torch.ones(len(labelled), dtype=probabilities.dtype))
    assert [baseline.labels[i] for i in probabilities.argmax(1)] == [one.label for one in labelled]


def test_texts_without_a_word():
    with pytest.raises(InputError, match="there is no word in the 2 training texts"):
        TfidfBaseline([Labelled("!", "a"), Labelled("?", "b")], [Labelled("!", "a")])
