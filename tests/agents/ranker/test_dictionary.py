"""ParlAI's dictionary around a tokenizer: trained once, saved beside the model, shared by clones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import parlai.utils.logging as logging
import pytest
import torch
from parlai.agents.ranker.dictionary import RankerDictionary
from parlai.scripts.build_dict import BuildDict
from transformers import AutoTokenizer

from polyencoder import Ranker
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.text.encoder import read_tokenizer

QUESTION = {"text": "where is the owl ?"}


def build(path: Path, task: dict, **options) -> Path:
    defaults = {**task, "dict_maxtokens": 400, "loglevel": "error"}
    BuildDict.main(model="biencoder", dict_file=str(path), **{**defaults, **options})
    return path


@pytest.fixture(scope="module")
def words(dictionary) -> RankerDictionary:
    return RankerDictionary({"dict_file": dictionary})


# ---- learning it


@pytest.mark.parametrize(
    ("model", "flags", "problem"),
    [
        ("biencoder", {"dict_minfreq": 5}, "--dict-minfreq 5 is not supported: "),
        ("biencoder", {"dict_tokenizer": "re"}, "--dict-tokenizer re: a vocabulary .* is byte-level BPE"),
        ("convert", {"dict_tokenizer": "re"}, "--dict-tokenizer re is not supported: "),
    ],
)
def test_flags_that_are_not_supported_are_errors_before_it_is_written(model, flags, problem, task, tmp_path):
    """In build_dict, too, which makes no agent."""
    with pytest.raises(ConfigError, match=problem):
        BuildDict.main(model=model, dict_file=str(tmp_path / "x.dict"), loglevel="error", **{**task, **flags})
    assert not [*tmp_path.iterdir()]


def test_the_tokenizer_stands_beside_the_dictionary(task, tmp_path):
    path = build(tmp_path / "x.dict", task)
    tokenizer = read_tokenizer(tmp_path / "x.tokenizer.json")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x.dict", "x.tokenizer.json"]
    assert len(lines) == tokenizer.get_vocab_size() == len(RankerDictionary({"dict_file": str(path)}))
    assert all(len(line.split("\t")) == 2 and int(line.split("\t")[1]) >= 0 for line in lines)


def test_tokens_are_counted_in_what_the_vocabulary_was_trained_on(words, dictionary):
    """For ParlAI's word statistics: every second of the 24 training episodes asks again, "is it really the ... ?"."""
    for loaded in (words, RankerDictionary({"dict_file": dictionary})):
        assert loaded.freq[words.tokenize("really")[0]] == 8
        assert loaded.freq["[CLS]"] == loaded.freq["never seen"] == 0
    pairs = words.sort()
    assert [token for token, _ in pairs[:2]] == words.tokenize(" is") + words.tokenize(" .")
    assert {token: words.tok2ind[token] for token, _ in pairs} == words.text.tokenizer.get_vocab()


def test_a_dictionary_that_is_there_is_not_built_again(task, make_task, tmp_path):
    path = build(tmp_path / "x.dict", task)
    before = path.read_bytes()
    other = make_task(tmp_path, train=[[{"text": "zzz zzz zzz", "labels": "zzz"}]])
    build(path, other)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"dict_lower": False}, r"--dict-lower False: the vocabulary"),
        ({"dict_maxtokens": 300}, r"--dict-maxtokens 300: the vocabulary in .* has 317 tokens: leave the flag out, or"),
    ],
)
def test_a_dictionary_that_is_there_is_the_one_that_flags_ask_for(dictionary, flags, problem):
    with pytest.raises(CheckpointError, match=problem):
        RankerDictionary({"dict_file": dictionary, "override": flags})
    assert RankerDictionary({"dict_file": dictionary, "override": {"dict_lower": True, "dict_maxtokens": 999}}).text


@pytest.mark.parametrize(
    "flags",
    [
        {"dict_maxtokens": 280, "turn_separator": "newline", "dict_lower": False},  # whose token is one more
        {"dict_maxtokens": 100},  # fewer than the bytes
    ],
)
def test_a_dictionary_is_the_one_that_the_flags_it_was_trained_with_ask_for(flags, task, tmp_path):
    path = str(build(tmp_path / "x.dict", task, **flags))
    assert RankerDictionary({"dict_file": path, "override": flags}).text


