"""Several processes learn what one with all of their examples learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow


def turn(animal: str, *, length: int = 1, others: tuple[str, ...] = ("cat", "fox")) -> dict[str, Any]:
    answers = list(dict.fromkeys(f"my {name} is here ." for name in (animal, *others)))
    return {"text": f"i look for a {animal} . " * length, "labels": [answers[0]], "label_candidates": answers}


# "dog" and "cow" are labels in both processes: one candidate each, and nobody's negative that has it as a label
FIRST = [turn("cat", length=3), turn("dog"), turn("cow", others=("pig", "bee", "owl")), turn("dog", length=5)]
SECOND = [turn("cow", length=2), turn("hen", length=4), turn("dog")]
UNUSABLE = [{"text": "who ?", "labels": ["me"], "label_candidates": ["you"]}]


@pytest.fixture
def fitted(make_agent, respond):
    """(model, batches, **options) -> the sum of losses and ranks, and the gradients, of the steps before an update."""

    def run(model: str, batches: list[list[dict[str, Any]]], **options: Any) -> dict[str, Any]:
        torch.manual_seed(0)
        defaults = {
            "warmup_updates": -1,
            "gradient_clip": -1,
            "ignore_bad_candidates": True,
            "update_freq": len(batches),
        }
        agent = make_agent(model, **{**defaults, **options})
        for batch in batches:
            respond(agent, *batch)
        report = agent.global_metrics.report()
        return {
            "loss": sum_of(report.get("mean_loss")),
            "rank": sum_of(report.get("rank")),
            "wrapped": hasattr(agent.model, "module"),
            "gradients": {n: None if p.grad is None else p.grad.numpy() for n, p in agent.model.named_parameters()},
            "weights": {n: p.detach().numpy() for n, p in agent.model.named_parameters()},
        }

    return run


def sum_of(metric: Any) -> tuple[float, int]:
    return (0.0, 0) if metric is None else (float(metric._numer), int(metric._denom))


def assert_like_one(results: list[dict[str, Any]], one: dict[str, Any]) -> None:
    for name in ("loss", "rank"):
        assert sum(result[name][0] for result in results) == pytest.approx(one[name][0], rel=1e-5)
        assert sum(result[name][1] for result in results) == one[name][1] > 0
    assert max(float(abs(g).max()) for g in one["gradients"].values() if g is not None) > 1e-3
    for result in results:
        assert not result["wrapped"]
        for name, gradient in one["gradients"].items():
            assert (gradient is None) == (result["gradients"][name] is None), name
            if gradient is not None:
                assert abs(result["gradients"][name] - gradient).max() < 1e-5, name
        for name, weight in results[0]["weights"].items():
            assert (result["weights"][name] == weight).all(), "the processes' weights are the same to the last bit"


@pytest.mark.parametrize(("model", "candidates"), [("polyencoder", "batch"), ("crossencoder", "inline")])
def test_steps_before_an_update_and_batches_of_which_nothing_can_be_used(model, candidates, fitted, in_processes):
    """The first process has nothing in the second step, nobody has anything in the third."""
    bad = UNUSABLE if candidates == "inline" else [{"text": "", "labels": [""]}]
    batches = [[FIRST, bad, bad, SECOND], [SECOND, FIRST, bad, FIRST[:1]]]
    options = {"candidates": candidates, "update_freq": 3}
    results = in_processes(lambda rank: fitted(model, batches[rank], **options))
    joint = [FIRST + SECOND, FIRST, SECOND + FIRST[:1]]
    assert_like_one(results, fitted(model, joint, **options))


def test_without_gathering_each_process_has_negatives_of_its_own(fitted, in_processes):
    """And the loss is still the mean over all examples."""
    results = in_processes(
        lambda rank: fitted("biencoder", [[FIRST, SECOND][rank]], candidates="batch", gather_negatives=False)
    )
    alone = [fitted("biencoder", [part], candidates="batch") for part in (FIRST, SECOND)]
    for result, one in zip(results, alone, strict=True):
        assert result["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert result["rank"] == one["rank"]
        for name, gradient in result["gradients"].items():
            mean = (alone[0]["gradients"][name] * 4 + alone[1]["gradients"][name] * 3) / 7
            assert abs(gradient - mean).max() < 1e-5


def test_scaling_is_measured_by_a_process_that_has_examples(make_agent, respond, in_processes):
    def run(rank: int) -> float:
        agent = make_agent("biencoder", output_scaling="auto", candidates="batch", ignore_bad_candidates=True)
        respond(agent, *([{"text": "", "labels": [""]}] if rank == 0 else FIRST))
        return agent.ranker.config.output_scaling

    first, second = in_processes(run)
    assert first == second != 1.0
