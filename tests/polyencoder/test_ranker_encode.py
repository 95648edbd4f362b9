"""`Ranker.encode`: one vector for each text, whatever else is encoded beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyencoder.errors import ConfigError, InputError
from polyencoder.modeling.pooling import reduce
from polyencoder.ranker import Ranker
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

CASES = [
    (architecture, kind)
    for architecture in ("bi", "poly", "convert")
    for kind in ("pooled", "context", "candidate")
    if (architecture, kind) != ("poly", "context")
]


@pytest.fixture
def texts(sentences) -> list[str]:
    """Texts of very different lengths, one of them twice, in no order."""
    return [sentences[5], "hi", *sentences, " ".join(sentences), "hi", sentences[0][:9]]


@pytest.mark.parametrize(("architecture", "kind"), CASES)
@mostly_long("batch_size", [3, 1, 256], quick=1)
def test_order_is_kept_and_batches_change_nothing(make_ranker, texts, architecture, kind, batch_size):
    ranker = make_ranker(architecture)
    alone = np.concatenate([ranker.encode([text], kind=kind) for text in texts])
    vectors = ranker.encode(texts, kind=kind, batch_size=batch_size)
    assert isinstance(vectors, np.ndarray)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reduction", ["first", "mean"])
@pytest.mark.parametrize("architecture", ["bi", "poly"])
def test_pooled_outputs_are_those_of_the_encoder(make_ranker, texts, architecture, reduction):
    """Neither scaled nor of length 1, whatever the ranker makes of them."""
    ranker = make_ranker(architecture, reduction=reduction, normalize=True, output_scaling=3.0)
    tokens = ranker.text.batch_contexts(texts)
    with torch.inference_mode():
        expected = reduce(ranker.model.context_tower(tokens), tokens.mask, reduction=reduction)
    np.testing.assert_allclose(ranker.encode(texts), expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("extra", [0, 3])
def test_feed_forward_2_makes_the_context_vector_of_a_convert_of_r_x(make_ranker, texts, extra):
    """Turns before the last are no part of r_x."""
    ranker = make_ranker("convert", extra_contexts=extra)
    model = ranker.model
    contexts = [["i have two dogs .", "hello !", text] for text in texts]
    r_x = torch.from_numpy(ranker.encode(contexts))
    assert r_x.shape == (len(texts), 2 * 16)
    torch.testing.assert_close(r_x, torch.from_numpy(ranker.encode(texts)), rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        h_x = model.context_head(r_x, model.skip) * model.scale()
    if extra:
        model.context_vector = "immediate"
    torch.testing.assert_close(h_x, torch.from_numpy(ranker.encode(contexts, kind="context")), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["pooled", "context", "candidate"])
def test_a_quantized_convert_encodes_as_it_will_when_its_weights_are_rounded(make_ranker, texts, kind):
    """The weights that it learns with stay as they are."""
    ranker = make_ranker("convert")
    ranker.model.quantize()
    before = {name: tensor.clone() for name, tensor in ranker.model.state_dict().items()}
    vectors = ranker.encode(texts, kind=kind)
    assert all(torch.equal(tensor, before[name]) for name, tensor in ranker.model.state_dict().items())
    ranker.model.prepare_for_inference()
    np.testing.assert_allclose(vectors, ranker.encode(texts, kind=kind), rtol=1e-4, atol=1e-5)


def test_products_of_contexts_and_candidates_are_scores(make_ranker, texts):
    for architecture in ("bi", "convert"):
        ranker = make_ranker(architecture)
        products = ranker.encode(texts, kind="context") @ ranker.encode(texts, kind="candidate").T
        np.testing.assert_allclose(products, torch.as_tensor(ranker.score(texts, texts)).numpy(), rtol=1e-3, atol=1e-4)


def test_normalized_vectors_point_where_the_others_do(make_ranker, texts):
    ranker = make_ranker("bi")
    vectors, lengths = ranker.encode(texts), ranker.encode(texts, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(lengths, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(lengths * np.linalg.norm(vectors, axis=1, keepdims=True), vectors, rtol=1e-4, atol=1e-5)


def test_progress_counts_the_texts(make_ranker, texts, capsys):
    make_ranker("bi").encode(texts, progress=True, batch_size=2)
    assert f"{len(texts)} of {len(texts)} texts" in capsys.readouterr().err
    make_ranker("bi").encode(texts)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("architecture", "texts", "options", "message"),
    [
        ("cross", ["hi"], {}, "a cross-encoder has no vectors"),
        ("poly", ["hi"], {"kind": "context"}, "several vectors of a context"),
        ("bi", [], {}, "no text to encode"),
        ("bi", "hi", {}, "texts is one text; give a list of texts"),
        ("bi", ["hi", ""], {}, "text 1 is empty"),
        ("bi", ["hi", 3], {"kind": "candidate"}, r"text 1 is 3 \(int\)"),
        ("bi", ["hi"], {"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_what_cannot_be_encoded(make_ranker, architecture, texts, options, message):
    with pytest.raises(InputError, match=message):
        make_ranker(architecture).encode(texts, **options)


def test_queries_and_documents_have_the_names_of_sentence_transformers(make_ranker, texts):
    """One text gives one vector."""
    ranker = make_ranker("bi")
    for encode, kind in ((ranker.encode_query, "context"), (ranker.encode_document, "candidate")):
        expected = ranker.encode(texts, kind=kind, normalize=True)
        np.testing.assert_array_equal(encode(texts, normalize=True), expected)
        np.testing.assert_allclose(encode(texts[0], normalize=True), expected[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="several vectors of a context"):
        make_ranker("poly").encode_query("hi")


def test_another_kind_of_vector(make_ranker):
    with pytest.raises(ConfigError, match="kind is 'r_x'; it must be one of pooled, context, candidate"):
        make_ranker("bi").encode(["hi"], kind="r_x")


def test_graphs_give_contexts_and_candidates(make_ranker, tmp_path, texts):
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason="the extra [onnx] is not installed")
    from polyencoder.export.onnx import export_onnx

    ranker = make_ranker("bi")
    export_onnx(ranker, tmp_path)
    graphs = Ranker.from_pretrained(tmp_path, backend="onnx")
    for kind in ("context", "candidate"):
        np.testing.assert_allclose(
            graphs.encode(texts, kind=kind), ranker.encode(texts, kind=kind), rtol=1e-3, atol=1e-4
        )
    with pytest.raises(InputError, match="graphs give the vectors of contexts and candidates alone"):
        graphs.encode(texts)
