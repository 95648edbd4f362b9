from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.modeling.transfer import select_inherited_fields, transfer_weights
from polyencoder.ranker import Ranker
from polyencoder.settings.train import TrainSettings
from polyencoder.training.start import build_untrained_ranker
from tests.parameters import mostly_long


@pytest.fixture
def start(make_model):
    """(model's, other's) as (architecture, fields) -> the model started from the other, the other, what is fresh."""

    def make(mine, theirs):
        model, other = make_model(mine[0], **mine[1]), make_model(theirs[0], seed=1, **theirs[1])
        return model, other, transfer_weights(model, other.state_dict(), origin="other")

    return make


SHARED = {"share_encoders": True}
LINEAR = ["linear.weight", "linear.bias"]


def towers(model) -> list[torch.nn.Module]:
    """The towers of contexts and of candidates, which may be the same."""
    if hasattr(model, "tower"):
        return [model.tower, model.tower]
    return [model.context_tower, model.candidate_tower]


@pytest.mark.slow
@mostly_long(
    ("mine", "theirs", "fresh"),
    [
        (("bi", {}), ("bi", {}), []),
        (("bi", {}), ("bi", SHARED), []),
        (("bi", {}), ("cross", {}), []),
        (("bi", SHARED), ("cross", {}), []),
        (("bi", {}), ("poly", {}), []),
        (("poly", {}), ("poly", {}), []),
        (("poly", {}), ("bi", {}), ["codes.codes"]),
        (("poly", {}), ("bi", SHARED), ["codes.codes"]),
        (("poly", {"n_codes": 3}), ("poly", {}), ["codes.codes"]),  # as many codes as it wants, so new ones
        (("poly", {"context_vectors": "n_first"}), ("poly", {}), []),
        (("cross", {}), ("bi", {}), LINEAR),
        (("cross", {}), ("poly", SHARED), LINEAR),
        (("cross", {}), ("cross", {}), []),
    ],
    quick=7,
)
def test_every_tower_finds_its_source(start, make_model, mine, theirs, fresh):
    model, other, names = start(mine, theirs)
    assert names == fresh
    for ours, source in zip(towers(model), towers(other), strict=True):
        for name, tensor in ours.state_dict().items():
            assert torch.equal(tensor, source.state_dict()[name])
    untouched = make_model(mine[0], **mine[1]).state_dict()
    assert all(torch.equal(model.state_dict()[name], untouched[name]) for name in names)
    for name in {"codes.codes", *LINEAR} & set(model.state_dict()) - set(names):
        assert torch.equal(model.state_dict()[name], other.state_dict()[name])


def test_one_tower_for_both_starts_from_the_contexts(start):
    model, other, _ = start(("bi", SHARED), ("bi", {}))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.context_tower.parameters(), strict=True))


def test_towers_that_differ_stay_apart(make_model):
    other = make_model("bi").state_dict()
    other = {name: tensor + name.startswith("own_candidate_tower") for name, tensor in other.items()}
    model = make_model("poly", seed=1)
    transfer_weights(model, other, origin="other")
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in other.items())


def test_towers_of_another_size(make_model, make_backbone_config):
    other = make_model("bi", backbone=make_backbone_config(dim=8))
    with pytest.raises(CheckpointError, match=r"other: cannot start from these weights: .* has shape \[320, 8\], not"):
        transfer_weights(make_model("poly"), other.state_dict(), origin="other")


@pytest.mark.parametrize("weights", [{}, {"encoder.weight": torch.zeros(1)}])
def test_weights_of_something_else(make_model, weights):
    with pytest.raises(CheckpointError, match=r"other: cannot start from these weights: context_tower.* is missing"):
        transfer_weights(make_model("bi"), weights, origin="other")


def test_a_cross_encoder_hands_no_normalization_on(make_config):
    """A cross-encoder has no vectors, and it scales no cosine."""
    config = replace(make_config("cross"), normalize=True, output_scaling=1.0)
    assert select_inherited_fields(config, "bi")["normalize"] is False


def test_a_map_of_tokens_goes_to_another_late_interaction_encoder_alone(make_model):
    config = make_model("late", token_dim=5).config
    assert select_inherited_fields(config, "late")["token_dim"] == 5
    assert all("token_dim" not in select_inherited_fields(config, other) for other in ("bi", "poly", "cross"))


@pytest.mark.slow
def test_a_poly_encoder_keeps_the_codes_of_another(make_ranker, sentences, tmp_path):
    trained = make_ranker("poly", n_codes=3, poly_attention="multihead", poly_attention_heads=2)
    trained.save_pretrained(tmp_path)
    again = Ranker.from_backbone(str(tmp_path), "poly")
    assert again.model.config.n_codes == 3
    assert torch.equal(
        torch.as_tensor(again.score(["hi"], sentences)), torch.as_tensor(trained.score(["hi"], sentences))
    )
    assert Ranker.from_backbone(str(tmp_path), "poly", n_codes=5).model.config.n_codes == 5
    settings = {"architecture": "poly", "backbone": str(tmp_path), "train": "train.jsonl", "out": "out"}
    before = build_untrained_ranker(TrainSettings.of(settings))
    assert torch.equal(
        torch.as_tensor(before.score(["hi"], sentences)), torch.as_tensor(trained.score(["hi"], sentences))
    )
    assert build_untrained_ranker(TrainSettings.of(settings | {"n_codes": 5})).model.config.architecture == "bi"


@pytest.mark.slow
def test_context_vectors_of_another_kind_have_their_own_number(make_ranker, tmp_path):
    make_ranker("poly", n_codes=3, codes_attention="multihead", codes_attention_heads=2).save_pretrained(tmp_path)
    for fields, expected in (
        ({"context_vectors": "codes"}, (3, "multihead", 2)),
        ({"context_vectors": "n_first"}, (64, "basic", 4)),
        ({"context_vectors": "n_first", "n_codes": 7}, (7, "basic", 4)),
    ):
        config = Ranker.from_backbone(str(tmp_path), "poly", **fields).model.config
        assert (config.n_codes, config.codes_attention, config.codes_attention_heads) == expected


@pytest.mark.slow
def test_shorter_vectors_are_kept_or_refused(make_model, make_ranker, tmp_path):
    make_ranker("bi").shortened(5).save_pretrained(tmp_path)
    assert Ranker.from_backbone(str(tmp_path), "poly").model.dim == 5
    assert Ranker.from_backbone(str(tmp_path), "cross").model.config.vector_dim is None  # it has no vectors
    with pytest.raises(ConfigError, match="vectors cannot be shortened to their first dimensions"):
        Ranker.from_backbone(str(tmp_path), "late")
