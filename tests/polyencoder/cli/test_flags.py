"""The one line of an error names the flag of the argument at fault, if the command has it."""

from __future__ import annotations

import json
import sys

import pytest
import typer
from typer.core import TyperOption
from typer.testing import CliRunner

from polyencoder import ConfigError
from polyencoder.cli.flags import OTHER_NAMES, flag_of
from polyencoder.cli.main import app, main

TRAIN = ["train", "--train", "pairs.jsonl", "--out", "out", "--backbone", "none"]
MINE = ["mine", "-m", "none", "-p", "pairs.jsonl", "-o", "out.jsonl"]


@pytest.fixture
def line(monkeypatch, capsys, tmp_path):
    """(arguments) -> what `polyencoder ARGUMENTS` says on standard error, in a folder with small files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"question": "hello", "response": "hi"}) + "\n")

    def run(arguments: list[str]) -> str:
        monkeypatch.setattr(sys, "argv", ["polyencoder", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said.removesuffix("\n")

    return run


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([*TRAIN, "--backbone", ""], "give either backbone ENCODER .* (flag --backbone)"),
        (
            [*TRAIN, "--backbone", "./nosuch", "--candidates", "inline", "--num-negatives", "99"],
            "backbone ./nosuch: no such folder or file; .* (flag --backbone)",
        ),
        ([*TRAIN, "--patience", "0"], "patience is 0; it must be above 0 (flag --patience)"),
        ([*TRAIN, "--optimizer", "best"], "optimizer is 'best'; .* (flag --optimizer)"),
        ([*MINE, "--negatives", "0"], "hard negatives: their number is 0; .* (flag --negatives)"),
        ([*MINE, "--ranks", "best"], "ranks 'best': .* (flag --ranks)"),
        (MINE, "pairs.jsonl, line 1: has no 'context'; .* (flag --context)"),
        ([*MINE, "-o", "texts.txt"], "texts.txt: is there already; .* (flag --overwrite)"),
        (["vocab", "texts.txt", "--out", "v", "--size", "0", "--no-progress"], "size is 0; .* (flag --size)"),
        (
            ["vocab", "pairs.jsonl", "--out", "v", "--column", "said", "--no-progress"],
            "has no 'said'; .* (flag --column)",
        ),
        (["evaluate", "-m", "none", "-d", "pairs.jsonl", "--hits-at", "x"], "hits_at is 'x'; .* (flag --hits-at)"),
    ],
)
def test_the_flag_is_named(line, arguments, expected):
    said = line(arguments)
    beginning, _, flag = expected.rpartition(" .* ") if " .* " in expected else ("", "", expected)
    assert said.startswith("polyencoder: ")
    assert beginning in said
    assert said.endswith(flag)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-sessions", "5"], "--max-sessions is read only with --index: give that too, or leave it out"),
        (["--session-seconds", "5"], "--session-seconds is read only with --index: give that too, or leave it out"),
        (["--sessions", "chat.db"], "--sessions is read only with --index: give that too, or leave it out"),
        (["--index", "none", "--rerank-k", "50"], "--rerank-k is read only with --rerank: give that too, or leave"),
    ],
)
def test_a_server_reads_every_flag_that_is_given(line, options, message):
    assert line(["serve", "-m", "none", *options]).startswith(f"polyencoder: {message}")


def test_unknown_flags_are_named_together():
    arguments = ["search", "--modle", "x", "-i", "y", "--topk=3", "--context", "--filters", "--", "--no-flag"]
    result = CliRunner().invoke(app, arguments, terminal_width=200)
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", " ").split())
    assert "No such options: --modle (did you mean --model?), --topk (did you mean --top-k?)" in said
    assert "--filters" not in said  # the value of --context


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"dtype": "float8"}, "dtype"),
        ({"workers": 0}, "workers"),
        ({"faiss": "flat,m"}, "faiss"),
        ({"milvus": "flat"}, "milvus"),
    ],
)
def test_arguments_of_the_library_are_those_of_the_command(make_ranker, tmp_path, options, argument):
    with pytest.raises(ConfigError) as error:
        make_ranker("bi").index(["a", "b"], tmp_path / "index", **options)
    assert error.value.argument == argument
    assert "--" not in str(error.value)
    assert flag_of(error.value.argument, typer.main.get_group(app), "index") == f"--{argument}"


def test_a_command_without_such_a_flag_says_nothing_of_it():
    commands = typer.main.get_group(app)
    assert flag_of("rerank_k", commands, "search") == "--rerank-k"
    assert flag_of("rerank_k", commands, "train") is None
    assert flag_of("rerank_k", commands, "no-command") is None
    assert flag_of(None, commands, "search") is None


def test_other_names_are_those_of_options():
    options = {
        one.name
        for command in typer.main.get_group(app).commands.values()
        for one in command.params
        if isinstance(one, TyperOption)
    }
    assert set(OTHER_NAMES.values()) <= options
