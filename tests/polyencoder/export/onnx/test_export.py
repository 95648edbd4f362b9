from __future__ import annotations

import json
import os
import shutil
import warnings

import numpy as np
import pytest
import torch

from polyencoder import CheckpointError, ConfigError, InputError
from polyencoder.config import TextConfig
from polyencoder.export.onnx import export, export_onnx, quantize_int8
from polyencoder.modeling.tracing import is_traced
from polyencoder.text.tokens import pad
from tests.parameters import mostly_long
from tests.polyencoder.export.onnx.conftest import assert_close, load_graphs

pytestmark = pytest.mark.slow


def names(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def graph(path):
    """(tokens) -> what a graph gives by onnxruntime alone, as a program without this library would run it."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(tokens) -> list[np.ndarray]:
        inputs = {"ids": tokens.ids, "mask": tokens.mask, "segments": tokens.segments}
        return session.run(None, {each.name: inputs[each.name].numpy() for each in session.get_inputs()})

    return run


@pytest.mark.parametrize("architecture", ["bi", "cross"])
def test_a_graph_of_long_texts_takes_any_batch(make_ranker, make_backbone_config, tmp_path, architecture):
    """With the lengths of the paper: torch would take sequences that differ so much one after the other."""
    backbone = make_backbone_config(n_positions=512)
    ranker = make_ranker(architecture, backbone=backbone, text=TextConfig(text_truncate=360, label_truncate=72))
    export_onnx(ranker, tmp_path)
    texts = ["hi", "do you ski ? " * 60, "hello there"], ["yes", "i like snow " * 30]
    assert_close(load_graphs(tmp_path).score(*texts), ranker.score(*texts), rtol=0, atol=1e-3)


def test_the_folder_is_complete_and_nothing_else(exported, kind):
    _, folder = exported(kind)
    graphs = {"scorer.onnx"} if kind.startswith("cross") else {"context.onnx", "candidates.onnx"}
    assert names(folder) == {"polyencoder.json", "tokenizer.json", "onnx.json"} | graphs
    differences = json.loads((folder / "onnx.json").read_text())["differences"]
    assert differences.keys() == graphs
    assert all(0 <= value < 1e-4 for value in differences.values())


def test_graphs_give_what_torch_gives_for_any_batch(exported, make_tokens, padded, separable):
    ranker, folder = exported(separable)
    encode_context, encode_candidates = graph(folder / "context.onnx"), graph(folder / "candidates.onnx")
    for lengths in [1], [40], [3, 1, 17], [40, 2, 2, 39, 5, 6, 7, 8, 9, 10, 11, 12, 3, 4, 5, 6, 7, 8]:
        tokens = padded(make_tokens(lengths))
        with torch.no_grad():
            context, candidates = ranker.model.encode_context(tokens), ranker.model.encode_candidates(tokens)
        context_vectors, *others = encode_context(tokens)
        comparisons = [(context.vectors, context_vectors)]
        if context.keys is not None:
            *others, keys, biases = others
            comparisons += [(context.keys.vectors, keys), (context.keys.biases, biases)]
        for row, read in enumerate(context.tokens or ()):  # of a late-interaction encoder, whose padding says nothing
            _, vector, token_vectors, turns = others
            pairs = (vector, read.vectors), (token_vectors, read.tokens[:, : lengths[row]]), (turns, read.turns)
            for output, (expected,) in pairs:
                assert_close(output[row][: len(expected)], expected)
        others = others[:1]
        assert len(others) == (context.mask is not None)
        for expected, output in comparisons:
            if context.mask is None:
                assert_close(output, expected)
                continue
            for row in range(len(tokens)):  # the real codes; a graph may have more columns that are masked
                assert_close(output[row][others[0][row]], expected[row][context.mask[row]])
        vectors, *token_outputs = encode_candidates(tokens)
        assert_close(vectors, candidates)
        for row, read in enumerate(ranker.model.read_candidates(tokens) if token_outputs else ()):
            assert_close(token_outputs[0][row][: lengths[row]], read.tokens.detach())


@pytest.mark.parametrize("kind", ["cross", "cross-mean", "cross-head"])
def test_a_scorer_gives_what_torch_gives(exported, make_tokens, kind):
    ranker, folder = exported(kind)
    score = graph(folder / "scorer.onnx")
    for lengths in [2], [60], [3, 2, 17, 55]:
        sequences = make_tokens(lengths)
        halves = [[0] * (len(ids) // 2) + [1] * (len(ids) - len(ids) // 2) for ids in sequences]
        tokens = pad(sequences, pad_id=0, segments=halves)
        with torch.no_grad():
            expected = ranker.model._score_pairs(tokens)
        assert_close(score(tokens)[0], expected)


@mostly_long("exporter", ["traced", "current"], quick=1)
def test_there_are_no_warnings_and_the_ranker_and_the_generator_are_left_alone(
    make_ranker, make_backbone_config, sentences, tmp_path, request, trace_candidates, monkeypatch, exporter
):
    """The graph has only operators that int8 can take."""
    if exporter == "current":
        request.getfixturevalue("by_current_exporter")
        trace_candidates(monkeypatch)
    ranker = make_ranker("poly", backbone=make_backbone_config(n_layers=1))
    before = {name: tensor.clone() for name, tensor in ranker.model.state_dict().items()}
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export_onnx(ranker, tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module.training for module in ranker.model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in ranker.model.state_dict().items())
    quantize_int8(tmp_path)
    expected = ranker.score(["hello"], sentences)
    scores = load_graphs(tmp_path, "onnx-int8").score(["hello"], sentences)
    assert_close(scores, expected, rtol=0, atol=0.5 * abs(expected).max())


@pytest.mark.parametrize(
    ("frozen", "there_before"), [("length", True), ("nan", False), ("mask", False), ("batch", False)]
)
def test_a_graph_that_deviates_is_not_let_through(make_ranker, tmp_path, monkeypatch, frozen, there_before):
    ranker = make_ranker("bi")
    folder = tmp_path / "model"
    if there_before:
        folder.mkdir()
        (folder / "context.onnx").write_text("the old one")
    encode = ranker.model.encode_candidates  # the second graph: the first has been written by then

    def wrong(tokens):
        vectors = encode(tokens)
        if not is_traced():
            return vectors
        if frozen == "length":
            return vectors + 1e-2 * (int(tokens.ids.size(1)) - tokens.mask.sum(1, keepdim=True))
        if frozen == "mask":
            return vectors * (1 + 1e-3 * tokens.mask.float().mean())
        if frozen == "batch":
            return vectors + torch.zeros(2, 1)
        return vectors.masked_fill(tokens.mask.all(), float("nan"))  # where nothing is padding

    monkeypatch.setattr(ranker.model, "encode_candidates", wrong)
    reason = "onnxruntime cannot run the graph" if frozen == "batch" else "the graph deviates from torch by"
    with pytest.raises(CheckpointError, match=rf"candidates.onnx: {reason} .* nothing was writt"):
        export_onnx(ranker, folder)
    if there_before:
        assert names(folder) == {"context.onnx"}
        assert (folder / "context.onnx").read_text() == "the old one"
    else:
        assert not folder.exists()


def test_check_texts_are_checked(make_ranker, tmp_path, monkeypatch):
    """A graph that is wrong about one token only fails on the texts that have it."""
    ranker = make_ranker("bi")
    encode = ranker.model.encode_context
    rare = ranker.text.tokenize(["~"])[0][-1]

    def wrong(tokens):
        context = encode(tokens)
        if is_traced():
            context.vectors.add_((tokens.ids == rare).any(1)[:, None, None].float())
        return context

    monkeypatch.setattr(ranker.model, "encode_context", wrong)
    export_onnx(ranker, tmp_path / "unseen")
    with pytest.raises(CheckpointError, match="context.onnx: the graph deviates"):
        export_onnx(ranker, tmp_path / "seen", check_texts=["ski ~ ski"])
    with pytest.raises(InputError, match="a check text is empty"):
        export_onnx(ranker, tmp_path / "empty", check_texts=["ski", " "])


def test_exporting_again_replaces_all(make_ranker, exported, sentences, tmp_path):
    shutil.copytree(exported("bi")[1], tmp_path, dirs_exist_ok=True)
    (tmp_path / "context.int8.onnx").write_text("of the old weights")
    ranker = make_ranker("bi", seed=2)
    export_onnx(ranker, tmp_path)
    assert names(tmp_path) == {"polyencoder.json", "tokenizer.json", "onnx.json", "context.onnx", "candidates.onnx"}
    assert_close(load_graphs(tmp_path).score(["hi"], sentences), ranker.score(["hi"], sentences))


def test_stopped_between_two_files(make_ranker, exported, tmp_path, monkeypatch, sentences):
    """Graphs of two exports must not be taken for one model."""
    ranker = make_ranker("bi", seed=2)
    shutil.copytree(exported("bi")[1], tmp_path, dirs_exist_ok=True)
    replace = os.replace

    def stop(source, target):
        if target.name == "context.onnx":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        export_onnx(ranker, tmp_path)
    monkeypatch.undo()
    assert_close(load_graphs(tmp_path).score(["hi"], sentences), ranker.score(["hi"], sentences))


def test_beside_the_weights(make_ranker, sentences, tmp_path):
    ranker = make_ranker("poly", seed=1)
    ranker.save_pretrained(tmp_path)
    export_onnx(ranker, tmp_path)
    assert_close(*(load_graphs(tmp_path, backend).score(["hi"], sentences) for backend in ("torch", "onnx")))
    with pytest.raises(CheckpointError, match="not the weights of these graphs"):
        export_onnx(make_ranker("poly", seed=2), tmp_path)


def test_a_file_in_the_way(make_ranker, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="file: is a file"):
        export_onnx(make_ranker("bi"), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "link").symlink_to("gone")
    with pytest.raises(CheckpointError, match="link: is a link to gone"):
        export_onnx(make_ranker("bi"), tmp_path / "link")


def test_a_ranker_of_graphs_is_not_exported_again(exported, tmp_path):
    _, folder = exported("bi")
    with pytest.raises(InputError, match="already ONNX graphs"):
        export_onnx(load_graphs(folder), tmp_path / "again")


def test_a_model_too_large_for_the_format(make_ranker, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "LARGEST", 1000)
    with pytest.raises(ConfigError, match="too large for ONNX: .* 2 GiB"):
        export_onnx(make_ranker("bi"), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_without_onnxruntime(make_ranker, tmp_path, block_import):
    ranker = make_ranker("bi")
    block_import("onnxruntime")
    with pytest.raises(ConfigError, match="`onnxruntime` is not installed"):
        export_onnx(ranker, tmp_path / "model")
    assert not (tmp_path / "model").exists()
