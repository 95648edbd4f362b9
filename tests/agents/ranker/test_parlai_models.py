"""Models that ParlAI's own agents trained, under ours: the same scores, and never written over."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from parlai.core.opt import Opt
from parlai.scripts.train_model import TrainModel

from polyencoder.config import RankerConfig
from polyencoder.errors import CheckpointError
from polyencoder.importing import import_parlai, is_parlai_model, parlai_text, read_parlai_model
from polyencoder.models import CrossEncoder
from polyencoder.ranker import Ranker

THEIRS = {"biencoder": "transformer/biencoder", "polyencoder": "transformer/polyencoder"}
THEIRS["crossencoder"] = "transformer/crossencoder"
TRAINING = {"embedding_size": 32, "ffn_size": 64, "n_layers": 2, "n_heads": 2, "n_positions": 64, "n_segments": 2}
TRAINING |= {"variant": "xlm", "activation": "gelu", "learn_positional_embeddings": True, "embeddings_scale": False}
TRAINING |= {"share_encoders": False, "reduction_type": "first", "output_scaling": 1.0, "poly_n_codes": 5}
TRAINING |= {"text_truncate": 14, "label_truncate": 8, "history_size": 3, "dict_maxtokens": 60, "dict_lower": True}
TRAINING |= {"dict_tokenizer": "bpe", "lr_scheduler": "none", "optimizer": "adam", "learningrate": 1e-2}
TRAINING |= {"candidates": "inline", "eval_candidates": "inline", "max_train_steps": 8, "batchsize": 8, "seed": 1}
TRAINING |= {"short_final_eval": True, "validation_max_exs": 8, "validation_every_n_secs": 1e9, "loglevel": "error"}

KINDS = [
    ("biencoder", {}),
    ("biencoder", {"reduction_type": "mean", "output_scaling": 0.06, "share_word_embeddings": False}),
    ("polyencoder", {}),
    ("polyencoder", {"output_scaling": 0.06, "codes_attention_type": "sqrt", "poly_attention_type": "sqrt"}),
    ("polyencoder", {"polyencoder_type": "n_first", "reduction_type": "mean", "n_segments": 0}),
    ("polyencoder", {"learn_positional_embeddings": False, "embeddings_scale": True, "dict_tokenizer": "re"}),
    ("polyencoder", {"person_tokens": True, "force_fp16_tokens": True, "delimiter": " | "}),
    ("crossencoder", {}),
    ("crossencoder", {"reduction_type": "mean", "output_scaling": 0.06, "truncate": 12, "text_truncate": None}),
]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory, task):
    """(model, **options) -> the file of a model that ParlAI's agent trained for a few steps."""
    made = {}

    def make(model, **options):
        key = f"{model} {sorted(options.items())}"
        if key not in made:
            path = tmp_path_factory.mktemp("theirs") / "model"
            given = {**TRAINING, "model": THEIRS[model], "model_file": str(path), **task, **options}
            given = {name: value for name, value in given.items() if value is not None}
            if model != "polyencoder":
                given.pop("poly_n_codes")
            torch.manual_seed(0)
            TrainModel.main(**given)
            made[key] = path
        return made[key]

    return make


@pytest.fixture
def both(theirs, make_agent):
    """(model, kind's options, **options) -> ParlAI's agent and ours on the same file."""

    def make(model, trained_with, **options):
        path = theirs(model, **trained_with)
        names = (THEIRS[model], model)
        return [
            make_agent(name, model_file=path, datatype="valid", return_cand_scores=True, **options) for name in names
        ]

    return make


def scores(replies):
    pairs = [zip(reply["text_candidates"], map(float, reply["sorted_scores"]), strict=True) for reply in replies]
    return [dict(texts) for texts in pairs]


def digests(path):
    return {file.name: hashlib.sha256(file.read_bytes()).digest() for file in path.parent.iterdir()}


def episode(*turns, candidates):
    return [{"text": text, "eval_labels": candidates[:1], "label_candidates": candidates} for text in turns]


