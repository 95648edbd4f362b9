"""Each flag of `--help` is followed, or is an error that says why not."""

from __future__ import annotations

import json
import shutil
from functools import partial

import pytest
from parlai.agents.ranker import flags
from parlai.agents.ranker.model import optimization
from parlai.agents.ranker.settings import check_read
from parlai.core.agents import create_agent
from parlai.core.opt import Opt
from parlai.scripts.train_model import TrainModel

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.settings.training import TrainingConfig
from tests.agents.flag_tables import FOLLOWED, OURS, assert_in_one_part, assert_not_supported, flags_of, message_of
from tests.parameters import mostly_long

MODELS = ["biencoder", "polyencoder", "crossencoder", "lateencoder"]


# ---- the table


@pytest.mark.parametrize("model", MODELS)
def test_every_flag_of_an_agent_is_in_the_table(model):
    table = [flags.RANKER_FIELDS.values(), flags.TEXT_FIELDS, flags.OF_THE_ENCODER, flags.OF_THE_VOCABULARY]
    assert_in_one_part(model, [*table, flags.UNSUPPORTED])


def test_the_table_has_no_flag_that_is_none():
    everything = {name for model in MODELS for name in flags_of(model=model)}
    listed = FOLLOWED | set(flags.RANKER_FIELDS.values()) | set(flags.OF_THE_ENCODER)
    assert listed | set(flags.OF_THE_VOCABULARY) | set(flags.UNSUPPORTED) <= everything


def test_the_defaults_of_unsupported_flags_mean_that_they_are_not_used():
    defaults = flags_of(model="polyencoder")
    for name, (allowed, _) in flags.UNSUPPORTED.items():
        if name not in ("rank_candidates", "share_word_embeddings"):  # which count if they are given
            assert defaults[name].default in allowed, name


# ---- not supported


@pytest.mark.parametrize("name", flags.UNSUPPORTED)
def test_what_is_not_supported_is_an_error_that_names_it(name, make_agent):
    assert_not_supported(name, partial(make_agent, "polyencoder"))


def test_what_is_not_used_may_be_said(make_agent):
    options = {name: allowed[-1] for name, (allowed, _) in flags.UNSUPPORTED.items() if allowed[-1] is not None}
    assert make_agent("biencoder", **options, num_epochs=1.0).ranker


def test_word_embeddings_are_shared_with_all_of_the_encoders(make_agent):
    assert make_agent("biencoder", share_word_embeddings=True, share_encoders=True).ranker


@pytest.mark.parametrize("model", ["polyencoder", "crossencoder"])
def test_another_half_precision_is_accepted_with_a_warning(model, make_agent, monkeypatch):
    warnings = []
    monkeypatch.setattr(optimization.logging, "warning", warnings.append)
    agent = make_agent(model, fp16_impl="mem_efficient")
    assert [line for line in warnings if "--fp16-impl mem_efficient" in line]
    assert agent.opt["fp16_impl"] == "safe"


def test_data_parallel_is_accepted_and_names_the_launcher(make_agent, respond, labels, monkeypatch):
    warnings = []
    monkeypatch.setattr(flags.logging, "warning", warnings.append)
    agent = make_agent("polyencoder", data_parallel=True)
    (line,) = warnings
    assert "--data-parallel true: this process uses one device" in line
    assert "torchrun -m parlai.agents.ranker.launch" in line
    assert not agent.opt["data_parallel"]
    respond(agent, *[{"text": f"hello {i}", "labels": [labels[i]]} for i in range(3)])
    assert agent.global_metrics.report()["mean_loss"].value() > 0


@pytest.mark.parametrize(
    ("model", "title"), [("crossencoder", "cross-encoder"), ("lateencoder", "late-interaction encoder")]
)
def test_what_reads_pairs_does_not_score_candidates_vectors(model, title, make_agent):
    with pytest.raises(ConfigError, match=f"--encode-candidate-vecs true: the scores of a {title} are not those of"):
        make_agent(model, encode_candidate_vecs=True)


