"""`polyencoder rank`: candidates of files and of the command line, in the order of the ranker."""

from __future__ import annotations

import json

import pytest

from polyencoder import ConfigError, InputError
from tests.commands import command_fails, run_command

pytestmark = pytest.mark.slow

TEXTS = ["i like to ski .", "two dogs and a cat .", "i teach math ."]
CONTEXT = ["hello !", "do you have pets ?"]
TURNS = [word for turn in CONTEXT for word in ("--context", turn)]


@pytest.fixture
def ranker(make_ranker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ranker = make_ranker("poly")
    ranker.save_pretrained("model")
    return ranker


def ranked(*arguments: object) -> list[dict]:
    return json.loads(run_command("rank", "-m", "model", *TURNS, "--json", *arguments).stdout)["hits"]


def test_texts_of_the_command_line(ranker):
    expected = [hit.text for hit in ranker.rank(CONTEXT, TEXTS)]
    hits = ranked("--candidates", *TEXTS)
    assert [(hit["text"], TEXTS[hit["index"]]) for hit in hits] == [(text, text) for text in expected]
    assert ranked("-c", *TEXTS, "-k", 2) == hits[:2]
    lines = run_command("rank", "-m", "model", *TURNS, "-c", *TEXTS).stdout.splitlines()
    assert lines[0] == "> hello ! / do you have pets ?"
    assert [line.split(maxsplit=2)[2] for line in lines[1:]] == expected


def test_files_and_texts(ranker, tmp_path):
    (tmp_path / "a.txt").write_text("i like to ski .\n\ntwo dogs and a cat .\n")
    (tmp_path / "faq.csv").write_text("nr;question;answer\n7;what do you do ?;i teach math .\n")
    expected = [hit.text for hit in ranker.rank(CONTEXT, TEXTS)]
    assert [hit["text"] for hit in ranked("-c", "a.txt", TEXTS[2])] == expected
    (hit,) = ranked("-c", "faq.csv", "--text", "answer", "--id", "nr")
    assert (hit["text"], hit["id"]) == (TEXTS[2], "7")


@pytest.mark.parametrize("flag", ["-c", "--candidates"])
def test_standard_input(ranker, flag):
    result = run_command("rank", "-m", "model", *TURNS, "--json", flag, "-", "-k", 1, input="\n".join(TEXTS))
    assert [hit["text"] for hit in json.loads(result.stdout)["hits"]] == [ranker.rank(CONTEXT, TEXTS)[0].text]


def test_what_is_refused(ranker, tmp_path):
    for arguments, error, message in [
        (["-c", "no.jsonl"], InputError, "no.jsonl.*: no such file"),
        (["-c", "empty.txt"], InputError, "empty.txt: has no candidates"),
        (["-c", "a", "--top-k", "0"], ConfigError, "top_k is 0"),
        (["-c", "a", "--min-probability", "0.5"], ConfigError, "calibrate"),
    ]:
        (tmp_path / "empty.txt").touch()
        command_fails(error, message, "rank", "-m", "model", *TURNS, *arguments)
