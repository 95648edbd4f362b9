"""MAP: a map that undoes a rotation is trained, L2 holds it back, and a ranker with a map is like any other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polyencoder.data.example import Example
from polyencoder.errors import ConfigError, InputError
from polyencoder.ranker.encoding import candidate_fingerprint
from polyencoder.ranker.ranker import Ranker
from polyencoder.settings.map import MapSettings
from polyencoder.training import candidate_map as module
from polyencoder.training.candidate_map import PairVectors, fit_map, mapped, pair_vectors

pytestmark = pytest.mark.slow

QUICK = MapSettings(learning_rates=(0.1,), regularizers=(0.0,), max_epochs=30, label_smoothing=0.0)


@pytest.fixture
def rotated() -> PairVectors:
    """Responses that are their contexts, rotated and with a little noise, of length 4: 400 pairs."""
    generator = torch.Generator().manual_seed(0)
    contexts = 4 * torch.nn.functional.normalize(torch.randn(400, 8, generator=generator), dim=1)
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=generator))[0]
    responses = contexts @ rotation.T + 0.1 * torch.randn(400, 8, generator=generator)
    return PairVectors(contexts, responses, torch.arange(400))


def test_it_learns_what_turns_responses_into_contexts(rotated):
    train, held_out = rotated.split(300)
    found = fit_map(train, held_out, QUICK)
    assert found.before < 0.1
    assert found.recall > 0.9
    assert found.epochs > 0
    mapped_responses = held_out.responses @ found.matrix.T
    cosines = torch.nn.functional.cosine_similarity(held_out.contexts, mapped_responses)
    assert cosines.mean() > 0.9


def test_the_loss_and_recall_are_those_of_plain_loops(rotated):
    pairs = rotated.take(torch.arange(6))._replace(texts=torch.tensor([0, 1, 2, 1, 4, 5]))
    matrix = torch.randn(8, 8)
    losses, hits = [], 0
    for i in range(6):
        others = [j for j in range(6) if j == i or pairs.texts[j] != pairs.texts[i]]  # no equal response is wrong
        logits = torch.stack([pairs.contexts[i] @ (matrix @ pairs.responses[j]) for j in others])
        place = others.index(i)
        logs = logits.log_softmax(0)
        losses.append(-0.8 * logs[place] - 0.2 * (logs.sum() - logs[place]) / (len(others) - 1))
        hits += int(logits.argmax()) == place
    torch.testing.assert_close(module._loss(matrix, pairs, smoothing=0.2), torch.stack(losses).mean())
    assert module._recall(matrix, pairs) == pytest.approx(hits / 6)


def test_recall_is_among_as_many_as_it_says(rotated):
    """The last of 101 pairs has no others to be ranked among."""
    matrix = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    recalls = [module._recall(matrix, rotated.take(torch.arange(n))) for n in (100, 101)]
    assert recalls[0] == recalls[1] < 1


def test_nothing_better_leaves_vectors_as_they_are(rotated):
    """Pairs that are found already; regularization that allows no other map."""
    same = rotated._replace(responses=rotated.contexts)
    for pairs, settings in (
        (same, QUICK),
        (rotated, MapSettings(learning_rates=(1e-9,), regularizers=(0.0,), max_epochs=2)),
    ):
        found = fit_map(*pairs.split(300), settings)
        assert found.epochs == 0
        assert torch.equal(found.matrix, torch.eye(8))
        assert found.recall == found.before


def test_regularization_keeps_the_map_near_a_multiple_of_the_identity(rotated, monkeypatch):
    sizes = []
    for strength in (0.0, 10.0):
        monkeypatch.setattr(module, "_recall", lambda matrix, pairs: float(matrix.abs().sum()))  # takes the last one
        found = fit_map(
            *rotated.split(300), MapSettings(learning_rates=(0.1,), regularizers=(strength,), max_epochs=20)
        )
        alpha = found.matrix.diagonal().mean()
        sizes.append(float((found.matrix - alpha * torch.eye(8)).norm() / alpha.abs()))
    assert sizes[1] < sizes[0] / 5


def test_the_grid_gives_its_best(rotated):
    train, held_out = rotated.split(300)
    said: list[str] = []
    settings = MapSettings(learning_rates=(1e-9, 0.1), regularizers=(0.0, 100.0), max_epochs=20)
    found = fit_map(train, held_out, settings, on_progress=said.append)
    assert (found.learning_rate, found.regularizer) == (0.1, 0.0)
    assert len(said) == 4
    assert torch.equal(found.matrix, fit_map(train, held_out, settings).matrix)


@pytest.mark.parametrize("architecture", ["bi", "poly", "convert", "quantized"])
def test_a_ranker_with_a_map_is_like_any_other(make_ranker, architecture, sentences, tmp_path):
    ranker = make_ranker("convert" if architecture == "quantized" else architecture)
    if architecture == "quantized":
        ranker.model.quantize()
        ranker.model.for_inference()
    matrix = torch.randn(ranker.model.dim, ranker.model.dim)
    before = ranker.encode(sentences, kind="candidate", as_tensor=True)
    made = Ranker(mapped(ranker.model, matrix), ranker.text, device="cpu")
    after = made.encode(sentences, kind="candidate", as_tensor=True)
    torch.testing.assert_close(after, before @ matrix.T, rtol=1e-2, atol=1e-2)  # a quantized one has 16 bits
    torch.testing.assert_close(ranker.encode(sentences, kind="candidate", as_tensor=True), before)
    assert candidate_fingerprint(made.model, made.text) != candidate_fingerprint(ranker.model, ranker.text)
    made.save_pretrained(tmp_path / "mapped")
    again = Ranker.from_pretrained(tmp_path / "mapped", device="cpu")
    assert candidate_fingerprint(again.model, again.text) == candidate_fingerprint(made.model, made.text)
    torch.testing.assert_close(again.score(["hello !"], sentences), made.score(["hello !"], sentences))
    index = again.index(sentences, tmp_path / "index")
    best = again.rank("hello !", sentences, top_k=1)[0]
    hit = made.search("hello !", index, top_k=1, keep_turns=True)[0]
    assert hit.text == best.text
    assert hit.score == pytest.approx(best.score, rel=1e-4, abs=1e-4)
    twice = mapped(made.model, torch.linalg.inv(matrix))  # and back
    torch.testing.assert_close(twice.candidate_map.weight, torch.eye(ranker.model.dim), rtol=1e-2, atol=5e-2)


@pytest.mark.parametrize("architecture", ["bi", "convert"])
def test_graphs_have_the_map(make_ranker, architecture, sentences, tmp_path):
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason="the extra [onnx] is not installed")
    from polyencoder.export.onnx import export_onnx

    ranker = make_ranker(architecture)
    made = Ranker(mapped(ranker.model, torch.randn(16, 16)), ranker.text, device="cpu")
    export_onnx(made, tmp_path)
    graphs = Ranker.from_pretrained(tmp_path, backend="onnx")
    torch.testing.assert_close(graphs.score(["hi !"], sentences), made.score(["hi !"], sentences), rtol=1e-3, atol=1e-3)


def test_a_cross_encoder_has_no_map(make_model):
    with pytest.raises(ConfigError, match="a cross-encoder has no vectors of candidates"):
        make_model("cross", candidate_map=True)


def test_the_vectors_of_pairs(make_ranker):
    ranker = make_ranker("bi")
    pairs = [Example(["hello !", "hi"], "i ski ."), Example(["pets ?"], "a cat .")]
    pairs.append(replace(pairs[0], turns=["what ?"]))
    vectors = pair_vectors(ranker, pairs)
    assert vectors.texts.tolist() == [0, 1, 0]
    products = vectors.contexts @ vectors.responses.T
    expected = ranker.score([["hello !", "hi"], "pets ?", "what ?"], ["i ski .", "a cat .", "i ski ."])
    torch.testing.assert_close(products, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="several vectors of a context, and a map takes one: give a bi-encoder"):
        pair_vectors(make_ranker("poly"), pairs)


def test_too_few_pairs(rotated):
    with pytest.raises(InputError, match="1 pairs to fit a map to and 1 held out are too few"):
        fit_map(*rotated.take(torch.arange(2)).split(1), QUICK)


def test_a_map_that_is_not_finite_is_never_the_best(rotated):
    """Its scores are nan, of which argmax takes the first: in a context's own place that would count as a hit."""
    broken = torch.full((8, 8), torch.nan)
    assert module._recall(broken, rotated.take(torch.arange(300, 400))) == 0
