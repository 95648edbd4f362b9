"""A step in pieces does not grow with what the pieces before have left behind."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch

from polyencoder.recompute import recomputed, return_free_memory


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library keeps what is free, or has no say in it")
def test_holes_are_given_back():
    blocks = [bytearray(60_000) for _ in range(2000)]
    full = resident_mb()
    del blocks[::2]
    return_free_memory()
    assert resident_mb() < full - 40


def test_before_every_piece_on_the_way_there_and_back(monkeypatch, make_model, make_tokens, padded):
    calls = []
    monkeypatch.setattr("polyencoder.recompute.return_free_memory", lambda: calls.append("trim"))
    model = make_model("bi").train()
    encode = model.encode_candidates

    def piece(tokens):
        calls.append("piece")
        return encode(tokens)

    vectors = [recomputed(piece, padded(make_tokens([5, 7], seed=seed))) for seed in range(3)]
    torch.cat(vectors).sum().backward()
    assert calls == ["trim", "piece"] * 6