def test_a_larger_size_is_no_larger_dictionary(dictionary, monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(logging, "info", lines.append)
    RankerDictionary({"dict_file": dictionary, "override": {"dict_maxtokens": 999}})
    assert lines[-1].startswith("--dict-maxtokens 999: the vocabulary in ")
    assert lines[-1].endswith("has 317 tokens, and is kept: remove the file and the .dict beside it to train another")


def test_the_size_and_the_case_are_those_asked_for(task, tmp_path):
    small = RankerDictionary({"dict_file": str(build(tmp_path / "s.dict", task, dict_maxtokens=280))})
    assert len(small) == 280
    cased = RankerDictionary({"dict_file": str(build(tmp_path / "c.dict", task, dict_lower=False))})
    assert cased.txt2vec("OWL") != cased.txt2vec("owl")
    assert small.txt2vec("OWL") == small.txt2vec("owl")


def test_line_breaks_and_tabs_stay_in_one_line_of_the_dictionary(make_task, tmp_path):
    task = make_task(tmp_path, train=[[{"text": "your persona: i ski .\nhello", "labels": "a b"}]])
    path = build(tmp_path / "x.dict", task)
    assert all(line.count("\t") == 1 for line in path.read_text(encoding="utf-8").splitlines())


# ---- using it


@pytest.mark.parametrize("text", ["where is the owl ?", "i look for a cat .", "naïve café", "日本語 ok"])
def test_text_and_ids_are_one_anothers_way_back(words, text):
    assert words.vec2txt(words.txt2vec(text)).strip() == text


def test_words_and_ids_are_one_anothers_way_back(words):
    assert len(words.tok2ind) == len(words.ind2tok) == len(words)
    assert all(words[words[index]] == index for index in range(len(words)))
    assert len({words[token] for token in (words.null_token, words.start_token, words.end_token)}) == 3
    assert words["no such token"] == words[words.unk_token]


def test_special_tokens_that_a_user_types_are_text(words):
    assert words[words.end_token] not in words.txt2vec("hello [SEP] [PAD] you")


def test_a_dictionary_that_is_not_built_says_so():
    with pytest.raises(ConfigError, match="not built yet: train first, with --dict-file or --model-file"):
        RankerDictionary({}).txt2vec("hello")


def test_a_dictionary_of_another_agent_is_refused(make_agent, tmp_path):
    (tmp_path / "old.dict").write_text("hello\t3\nyou\t2\n")
    with pytest.raises(CheckpointError, match=r"old\.dict: there is no old\.tokenizer\.json beside it") as error:
        make_agent("biencoder", dict_file=str(tmp_path / "old.dict"))
    assert "give a new --model-file (or --dict-file)" in str(error.value)


# ---- in an agent


def test_clones_share_one_dictionary(make_agent):
    agent = make_agent("biencoder")
    assert agent.clone().dict is agent.dict
    copy = RankerDictionary(agent.opt, agent.dict.share())
    assert copy.text is agent.dict.text
    assert copy.tok2ind == agent.dict.tok2ind


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"special_tok_lst": "[ONE],[TWO]"}, {"person_tokens": True}])
def test_extra_tokens_are_never_split(options, make_agent, respond, tmp_path, labels):
    agent = make_agent("biencoder", **options)
    tokens = ["[ONE]", "[TWO]"] if "special_tok_lst" in options else ["__p1__", "__p2__"]
    for token in tokens:
        (index,) = [i for i in agent.dict.txt2vec(f"hello {token} you") if i == agent.dict[token]]
        assert index < len(agent.dict) == agent.ranker.config.backbone["vocab_size"]
    respond(agent, {"text": "hello [TWO]", "labels": ["hi"]}, {"text": "bye", "labels": ["bye [ONE]"]})
    agent.save(str(tmp_path / "saved"))
    again = make_agent("biencoder", model_file=tmp_path / "saved")
    assert again.dict.tok2ind == agent.dict.tok2ind
    turn = {**QUESTION, "label_candidates": labels}
    assert respond(again, turn)[0]["text_candidates"] == respond(agent, turn)[0]["text_candidates"]


