"""Predictions, and a head that comes back from disk as it was."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.intents import HeadConfig, IntentClassifier
from polyencoder.intents.classifier import EncoderSource
from polyencoder.intents.head import Head
from polyencoder.modeling.convert.model import ConveRT
from polyencoder.ranker import Ranker

LABELS = ["pets", "ski", "work", "straße"]


@pytest.fixture(params=["bi", "convert"])
def classifier(make_ranker, request, sentences):
    ranker = make_ranker(request.param)
    vectors = torch.from_numpy(ranker.encode(sentences))
    head = Head(HeadConfig(hidden_layers=1, hidden_size=8, dropout=0.5), inputs=vectors.size(1), labels=4)
    head.standardise(vectors)
    return IntentClassifier(ranker, head, LABELS, temperature=0.3)


def test_probabilities_are_the_softmax_of_logits_over_the_temperature(classifier, sentences):
    with torch.no_grad():
        logits = classifier.head(torch.from_numpy(classifier.encoder.encode(sentences)))
    expected = (logits / 0.3).softmax(1)
    torch.testing.assert_close(classifier.probabilities(sentences), expected, rtol=1e-4, atol=1e-5)
    for one, row in zip(classifier.predict(sentences, top_k=9), expected, strict=True):
        assert one.label == LABELS[int(row.argmax())]
        assert one.probability == pytest.approx(row.max().item(), rel=1e-4)
        assert [label for label, _ in one.best] == [LABELS[i] for i in row.argsort(descending=True)]
        np.testing.assert_allclose([p for _, p in one.best], row.sort(descending=True)[0], rtol=1e-3, atol=1e-5)


def test_none_of_these(classifier, sentences):
    all_of_them = classifier.predict(sentences)
    least = sorted(one.probability for one in all_of_them)[3]
    for one, other in zip(all_of_them, classifier.predict(sentences, min_probability=least), strict=True):
        assert other == (one if one.probability >= least else one._replace(label=None))
    assert sum(one.label is None for one in classifier.predict(sentences, min_probability=least)) == 3


def test_white_space_changes_nothing(classifier, sentences):
    lines = [sentence.replace(" ", "\n  ") for sentence in sentences]
    expected = classifier.probabilities(sentences)
    torch.testing.assert_close(classifier.probabilities(lines), expected, rtol=1e-4, atol=1e-5)


def test_it_comes_back_from_disk(classifier, sentences, tmp_path):
    classifier.save(tmp_path / "head", source=EncoderSource("somewhere"), measured={"accuracy": 1})
    asked = []
    again = IntentClassifier.from_pretrained(
        tmp_path / "head", lambda source: asked.append(source) or classifier.encoder
    )
    assert asked == [EncoderSource("somewhere", None)]
    assert torch.equal(again.probabilities(sentences), classifier.probabilities(sentences))
    assert (again.labels, again.kind) == (LABELS, "pooled")
    assert sorted(path.name for path in (tmp_path / "head").iterdir()) == ["head.json", "head.safetensors"]


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_kill_between_the_renames_leaves_the_old_head_or_the_new_one(
    classifier, sentences, tmp_path, renames, killed_after
):
    head = Head(classifier.head.config, inputs=classifier.head.mean.numel(), labels=4)
    new = IntentClassifier(classifier.encoder, head, ["a", "b", "c", "d"])
    classifier.save(tmp_path)
    killed_after(renames, lambda: new.save(tmp_path))
    again, expected = IntentClassifier.from_pretrained(tmp_path, classifier.encoder), new if renames else classifier
    assert again.labels == expected.labels
    assert torch.equal(again.probabilities(sentences), expected.probabilities(sentences))


def test_the_files_of_two_heads_are_not_taken_for_one(classifier, tmp_path):
    for name, labels in (("one", LABELS), ("other", ["a", "b", "c", "d"])):
        IntentClassifier(classifier.encoder, classifier.head, labels).save(tmp_path / name)
    (tmp_path / "one" / "head.json").write_bytes((tmp_path / "other" / "head.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"head.json: not the file that was saved with head.safetensors"):
        IntentClassifier.from_pretrained(tmp_path / "one", classifier.encoder)


def test_another_encoder_is_refused(classifier, make_ranker, tmp_path):
    classifier.save(tmp_path)
    with pytest.raises(CheckpointError, match="trained with another encoder"):
        IntentClassifier.from_pretrained(tmp_path, make_ranker("bi", seed=3))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_encoder_may_be_kept_in_16_bits(classifier, sentences, dtype, tmp_path):
    classifier.save(tmp_path / "head")
    classifier.encoder.save_pretrained(tmp_path / "small", dtype=dtype)
    again = IntentClassifier.from_pretrained(tmp_path / "head", Ranker.from_pretrained(tmp_path / "small"))
    expected = classifier.probabilities(sentences)
    torch.testing.assert_close(again.probabilities(sentences), expected, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_head_of_a_rounded_encoder_goes_with_every_form_of_it(classifier, dtype, tmp_path):
    if isinstance(classifier.encoder.model, ConveRT):
        return  # which is not loaded in another type
    classifier.encoder.save_pretrained(tmp_path / "model")
    classifier.encoder.save_pretrained(tmp_path / "small", dtype=dtype)
    rounded = Ranker.from_pretrained(tmp_path / "model", dtype="bfloat16")
    IntentClassifier(rounded, classifier.head, classifier.labels).save(tmp_path / "head")
    IntentClassifier.from_pretrained(tmp_path / "head", Ranker.from_pretrained(tmp_path / "small"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "format version 2, but this version"),
        ({"labels": []}, "damaged"),
        ({"labels": ["a"]}, r"layers.3.weight has shape \[4, 8\], the model needs \[1, 8\]"),
        ({"head": {"layers": 1}}, "damaged"),
        ({"temperature": 0}, "its temperature is 0.0"),
        ({"source": {"path": "x"}}, "damaged"),
        ({"inputs": "many"}, "damaged"),
    ],
)
def test_a_damaged_head_is_refused(classifier, tmp_path, change, message):
    classifier.save(tmp_path)
    path = tmp_path / "head.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=message):
        IntentClassifier.from_pretrained(tmp_path, classifier.encoder)


def test_files_that_are_missing_or_something_else(classifier, tmp_path):
    with pytest.raises(CheckpointError, match="no such file; `polyencoder intents train` writes it"):
        IntentClassifier.from_pretrained(tmp_path, classifier.encoder)
    classifier.save(tmp_path)
    (tmp_path / "head.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match="head.safetensors: damaged or not a safetensors file"):
        IntentClassifier.from_pretrained(tmp_path, classifier.encoder)
    (tmp_path / "head.json").write_text("[1")
    with pytest.raises(CheckpointError, match="head.json: damaged .*; train the head again"):
        IntentClassifier.from_pretrained(tmp_path, classifier.encoder)


def test_what_cannot_be_asked(classifier):
    with pytest.raises(ConfigError, match="min_probability is 2; it must be 0 to 1"):
        classifier.predict(["hi"], min_probability=2)
    with pytest.raises(InputError, match="top_k is 0"):
        classifier.predict(["hi"], top_k=0)
    with pytest.raises(InputError, match="text 1 is empty"):
        classifier.predict(["hi", ""])
    with pytest.raises(InputError, match="no text to encode"):
        classifier.predict([])