@pytest.mark.parametrize(
    "flags_read", [{"optimizer": "sgd", "betas": [0.9, 0.999]}, {"optimizer": "qhadam", "betas": (0.8, 0.9)}]
)
def test_flags_of_parlai_itself_are_left_to_it(flags_read):
    """An option file, given with `--init-opt`, has all of them."""
    check_read(Opt({**flags_read, "override": flags_read}), TrainingConfig, defaults={"betas": (0.9, 0.999)})


@pytest.mark.parametrize(
    ("unread", "missing"),
    [
        ({"distillation_weight": 0.3}, "0.3 is read only with --teacher-model: give that too, or leave it out"),
        ({"teacher_scores": "some.sqlite"}, "some.sqlite is read only with --teacher-model"),
        ({"hard_negatives_every": 7}, "7 is read only with --hard-negatives"),
        ({"max_positive_similarity": 0.5}, "0.5 is read only with --hard-negatives"),
        ({"final_learning_rate": 1e-6}, "1e-06 is read only with --lr-scheduler linear or cosine"),
        ({"rerank_k": 3}, "3: is an option of searches, so it needs --index"),
    ],
)
def test_a_flag_that_nothing_reads_is_an_error(unread, missing, make_agent):
    (name,) = unread
    with pytest.raises(ConfigError, match=f"^--{name.replace('_', '-')} {missing}"):
        make_agent("biencoder", **unread)


@pytest.mark.parametrize("measure", [{"area_under_curve_digits": 3}, {"area_under_curve_class": ["yes"]}])
def test_a_measure_of_classifiers_is_an_error(measure):
    """A flag of ParlAI's eval_model."""
    (name,) = measure
    with pytest.raises(
        ConfigError, match=f"^--{name.replace('_', '-')} .*: is a measure of classifiers, not of rankers"
    ):
        flags.check_supported(Opt(override=measure))


def test_a_default_that_nothing_reads_may_be_given(make_agent):
    same = {"distillation_weight": 0.5, "hard_negatives_every": 500, "final_learning_rate": 0.0}
    assert make_agent("biencoder", **same).ranker
    assert make_agent("biencoder", hard_negatives=2, hard_negatives_every=7, num_epochs=1.0).ranker


# ---- of an encoder that is there


@pytest.fixture
def another(tmp_path, make_agent, task):
    """The file of a biencoder in the test's own folder, and the options that load it."""
    path = tmp_path / "another"
    make_agent("biencoder", reduction_type="mean", dropout=0.2, dict_tokenizer="bpe").save(str(path))
    return path


OTHERS = {"embedding_size": 48, "n_layers": 3, "n_encoder_layers": 3, "n_heads": 1, "ffn_size": 40, "n_positions": 500}
OTHERS |= {"activation": "relu", "dict_tokenizer": "re", "dict_maxtokens": 77, "dict_lower": False}


@pytest.mark.slow
@pytest.mark.parametrize("where", ["model_file", "init_model", "backbone"])
def test_an_encoder_keeps_its_sizes_and_its_vocabulary(where, another, make_agent, backbone_folder, task):
    origin = backbone_folder("bert") if where == "backbone" else another
    short = {"text_truncate": 20, "label_truncate": 10, "dict_file": None} if where == "backbone" else {}
    for name, value in OTHERS.items():
        with pytest.raises(CheckpointError) as error:
            make_agent("biencoder", **{**task, **short, where: str(origin), name: value})
        message = message_of(error)
        assert message.startswith(f"--{name.replace('_', '-')} {value}")
        assert f"--{where.replace('_', '-')} {origin}" in message
        assert "leave the flag out" in message
        assert where != "backbone" or "another model file" not in message  # there is none yet


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "modernbert"])
def test_what_is_so_may_be_said_of_any_family(kind, backbone_folder, make_agent, task):
    sizes = {"embedding_size": 16, "n_layers": 2, "n_heads": 2, "ffn_size": 32}
    sizes["n_positions"] = 38 if kind == "roberta" else 40  # which counts from the padding id + 1
    options = {**task, **sizes, "text_truncate": 20, "label_truncate": 10, "dict_file": None}
    assert make_agent("biencoder", backbone=str(backbone_folder(kind)), **options).ranker
    with pytest.raises(CheckpointError, match="--n-heads 4 contradicts --backbone .*, whose encoder has 2: "):
        make_agent("biencoder", backbone=str(backbone_folder(kind)), **{**options, "n_heads": 4})