@pytest.mark.parametrize(("model", "options"), KINDS)
def test_the_same_scores_and_metrics(model, options, theirs, both, respond, evaluate, labels):
    path = theirs(model, **options)
    before = digests(path)
    candidates = [*labels, "hen , hen ? hen ! hen ; hen & pig", "Ωμέγα ΟΔΟΣ", "unseen words 😀"]
    episodes = [
        episode("where is the cat ?", candidates=candidates),
        episode("Hello THERE\nmy friend", "where\n\nis the dog ?", "tell me", "and __newln__ ?", candidates=candidates),
        episode("word " * 20 + "where is the unknowable animal, cat?", candidates=candidates),
    ]
    for one in episodes:
        expected, found = (scores(respond(agent, one))[0] for agent in both(model, options))
        assert found == pytest.approx(expected, abs=1e-4 * max(map(abs, expected.values())))
        assert len(set(expected.values())) > 1
    reports = [evaluate(path, model=name) for name in (THEIRS[model], model)]
    for metric in ("hits@1", "hits@5", "mrr", "loss"):
        assert reports[1][metric] == pytest.approx(reports[0][metric], abs=1e-4)
    assert digests(path) == before


def test_reduction_max_where_parlai_pads_nothing(both, respond):
    candidates = ["cat", "dog", "cow"]
    words = episode("cat", candidates=candidates)
    agents = both("biencoder", {"reduction_type": "max", "dict_tokenizer": "re"})
    expected, found = (scores(respond(agent, words))[0] for agent in agents)
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_user_of_the_library_gets_the_same_ranks(theirs, both, respond, labels):
    path = theirs("polyencoder")
    ranker = Ranker(*import_parlai(path), device="cpu")
    reply = respond(both("polyencoder", {})[0], episode("where is the owl ?", candidates=labels))[0]
    expected = scores([reply])[0]
    found = ranker.rank(["where is the owl ?"], labels, top_k=len(labels))
    assert {match[1]: match[2] for match in found} == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("model", ["polyencoder", "crossencoder"])
def test_training_goes_on_in_a_file_of_our_own(model, theirs, tmp_path, task, evaluate):
    source = theirs("polyencoder")
    before = digests(source)
    options = {"init_model": str(source), "model_file": str(tmp_path / "new"), "n_positions": 64, "text_truncate": 20}
    options |= {"embedding_size": 32, "ffn_size": 64, "n_layers": 2, "n_heads": 2, "label_truncate": 16}
    options |= {"batchsize": 8, "num_epochs": 1.0, "loglevel": "error", "model": model, **task}
    TrainModel.main(**options)
    assert digests(source) == before
    assert (tmp_path / "new.tokenizer.json").is_file()
    assert not is_parlai_model(tmp_path / "new")
    config = RankerConfig.from_json(torch.load(tmp_path / "new", weights_only=True)["ranker_config"], origin="new")
    assert config.text.truncation == "tokens"
    assert config.text.separator == "\n"
    assert 0 <= evaluate(tmp_path / "new")["hits@1"] <= 1


def test_training_on_parlais_own_file_is_refused(theirs, task):
    source = theirs("polyencoder")
    before = digests(source)
    with pytest.raises(CheckpointError, match="start from this one with --init-model"):
        TrainModel.main(model="polyencoder", model_file=str(source), num_epochs=1.0, loglevel="error", **task)
    assert digests(source) == before


def test_lengths_may_be_given(theirs, make_agent):
    path = theirs("polyencoder")
    assert make_agent("polyencoder", model_file=path, datatype="valid").dict.text.config.text_truncate == 14
    shorter = make_agent("polyencoder", model_file=path, datatype="valid", text_truncate=7, history_size=1)
    assert (shorter.dict.text.config.text_truncate, shorter.dict.text.config.history_size) == (7, 1)


