"""The Dense modules of a sentence encoder."""

from __future__ import annotations

import pytest
import torch

from polyencoder import Ranker
from polyencoder.config import DenseConfig
from polyencoder.encoding.fingerprint import model_fingerprint
from polyencoder.errors import ConfigError
from polyencoder.modeling.dense import build_dense

LAYERS = (DenseConfig(size=6, activation="tanh"), DenseConfig(size=3, bias=False))


def test_layers():
    dense = build_dense(4, LAYERS)
    vectors = torch.randn(5, 4)
    torch.testing.assert_close(dense(vectors), dense[2](torch.tanh(dense[0](vectors))))
    assert build_dense(4, ()) is None


@pytest.mark.parametrize("architecture", ["bi", "poly"])
@pytest.mark.parametrize("share", [True, False])
def test_rankers_with_dense_layers(make_ranker, tmp_path, architecture, share):
    """Vectors have the size of the last layer; candidates a copy of their own; saved, loaded and taken over whole."""

    ranker = make_ranker(architecture, dense=LAYERS, share_encoders=share, reduction="mean", normalize=True)
    assert ranker.encode_candidates(["hello"]).shape == (1, 3)
    assert ranker.encode_contexts(["hello"]).vectors.shape[-1] == ranker.model.dim == 3
    assert any(name.startswith("own_candidate_dense") for name in ranker.model.state_dict()) != share
    scores = torch.as_tensor(ranker.score(["hello"], ["no", "yes"]))
    ranker.save_pretrained(tmp_path / "saved")
    again = Ranker.from_pretrained(tmp_path / "saved", device="cpu")
    assert torch.equal(torch.as_tensor(again.score(["hello"], ["no", "yes"])), scores)
    assert model_fingerprint(again.model, again.text) == model_fingerprint(ranker.model, ranker.text)
    other = Ranker.from_backbone(tmp_path / "saved", "bi", device="cpu")
    assert torch.equal(
        torch.as_tensor(other.encode_candidates(["hello"])), torch.as_tensor(ranker.encode_candidates(["hello"]))
    )
    with pytest.raises(ConfigError, match="has Dense layers behind its pooling, which a late-interaction encoder does"):
        Ranker.from_backbone(tmp_path / "saved", "late", device="cpu")
