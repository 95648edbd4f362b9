"""Utterances of evaluation data in a corpus: in any format, however written, short ones not counted."""

from __future__ import annotations

import json
import sys

import pytest

from polyencoder.cli.main import main
from polyencoder.pretraining.documents import CorpusDocument
from polyencoder.pretraining.overlap import Utterances, find_overlap
from tests.commands import run_command

LONG = "I would like to know what you think of the mountains"
OTHER = "nobody has ever said this sentence of ten words here"
FORMATS = {
    "pairs.jsonl": json.dumps({"context": ["hi", LONG], "response": "yes", "candidates": [OTHER, "no"]}),
    "nested.jsonl": json.dumps({"messages": [{"speaker": "a", "utterance": LONG}], "options": {"all": [OTHER]}}),
    "parlai.txt": f"1 your persona: a.\n2 {LONG}\t{OTHER}\t\tyes|no",
    "ubuntu.csv": f"Context,Utterance\nhi __eou__ {LONG} __eou__ __eot__,{OTHER} __eou__",
}


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    talks = [["hello", "yes"], ["i would like to know, what you THINK of mountains!", "no"], ["hi", LONG]]
    path.write_text("".join(json.dumps({"turns": talk}) + "\n" for talk in talks))
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_an_utterance_is_found_in_each_format(corpus, tmp_path, name):
    (tmp_path / name).write_text(FORMATS[name] + "\n")
    result = run_command("overlap", corpus, "--data", tmp_path / name, "--at-most", 0.5)
    assert (
        f"{name}: 1 of its 2 utterances of 8 words or more (50.00%) are in the corpus, in 2 documents" in result.output
    )
    assert "corpus.jsonl, line 2: i would like" in result.output


def test_what_is_short_does_not_count():
    utterances = Utterances(["one two three", "the a an one two three four five", LONG], min_words=8)
    assert len(utterances) == 1  # articles are none
    found = find_overlap([CorpusDocument(["one two three", "four"], "here", "conversation")], {"file": utterances})
    assert (found["file"].documents, found["file"].share, found["file"].first) == (0, 0.0, None)


def test_too_much_is_an_error(corpus, tmp_path, monkeypatch, capsys):
    (tmp_path / "test.jsonl").write_text(FORMATS["pairs.jsonl"] + "\n")
    monkeypatch.setattr(sys, "argv", ["polyencoder", "overlap", str(corpus), "-d", str(tmp_path / "test.jsonl")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert "50.00% of its utterances are in the corpus, more than 1.00%" in capsys.readouterr().err
