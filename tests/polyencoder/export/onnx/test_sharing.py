"""Which backends can share an index: those whose vectors agree."""

from __future__ import annotations

import pytest
import torch

from polyencoder import CheckpointError, Ranker
from polyencoder.export.folder import export_folder
from tests.polyencoder.export.onnx.conftest import assert_close, load_graphs

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_with_a_real_encoder(minilm_folder, sentences, tmp_path):
    """ONNX graphs agree to rounding; torch in bfloat16 nearly; what --dtype rounds is a model of its own."""
    pytest.importorskip("onnxruntime")
    original = Ranker.from_backbone(
        minilm_folder, "bi", device="cpu", reduction="mean", normalize=True, output_scaling=4.47
    )
    export_folder(original, tmp_path / "exported", onnx=True)
    export_folder(original, tmp_path / "halved", dtype="bfloat16")
    vectors, graphs = torch.as_tensor(original.encode_candidates(sentences)), load_graphs(tmp_path / "exported")
    assert_close(graphs.encode_candidates(sentences), vectors, rtol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = torch.as_tensor(original.encode_candidates(sentences)).float()
    assert 1e-4 < (rounded - vectors).abs().max() < 3e-2  # of vectors of length 4.47
    assert torch.cosine_similarity(rounded, vectors).min() > 0.999

    index = tmp_path / "index"
    original.index(sentences, index)
    hits = [ranker.search("any pets ?", index, top_k=3) for ranker in (original, graphs)]
    assert [hit.id for hit in hits[0]] == [hit.id for hit in hits[1]]
    assert [hit.score for hit in hits[0]] == pytest.approx([hit.score for hit in hits[1]], abs=1e-3)
    with pytest.raises(CheckpointError, match="made by another model"):
        load_graphs(tmp_path / "halved", "torch").search("any pets ?", index)
