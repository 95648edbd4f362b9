"""ParlAI's own dictionary of subword-nmt's merges, such as that of the published poly-encoders, for a new model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from parlai.core.agents import create_agent
from parlai.core.dict import DictionaryAgent
from parlai.core.opt import Opt

from polyencoder import Ranker
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.importing.parlai_dictionary import read_merge_vocabulary
from polyencoder.text.vocabulary import get_turn_separator

pytestmark = pytest.mark.slow

SPECIAL = ["__null__", "__start__", "__end__", "__unk__", "__newln__"]
WORDS = ["where", "is", "the", "?", ".", "my", "cat", "owl", "he@@", "re", "d@@", "o@@", "g", "t@@", "el@@", "l"]
MERGES = ["w he", "h e", "r e</w>", "re </w>", "w h", "wh e", "whe re</w>", "i s</w>", "t h", "th e</w>", "m y</w>"]
MERGES += ["c a", "ca t</w>", "o w", "ow l</w>", "e l"]
PADDING = ["__FP16_PAD_0__", "__FP16_PAD_1__"]
BPE = {"dict_tokenizer": "bpe", "dict_lower": True}
TEXT = "Where is the owl ? here, tell"


def write(folder: Path, tokens: list[str], merges: str) -> Path:
    """Writes one as ParlAI does: tokens with their counts, and the merges in the file of codes."""
    folder.mkdir(exist_ok=True)
    path = folder / "model.dict"
    path.write_text("".join(f"{token}\t{len(tokens) - i}\n" for i, token in enumerate(tokens)), encoding="utf-8")
    path.with_suffix(".dict.codecs").write_text(merges, encoding="utf-8")
    return path


@pytest.fixture
def small(tmp_path):
    return write(tmp_path / "theirs", [*SPECIAL, *WORDS, *PADDING], "\n".join(["#version: 0.2", *MERGES]) + "\n")


@pytest.fixture
def folder(tmp_path):
    """The same in the paper's two files."""
    path = tmp_path / "folder"
    path.mkdir()
    numbers = {token: number for number, token in enumerate([*SPECIAL, *WORDS, *PADDING])}
    (path / "vocab.json").write_text(json.dumps(numbers))
    (path / "merges.txt").write_text("\n".join(["#version: 0.2", *MERGES]) + "\n")
    return path


def parlais(path: Path) -> DictionaryAgent:
    return DictionaryAgent(Opt({"dict_file": str(path), "dict_tokenizer": "bpe", "dict_lower": True, "datapath": "."}))


def known(dictionary: DictionaryAgent, text: str) -> list[int | None]:
    """ParlAI's ids; None where the dictionary lacks a piece."""
    return [None if i == dictionary[dictionary.unk_token] else i for i in dictionary.txt2vec(text)]


def test_a_new_model_has_its_ids(train, evaluate, make_agent, respond, small, labels, tmp_path):
    before = {path: path.read_bytes() for path in small.parent.iterdir()}
    train("polyencoder", tmp_path / "model", dict_file=str(small), num_epochs=1.0, **BPE)
    assert {path: path.read_bytes() for path in small.parent.iterdir()} == before
    parlai_dict = parlais(small)
    agent = make_agent("polyencoder", model_file=tmp_path / "model", dict_file=None)
    ids, theirs = agent.dict.txt2vec(TEXT), known(parlai_dict, TEXT)
    assert len(ids) == len(theirs)
    assert [i for i, other in zip(ids, theirs, strict=True) if other is not None] == [i for i in theirs if i]
    assert theirs.count(None) == 1  # the comma
    assert agent.dict.tok2ind["[NEWLINE]"] == parlai_dict["__newln__"] == 4
    assert [agent.opt[f"dict_{name}token"] for name in ("null", "start", "end")] == SPECIAL[:3]
    text = agent.dict.text
    assert get_turn_separator(text.config) == "newline"
    assert text.tokenize_context(["my owl", "is the cat ."]) == [
        1,
        *parlai_dict.txt2vec("my owl"),
        4,
        *parlai_dict.txt2vec("is the cat ."),
        2,
    ]
    assert len(agent.dict) == agent.ranker.config.backbone["vocab_size"]
    assert Ranker.from_pretrained(tmp_path / "model").text.tokenize_context([TEXT]) == text.tokenize_context([TEXT])
    turn = {"text": "where is the owl ?", "label_candidates": labels}
    assert set(respond(agent, turn)[0]["text_candidates"]) == set(labels)
    assert 0 <= evaluate(tmp_path / "model")["accuracy"] <= 1


