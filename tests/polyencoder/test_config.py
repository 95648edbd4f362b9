from __future__ import annotations

import dataclasses
import json

import pytest

from polyencoder.config import ConvertConfig, RankerConfig, TextConfig
from polyencoder.errors import ConfigError, PolyencoderError

BACKBONE = {"model_type": "bert", "hidden_size": 8}


@pytest.fixture
def config() -> RankerConfig:
    return RankerConfig(
        architecture="poly", backbone=BACKBONE, text=TextConfig(text_truncate=9, separator="|"), n_codes=5
    )


def test_round_trip_through_json(config):
    assert RankerConfig.from_json(config.to_json(), origin="x") == config


def test_every_field_is_written_and_read(config):
    written = json.loads(config.to_json())
    assert set(written) == {field.name for field in dataclasses.fields(RankerConfig)}
    assert set(written["text"]) == {field.name for field in dataclasses.fields(TextConfig)}


def test_fields_that_are_absent_have_their_defaults():
    text = json.dumps({"architecture": "bi", "backbone": BACKBONE, "format_version": 1})
    assert RankerConfig.from_json(text, origin="x") == RankerConfig(architecture="bi", backbone=BACKBONE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_code": 3}, r"unknown setting 'n_code'; did you mean n_codes\?$"),
        ({"text": {"cut": 3}}, "unknown setting 'text.cut'; it must be one of text_truncate, "),
        ({"dense": [{"size": 0}]}, "dense.size is 0; it must be at least 1"),
        ({"base": {"architecture": "bi", "backbone": {"model_type": "bert"}, "n_codes": 0}}, "base.n_codes is 0"),
        ({"base": {"architecture": "bi", "format_version": 2}}, "base.format_version is 2; it must be 1"),
        ({"n_codes": 10**20}, "n_codes is 100000000000000000000; it must be below "),
        ({"share_encoders": 1}, "share_encoders is 1; it must be true or false"),
        ({"turn_end": [1, "x"]}, "turn_end is "),
        ({"pair_start": "perhaps"}, "pair_start is 'perhaps'; it must be true or false or one of end, same_segment"),
        ({"prompt_tokens": [1, 2, 3]}, "prompt_tokens is "),
        ({"format_version": 2}, "format version 2, but this version of polyencoder reads 1"),
        ({"format_version": None}, "format version None"),
        ({"reduction": "sum"}, "reduction is 'sum'; it must be one of first, mean, max, mean_first, mean_except_first"),
        ({"context_vectors": "last"}, "context_vectors is 'last'; it must be one of codes, n_first, n_last, first_n"),
        ({"codes_attention": ["basic"]}, r"codes_attention is \['basic'\]; it must be one of basic, sqrt"),
        ({"poly_attention": "cosine"}, "poly_attention is 'cosine'; it must be one of basic, sqrt, multihead"),
        ({"poly_attention_heads": 0}, "poly_attention_heads is 0; it must be at least 1"),
        ({"n_codes": 0}, "n_codes is 0; it must be at least 1"),
        ({"n_codes": "four"}, "n_codes is 'four'; it must be a whole number"),
        ({"reduction_outputs": -1}, "reduction_outputs is -1; it must be at least 1"),
        ({"backbone": {"hidden_size": 8}}, "the backbone configuration has no `model_type`"),
        ({"backbone": None}, "backbone is None; it must be an object"),
        ({"convert": 3}, "convert is 3; it must be "),
        ({"convert": {"vocab_size": 9, "head_sizes": 5}}, "convert.head_sizes is 5; it must be a list"),
        ({"text": None}, "text is None; it must be "),
        ({"text": ["text_truncate"]}, r"text is \['text_truncate'\]; it must be "),
        ({"text": {"text_truncate": 2}}, "text.text_truncate is 2; it must be at least 3"),
        ({"text": {"label_truncate": 0}}, "text.label_truncate is 0; it must be at least 3"),
        ({"text": {"history_size": 0}}, "text.history_size is 0; it must be -1 or at least 1"),
        ({"text": {"history_size": -2}}, "text.history_size is -2"),
    ],
)
def test_bad_values_are_named(config, changes, message):
    with pytest.raises(ConfigError, match=f"^x: {message}") as caught:
        RankerConfig.from_json(json.dumps(json.loads(config.to_json()) | changes), origin="x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", '{"architecture": "bi"', "[]", "3", '{"hidden_size": 8}', "null"])
def test_text_that_is_no_configuration(text):
    with pytest.raises(ConfigError, match="^config.json: not (valid JSON|the configuration of a ranker)"):
        RankerConfig.from_json(text, origin="config.json")


def test_a_missing_field_is_named():
    with pytest.raises(ConfigError, match="^x: .*backbone"):
        RankerConfig.from_json('{"architecture": "bi", "format_version": 1}', origin="x")


def test_a_backbone_and_the_sizes_of_a_convert_exclude_each_other():
    with pytest.raises(ConfigError, match="either `backbone` or, for a convert model, `convert`, never both"):
        RankerConfig(architecture="bi", backbone=BACKBONE, convert=ConvertConfig(vocab_size=9))


def test_configurations_do_not_change(config):
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.n_codes = 3


def test_one_handler_catches_every_error_of_ours():
    with pytest.raises(PolyencoderError):
        TextConfig(text_truncate=1)
    with pytest.raises(ValueError, match="text_truncate"):
        TextConfig(text_truncate=1)
