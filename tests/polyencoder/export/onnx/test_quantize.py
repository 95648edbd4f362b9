from __future__ import annotations

import json
import logging
import shutil
from functools import partial

import numpy as np
import pytest

from polyencoder import CheckpointError, ConfigError
from polyencoder.calibration import Calibration
from polyencoder.encoding.fingerprint import compute_model_fingerprint
from polyencoder.encoding.graph_files import Description
from polyencoder.export.onnx import exporters, quantize_int8
from tests.polyencoder.export.onnx.conftest import load_graphs

pytestmark = pytest.mark.slow
load_int8 = partial(load_graphs, backend="onnx-int8")


@pytest.fixture(scope="session")
def quantized(exported, tmp_path_factory):
    """(kind) -> the torch ranker, and a folder of its graphs in both precisions."""
    pytest.importorskip("onnx", reason="the extra [onnx] is not installed")
    cache = {}

    def make(kind: str):
        if kind not in cache:
            ranker, folder = exported(kind)
            copy = shutil.copytree(folder, tmp_path_factory.mktemp("int8") / kind)
            quantize_int8(copy)
            cache[kind] = ranker, copy
        return cache[kind]

    return make


@pytest.mark.parametrize("kind", ["bi", "poly-codes", "poly-n_last", "cross"])
def test_scores_are_near_those_of_torch(quantized, dialogues, sentences, kind):
    ranker, folder = quantized(kind)
    expected, actual = (engine.score(dialogues, sentences) for engine in (ranker, load_int8(folder)))
    assert not np.allclose(actual, expected, rtol=1e-4, atol=1e-4)  # they are int8
    assert np.corrcoef(np.ravel(actual), np.ravel(expected))[0, 1] > 0.97


def test_all_matrices_are_stored_in_int8(quantized):
    import onnx

    for name in ("context.int8.onnx", "candidates.int8.onnx"):
        graph = onnx.load(quantized("bi")[1] / name).graph
        matrices = [tensor for tensor in graph.initializer if len(tensor.dims) == 2]
        # of the layer: query, key, value, output and both of the feed-forward part; words, positions, segments
        assert sum(matrix.data_type == onnx.TensorProto.INT8 for matrix in matrices) == 6 + 3
        assert sum(node.op_type == "MatMulInteger" for node in graph.node) == 6
        assert not any(matrix.data_type == onnx.TensorProto.FLOAT and min(matrix.dims) > 1 for matrix in matrices)


def test_an_embedding_is_off_by_half_a_step_at_most(quantized, sentences):
    """A scale for each token: one large embedding makes no other one coarse."""
    import onnx

    ranker, folder = quantized("bi")
    words = ranker.model.context_tower.model.embeddings.word_embeddings.weight.detach().numpy()
    initializers = onnx.load(folder / "context.int8.onnx").graph.initializer
    stored, scale = (
        next(tensor for tensor in initializers if tensor.name.endswith(f"embeddings.weight {kind}"))
        for kind in ("int8", "scale")
    )
    stored, scale = map(onnx.numpy_helper.to_array, (stored, scale))
    assert (abs(stored * scale - words) <= scale * 0.5001).all()
    assert scale.shape == (len(words), 1)


