"""Configurations that an architecture cannot support are errors that name the setting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyencoder.errors import ConfigError
from polyencoder.modeling.capabilities import Capabilities
from polyencoder.modeling.families import FAMILIES, get_family


class OneVector(Capabilities):
    title, shortens = "bi-encoder", True


class Codes(Capabilities):
    title, has_one_vector = "poly-encoder", False


class Pairs(Capabilities):
    title, has_vectors, reads_pairs = "cross-encoder", False, True


@pytest.fixture
def config(make_ranker):
    return make_ranker("bi").model.config


@pytest.mark.parametrize(
    ("architecture", "changes", "argument", "message"),
    [
        (OneVector, {"poly_attention": "multihead"}, "poly_attention", "which a bi-encoder does not have"),
        (Pairs, {"poly_attention": "multihead"}, "poly_attention", "which a cross-encoder does not have"),
        (Codes, {"vector_dim": 4}, "vector_dim", "a poly-encoder compares more than single vectors"),
    ],
)
def test_what_an_architecture_lacks(config, architecture, changes, argument, message):
    with pytest.raises(ConfigError, match=message) as caught:
        architecture.check_config(replace(config, share_encoders=False, **changes))
    assert caught.value.argument == argument


def test_vectors_of_another_encoder_need_single_vectors_and_no_encoder_of_candidates(config):
    text = replace(config.text, candidate_rows=True)
    foreign = replace(config, share_encoders=False, foreign_dim=4, foreign_fingerprint="a", text=text)
    OneVector.check_config(foreign)
    with pytest.raises(ConfigError, match="the architecture bi needs an encoder of candidates"):
        Codes.check_config(foreign)
    with pytest.raises(ConfigError, match="candidate_mlp needs an encoder of candidates"):
        OneVector.check_config(replace(foreign, candidate_mlp=True))


def test_texts_fit_the_backbone_both_together_if_they_are_read_together(config):
    backbone = {**config.backbone, "model_type": "bert", "max_position_embeddings": config.text.longest_context}
    config = replace(config, backbone=backbone)
    OneVector.check_config(config)
    with pytest.raises(ConfigError, match="give a smaller text_truncate or label_truncate"):
        Pairs.check_config(config)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_known_of_an_architecture_without_torch_holds_for_its_models(name):
    can, model = get_family(name).can, get_family(name).model
    assert issubclass(model, can)
    assert can is not model
    facts = Capabilities.__annotations__
    assert {fact: getattr(can, fact) for fact in facts} == {fact: getattr(model, fact) for fact in facts}
