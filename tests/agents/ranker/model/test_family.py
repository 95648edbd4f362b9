"""Options against checkpoints: what contradicts a model file, what this encoder cannot be, what `.opt` remembers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from parlai.agents.ranker.model.family import build_text_config
from parlai.core.agents import create_agent
from parlai.core.opt import Opt
from parlai.scripts.train_model import TrainModel

from polyencoder import Ranker
from polyencoder.checkpoint import read_model_file
from polyencoder.errors import CheckpointError, ConfigError, InputError
from tests.agents.flag_tables import message_of
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

MODELS = ["biencoder", "polyencoder", "crossencoder"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stored", MODELS)
def test_a_model_file_of_another_architecture(model, stored, trained, make_agent, task):
    path, _ = trained(stored)
    if model == stored:
        assert make_agent(model, model_file=path, **task).ranker
        return
    with pytest.raises(CheckpointError) as error:
        make_agent(model, model_file=path, **task)
    message = message_of(error)
    assert message.startswith(f"--model-file {path} holds a {stored}, not a {model}: ")
    assert f"use -m {stored}" in message
    assert f"--init-model {path}" in message


@pytest.mark.parametrize(
    ("model", "flag", "value", "stored"),
    [
        ("biencoder", "embedding_size", 64, 32),
        ("crossencoder", "ffn_size", 32, 64),
        ("polyencoder", "poly_n_codes", 7, 4),
        ("polyencoder", "poly_attention_type", "sqrt", "basic"),
        ("biencoder", "reduction_type", "max", "mean"),
        ("polyencoder", "output_scaling", 0.5, 1.0),
    ],
)
def test_an_option_against_the_model_file(model, flag, value, stored, trained, make_agent, task):
    path, _ = trained(model)
    with pytest.raises(CheckpointError) as error:
        make_agent(model, model_file=path, **{flag: value}, **task)
    message = message_of(error)
    assert message.startswith(f"--{flag.replace('_', '-')} {value} contradicts --model-file {path}, which was trained ")
    assert f"with {stored}" in message
    assert "leave the flag out" in message
    make_agent(model, model_file=path, **{flag: stored}, **task)  # a flag may repeat the file's value


def test_a_size_against_the_initial_model(trained, make_agent):
    path, _ = trained("biencoder")
    with pytest.raises(CheckpointError, match=r"^--n-layers 3 contradicts --init-model .*, which was trained with 1: "):
        make_agent("polyencoder", init_model=str(path), n_layers=3)
    make_agent("polyencoder", init_model=str(path), n_layers=1, poly_n_codes=7)  # codes are the new model's own


def test_codes_are_those_of_the_initial_poly_encoder(trained, make_agent, task):
    path, _ = trained("polyencoder")
    first = make_agent("polyencoder", model_file=path, **task)
    options = {"model": "polyencoder", "init_model": str(path), "loglevel": "error", **task}
    agent = create_agent(TrainModel.setup_args().parse_kwargs(**options))
    assert agent.ranker.config.n_codes == agent.opt["poly_n_codes"] == 4  # by default there are 64
    assert agent.ranker.codes.codes.equal(first.ranker.codes.codes)
    assert make_agent("polyencoder", init_model=str(path), poly_n_codes=7).ranker.config.n_codes == 7
    of_another_kind = create_agent(TrainModel.setup_args().parse_kwargs(**options, polyencoder_type="n_first"))
    assert of_another_kind.ranker.config.n_codes == of_another_kind.opt["poly_n_codes"] == 64


def test_lengths_of_texts_may_be_changed_at_any_time(trained, make_agent, task):
    agent = make_agent("biencoder", model_file=trained("biencoder")[0], text_truncate=20, label_truncate=9, **task)
    assert agent.ranker.config.text.text_truncate == agent.dict.text.config.text_truncate == 20
    assert agent.ranker.config.text.label_truncate == 9


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"embedding_size": 30, "n_heads": 4}, "dim is 30, which is not a multiple of n_heads, 4"),
        ({"text_truncate": 60, "label_truncate": 8, "n_positions": 40}, "text_truncate"),
    ],
)
def test_sizes_that_cannot_be(options, problem, make_agent):
    with pytest.raises(ConfigError) as error:
        make_agent("polyencoder", **options)
    assert problem in message_of(error)


@pytest.mark.parametrize("model", MODELS)
def test_the_model_file_says_what_it_is(model, trained):
    path, _ = trained(model)
    config, _ = read_model_file(path)
    opt = Opt.load(f"{path}.opt")
    assert opt["model"] == model
    assert opt["n_layers"] == config.backbone["num_hidden_layers"] == 1
    assert opt["embedding_size"] == config.backbone["hidden_size"] == 32
    assert config.text.text_truncate == opt["text_truncate"] == 48
    json.loads(config.to_json())


def test_another_model_with_the_options_of_one_is_made_like_it(backbone_folder, make_agent, task, tmp_path):
    """Flags of the first hold for the second; an encoder has other defaults."""
    flags = {"dropout": 0.3, "learn_embeddings": True, "context_prompt": "hi "}
    options = {"backbone": str(backbone_folder("bert")), "text_truncate": 24, "label_truncate": 12, "dict_file": None}
    first = make_agent("biencoder", **options, **flags)
    first.opt.save(f"{tmp_path}/one.opt")
    saved = {"init_opt": f"{tmp_path}/one.opt", "allow_missing_init_opts": True, "loglevel": "error", **task}
    another = create_agent(TrainModel.setup_args().parse_kwargs(**saved))
    assert another.ranker.config == first.ranker.config
    assert first.ranker.config.backbone["hidden_dropout_prob"] == 0.3
    assert first.ranker.config.text.context_prompt == "hi "
    trained = [[tensor.requires_grad for tensor in agent.ranker.parameters()] for agent in (first, another)]
    assert trained[0] == trained[1]
    assert all(trained[0])


def test_a_ranker_is_no_backbone(make_ranker, make_agent, tmp_path):
    make_ranker("bi").save_pretrained(tmp_path / "ranker")
    with pytest.raises(ConfigError, match="ranker: is a ranker; to start from it give --init-model .*/ranker$"):
        make_agent("biencoder", backbone=str(tmp_path / "ranker"))


@pytest.mark.parametrize(
    ("flags", "lengths"),
    [
        ({}, (360, 72)),
        ({"truncate": 20}, (20, 20)),
        ({"truncate": 20, "text_truncate": 90}, (90, 20)),
        ({"truncate": -1}, (360, 72)),
    ],
)
def test_truncate_stands_in_for_the_lengths_that_are_not_given(flags, lengths):
    opt = {"text_truncate": 360, "label_truncate": 72, "truncate": 1024, "history_size": 20, **flags, "override": flags}
    config = build_text_config(opt, {})
    assert (config.text_truncate, config.label_truncate) == lengths


def test_fixed_candidates_without_a_file_or_a_model(make_agent):
    with pytest.raises(InputError, match="give --fixed-candidates-path"):
        make_agent("biencoder", eval_candidates="fixed")


# ---- what a model does with its outputs, where no flag says so


@pytest.fixture
def sentence_encoder(backbone_folder, tmp_path) -> Path:
    """A tiny BERT with the files of a sentence encoder."""
    folder = shutil.copytree(backbone_folder("bert"), tmp_path / "encoder")
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{name}"}
        for path, name in (("", "Transformer"), ("1_Pooling", "Pooling"))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 16, "pooling_mode": "mean"}))
    return folder


def as_given(**options):
    """An agent of the options alone, without the short lengths of these tests."""
    words = {"task": "selection:sample", "loglevel": "error", "no_cuda": True, **options}
    return create_agent(TrainModel.setup_args().parse_kwargs(**words))


@pytest.mark.parametrize("model", ["biencoder", "crossencoder"])
def test_default_lengths_shrink_to_what_the_backbone_takes(backbone_folder, model):
    agent = as_given(model=model, backbone=str(backbone_folder("bert")))
    config = agent.ranker.config.text
    assert config == agent.dict.text.config
    assert (agent.opt["text_truncate"], agent.opt["label_truncate"]) == (config.text_truncate, config.label_truncate)
    assert config.longest_context + (config.label_truncate if model == "crossencoder" else 0) <= 40


def test_a_trained_reranker_reads_passages(make_reranker):
    agent = as_given(model="crossencoder", backbone=str(make_reranker("bert")))
    assert (agent.opt["text_truncate"], agent.opt["label_truncate"]) == (16, 64)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_start_keeps_its_lengths_unless_flags_give_others(kind, make_reranker, tmp_path):
    path = tmp_path / "start"
    if kind == "file":
        as_given(model="crossencoder", backbone=str(make_reranker("bert")), history_size=3).save(str(path))
    else:
        ranker = Ranker.from_backbone(make_reranker("bert"), "cross", device="cpu", text={"history_size": 3})
        ranker.save_pretrained(path)
    for model, flags, lengths in (
        ("crossencoder", {}, (16, 64)),
        ("biencoder", {"text_truncate": 20}, (20, 64)),
        ("crossencoder", {"truncate": 24}, (24, 24)),
    ):
        agent = as_given(model=model, init_model=str(path), **flags)
        config = agent.ranker.config
        assert (config.text.text_truncate, config.text.label_truncate) == lengths
        assert config.pair_truncate == (64 if model == "crossencoder" else None)
        assert (agent.opt["text_truncate"], agent.opt["label_truncate"]) == lengths
        assert config.text.history_size == agent.opt["history_size"] == agent.histsz == 3


SHORT = {"text_truncate": 20, "label_truncate": 10, "dict_file": None}


@mostly_long(
    ("model", "flags", "expected"),
    [
        ("biencoder", {}, ("mean", True, 4.47)),
        ("polyencoder", {}, ("mean", True, 4.47)),
        ("crossencoder", {}, ("mean", False, 1.0)),
        ("biencoder", {"reduction_type": "first"}, ("first", True, 4.47)),
        ("biencoder", {"normalize_sent_emb": False}, ("mean", False, 1.0)),
        ("biencoder", {"output_scaling": 2.0}, ("mean", True, 2.0)),
        ("biencoder", {"output_scaling": "auto"}, ("mean", False, 1.0)),
    ],
    quick=4,
)
def test_a_sentence_encoders_own_pooling(model, flags, expected, sentence_encoder, make_agent, task):
    agent = make_agent(model, backbone=str(sentence_encoder), **{**task, **SHORT, **flags})
    config = agent.ranker.config
    assert (config.reduction, config.normalize, config.output_scaling) == expected
    assert (agent.opt["reduction_type"], agent.opt["normalize_sent_emb"], agent.opt["output_scaling"]) == expected


def test_plain_encoders_have_the_papers(backbone_folder, make_agent, task):
    config = make_agent("biencoder", backbone=str(backbone_folder("bert")), **{**task, **SHORT}).ranker.config
    assert (config.reduction, config.normalize, config.output_scaling) == ("first", False, 1.0)


def test_a_model_that_starts_from_another_does_the_same_with_its_outputs(make_agent, tmp_path):
    start = tmp_path / "start"
    make_agent("biencoder", reduction_type="mean", normalize_sent_emb=True, output_scaling=3.0).save(str(start))
    config = make_agent("polyencoder", init_model=str(start)).ranker.config
    assert (config.reduction, config.normalize, config.output_scaling) == ("mean", True, 3.0)
    flags = {"reduction_type": "first", "normalize_sent_emb": False, "output_scaling": 1.0}
    config = make_agent("polyencoder", init_model=str(start), **flags).ranker.config
    assert (config.reduction, config.normalize, config.output_scaling) == ("first", False, 1.0)
