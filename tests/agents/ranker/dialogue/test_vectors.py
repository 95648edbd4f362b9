"""Vectors of candidates, remembered while the model stays as it is."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

SEPARABLE = ["biencoder", "polyencoder"]


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
    question = turns(["where is the cat ?"], "eval_labels", labels)
    before = respond(agent, *question)[0]["sorted_scores"]
    assert respond(agent, *question)[0]["sorted_scores"] == before
    assert len(encoded) == 1
    respond(agent, *turns(["hello", "bye"], "labels", ["hi", "bye"]), *turns(["bye"], "labels", ["bye", "hi"]))
    assert respond(agent, *question)[0]["sorted_scores"] != before
    assert len(encoded) == 2


@pytest.mark.parametrize("source", ["inline", "fixed"])
def test_a_clone_that_validates_sees_what_the_agent_has_trained(source, make_agent, respond, candidates_file, labels):
    """`--validation-share-agent true` evaluates with a clone that lives through the whole training."""
    options = {"eval_candidates": source, "fixed_candidates_path": str(candidates_file), "return_cand_scores": True}
    agent = make_agent("biencoder", learningrate=1e-2, warmup_updates=-1, **options)
    clone = agent.clone()
    question = turns(["where is the cat ?"], "eval_labels", labels)
    before = respond(clone, *question)[0]["sorted_scores"]
    respond(agent, *turns(["hello"], "labels", ["hi"]), *turns(["bye"], "labels", ["bye"]))
    after = respond(clone, *question)[0]["sorted_scores"]
    assert after == respond(agent, *question)[0]["sorted_scores"]
    assert max(after) != pytest.approx(max(before), rel=1e-3)


def test_fixed_candidates_are_encoded_once_for_all_batches(make_agent, respond, encoded, candidates_file, labels):
    agent = make_agent("polyencoder", eval_candidates="fixed", fixed_candidates_path=str(candidates_file))
    for text in ("one", "two"):
        respond(agent, {"text": text}, {"text": f"{text} more"})
    assert encoded == [labels]
