"""A ConveRT as a folder and as graphs: the scores of torch."""

from __future__ import annotations

import pytest
import torch

from polyencoder.errors import ConfigError
from polyencoder.export.onnx import export_onnx, quantize_int8
from polyencoder.ranker import Ranker

CONTEXTS = [["hello !", "do you like dogs ?"], "hi", ["what do you do for a living ? " * 30, "ok"], "漢字 ?"]


@pytest.fixture
def ranker(make_convert_ranker) -> Ranker:
    return make_convert_ranker(scale_batches=3)


def test_a_folder_gives_the_same_scores(ranker, make_convert_ranker, sentences, tmp_path):
    ranker.model.scale.advance()
    ranker.save_pretrained(tmp_path / "single")
    multi = make_convert_ranker(extra_contexts=10)
    multi.save_pretrained(tmp_path / "multi")
    for name, one in (("single", ranker), ("multi", multi)):
        again = Ranker.from_pretrained(tmp_path / name, device="cpu")
        assert torch.equal(again.score(CONTEXTS, sentences), one.score(CONTEXTS, sentences))
        assert not again.model.training


def test_graphs_give_the_scores_of_torch(ranker, sentences, tmp_path):
    export_onnx(ranker, tmp_path, check_texts=sentences)
    graphs = Ranker.from_pretrained(tmp_path, backend="onnx", device="cpu")
    expected = ranker.score(CONTEXTS, sentences)
    torch.testing.assert_close(graphs.score(CONTEXTS, sentences), expected, rtol=1e-4, atol=1e-4)
    index = graphs.index(sentences, tmp_path / "index")  # which the torch model may search, too
    assert ranker.search("hi", index, top_k=1)[0].text == ranker.rank("hi", sentences, top_k=1)[0].text

    quantize_int8(tmp_path)
    small = Ranker.from_pretrained(tmp_path, backend="onnx-int8", device="cpu")
    assert (small.score(CONTEXTS, sentences) - expected).abs().max() < 0.3


def test_a_multi_context_model_has_no_graphs(make_convert_ranker, tmp_path):
    with pytest.raises(ConfigError, match="multi-context convert model cannot be exported"):
        export_onnx(make_convert_ranker(extra_contexts=2), tmp_path / "graphs")
    assert not (tmp_path / "graphs").exists()
