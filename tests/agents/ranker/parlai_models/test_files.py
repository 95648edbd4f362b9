"""The files of models that ParlAI's own agents trained: read without running code, never written over, trained on."""

from __future__ import annotations

import json

import pytest
import torch
from parlai.core.agents import create_agent_from_model_file
from parlai.core.message import Message
from parlai.core.opt import Opt
from parlai.scripts.train_model import TrainModel

from polyencoder.config import RankerConfig
from polyencoder.errors import CheckpointError, ConfigError, PolyencoderError
from polyencoder.importing import import_parlai, is_parlai_model, read_parlai_text
from polyencoder.importing.parlai_model import read_parlai_model
from polyencoder.modeling.cross import CrossEncoder
from polyencoder.ranker import Ranker
from tests.agents.ranker.parlai_models.conftest import THEIRS, digests, episode, scores
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow


@mostly_long("model", ["biencoder", "polyencoder", "crossencoder"], quick=1)
def test_from_python_without_any_flag(model, theirs, labels, tmp_path):
    """ParlAI's options know none of our flags; they say `train`, which is not done here."""
    path = theirs(model)
    before = digests(path)
    agent = create_agent_from_model_file(str(path), {"model": model})
    agent.observe(Message({"text": "where is the cat ?", "label_candidates": labels, "episode_done": True}))
    assert agent.act()["text"] in labels
    with pytest.raises(CheckpointError, match="is ParlAI's own model, which training would overwrite"):
        agent.save(str(path))
    assert digests(path) == before
    agent.save(str(tmp_path / "own"))
    assert not is_parlai_model(tmp_path / "own")


@mostly_long("model", ["polyencoder", "crossencoder"], quick=1)
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


@pytest.mark.parametrize("marked", [False, True])
def test_commands_whose_datatype_is_that_of_the_training(marked, copy, make_agent, respond, labels, task):
    """`parlai eval_model` on the command line takes `--datatype train` from the model's options; so do others.

    Published models' options say besides what else only a training loop says.
    """
    path = copy("polyencoder")
    opt = json.loads(path.with_suffix(".opt").read_bytes())
    path.with_suffix(".opt").write_text(json.dumps(opt | ({"load_from_checkpoint": True} if marked else {})))
    agent = make_agent("polyencoder", model_file=path, datatype="train", load_from_checkpoint=marked)
    assert respond(agent, episode("where is the cat ?", candidates=labels))[0]["text"] in labels
    before = digests(path)
    with pytest.raises(CheckpointError, match="start from this one with --init-model"):
        TrainModel.main(model="polyencoder", model_file=str(path), num_epochs=1.0, loglevel="error", **task)
    assert digests(path).items() >= before.items()  # a marked one has begun to train: there is a record of it


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("use_memories", "its weights are for use_memories"),
        ("history_reversed", "history_reversed True is not supported"),
    ],
)
def test_a_model_that_cannot_be_imported_says_why(option, message, copy, make_agent):
    path = copy("biencoder")
    opt = json.loads(path.with_suffix(".opt").read_bytes())
    path.with_suffix(".opt").write_text(json.dumps(opt | {option: True}))
    with pytest.raises(PolyencoderError, match=message):
        make_agent("biencoder", model_file=path)


def test_split_lines_are_imported_where_turns_give_the_same_tokens(theirs, both, respond, labels):
    """ParlAI then counts lines; a ranker counts turns."""
    with pytest.raises(ConfigError, match=r"split_lines.* is not supported with a history_size"):
        import_parlai(theirs("biencoder", split_lines=True))
    options = {"split_lines": True, "history_size": -1}
    agent, _ = both("biencoder", options)
    (expected,) = scores(respond(agent, episode("is it\nthe owl\nor the cat ?", candidates=labels[:4])))
    ranker = Ranker.from_pretrained(theirs("biencoder", **options), device="cpu")
    actual = {match.text: match.score for match in ranker.rank(["is it\nthe owl\nor the cat ?"], labels[:4])}
    assert actual == pytest.approx(expected, abs=1e-4)


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
        ({"n_positions": 40, "model": THEIRS["crossencoder"], "text_truncate": 50, "label_truncate": 9}, (38, 9)),
    ]:
        path.with_suffix(".opt").write_text(json.dumps({**opt, **options}))
        config = read_parlai_text(path)[1]
        assert (config.text_truncate, config.label_truncate) == expected


def test_another_architecture_is_named(theirs, make_agent):
    with pytest.raises(CheckpointError, match="holds a polyencoder, not a biencoder"):
        make_agent("biencoder", model_file=theirs("polyencoder"), datatype="valid")


def test_missing_and_left_over_tensors_are_named(copy):
    path = copy("polyencoder")
    states = torch.load(path, weights_only=True)
    states["model"]["surplus"] = states["model"].pop("codes")
    torch.save(states, path)
    with pytest.raises(CheckpointError, match="codes is missing"):
        read_parlai_model(path)
    states["model"]["codes"] = states["model"]["surplus"]
    torch.save(states, path)
    with pytest.raises(CheckpointError, match="surplus is not a tensor of this model"):
        read_parlai_model(path)


def test_the_dictionary_of_another_model(copy):
    path = copy("polyencoder")
    with open(f"{path}.dict", "a", encoding="utf-8") as file:
        file.write("one more\t1\n")
    with pytest.raises(CheckpointError, match=r"has embeddings of \d+ tokens, but .*model\.dict has \d+"):
        import_parlai(path)


def test_old_files(copy):
    """Files that torch before 1.6 wrote are no zip archives."""
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
    for name in ("transformer/generator", "polyencoder", "bert_ranker/bi_encoder_ranker"):
        path.with_suffix(".opt").write_text(json.dumps({**opt, "model": name}))
        assert not is_parlai_model(path)
        with pytest.raises(CheckpointError, match=f"a '{name}' by its .opt file"):
            import_parlai(path)
    path.with_suffix(".opt").write_text(
        json.dumps({**opt, "model": "parlai.agents.transformer.polyencoder:PolyencoderAgent"})
    )
    assert is_parlai_model(path)


def test_a_model_whose_schedule_left_numbers_of_numpys(theirs, task, evaluate, tmp_path):
    """ParlAI's `invsqrt`: read without running any code, and trained on."""
    path = theirs("biencoder", lr_scheduler="invsqrt", warmup_updates=2)
    assert torch.as_tensor(Ranker.from_pretrained(path).score(["hello"], ["bye", "you"])).isfinite().all()
    assert evaluate(path, model="biencoder")["loss"] > 0
