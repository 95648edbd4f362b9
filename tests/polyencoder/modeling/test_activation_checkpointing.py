"""A step in pieces does not grow with what the pieces before have left behind."""

from __future__ import annotations

import torch

from polyencoder.modeling.activation_checkpointing import Pieces


def test_before_every_piece_on_the_way_there_and_back(monkeypatch, make_model, make_tokens, padded):
    calls = []
    monkeypatch.setattr(
        "polyencoder.modeling.activation_checkpointing.return_free_memory", lambda: calls.append("trim")
    )
    model = make_model("bi").train()
    encode = model.encode_candidates

    def piece(tokens):
        calls.append("piece")
        return encode(tokens)

    pieces = Pieces(model)
    vectors = [pieces(piece, padded(make_tokens([5, 7], seed=seed))) for seed in range(3)]
    torch.cat(vectors).sum().backward()
    assert calls == ["trim", "piece"] * 6