@pytest.mark.parametrize("outputs", [16, 128])
@pytest.mark.parametrize("opset", [exporters.OPSET, exporters.OPSET_OF_TRACES])
def test_a_token_of_outliers_makes_no_other_one_coarse(opset, outputs, tmp_path):
    """In a layer with fewer or more outputs than inputs; nor are tokens of zeros divided by zero."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    generator = np.random.default_rng(0)
    weights = generator.normal(size=(64, outputs)).astype(np.float32)
    tokens = generator.normal(size=(2, 3, 64)).astype(np.float32)
    tokens[0, 1] *= 1_000
    tokens[1, 2] = 0
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["tokens", "weights"], ["product"], "layer")],
        "graph",
        [helper.make_tensor_value_info("tokens", kind, ["batch", "length", 64])],
        [helper.make_tensor_value_info("product", kind, ["batch", "length", outputs])],
        [onnx.numpy_helper.from_array(weights, "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.save(model, tmp_path / "scorer.onnx")
    facts = {"weights": "of no model", "candidates": None, "graphs": {}, "has_one_vector": True}
    (tmp_path / "onnx.json").write_text(Description(**facts, differences={"scorer.onnx": 0.0}).to_json())
    quantize_int8(tmp_path)
    session = runtime.InferenceSession(tmp_path / "scorer.int8.onnx", providers=["CPUExecutionProvider"])
    actual, expected = session.run(None, {"tokens": tokens})[0], tokens @ weights
    deviations, lengths = np.linalg.norm(actual - expected, axis=-1), np.linalg.norm(expected, axis=-1)
    assert (deviations <= 0.02 * lengths).all()
    assert (deviations > 0).sum() == 5  # it computes in int8
    assert not actual[1, 2].any()


def test_an_index_belongs_to_a_precision(quantized, sentences, tmp_path):
    ranker, folder = quantized("bi")
    int8 = load_int8(folder)
    ranker.index(sentences, tmp_path / "exact")
    int8.index(sentences, tmp_path / "int8")
    with pytest.raises(CheckpointError, match="exact: made by the float32 model"):
        int8.search(["hi"], tmp_path / "exact")
    with pytest.raises(CheckpointError, match="int8: made by int8 graphs"):
        ranker.search(["hi"], tmp_path / "int8")
    assert int8.search(["hi"], tmp_path / "int8")


def test_an_index_and_a_calibration_belong_to_a_quantization(quantized, sentences, tmp_path):
    """Graphs, indexes and calibrations of an older version still fit each other."""
    folder, description = shutil.copytree(quantized("bi")[1], tmp_path / "older"), tmp_path / "older" / "onnx.json"
    newer = json.loads(description.read_bytes())
    description.write_text(json.dumps({**newer, "quantization": 1}))
    older = load_int8(folder)
    older.index(sentences, tmp_path / "index")
    assert older.search(["hi"], tmp_path / "index")
    calibration = Calibration(
        temperature=0.2, none=-3.0, fingerprint=compute_model_fingerprint(older.model, older.text)
    )
    calibration.save(folder)
    assert load_int8(folder).calibration == calibration
    description.write_text(json.dumps(newer))
    with pytest.warns(UserWarning, match=r"calibration.json: not used"):
        ranker = load_int8(folder)
    assert ranker.calibration is None
    with pytest.raises(CheckpointError, match="index: made by int8 graphs"):
        ranker.search(["hi"], tmp_path / "index")


def test_it_is_quiet(exported, tmp_path, caplog, capfd):
    folder = shutil.copytree(exported("bi")[1], tmp_path / "model")
    with caplog.at_level(logging.WARNING):
        quantize_int8(folder)
    assert (caplog.text, *capfd.readouterr()) == ("", "", "")


def test_nothing_is_left_of_a_quantization_that_fails(exported, tmp_path):
    shutil.copytree(exported("bi")[1], tmp_path, dirs_exist_ok=True)
    (tmp_path / "candidates.onnx").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="candidates.onnx: not a readable ONNX graph"):
        quantize_int8(tmp_path)
    assert not [path.name for path in tmp_path.iterdir() if "int8" in path.name]


def test_nothing_to_quantize(exported, tmp_path):
    with pytest.raises(CheckpointError, match=r"no onnx.json in it"):
        quantize_int8(tmp_path)
    shutil.copytree(exported("bi")[1], tmp_path, dirs_exist_ok=True)
    (tmp_path / "context.onnx").unlink()
    with pytest.raises(CheckpointError, match="no context.onnx in it"):
        quantize_int8(tmp_path)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_the_packages(exported, tmp_path, block_import, package):
    folder = shutil.copytree(exported("bi")[1], tmp_path / "model")
    block_import(package)
    with pytest.raises(ConfigError, match=f"`{package}` is not installed"):
        quantize_int8(folder)
    assert not list(folder.glob("*.int8.onnx"))
