from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polyencoder.config import ConvertConfig, TextConfig
from polyencoder.errors import ConfigError
from polyencoder.modeling.build import build_model
from polyencoder.modeling.loading import build_backbone


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
def test_the_sizes_of_a_convert_are_for_no_other_model(make_config, architecture):
    config = replace(make_config(architecture), backbone={}, convert=ConvertConfig(vocab_size=9))
    with pytest.raises(ConfigError, match=f"a {architecture}-encoder is built around a backbone"):
        build_model(config)


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
def test_a_given_backbone_is_used_as_it_is(make_config, architecture):
    config = make_config(architecture)
    backbone = build_backbone(config.backbone)
    weights = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    model = build_model(config, backbone)
    assert backbone in list(model.modules())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in backbone.state_dict().items())


@pytest.mark.parametrize(
    ("architecture", "text_truncate", "label_truncate"), [("bi", 64, 24), ("poly", 64, 24), ("cross", 40, 24)]
)
def test_the_longest_sequences_fit_exactly(
    make_config, make_tokens, padded, architecture, text_truncate, label_truncate
):
    text = TextConfig(text_truncate=text_truncate, label_truncate=label_truncate)
    model = build_model(make_config(architecture, text=text))
    model(padded(make_tokens([text_truncate])), padded(make_tokens([label_truncate])))
    longer = replace(text, text_truncate=text_truncate + 1)
    with pytest.raises(ConfigError, match=r"at most 64 tokens, but sequences may have 65; give a smaller text_trunc"):
        build_model(make_config(architecture, text=longer))