@pytest.mark.parametrize("where", ["model_file", "init_model"])
def test_dropout_is_followed(where, another, make_agent, task):
    def rates(agent) -> tuple[float, float]:
        config = agent.ranker.config.backbone
        assert agent.ranker.context_tower.model.config.hidden_dropout_prob == config["hidden_dropout_prob"]
        assert agent.opt["dropout"] == config["hidden_dropout_prob"]
        assert agent.opt["attention_dropout"] == config["attention_probs_dropout_prob"]
        return config["hidden_dropout_prob"], config["attention_probs_dropout_prob"]

    source = {where: str(another), **task}
    assert rates(make_agent("biencoder", **source, dropout=0.3, attention_dropout=0.4)) == (0.3, 0.4)
    if where == "model_file":
        assert rates(make_agent("biencoder", **source)) == (0.2, 0.0)


def test_dropout_of_an_initial_model_is_its_own_unless_given(another):
    options = {"model": "biencoder", "task": "selection:sample", "text_truncate": 40, "label_truncate": 16}
    agent = create_agent(TrainModel.setup_args().parse_kwargs(init_model=str(another), loglevel="error", **options))
    assert agent.ranker.config.backbone["hidden_dropout_prob"] == agent.opt["dropout"] == 0.2


@pytest.mark.slow
def test_embeddings_of_a_backbone_learn_if_one_says_so(backbone_folder, make_agent, task):
    options = {**task, "text_truncate": 20, "label_truncate": 10, "dict_file": None}
    options["backbone"] = str(backbone_folder("bert"))
    for learning, learns in (({}, False), ({"learn_embeddings": True}, True), ({"type_optimization": "all"}, True)):
        embeddings = make_agent("biencoder", **options, **learning).ranker.context_tower.get_embeddings()
        assert all(parameter.requires_grad == learns for parameter in embeddings.parameters())
    with pytest.raises(ConfigError, match="--learn-embeddings True contradicts --type-optimization top_layer"):
        make_agent("biencoder", **options, learn_embeddings=True, type_optimization="top_layer")
    with pytest.raises(ConfigError, match="--learn-embeddings True contradicts --lora"):
        make_agent("biencoder", **options, learn_embeddings=True, lora=2)


# ---- where things come from


def test_an_initial_model_that_is_not_there(make_agent, tmp_path):
    with pytest.raises(CheckpointError, match=r"^--init-model .*nowhere: there is no such file"):
        make_agent("biencoder", init_model=str(tmp_path / "nowhere"))


@pytest.mark.slow
def test_an_encoder_comes_from_one_place(another, make_agent, backbone_folder, task):
    backbone = str(backbone_folder("bert"))
    with pytest.raises(CheckpointError, match="--backbone .* contradicts --init-model .*another: both name the source"):
        make_agent("polyencoder", init_model=str(another), backbone=backbone)
    with pytest.raises(CheckpointError, match="--backbone .* contradicts --model-file .* was trained with none"):
        make_agent("biencoder", model_file=str(another), backbone=backbone, **task)


def test_a_run_goes_on_with_its_own_command(backbone_folder, make_agent, tmp_path, task):
    options = {
        **task,
        "backbone": str(backbone_folder("bert")),
        "text_truncate": 20,
        "label_truncate": 10,
        "n_heads": 2,
    }
    make_agent("biencoder", **options, dict_file=str(tmp_path / "new.dict")).save(str(tmp_path / "new"))
    assert make_agent("biencoder", model_file=str(tmp_path / "new"), **options).ranker


