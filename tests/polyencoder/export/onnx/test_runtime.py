from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import torch

from polyencoder import CheckpointError, ConfigError, InputError, Ranker
from polyencoder.encoding.encode import candidate_fingerprint
from polyencoder.export.card import model_card
from polyencoder.export.onnx import load_onnx
from tests.forked import forgetting

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture
def pair(kind, exported) -> tuple[Ranker, Ranker]:
    """A ranker of torch and the same of graphs."""
    ranker, folder = exported(kind)
    return ranker, Ranker.from_pretrained(folder, backend="onnx", device="cpu")


@pytest.fixture
def folder(exported, tmp_path):
    """A folder of graphs that a test may spoil."""
    return shutil.copytree(exported("bi")[1], tmp_path / "model")


def test_the_same_scores_as_torch(pair, dialogues, sentences):
    expected, found = (ranker.score(dialogues, sentences) for ranker in pair)
    assert (found.shape, found.dtype, found.device) == (expected.shape, expected.dtype, expected.device)
    assert expected.std() > 1e-2  # or any score would do
    torch.testing.assert_close(found, expected, **CLOSE)


def test_the_same_ranking_as_torch(pair, sentences):
    expected, found = (ranker.rank(sentences[:2], sentences[2:], top_k=3) for ranker in pair)
    assert [(one.index, one.text) for one in found] == [(one.index, one.text) for one in expected]
    assert [one.score for one in found] == pytest.approx([one.score for one in expected], rel=1e-4, abs=1e-4)


def test_a_configuration_that_no_model_can_have_is_refused(folder):
    path = folder / "polyencoder.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"poly_attention": "multihead"}))
    with pytest.raises(
        ConfigError, match=r"polyencoder.json: poly_attention is 'multihead', which a bi-encoder does not"
    ):
        load_onnx(folder)


def test_permuting_contexts_and_candidates_permutes_scores(pair, dialogues, sentences):
    _, ranker = pair
    scores = ranker.score(dialogues, sentences)
    torch.testing.assert_close(ranker.score(dialogues[::-1], sentences[::-1]), scores.flip(0, 1), **CLOSE)


def test_a_context_is_scored_alone_as_among_others(pair, dialogues, sentences):
    _, ranker = pair
    alone = torch.cat([ranker.score([context], sentences) for context in dialogues])
    torch.testing.assert_close(ranker.score(dialogues, sentences), alone, **CLOSE)


def test_padding_changes_nothing(exported, make_tokens, padded, separable):
    model, _ = load_onnx(exported(separable)[1], device="cpu")
    sequences = make_tokens([2, 9, 30])
    results = []
    for extra in (0, 7):
        tokens = padded(sequences, extra=extra)
        results.append(model.score(model.encode_context(tokens), model.encode_candidates(tokens)))
    torch.testing.assert_close(*results, **CLOSE)


def test_encodings_are_torchs(exported, dialogues, sentences, separable):
    torch_ranker, folder = exported(separable)
    ranker = Ranker.from_pretrained(folder, backend="onnx", device="cpu")
    expected, found = torch_ranker.encode_contexts(dialogues), ranker.encode_contexts(dialogues)
    assert (found.dim, found.vectors.dtype) == (expected.dim, torch.float32)
    if expected.mask is None:
        assert found.mask is None
        torch.testing.assert_close(found.vectors, expected.vectors, **CLOSE)
    else:
        assert found.mask.sum(1).tolist() == expected.mask.sum(1).tolist()
        torch.testing.assert_close(found.vectors[found.mask], expected.vectors[expected.mask], **CLOSE)
    candidates = ranker.encode_candidates(sentences, batch_size=3)
    torch.testing.assert_close(candidates, torch_ranker.encode_candidates(sentences), **CLOSE)
    assert ranker.encode_candidates([]).shape == (0, ranker.model.dim) == (0, torch_ranker.model.dim)


def test_vectors_of_both_backends_mix(exported, dialogues, sentences):
    """Candidates that torch encoded, for contexts that onnxruntime encodes."""
    torch_ranker, folder = exported("poly-codes")
    model, text = load_onnx(folder, device="cpu")
    mixed = model.score(model.encode_context(text.contexts(dialogues)), torch_ranker.encode_candidates(sentences))
    torch.testing.assert_close(mixed, torch_ranker.score(dialogues, sentences), **CLOSE)
    assert model.candidate_fingerprint == candidate_fingerprint(torch_ranker.model, torch_ranker.text)


def test_an_index_of_a_cross_encoders_candidates(exported, sentences, make_tokens, padded):
    """`index` names each context's candidates, below 0 there is none."""
    torch_ranker, folder = exported("cross")
    model, _ = load_onnx(folder, device="cpu")
    contexts, candidates = padded(make_tokens([5, 9])), padded(make_tokens([4, 3, 8], seed=1))
    index = torch.tensor([[2, 0, -1], [1, 1, 0]])
    with torch.no_grad():
        expected = torch_ranker.model(contexts, candidates, index)
    found = model(contexts, candidates, index)
    assert found[0, 2] == -torch.inf
    torch.testing.assert_close(found, expected, **CLOSE)


def test_a_cross_encoder_has_no_vectors(exported):
    ranker = Ranker.from_pretrained(exported("cross")[1], backend="onnx", device="cpu")
    with pytest.raises(InputError, match="a cross-encoder has no vectors"):
        ranker.encode_candidates(["hello"])


