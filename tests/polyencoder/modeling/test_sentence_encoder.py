"""What a sentence encoder's files say of its vectors."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from polyencoder import ConfigError, Ranker
from polyencoder.modeling.sentence_encoder import SentenceVectors, own_prompts, sentence_vectors

OLD = {"word_embedding_dimension": 16, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


@pytest.fixture
def sentence_encoder(tmp_path):
    """(pooling, modules=..., **config_sentence_transformers) -> a folder with the files that say so."""

    def make(
        pooling: dict | None, modules: tuple[str, ...] = ("Transformer", "Pooling", "Normalize"), **config
    ) -> Path:
        described = [
            {"idx": i, "path": f"{i}_{name}" if i else "", "type": f"sentence_transformers.models.{name}"}
            for i, name in enumerate(modules)
        ]
        (tmp_path / "modules.json").write_text(json.dumps(described))
        (tmp_path / "1_Pooling").mkdir()
        if pooling is not None:
            (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"__version__": {}, **config}))
        return tmp_path

    return make


def test_a_real_one(minilm_folder):
    assert sentence_vectors(minilm_folder) == SentenceVectors(("mean",), cosine=True)
    assert sentence_vectors(minilm_folder).fields("poly") == {
        "reduction": "mean",
        "normalize": True,
        "output_scaling": 4.47,
    }
    assert sentence_vectors(minilm_folder).fields("cross") == {"reduction": "mean"}
    assert sentence_vectors(minilm_folder).fields("bi", given=["normalize", "output_scaling"]) == {"reduction": "mean"}


@pytest.mark.parametrize(
    ("pooling", "modes", "reduction"),
    [
        (OLD, ("mean",), "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, ("cls",), "first"),
        ({"pooling_mode_max_tokens": True}, ("max",), "max"),
        ({"pooling_mode_lasttoken": True}, ("lasttoken",), "last"),
        ({"pooling_mode_weightedmean_tokens": True}, ("weightedmean",), "weighted_mean"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, ("mean_sqrt_len",), None),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, ("cls", "max"), None),
        ({"embedding_dimension": 16, "pooling_mode": "mean"}, ("mean",), "mean"),
        ({"embedding_dimension": 16, "pooling_mode": ["cls", "mean"]}, ("cls", "mean"), None),
    ],
)
def test_pooling(sentence_encoder, pooling, modes, reduction):
    found = sentence_vectors(sentence_encoder(pooling))
    assert (found.pooling, found.reduction) == (modes, reduction)
    assert ("reduction" in found.fields("bi")) == (reduction is not None)


@pytest.mark.parametrize(
    ("modules", "similarity", "cosine"),
    [
        (("Transformer", "Pooling", "Normalize"), {}, True),
        (("Transformer", "Pooling"), {}, True),
        (("Transformer", "Pooling"), {"similarity_fn_name": None}, True),
        (("Transformer", "Pooling"), {"similarity_fn_name": "cosine"}, True),
        (("Transformer", "Pooling"), {"similarity_fn_name": "dot"}, False),
    ],
)
def test_cosine_or_dot_product(sentence_encoder, modules, similarity, cosine):
    found = sentence_vectors(sentence_encoder(OLD, modules, **similarity))
    assert found.cosine == cosine
    assert found.fields("bi") == {"reduction": "mean"} | ({"normalize": True, "output_scaling": 4.47} if cosine else {})


def test_a_ranker_around_one(minilm_folder):
    config = Ranker.from_backbone(minilm_folder, "poly", device="cpu").model.config
    assert (config.reduction, config.normalize, config.output_scaling) == ("mean", True, 4.47)
    config = Ranker.from_backbone(minilm_folder, reduction="first", normalize=False, device="cpu").model.config
    assert (config.reduction, config.normalize, config.output_scaling) == ("first", False, 1.0)


@pytest.mark.parametrize(
    ("pooling", "modules", "message"),
    [
        (
            OLD,
            ("Transformer", "Pooling", "LSTM"),
            "modules.json has LSTM .module 2., which rankers do not have: a Trans",
        ),
        (OLD, ("Transformer", "Pooling", "Dense"), "modules.json has Dense .module 2., which rankers do not have"),
        (
            OLD,
            ("Transformer", "Pooling", "Pooling"),
            "modules.json has a second Pooling .module 2., which rankers do not",
        ),
        (OLD, ("Transformer", "Pooling", "Transformer"), "modules.json has a second Transformer .module 2., which"),
        (OLD, ("Transformer", "WordWeights", "Pooling"), "modules.json has WordWeights .module 1., which"),
        ({"pooling_mode": ["cls", "mean"]}, ("Transformer", "Pooling"), "its pooling, cls and mean, is not supported"),
    ],
)
def test_what_rankers_do_not_have_is_refused(sentence_encoder, backbone_folder, pooling, modules, message):
    folder = sentence_encoder(pooling, modules)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    for name in ("1_Pooling", "2_Pooling"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(pooling))
    shutil.copytree(backbone_folder("bert"), folder, dirs_exist_ok=True)
    with pytest.raises(ConfigError, match=message):
        Ranker.from_backbone(folder, device="cpu")


E5 = {"query": "query: ", "passage": "passage: "}


@pytest.mark.parametrize(
    ("config", "context", "candidate"),
    [
        ({"prompts": E5, "default_prompt_name": None}, "query: ", "passage: "),
        ({"prompts": E5 | {"document": "title: "}}, "query: ", "title: "),
        ({"prompts": {"query": "", "document": ""}, "default_prompt_name": None}, None, None),
        ({"prompts": {"query": "query: "}}, "query: ", None),
        ({"prompts": {"sts": "sts: "} | E5, "default_prompt_name": "sts"}, "query: ", "passage: "),
        ({"prompts": {"sts": "sts: ", "query": ""}, "default_prompt_name": "sts"}, None, "sts: "),
        ({"prompts": {"sts": "sts: "}}, None, None),
        ({"prompts": E5, "model_type": "CrossEncoder"}, None, None),  # a reranker has the default alone
        ({"prompts": E5, "default_prompt_name": "passage", "model_type": "CrossEncoder"}, "passage: ", None),
        ({}, None, None),
    ],
)
def test_prompts_are_those_of_encode_query_and_encode_document(sentence_encoder, config, context, candidate):
    folder = sentence_encoder(OLD, **config)
    expected = {"context_prompt": context, "candidate_prompt": candidate}
    assert own_prompts(folder) == {name: text for name, text in expected.items() if text}
    assert own_prompts(folder, given=[*expected]) == {}


@pytest.mark.parametrize(
    "config",
    [
        {"prompts": ["a"]},
        {"prompts": "query"},
        {"prompts": {"query": 3}},
        {"prompts": {}, "default_prompt_name": "query"},
        {"prompts": {"query": "a"}, "default_prompt_name": ["query"]},
    ],
)
def test_prompts_that_are_none(sentence_encoder, config):
    with pytest.raises(ConfigError, match="has no valid prompts: texts by their names"):
        own_prompts(sentence_encoder(OLD, **config))


def test_what_is_no_sentence_encoder(backbone_folder, sentence_encoder):
    assert sentence_vectors(backbone_folder("bert")) is None
    assert sentence_vectors(sentence_encoder(None, ("Transformer",))) is None
    assert sentence_vectors("nobody/has-this") is None  # without a network


@pytest.mark.parametrize(
    ("modules", "model", "left_out"),
    [
        (None, "BertModel", None),
        (None, "BertForMaskedLM", None),
        (None, "BertForSequenceClassification", r"classifier \(BertForSequenceClassification\)"),  # a reranker
        (("Transformer",), "BertModel", None),
        (("Transformer", "Dense"), "BertModel", "Dense"),  # a ColBERT
        (("MLMTransformer", "SpladePooling"), "BertForMaskedLM", "SpladePooling"),
    ],
)
def test_trained_layers_that_are_left_out_are_named(
    backbone_folder, sentence_encoder, caplog, modules, model, left_out
):
    folder = backbone_folder("bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [model]}))
    if modules:
        shutil.copy(sentence_encoder(None, modules) / "modules.json", folder)
    Ranker.from_backbone(folder, "bi")
    said = [record.getMessage() for record in caplog.records if "only its transformer is taken" in record.getMessage()]
    assert bool(said) == bool(left_out)
    assert not left_out or re.search(f"not its {left_out}: train", said[0])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"modules.json": "[{"}, "modules.json cannot be read"),
        ({"modules.json": "{}"}, "modules.json holds a dict, not a list"),
        ({"modules.json": '[{"type": "x.Pooling", "path": "../other"}]'}, "a folder outside of its own, ../other"),
        (
            {"modules.json": '[{"type": "x.Pooling", "path": "2_Pooling"}]'},
            "2_Pooling/config.json, which does not exist",
        ),
        ({"1_Pooling/config.json": "mean"}, "1_Pooling/config.json cannot be read"),
        ({"config_sentence_transformers.json": b"\xff"}, "config_sentence_transformers.json cannot be read"),
    ],
)
def test_damaged_files(sentence_encoder, damage, message):
    folder = sentence_encoder(OLD)
    for name, content in damage.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=message) as error:
        sentence_vectors(folder)
    assert str(folder) in str(error.value)
    assert len(str(error.value).splitlines()) == 1