@pytest.mark.slow
def test_prompts_are_the_encoders_or_the_flags(backbone_folder, make_agent, tmp_path, task):
    folder = shutil.copytree(backbone_folder("bert"), tmp_path / "prompted")
    config = {"prompts": {"query": "where ", "document": "here "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    options = {"backbone": str(folder), "text_truncate": 20, "label_truncate": 10, "candidate_prompt": "", **task}
    agent = make_agent("biencoder", **options, dict_file=str(tmp_path / "new.dict"))
    agent.save(str(tmp_path / "new"))
    assert (agent.opt["context_prompt"], agent.opt["candidate_prompt"]) == ("where ", "")
    text = make_agent("biencoder", model_file=str(tmp_path / "new")).dict.text
    assert text.tokenize_context(["is it"]) == [2, *text.tokenize(["where is it"])[0], 3]
    with pytest.raises(CheckpointError, match="--context-prompt what contradicts .*new, which was trained with where "):
        make_agent("biencoder", model_file=str(tmp_path / "new"), context_prompt="what")
    del options["text_truncate"]  # as long as the encoder takes
    long = {"model": "biencoder", "context_prompt": "where is it ? " * 12, "dict_file": str(tmp_path / "other.dict")}
    with pytest.raises(ConfigError, match="context_prompt has .* tokens, which leaves no room for a text in 40"):
        create_agent(TrainModel.setup_args().parse_kwargs(**{**options, **long, "loglevel": "error"}))


@pytest.mark.slow
def test_a_dictionary_of_another_model(another, make_agent, backbone_folder, tmp_path):
    shutil.copy(f"{another}.dict", tmp_path / "same.dict")
    shutil.copy(f"{another}.tokenizer.json", tmp_path / "same.tokenizer.json")
    file = {"dict_file": str(tmp_path / "same.dict")}
    make_agent("polyencoder", init_model=str(another), **file, person_tokens=True).save(str(tmp_path / "longer"))
    assert make_agent("polyencoder", model_file=str(tmp_path / "longer"), **file).ranker  # the file has no such tokens
    shutil.copy(backbone_folder("bert") / "tokenizer.json", tmp_path / "same.tokenizer.json")
    with pytest.raises(CheckpointError, match="--dict-file .*same.dict contradicts --init-model .*another, which has"):
        make_agent("polyencoder", init_model=str(another), **file)


@pytest.mark.slow
def test_special_tokens_are_the_tokenizers(make_agent, tmp_path, task):
    assert make_agent("biencoder", dict_endtoken="[SEP]").dict.end_token == "[SEP]"
    assert make_agent("biencoder", dict_endtoken="__start__").dict.end_token == "[CLS]"  # the paper's [S] on both sides
    make_agent("biencoder", dict_endtoken="__start__").save(str(tmp_path / "model"))
    again = make_agent("biencoder", model_file=str(tmp_path / "model"), dict_endtoken="__start__", **task)
    assert again.dict.end_token == "[CLS]"
    with pytest.raises(ConfigError, match="--dict-nulltoken <pad>: the tokenizer has .*PAD.* for it; leave it out"):
        make_agent("biencoder", dict_nulltoken="<pad>")


def test_a_vocabulary_that_is_trained_is_byte_level_bpe(make_agent, tmp_path):
    with pytest.raises(ConfigError, match="--dict-tokenizer gpt2: a vocabulary trained on a task is byte-level BPE"):
        make_agent("biencoder", dict_tokenizer="gpt2")


# ---- without a command line


@pytest.mark.slow
@mostly_long("model", MODELS[1:] + MODELS[:1], quick=2)
def test_an_agent_made_in_python_has_the_defaults_of_all_flags(model, dictionary, respond, labels):
    agent = create_agent(Opt({"model": model, "dict_file": dictionary, "datapath": "data", "embedding_size": 32}))
    ours = {name: action.default for name, action in flags_of(model=model).items() if name not in flags_of()}
    texts = {"betas", "adafactor_eps", "nus"}  # whose defaults are still to be parsed
    followed = FOLLOWED | OURS - {*flags.RANKER_FIELDS.values(), *flags.TEXT_FIELDS, *flags.OF_THE_ENCODER}
    expected = {name: value for name, value in ours.items() if name in followed and name not in texts}
    assert {name: agent.opt[name] for name in expected} == expected
    assert agent.ranker.config.backbone["hidden_size"] == 32
    (reply,) = respond(agent, {"text": "where is the owl ?", "label_candidates": labels})
    assert reply["text"] in labels
