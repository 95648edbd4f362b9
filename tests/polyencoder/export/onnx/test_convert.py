"""A ConveRT as a folder and as graphs: the scores of torch."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from polyencoder.export.onnx import export_onnx, quantize_int8
from polyencoder.modeling.convert import CONTEXT_VECTORS
from polyencoder.ranker import Ranker
from tests.polyencoder.export.onnx.conftest import assert_close, load_graphs

pytestmark = pytest.mark.slow

CONTEXTS = [["hello !", "do you like dogs ?"], "hi", ["what do you do for a living ? " * 30, "ok"], "漢字 ?"]


@pytest.fixture(
    params=[(0, False), (3, True), pytest.param((3, False), marks=pytest.mark.long)],
    ids=["single", "multi-quantized", "multi"],
)
def ranker(request, make_convert_ranker) -> Ranker:
    extra_contexts, quantized = request.param
    built = make_convert_ranker(scale_batches=3, **({"extra_contexts": extra_contexts} if extra_contexts else {}))
    if quantized:
        built.model.quantize()
    built.model.scale.advance()
    return built


def test_a_folder_gives_the_same_scores(ranker, sentences, tmp_path):
    ranker.save_pretrained(tmp_path)
    again = Ranker.from_pretrained(tmp_path, device="cpu")
    np.testing.assert_array_equal(again.score(CONTEXTS, sentences), ranker.score(CONTEXTS, sentences))
    assert not again.model.training


def check_graphs(ranker: Ranker, folder, sentences) -> None:
    graphs = load_graphs(folder)
    expected = ranker.score(CONTEXTS, sentences)
    assert_close(graphs.score(CONTEXTS, sentences), expected)
    for context, scores in zip(CONTEXTS, expected, strict=True):  # alone, perhaps without anything said before
        assert_close(graphs.score([context], sentences)[0], scores)
    for vector in CONTEXT_VECTORS if ranker.model.context_vector is not None else ():
        graphs.model.context_vector = ranker.model.context_vector = vector
        assert_close(graphs.score(CONTEXTS, sentences), ranker.score(CONTEXTS, sentences))
    if ranker.model.context_vector is not None:
        ranker.model.context_vector = "combined"
    quantize_int8(folder)
    assert_close(load_graphs(folder, "onnx-int8").score(CONTEXTS, sentences), expected, rtol=0, atol=0.3)


def test_graphs_give_the_scores_of_torch(ranker, sentences, tmp_path):
    export_onnx(ranker, tmp_path, check_texts=sentences)
    check_graphs(ranker, tmp_path, sentences)
    graphs = load_graphs(tmp_path)
    index = graphs.index(sentences, tmp_path / "index")  # which the torch model may search, too
    for context in CONTEXTS:
        expected = ranker.rank(context, sentences, top_k=1)[0].text
        assert ranker.search(context, index, top_k=1)[0].text == expected
        assert graphs.search(context, index, top_k=1)[0].text == expected


@pytest.mark.long
def test_by_the_current_exporter(
    make_convert_ranker, sentences, tmp_path, by_current_exporter, trace_candidates, monkeypatch
):
    """The graph of contexts has all that the other has; it has one layer, as each takes seconds."""
    trace_candidates(monkeypatch)
    ranker = make_convert_ranker(extra_contexts=2, attention_limits=(2,))
    export_onnx(ranker, tmp_path)
    check_graphs(ranker, tmp_path, sentences)


def test_without_a_history_the_extra_vector_is_0(make_convert_ranker, tmp_path):
    """onnxruntime alone computes a batch in which another context has a history."""
    export_onnx(make_convert_ranker(extra_contexts=2), tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "context.onnx", providers=["CPUExecutionProvider"])
    inputs = {
        "ids": np.array([[3, 4, 5], [6, 7, 0]]),
        "mask": np.array([[True, True, True], [True, True, False]]),
        "extra_ids": np.array([[4, 0, 0], [0, 0, 0]]),
        "extra_mask": np.array([[True, False, False], [False, False, False]]),
    }
    vectors, mask = session.run(["vectors", "codes_mask"], inputs)
    assert mask.tolist() == [[True, True, True], [True, True, False]]
    assert (vectors[1, 2] == 0).all()
    assert np.abs(vectors[0, 2]).max() > 0
    alone, _ = session.run(["vectors", "codes_mask"], {name: array[1:] for name, array in inputs.items()})
    np.testing.assert_allclose(alone[0], vectors[1], rtol=1e-5, atol=1e-6)
