"""A ranker with a map of its candidates, as `polyencoder map` writes it, trained on in ParlAI."""

from __future__ import annotations

import pytest
import torch

from polyencoder.ranker.ranker import Ranker
from polyencoder.training.candidate_map import mapped


@pytest.mark.parametrize("share_encoders", [False, True])
def test_the_map_is_what_training_begins_with(make_ranker, make_agent, tmp_path, sentences, share_encoders):
    ranker = make_ranker("bi", share_encoders=share_encoders)
    made = Ranker(mapped(ranker.model, torch.randn(16, 16)), ranker.text, device="cpu")
    made.save_pretrained(tmp_path / "mapped")
    sizes = {"embedding_size": 16, "n_layers": 2, "n_heads": 2, "ffn_size": 32, "share_encoders": share_encoders}
    lengths = {"text_truncate": 40, "label_truncate": 24}
    agent = make_agent("biencoder", init_model=str(tmp_path / "mapped"), **sizes, **lengths)
    begun = Ranker(agent.ranker, agent.dict.text, device="cpu")
    torch.testing.assert_close(begun.score(["hi !"], sentences), made.score(["hi !"], sentences), rtol=1e-4, atol=1e-4)
