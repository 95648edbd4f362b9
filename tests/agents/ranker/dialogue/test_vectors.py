"""Vectors of candidates, remembered while the model stays as it is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parlai.agents.ranker.dialogue import listed as vectors
from parlai.agents.ranker.dialogue.listed import VectorCache

SEPARABLE = ["biencoder", "polyencoder"]


class Encoder:
    """A text's vector is its length and the number of calls so far; `asked` are the texts of each call."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, texts) -> torch.Tensor:
        self.asked.append(list(texts))
        return torch.tensor([[float(len(text)), float(len(self.asked))] for text in texts])


@given(st.lists(st.lists(st.text("ab", max_size=3), unique=True, min_size=1), max_size=6))
def test_each_text_is_encoded_once(batches):
    cache, encode = VectorCache(), Encoder()
    for texts in batches:
        assert cache.get(texts, encode)[:, 0].tolist() == [len(text) for text in texts]
    asked = [text for texts in encode.asked for text in texts]
    assert asked == list(dict.fromkeys(text for texts in batches for text in texts))


def test_a_cleared_cache_encodes_anew():
    cache, encode = VectorCache(), Encoder()
    cache.get(["a", "b"], encode)
    cache.clear()
    assert cache.get(["b", "a"], encode)[:, 1].tolist() == [2, 2]


@pytest.mark.parametrize("long", [1, 400])
def test_a_full_cache_starts_afresh(long, monkeypatch):
    """Full of vectors, or of texts."""
    monkeypatch.setattr(vectors, "CAPACITY", 800)
    cache, encode = VectorCache(), Encoder()
    cache.get(["a" * long, "b"], encode)
    cache.get(["c"], encode)
    assert cache.get(["b", "cc"], encode)[:, 0].tolist() == [1, 2]
    assert encode.asked[-1] == ["b", "cc"]
    assert cache.get([str(i) for i in range(9)], encode).shape == (9, 2)  # more at once than it may hold


def test_the_cache_grows_beyond_its_first_size():
    cache, encode = VectorCache(), Encoder()
    for start in range(0, 3000, 700):
        cache.get([f"{i}" for i in range(start, start + 700)], encode)
    texts = [f"{i}" for i in range(0, 3500, 7)]
    assert cache.get(texts, encode)[:, 0].tolist() == [len(text) for text in texts]


def test_a_cache_without_texts():
    assert VectorCache().get([], lambda texts: torch.empty(len(texts), 5)).shape == (0, 5)


# ---- through the agents


def turns(texts: list[str], part: str, candidates: list[str]) -> list[dict]:
    return [{"text": text, part: candidates[:1], "label_candidates": candidates} for text in texts]


@pytest.mark.parametrize("model", SEPARABLE)
def test_inline_candidates_that_repeat_are_encoded_once(model, make_agent, respond, encoded):
    agent = make_agent(model, eval_candidates="inline")
    respond(agent, *turns(["one", "two"], "eval_labels", ["a", "b"]), *turns(["three"], "eval_labels", ["b", "c"]))
    assert encoded == [["a", "b", "c"]]
    respond(agent, *turns(["four"], "eval_labels", ["c", "d", "a"]))
    assert encoded == [["a", "b", "c"], ["d"]]


@pytest.mark.parametrize("model", SEPARABLE)
@pytest.mark.parametrize("source", ["inline", "fixed"])
def test_after_a_training_step_candidates_are_encoded_anew(
    model, source, make_agent, respond, encoded, candidates_file, labels
):
    options = {"eval_candidates": source, "fixed_candidates_path": str(candidates_file), "return_cand_scores": True}
    agent = make_agent(model, **options)
    asked = turns(["where is the cat ?"], "eval_labels", labels)
    before = respond(agent, *asked)[0]["sorted_scores"]
    assert respond(agent, *asked)[0]["sorted_scores"] == before
    assert len(encoded) == 1
    respond(agent, *turns(["hello", "bye"], "labels", ["hi", "bye"]), *turns(["bye"], "labels", ["bye", "hi"]))
    assert respond(agent, *asked)[0]["sorted_scores"] != before
    assert len(encoded) == 2


@pytest.mark.parametrize("source", ["inline", "fixed"])
def test_a_clone_that_validates_sees_what_the_agent_has_trained(source, make_agent, respond, candidates_file, labels):
    """`--validation-share-agent true` evaluates with a clone that lives through the whole training."""
    options = {"eval_candidates": source, "fixed_candidates_path": str(candidates_file), "return_cand_scores": True}
    agent = make_agent("biencoder", learningrate=1e-2, warmup_updates=-1, **options)
    clone = agent.clone()
    asked = turns(["where is the cat ?"], "eval_labels", labels)
    before = respond(clone, *asked)[0]["sorted_scores"]
    respond(agent, *turns(["hello"], "labels", ["hi"]), *turns(["bye"], "labels", ["bye"]))
    after = respond(clone, *asked)[0]["sorted_scores"]
    assert after == respond(agent, *asked)[0]["sorted_scores"]
    assert max(after) != pytest.approx(max(before), rel=1e-3)


def test_fixed_candidates_are_encoded_once_for_all_batches(make_agent, respond, encoded, candidates_file, labels):
    agent = make_agent("polyencoder", eval_candidates="fixed", fixed_candidates_path=str(candidates_file))
    for text in ("one", "two"):
        respond(agent, {"text": text}, {"text": f"{text} more"})
    assert encoded == [labels]
