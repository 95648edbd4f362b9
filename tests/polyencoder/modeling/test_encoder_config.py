"""Configurations of encoders as plain dictionaries."""

from __future__ import annotations

import json

import pytest
import torch

from polyencoder.errors import ConfigError
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.encoder_config import build_scratch_config, get_backbone_config, get_max_length
from polyencoder.modeling.loading import build_backbone, load_pretrained
from tests.encoders import ENCODERS


@pytest.mark.parametrize("kind", ENCODERS)
def test_its_configuration_rebuilds_it(backbone_folder, batch_of, kind):
    """Through JSON, as a checkpoint keeps it."""
    backbone = load_pretrained(backbone_folder(kind)).eval()
    config = get_backbone_config(backbone.model)
    assert json.loads(json.dumps(config)) == config
    again = build_backbone(config)
    assert get_backbone_config(again.model) == config
    again.load_state_dict(backbone.state_dict())
    assert torch.equal(again.eval()(batch_of(backbone)), backbone(batch_of(backbone)))


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_configuration_does_not_say_where_it_came_from(backbone_folder, kind):
    config = get_backbone_config(load_pretrained(backbone_folder(kind)).model)
    assert str(backbone_folder(kind)) not in json.dumps(config)
    assert not {"_name_or_path", "transformers_version"} & set(config)


@pytest.mark.parametrize(("kind", "limit"), [("bert", 40), ("roberta", 38), ("distilbert", 40)])
def test_max_length_is_the_longest_that_works(backbone_folder, padded, kind, limit):
    backbone = load_pretrained(backbone_folder(kind))
    assert get_max_length(get_backbone_config(backbone.model)) == limit
    assert backbone(padded([[2] * limit], pad_id=1)).shape == (1, limit, 16)
    with pytest.raises((IndexError, RuntimeError)):
        backbone(padded([[2] * (limit + 1)], pad_id=1))


def test_a_model_without_positions_has_no_limit():
    assert get_max_length({"model_type": "something"}) is None


def test_from_scratch():
    config = build_scratch_config(
        vocabulary_size=50, dim=24, n_layers=3, n_heads=4, ffn_dim=32, n_positions=20, pad_id=7
    )
    backbone = build_backbone(config)
    assert isinstance(backbone, Backbone)
    assert backbone.dim == 24
    assert len(backbone.get_layers()) == 3
    assert get_max_length(config) == 20
    assert backbone.model.get_input_embeddings().padding_idx == 7
    assert backbone.takes_segments
    assert json.loads(json.dumps(config)) == config
    assert get_backbone_config(backbone.model) == config


def test_dimensions_that_do_not_divide():
    with pytest.raises(ConfigError, match="dim is 10, which is not a multiple of n_heads, 4"):
        build_scratch_config(vocabulary_size=50, dim=10, n_layers=1, n_heads=4, ffn_dim=32, n_positions=20)