def test_the_same_command_goes_on(train, small, tmp_path):
    for epochs in (1.0, 2.0):
        options = {**BPE, "num_epochs": epochs, "validation_every_n_epochs": 1.0}
        train("biencoder", tmp_path / "model", dict_file=str(small), **options)
    assert (tmp_path / "model").exists()


def test_at_the_place_of_the_models_own(train, make_agent, small):
    """Where ParlAI looks for it without --dict-file. Neither file of it is written to."""
    before = small.read_bytes()
    ids = read_merge_vocabulary(small)[0].encode(TEXT).ids
    model = small.with_suffix("")
    train("biencoder", model, num_epochs=1.0)
    assert small.read_bytes() == before
    assert make_agent("biencoder", model_file=model, dict_file=None).dict.txt2vec(TEXT) == ids


def test_a_dictionary_that_a_model_had_is_one_for_the_next(train, make_agent, small, tmp_path):
    train("biencoder", tmp_path / "one", dict_file=str(small), num_epochs=1.0, **BPE)
    first = make_agent("biencoder", model_file=tmp_path / "one", dict_file=None)
    second = make_agent("biencoder", dict_file=str(tmp_path / "one.dict"))
    assert second.dict.text.tokenize_context(["my owl", TEXT]) == first.dict.text.tokenize_context(["my owl", TEXT])
    assert second.dict.text.config == first.dict.text.config


def test_the_folder_of_the_papers_two_files(make_agent, small, folder):
    from_file = make_agent("biencoder", dict_file=str(small), **BPE)
    from_folder = make_agent("biencoder", dict_file=str(folder), **BPE)
    assert from_folder.dict.tok2ind == from_file.dict.tok2ind
    assert from_folder.dict.text.config == from_file.dict.text.config


@pytest.mark.parametrize("lower", [True, False])
def test_texts_are_lowered_as_asked_for(make_agent, small, lower):
    words = make_agent("biencoder", dict_file=str(small), **{**BPE, "dict_lower": lower}).dict
    assert (words.txt2vec("OWL") == words.txt2vec("owl")) == lower


def test_without_its_merges_it_is_one_error(train, small, tmp_path):
    Path(f"{small}.codecs").unlink()
    with pytest.raises(CheckpointError, match=r"model\.dict\.codecs: cannot be read .*the dictionary's merges"):
        train("polyencoder", tmp_path / "model", dict_file=str(small), **BPE)
    with pytest.raises(CheckpointError, match=r"no model\.tokenizer\.json beside it, nor model\.dict\.codecs"):
        train("polyencoder", tmp_path / "model", dict_file=str(small))
    assert not list(tmp_path.glob("model*"))
    assert [path.name for path in small.parent.iterdir()] == ["model.dict"]


def test_a_smaller_size_is_refused_before_anything_is_written(train, tmp_path):
    tokens = [*SPECIAL, *WORDS, *(f"word{number}" for number in range(300))]
    published = write(tmp_path / "theirs", tokens, "\n".join(["#version: 0.2", *MERGES]) + "\n")
    with pytest.raises(CheckpointError, match=r"--dict-maxtokens 270: the vocabulary in .*model\.dict has 3\d\d t"):
        train("biencoder", published.with_suffix(""), dict_maxtokens=270)
    assert sorted(path.name for path in published.parent.iterdir()) == ["model.dict", "model.dict.codecs"]


def test_it_is_none_of_a_convert(small):
    with pytest.raises(ConfigError, match="not ConveRT's subwords"):
        create_agent(Opt({"model": "convert", "dict_file": str(small), "datapath": "data"}))