@pytest.mark.parametrize("kind", ["bi", "cross"])
def test_there_are_no_weights_to_save(exported, tmp_path, kind):
    ranker = Ranker.from_pretrained(exported(kind)[1], backend="onnx", device="cpu")
    for save in (lambda: ranker.save_pretrained(tmp_path / "saved"), lambda: model_card(ranker, name="saved")):
        with pytest.raises(InputError, match="a ranker of ONNX graphs has no torch weights to save"):
            save()
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("threads", [1, 2])
def test_threads(exported, sentences, threads):
    torch_ranker, folder = exported("bi")
    ranker = Ranker(*load_onnx(folder, threads=threads), device="cpu")
    assert ranker.model._context._session.get_session_options().intra_op_num_threads == threads
    torch.testing.assert_close(ranker.score(["hi"], sentences), torch_ranker.score(["hi"], sentences), **CLOSE)


def test_the_graphs_run_on_the_cpu_when_asked(exported):
    model, _ = load_onnx(exported("bi")[1], device="cpu")
    assert model._context._session.get_providers() == ["CPUExecutionProvider"]


def test_cuda_when_available(exported, sentences):
    import onnxruntime

    if not torch.cuda.is_available() or "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("no CUDA in torch or onnxruntime")
    torch_ranker, folder = exported("poly-n_last")
    ranker = Ranker.from_pretrained(folder, backend="onnx")
    assert ranker.model._context._session.get_providers()[0] == "CUDAExecutionProvider"
    assert ranker.encode_candidates(sentences).device.type == "cuda"
    expected = torch_ranker.score(["hi"], sentences)
    torch.testing.assert_close(ranker.score(["hi"], sentences), expected, rtol=1e-2, atol=1e-2)  # TF32


@pytest.mark.parametrize("device", ["cuda", "nonsense", "cpu:x", "meta"])
def test_a_device_that_onnxruntime_does_not_have(device, exported, monkeypatch):
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(
        ConfigError, match=f"cannot run on {device}: use device='cpu', or for CUDA pip install onnxruntime-g"
    ):
        Ranker.from_pretrained(exported("bi")[1], backend="onnx", device=device)


def test_an_unknown_backend(exported):
    with pytest.raises(ConfigError, match="backend is 'tensorrt'; it must be one of torch, onnx, onnx-int8"):
        Ranker.from_pretrained(exported("bi")[1], backend="tensorrt")


def test_a_folder_without_graphs(make_ranker, tmp_path):
    make_ranker("bi").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"no onnx.json in it.*write them with `polyencoder export`"):
        Ranker.from_pretrained(tmp_path, backend="onnx")


@pytest.mark.parametrize("missing", ["context.onnx", "candidates.onnx", "polyencoder.json", "tokenizer.json"])
def test_a_missing_file(folder, missing):
    (folder / missing).unlink()
    with pytest.raises(CheckpointError, match=rf"{missing}.*write them with `polyencoder export`"):
        Ranker.from_pretrained(folder, backend="onnx")


def test_missing_int8_graphs(folder):
    with pytest.raises(
        CheckpointError,
        match="no context.int8.onnx .* `polyencoder export` or `",
    ):
        Ranker.from_pretrained(folder, backend="onnx-int8")


def test_a_model_file(tmp_path):
    (tmp_path / "model").write_text("")
    with pytest.raises(CheckpointError, match="model: a model file has no ONNX graphs; write them with"):
        Ranker.from_pretrained(tmp_path / "model", backend="onnx")


def test_a_name_that_is_nothing(tmp_path, no_network):
    with pytest.raises(CheckpointError, match="nothing: no such folder or file$"):
        Ranker.from_pretrained(tmp_path / "nothing", backend="onnx")


@pytest.mark.parametrize("content", [b"", b"not a graph", None])
def test_a_damaged_graph(folder, content):
    path = folder / "candidates.onnx"
    path.write_bytes(path.read_bytes()[:-2000] if content is None else content)
    with pytest.raises(CheckpointError, match="candidates.onnx: not a readable ONNX graph") as caught:
        Ranker.from_pretrained(folder, backend="onnx")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"format_version": 1}', '{"format_version": 1, "more": 2}'])
def test_a_damaged_description(folder, content):
    (folder / "onnx.json").write_text(content)
    with pytest.raises(CheckpointError, match="onnx.json: damaged"):
        Ranker.from_pretrained(folder, backend="onnx")


def test_a_description_of_a_later_version(folder, edit_json):
    edit_json(folder / "onnx.json", format_version=2)
    with pytest.raises(CheckpointError, match="onnx.json: format version 2, but this version of polyencoder reads 1"):
        Ranker.from_pretrained(folder, backend="onnx")


def test_weights_that_were_saved_again(folder, make_ranker):
    """Training on and saving into the same folder must not leave the graphs in use."""
    make_ranker("bi", reduction="mean", seed=5).save_pretrained(folder)
    with pytest.raises(
        CheckpointError, match="not the weights of these graphs; the model was saved again since: export"
    ):
        Ranker.from_pretrained(folder, backend="onnx")


def test_without_onnxruntime(folder, block_import):
    block_import("onnxruntime")
    with pytest.raises(ConfigError, match=r"`onnxruntime` is not installed: pip install 'parlai-polyencoder\[onnx\]'"):
        Ranker.from_pretrained(folder, backend="onnx")


@pytest.mark.usefixtures("forked_commands")
def test_the_package_is_imported_without_onnxruntime():
    without = "import sys; sys.modules.update(onnxruntime=None, onnx=None)"
    code = f"{forgetting('polyencoder')}{without}; import polyencoder.export.onnx"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_index_of_torch_is_searched_with_graphs(exported, sentences, tmp_path):
    ranker, folder = exported("poly-codes")
    index = ranker.index(sentences, tmp_path / "index")
    graphs = Ranker.from_pretrained(folder, backend="onnx")
    found, expected = (r.search(["hi !"], tmp_path / "index", top_k=len(index)) for r in (graphs, ranker))
    assert [hit.text for hit in found] == [hit.text for hit in expected]
    assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected], rel=1e-4)
