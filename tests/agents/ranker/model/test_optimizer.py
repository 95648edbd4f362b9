"""Which parameters decay, and that the library's optimizers take ParlAI's flags."""

from __future__ import annotations

import pytest
import torch

from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

TURNS = [{"text": text, "labels": [f"{text} too"]} for text in ("hello", "bye")]


@pytest.mark.parametrize(
    ("optimizer", "flag", "decay"),
    [("adamw", None, 0.01), ("adamw", 0.3, 0.3), ("adamax", None, 0.0), ("sgd", None, 0.0)],
)
@mostly_long("model", ["polyencoder", "crossencoder"], quick=1)
def test_weight_decay_spares_biases_layer_norms_and_new_parts(model, optimizer, flag, decay, make_agent, respond):
    options = {} if flag is None else {"weight_decay": flag}
    agent = make_agent(model, candidates="batch", optimizer=optimizer, warmup_updates=-1, **options)
    names = {id(parameter): name for name, parameter in agent.model.named_parameters()}
    decays = {
        names[id(parameter)]: group["weight_decay"]
        for group in agent.optimizer.param_groups
        for parameter in group["params"]
    }
    assert decays.keys() == {name for name, _ in agent.model.named_parameters()}
    for name, value in decays.items():
        spared = name.endswith("bias") or "LayerNorm" in name or name.startswith("codes.")
        assert value == (0.0 if spared else decay), name
    before = {name: tensor.detach().clone() for name, tensor in agent.model.named_parameters()}
    respond(agent, *TURNS)
    assert any(not torch.equal(tensor, before[name]) for name, tensor in agent.model.named_parameters())


def test_adamw_takes_parlais_settings_of_adam(make_agent):
    group = make_agent("biencoder", betas="0.8,0.95", adam_eps=1e-6).optimizer.param_groups[0]
    assert group["betas"] == (0.8, 0.95)
    assert group["eps"] == 1e-6


def test_a_changed_optimizer_starts_afresh(trained, make_agent, task):
    agent = make_agent("biencoder", model_file=trained("biencoder")[0], datatype="train", optimizer="adamax", **task)
    assert isinstance(agent.optimizer, torch.optim.Adamax)
    assert not agent.optimizer.state_dict()["state"]