def test_lengths_never_exceed_the_positions(copy):
    """ParlAI's own number of positions is that of the longest text, without the start and end tokens around it."""
    path = copy("polyencoder")
    opt = json.loads(path.with_suffix(".opt").read_bytes())
    for options, expected in [
        ({"n_positions": None, "truncate": -1}, (12, 8)),
        ({"n_positions": 64, "text_truncate": -1, "label_truncate": None, "truncate": -1}, (62, 64)),
        ({"n_positions": 64, "text_truncate": None, "label_truncate": 9, "truncate": 20}, (20, 9)),
        ({"n_positions": None, "text_truncate": -1, "label_truncate": 9, "truncate": -1}, (7, 9)),
        ({"n_positions": 40, "model": THEIRS["crossencoder"], "text_truncate": 50, "label_truncate": 9}, (29, 9)),
    ]:
        path.with_suffix(".opt").write_text(json.dumps({**opt, **options}))
        config = parlai_text(path)[1]
        assert (config.text_truncate, config.label_truncate) == expected


def test_another_architecture_is_named(theirs, make_agent):
    with pytest.raises(CheckpointError, match="holds a polyencoder, not a biencoder"):
        make_agent("biencoder", model_file=theirs("polyencoder"), datatype="valid")


@pytest.fixture
def copy(theirs, tmp_path):
    """(model, **options) -> a copy of such a model, to be damaged."""

    def make(model, **options):
        source = theirs(model, **options)
        for file in source.parent.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        return tmp_path / "model"

    return make


def test_missing_and_left_over_tensors_are_named(copy):
    path = copy("polyencoder")
    states = torch.load(path, weights_only=True)
    states["model"]["surplus"] = states["model"].pop("codes")
    torch.save(states, path)
    with pytest.raises(CheckpointError, match="codes is missing"):
        read_parlai_model(path)
    states["model"]["codes"] = states["model"]["surplus"]
    torch.save(states, path)
    with pytest.raises(CheckpointError, match="surplus has no place in this model"):
        read_parlai_model(path)


def test_the_dictionary_of_another_model(copy):
    path = copy("polyencoder")
    with open(f"{path}.dict", "a", encoding="utf-8") as file:
        file.write("one more\t1\n")
    with pytest.raises(CheckpointError, match=r"has embeddings of \d+ tokens, but .*model\.dict has \d+"):
        import_parlai(path)


def test_old_files(copy):
    """What torch before 1.6 wrote is no zip archive."""
    path = copy("crossencoder")
    expected = import_parlai(path)[0].state_dict()
    torch.save(torch.load(path, weights_only=True), path, _use_new_zipfile_serialization=False)
    model, _ = import_parlai(path)
    assert isinstance(model, CrossEncoder)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_what_could_run_code_is_named_and_not_read(copy, malicious_pickle):
    path = copy("polyencoder")
    torch.save({"model": {}, "opt": Opt({"a": 1})}, path)
    with pytest.raises(CheckpointError, match=r"it holds a parlai\.core\.opt\.Opt"):
        import_parlai(path)
    data, witness = malicious_pickle(2)
    path.write_bytes(data)
    with pytest.raises(CheckpointError):
        import_parlai(path)
    assert not witness.exists()


def test_other_models_are_named(copy):
    path = copy("polyencoder")
    opt = json.loads(path.with_suffix(".opt").read_bytes())
    for name in ("transformer/generator", "polyencoder", "transformer/ranker"):
        path.with_suffix(".opt").write_text(json.dumps({**opt, "model": name}))
        assert not is_parlai_model(path)
        with pytest.raises(CheckpointError, match=f"a '{name}' by its .opt file"):
            import_parlai(path)
    path.with_suffix(".opt").write_text(
        json.dumps({**opt, "model": "parlai.agents.transformer.polyencoder:PolyencoderAgent"})
    )
    assert is_parlai_model(path)


def test_shared_encoders_are_named(theirs):
    with pytest.raises(CheckpointError, match="--share-encoders True"):
        import_parlai(theirs("biencoder", share_encoders=True))