def test_person_tokens_say_who_spoke(make_agent):
    agent = make_agent("biencoder", person_tokens=True)
    clone = agent.clone()
    clone.observe({"text": "hello", "eval_labels": ["hi !"], "episode_done": False})
    clone.self_observe({"text": "hi !"})
    ids = clone.observe({"text": "bye", "episode_done": True})["text_vec"]
    first, second = agent.dict["__p1__"], agent.dict["__p2__"]
    assert [i for i in ids if i in (first, second)] == [first, second, first]


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["model_file", "init_model"])
def test_tokens_may_be_added_to_a_trained_model(flag, copy_of, make_agent, respond, task, labels, tmp_path):
    """The embeddings of the model grow; what it has learned stays."""
    path = copy_of("biencoder")
    old = make_agent("biencoder", model_file=path, **task)
    options = {**task, flag: str(path), "special_tok_lst": "[NEW]", "reduction_type": "mean", "dict_file": None}
    new = make_agent("biencoder", **options, return_cand_scores=True)
    turn = {**QUESTION, "label_candidates": labels}
    assert respond(new, turn)[0]["text_candidates"] == respond(old, turn)[0]["text_candidates"]
    before = new.ranker.context_tower.model.get_input_embeddings().weight[-1].detach().clone()
    respond(new, {"text": "hello [NEW]", "labels": ["[NEW] too"]}, {"text": "bye", "labels": ["bye"]})
    assert not torch.equal(new.ranker.context_tower.model.get_input_embeddings().weight[-1], before)
    new.save(str(tmp_path / "grown"))
    turn = {"text": "hello [NEW]", "label_candidates": ["[NEW] too", "bye"]}
    again = make_agent("biencoder", model_file=tmp_path / "grown", return_cand_scores=True)
    assert respond(again, turn)[0]["sorted_scores"] == pytest.approx(respond(new, turn)[0]["sorted_scores"])


# ---- taken from a pre-trained encoder


@pytest.mark.slow
def test_a_pretrained_encoder_brings_its_own(backbone_folder, train, tmp_path):
    options = {"backbone": str(backbone_folder("bert")), "text_truncate": 24, "label_truncate": 12}
    train("polyencoder", tmp_path / "model", max_train_steps=2, **options)
    original = json.loads((backbone_folder("bert") / "tokenizer.json").read_text())
    saved = json.loads((tmp_path / "model.tokenizer.json").read_text())
    assert saved["model"] == original["model"]
    opt = json.loads((tmp_path / "model.opt").read_text())
    specials = {"null": "[PAD]", "start": "[CLS]", "end": "[SEP]", "unk": "[UNK]"}
    assert {name: opt[f"dict_{name}token"] for name in specials} == specials


@pytest.mark.slow
def test_special_tokens_are_those_of_training(backbone_folder, make_agent, tmp_path):
    """A vocabulary may hold the names of two families: which of them the model was trained with is in its file."""
    folder = tmp_path / "encoder"
    shutil.copytree(backbone_folder("bert"), folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>"})
    tokenizer.save_pretrained(folder)
    lengths = {"text_truncate": 30, "label_truncate": 10}
    agent = make_agent("biencoder", backbone=str(folder), dict_file=str(tmp_path / "new.dict"), **lengths)
    agent.save(str(tmp_path / "model"))
    again = make_agent("biencoder", model_file=tmp_path / "model", **lengths)
    turns = ["one two", "three"]
    for text in (again.dict.text, Ranker.from_pretrained(tmp_path / "model").text):
        assert text.config == agent.dict.text.config
        assert text.tokenize_context(turns) == agent.dict.text.tokenize_context(turns)
    assert (again.dict.start_token, again.dict.null_token) == ("<s>", "<pad>")
    assert again.opt["dict_starttoken"] == "<s>"
