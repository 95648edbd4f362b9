"""`polyencoder mine`: the file that it writes, and what it refuses."""

from __future__ import annotations

import json

import pytest

from polyencoder import ConfigError, InputError
from polyencoder.index import Candidate
from polyencoder.index.folder.index import FolderIndex
from tests.commands import run_command
from tests.polyencoder.cli.commands import with_files_once

pytestmark = pytest.mark.slow

PAIRS = [
    {"context": ["hello !", "do you ski ?"], "response": "i like to ski .", "id": 7},
    {"context": "do you have pets ?", "response": "two dogs and a cat ."},
    {"context": " do you have pets ? ", "response": "no , i have a cat ."},
    {"context": "what do you do ?", "response": "i teach math ."},
    {"context": "and your brother ?", "response": "I teach  math ."},
]


@pytest.fixture
def ranker(make_ranker, tmp_path):
    ranker = make_ranker("poly")
    ranker.save_pretrained(tmp_path / "model")
    return ranker


@pytest.fixture
def run(ranker, tmp_path):
    """(*arguments, pairs=PAIRS) -> the records that `polyencoder mine` writes."""

    def call(*arguments: object, pairs=PAIRS) -> list[dict]:
        (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        common = ["mine", "-m", tmp_path / "model", "--pairs", tmp_path / "pairs.jsonl", "-o", tmp_path / "out.jsonl"]
        run_command(*with_files_once([*common, "--no-progress", *arguments]))
        return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]

    return call


def test_each_pair_gets_the_models_best_wrong_responses(run, ranker):
    for record, pair in zip(run("-n", 2, "--batch-size", 2), PAIRS, strict=True):
        assert {**pair, "candidates": record["candidates"]} == record
        label, *mined = record["candidates"]
        assert label == pair["response"]
        wrong = ["i like to ski .", "two dogs and a cat .", "no , i have a cat .", "i teach math ."]
        if "pets" in pair["context"]:  # both responses are right
            wrong = [wrong[0], wrong[3]]
        elif label.lower().startswith("i teach"):
            wrong = wrong[:3]
        else:
            wrong = wrong[1:]
        context = pair["context"] if isinstance(pair["context"], list) else pair["context"].strip()
        best = [match.text for match in ranker.rank(context, wrong, top_k=2)]
        assert [" ".join(text.lower().split()) for text in mined] == [" ".join(text.lower().split()) for text in best]


def test_in_an_index_of_other_candidates(run, ranker, tmp_path, sentences, monkeypatch):
    texts = [text for text in sentences if "math" not in text]
    ranker.index([Candidate(None, text) for text in texts], tmp_path / "index")
    for record, pair in zip(run("-n", 2, "--ranks", "3-7", "--index", tmp_path / "index"), PAIRS, strict=True):
        turns = "\n".join([pair["context"]] if isinstance(pair["context"], str) else pair["context"]).strip()
        expected = [hit.text for hit in ranker.rank(turns, texts, top_k=4)[2:]]
        assert record["candidates"] == [pair["response"], *expected]
    closed, close = [], FolderIndex.close
    monkeypatch.setattr(FolderIndex, "close", lambda self: closed.append(self.address) or close(self))
    run("--overwrite", "--index", tmp_path / "index")
    assert closed == [str(tmp_path / "index")] * 2, "once before the model is loaded"


def test_columns_of_other_names(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hard").mkdir()  # a column may have the name of a folder
    pairs = [{"q": pair["context"], "a": pair["response"], "candidates": ["kept"]} for pair in PAIRS]
    names = ["--context", "q", "--response", "a", "--out-column", "hard"]
    usual = [record["candidates"] for record in run("-n", 2)]
    named = run("-n", 2, "--overwrite", *names, pairs=pairs)
    assert [record["hard"] for record in named] == usual
    assert {"q", "a", "candidates", "hard"} == named[0].keys()
    assert named[0]["candidates"] == ["kept"]


def test_an_index_is_no_column(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hard").mkdir()
    (tmp_path / "hard" / "index.sqlite").touch()
    with pytest.raises(ConfigError, match="out_column is 'hard', a file or an index, .* come from an index of them"):
        run("--out-column", "hard")


def test_some_pairs_may_have_no_negative(run):
    records = run("--ranks", "3-9")  # of the wrong responses: two where two are right
    assert [len(record["candidates"]) for record in records] == [2, 1, 1, 2, 2]
    assert [record["candidates"] for record in records[1:3]] == [[pair["response"]] for pair in PAIRS[1:3]]


@pytest.mark.parametrize("options", [["--ranks", "50-100"], ["-n", 3, "--max-positive-similarity", "-0.99"]])
def test_without_any_negative_nothing_is_written(run, tmp_path, options):
    with pytest.raises(InputError, match="not written, as no pair has a hard negative: there are too few .* for ranks"):
        run(*options)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl.gz", "out"])
def test_a_name_that_would_not_be_read_as_json_lines_is_refused(run, tmp_path, name):
    with pytest.raises(ConfigError, match=rf"{name}: JSON lines are written; give the file the ending \.jsonl"):
        run("-o", tmp_path / name)
    assert not (tmp_path / name).exists()


def test_by_words(run):
    by_words = run("--words", "-n", 2)
    assert by_words[1]["candidates"] == ["two dogs and a cat ."]  # both responses with its words are right


LABELLED = {"context": "hello", "response": "a", "own": ["a", "b"], "labels": [2, 1]}


def test_what_is_refused(run, tmp_path):
    for arguments, pairs, error, message in [
        (["--words", "--index", "x"], PAIRS, ConfigError, "words .* index"),
        (["--max-positive-similarity", "1.5"], PAIRS, ConfigError, "max_positive_similarity is 1.5"),
        ([], [], InputError, "pairs.jsonl: no pair in it"),
        ([], [{"context": "hello"}], InputError, "line 1: has no 'response'"),
        ([], [{"context": 5, "response": "x"}], InputError, "line 1: the context is neither a"),
        (["--pairs", "no-such.jsonl"], PAIRS, InputError, "no-such.jsonl"),
        *(
            (["--out-column", name], PAIRS, ConfigError, f"out_column is '{name}', a column that")
            for name in ("context", "response", "responses", "labels", "messages", "positive")
        ),
        (["--out-column", "a", "--response", "a"], [{"context": "hello", "a": "b"}], ConfigError, "is 'a', a column"),
        (["--out-column", __file__], PAIRS, ConfigError, "test_mine.py', a file or an index"),
        (["--out-column", "own"], [LABELLED], InputError, "line 1: its labels seem to be of 'own'"),
    ]:
        (tmp_path / "out.jsonl").write_text("what was there before\n")
        with pytest.raises(error, match=message):
            run("--overwrite", *arguments, pairs=pairs)
        assert (tmp_path / "out.jsonl").read_text() == "what was there before\n"
