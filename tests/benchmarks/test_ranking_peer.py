"""The benchmark of late interaction beside sentence-transformers in miniature."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import ranking_peer
from benchmarks.ranking_peer import PyLate, load_multi_vector_encoder

pytestmark = pytest.mark.slow

QUESTION = "hello , how are you ?"
TEXTS = ["hello there", "how are you", "i am fine", "what is your name", "good morning"]


def test_both_sides_rank_the_same_lists(bert, capsys):
    pytest.importorskip("sentence_transformers.multi_vector_encoder")
    ranking_peer.main(["--json", "--quick", "--backbone", str(bert)])
    report = json.loads(capsys.readouterr().out)
    times = {row["system"]: row for row in report["rows"] if "unseen_ms" in row}
    assert times.keys() == {"late-interaction", "MultiVectorEncoder", "MultiVectorEncoder-128"}
    assert all(row["candidates"] == 20 and row["kept_ms"] > 0 for row in times.values())
    ours, theirs = times["late-interaction"], times["MultiVectorEncoder"]
    assert ours["stored_ms"] > 0
    ratio = report["summary"]["ours / MultiVectorEncoder, 20, kept_ms"]
    assert ratio == pytest.approx(ours["kept_ms"] / theirs["kept_ms"])
    sizes = {row["system"]: row for row in report["rows"] if "float16_bytes" in row}
    tokens = sizes["MultiVectorEncoder"]["float32_bytes"] / (4 * 16)  # of the tiny encoder's 16 numbers
    assert tokens > 3
    assert sizes["MultiVectorEncoder-128"]["float16_bytes"] == pytest.approx(2 * 128 * tokens)
    int8, float16 = (sizes["late-interaction"][f"{dtype}_bytes"] for dtype in ("int8", "float16"))
    assert 16 * tokens < int8 < float16 < 2 * 16 * tokens + 4 * 16 + 200  # a vector, and the heads of small files


def test_their_best_candidates_are_those_of_maxsim(bert):
    pytest.importorskip("sentence_transformers.multi_vector_encoder")
    peer = load_multi_vector_encoder(bert, projected=False)
    context = peer.encode_query(QUESTION, show_progress_bar=False)
    tokens = peer.encode_document(TEXTS, show_progress_bar=False)
    expected = [float((context @ vectors.T).max(1).values.sum()) for vectors in tokens]
    order = sorted(TEXTS, key=lambda text: -expected[TEXTS.index(text)])
    assert ranking_peer._select_best(peer, [QUESTION], TEXTS, None) == order
    assert ranking_peer._select_best(peer, [QUESTION], TEXTS, tokens) == order


@pytest.fixture(params=["sentence-transformers", "sentence-transformers, projected", "pylate"])
def peer(request, bert):
    if request.param == "pylate":
        pytest.importorskip("pylate")
        return PyLate(bert)
    pytest.importorskip("sentence_transformers.multi_vector_encoder")
    return load_multi_vector_encoder(bert, projected="projected" in request.param)


def test_scores_are_sums_of_the_best_matches(peer):
    context = peer.encode_query([QUESTION], show_progress_bar=False)
    torch.testing.assert_close(context[0].norm(dim=-1), torch.ones(len(context[0])))
    tokens = peer.encode_document(TEXTS, show_progress_bar=False)
    assert len({len(vectors) for vectors in tokens}) > 1  # padding counts for nothing
    expected = [float((context[0] @ vectors.T).max(1).values.sum()) for vectors in tokens]
    assert peer.similarity(context, tokens)[0].tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("projected", "numbers"), [(False, 16), (True, 128)])
def test_a_new_projection_has_128_numbers(projected, numbers, bert):
    pytest.importorskip("sentence_transformers.multi_vector_encoder")
    peer = load_multi_vector_encoder(bert, projected=projected)
    assert peer.encode_query(QUESTION, show_progress_bar=False).size(1) == numbers
