"""Adapters: what is trained beside them, merged scores, packed rows, and what cannot be adapted."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyencoder import Ranker
from polyencoder.encoding.fingerprint import compute_model_fingerprint
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.modeling.trainable import freeze
from tests.parameters import mostly_long

pytest.importorskip("peft", reason="the extra [lora] is not installed")

pytestmark = pytest.mark.slow

KINDS = {
    "bi": {"reduction": "mean", "share_encoders": True},
    "poly": {"n_codes": 4},
    "late": {"reduction": "mean"},
    "cross": {},
}
CONTEXTS, CANDIDATES = [["hello , how are you ?"], ["no .", "do you ski ?"]], ["i love snow .", "yes", "a cat ."]


def trained(ranker: Ranker, **options) -> Ranker:
    """The ranker after some steps of its adapters and of all else that is trained."""
    freeze(ranker.model, fine_tuned="all")
    ranker.model.add_adapters(rank=2, **options)
    optimizer = torch.optim.Adam((p for p in ranker.model.parameters() if p.requires_grad), lr=0.02)
    ranker.model.train()
    for _ in range(3):
        optimizer.zero_grad()
        contexts, candidates = ranker.text.batch_contexts(CONTEXTS), ranker.text.batch_candidates(CANDIDATES)
        objectives = ranker.model.score_objectives(contexts, candidates).values()
        sum(nn.functional.cross_entropy(scores, torch.tensor([0, 2])) for scores in objectives).backward()
        optimizer.step()
    ranker.model.eval()
    return ranker


@mostly_long("architecture", KINDS, quick=2)
def test_adapters_and_heads_are_trained_and_the_merged_model_scores_the_same(make_ranker, tmp_path, architecture):
    ranker = make_ranker(architecture, **KINDS[architecture])
    before = {name: tensor.clone() for name, tensor in ranker.model.state_dict().items()}
    plain = torch.as_tensor(ranker.score(CONTEXTS, CANDIDATES))
    trained(ranker, targets=("query", "value", "dense"), dropout=0.1)
    model, of_encoders = ranker.model, {id(p) for backbone in ranker.model.backbones for p in backbone.parameters()}
    for name, parameter in model.named_parameters():
        is_adapter = "lora_" in name
        assert parameter.requires_grad == (is_adapter or id(parameter) not in of_encoders), name
        assert (parameter.grad is None) != parameter.requires_grad, name
    after = {name.replace(".base_layer", ""): tensor for name, tensor in model.state_dict().items()}
    heads = {name for name, parameter in model.named_parameters() if id(parameter) not in of_encoders}
    changed = {name for name in before if not torch.equal(after[name], before[name])}
    assert changed <= heads
    assert bool(changed) == bool(heads)  # a bias that is added to all scores has no gradient
    assert sum("lora_B" in name for name in after) == 2 * 5 * len(model.backbones)  # of 5 layers in each of 2
    scores = torch.as_tensor(ranker.score(CONTEXTS, CANDIDATES))
    assert (scores - plain).abs().max() > 1e-2
    ranker.save_pretrained(tmp_path)
    again = Ranker.from_pretrained(tmp_path, device="cpu")
    assert again.model.state_dict().keys() == before.keys()
    torch.testing.assert_close(torch.as_tensor(again.score(CONTEXTS, CANDIDATES)), scores, atol=1e-5, rtol=1e-5)
    assert torch.equal(torch.as_tensor(ranker.score(CONTEXTS, CANDIDATES)), scores)  # which saving has not merged
    assert compute_model_fingerprint(again.model, again.text) == compute_model_fingerprint(ranker.model, ranker.text)


@mostly_long("family", ["bert", "roberta", "distilbert", "modernbert"], quick=2)
def test_packed_rows_give_what_padded_ones_give(backbone_folder, family):
    ranker = Ranker.from_backbone(backbone_folder(family), reduction="mean", share_encoders=True, device="cpu")
    backbone = trained(ranker).model.backbones[0]
    tokens = ranker.text.batch_contexts(CONTEXTS)
    assert backbone.packs
    with torch.no_grad():
        packed, padded = backbone(tokens), backbone._run(tokens)
    torch.testing.assert_close(packed[tokens.mask], padded[tokens.mask], atol=1e-5, rtol=1e-4)
    layers = [name for name, module in backbone.named_modules() if isinstance(module, nn.Linear)]
    assert all(name.endswith(".base_layer") or ".lora_" in name for name in layers)


def test_frozen_candidates_have_no_adapters(make_ranker):
    model = make_ranker("poly").model
    freeze(model, fine_tuned="all", freeze_candidates=True)
    model.add_adapters(rank=2)
    assert not any("lora_" in name for name in model.own_candidate_tower.state_dict())
    assert any("lora_" in name for name in model.context_tower.state_dict())
    shared = make_ranker("bi", share_encoders=True).model
    freeze(shared, fine_tuned="all", freeze_candidates=True)
    with pytest.raises(ConfigError, match="lora adapts the layers of an encoder, and this model has none to train"):
        shared.add_adapters(rank=2)


def test_what_cannot_be_adapted(make_ranker):
    model = make_ranker("bi").model
    model.add_adapters(rank=2)
    with pytest.raises(ConfigError, match="this model has adapters already"):
        model.add_adapters(rank=2)
    with pytest.raises(ConfigError, match="lora_targets: the encoder has no linear layer 'q'; it has dense, key, "):
        make_ranker("bi").model.add_adapters(rank=2, targets=("q",))


def test_a_checkpoint_holds_what_is_trained_and_fits_its_frozen_weights_alone(make_ranker):
    model, again, other = (make_ranker("poly", seed=seed).model for seed in (0, 0, 1))
    for adapted in (model, again, other):
        adapted.add_adapters(rank=2)
    state = model.get_trained_state()
    assert {name for name in state if "lora_" not in name} == {"codes.codes", "frozen"}
    again.load_trained_state(state)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), again.parameters(), strict=True))
    with pytest.raises(CheckpointError, match="frozen are not those that the run began with"):
        other.load_trained_state(state)
    del state["codes.codes"]
    with pytest.raises(CheckpointError, match="adapters are not this model's: codes.codes"):
        again.load_trained_state(state)
