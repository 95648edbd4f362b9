"""`--grad-cache` and `--pair-tokens`: what is trained stays the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

ANIMALS = ["cat", "dog", "cow", "hen", "pig", "bee", "owl", "fox", "dog"]


def turns() -> list[dict[str, Any]]:
    """Contexts of very different lengths; two examples with one label."""
    answers = [f"my {animal} is here ." for animal in ANIMALS]
    return [
        {
            "text": " ".join([f"i look for a {animal} ."] * (1 + i)),
            "labels": [answers[i]],
            "label_candidates": answers[: 3 + i],
        }
        for i, animal in enumerate(ANIMALS)
        if i > 2
    ]


def step(make_agent, respond, model: str, *, steps: int = 1, **options: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss and the gradients of as many training steps before an update."""
    torch.manual_seed(3)
    agent = make_agent(model, batchsize=8, update_freq=steps, warmup_updates=-1, gradient_clip=-1, **options)
    torch.manual_seed(4)
    for i in range(steps):
        respond(agent, *turns()[i:])
    gradients = {name: p.grad for name, p in agent.model.named_parameters() if p.requires_grad}
    return float(agent.global_metrics.report()["mean_loss"].value()), gradients


def assert_same(ours, plain, *, tolerance: float) -> None:
    assert ours[0] == pytest.approx(plain[0], rel=tolerance)
    assert ours[1].keys() == plain[1].keys()
    scale = max(float(gradient.abs().max()) for gradient in plain[1].values())
    assert scale > 1e-4
    for name, gradient in plain[1].items():
        torch.testing.assert_close(ours[1][name], gradient, rtol=0, atol=tolerance * max(1, scale), msg=name)


@mostly_long(
    ("model", "candidates", "options"),
    [
        ("biencoder", "batch", {"type_optimization": "top_layer", "n_layers": 2}),
        ("polyencoder", "inline", {"steps": 3}),
        ("crossencoder", "batch", {}),
        ("crossencoder", "inline", {"steps": 3}),
    ],
    quick=2,
)
def test_memory_is_all_that_changes(model, options, candidates, make_agent, respond):
    limit = {"pair_tokens": 70} if model == "crossencoder" else {"grad_cache": 1}
    plain = step(make_agent, respond, model, candidates=candidates, **options)
    ours = step(make_agent, respond, model, candidates=candidates, **limit, **options)
    assert_same(ours, plain, tolerance=1e-5)
