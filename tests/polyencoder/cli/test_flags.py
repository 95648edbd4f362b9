"""The one line of an error names the flag of the argument at fault, if the command has it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from polyencoder import ConfigError
from polyencoder.cli.main import COMMANDS, OTHER_NAMES, get_flag, get_flags, main, parse
from tests.commands import command_fails, invoke

TRAIN = ["train", "--train", "pairs.jsonl", "--out", "out", "--backbone", "none"]
MINE = ["mine", "-m", "none", "-p", "pairs.jsonl", "-o", "out.jsonl"]
SEARCH = ["search", "-m", "none", "-i", "none"]
# `polyencoder search` takes several; here the last index would be changed or measured, and the others not
OF_ONE_INDEX = [
    ["update", "-m", "none", "--index", "one", "--remove-id", "a"],
    ["evaluate", "-m", "none", "--beir", "none", "--index", "one"],
    ["calibrate", "-m", "none", "-d", "none", "--index", "one"],
    ["mine", "-m", "none", "-p", "none", "-o", "none", "--index", "one"],
]
UNKNOWN = "unknown options: --epoch (did you mean --epochs?), --bf61 (did you mean --bf16?)"
QUOTES = "a value follows its flag, and one with spaces is in quotes"
REPEATED = "is given twice: give it once, with commas between files"


@pytest.fixture
def line(monkeypatch, capsys, tmp_path):
    """(arguments) -> what `polyencoder ARGUMENTS` says on standard error, in a folder with small files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    many = [{"context": "hello", "response": f"hi {n}"} for n in range(20)]
    (tmp_path / "many.jsonl").write_text("\n".join(map(json.dumps, many)))
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"question": "hello", "response": "hi"}) + "\n")

    def run(arguments: list[str]) -> str:
        monkeypatch.setattr(sys, "argv", ["polyencoder", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 1
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        return message.removesuffix("\n")

    return run


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([*TRAIN, "--backbone", ""], "give either backbone ENCODER .* (flag --backbone)"),
        (
            ["train", "--train", "many.jsonl", "--out", "out", "--backbone", "./nosuch"],
            "backbone ./nosuch: no such folder or file; .* (flag --backbone)",
        ),
        ([*TRAIN, "--patience", "0"], "patience is 0; it must be at least 1 (flag --patience)"),
        ([*TRAIN, "--optimizer", "best"], "optimizer is 'best'; .* (flag --optimizer)"),
        ([*MINE, "--negatives", "0"], "negatives is 0; it must be at least 1 (flag --negatives)"),
        ([*MINE, "--ranks", "best"], "ranks 'best': .* (flag --ranks)"),
        (MINE, "pairs.jsonl, line 1: has no 'context'; .* (flag --context)"),
        ([*MINE, "-o", "texts.txt"], "texts.txt: exists already; .* (flag --overwrite)"),
        (["vocab", "texts.txt", "--out", "v", "--size", "0", "--no-progress"], "size is 0; .* (flag --size)"),
        ([*TRAIN, "--config="], "config is empty: give a YAML file, or leave it out (flag --config)"),
        (
            ["vocab", "pairs.jsonl", "--out", "v", "--column", "said", "--no-progress"],
            "has no 'said'; .* (flag --column)",
        ),
        (["evaluate", "-m", "none", "-d", "pairs.jsonl", "--hits-at", "x"], "hits_at is 'x'; .* (flag --hits-at)"),
        (["serve", "-m", "none", "--rerank-k", "50"], "rerank_k is read only with index: .* (flag --rerank-k)"),
    ],
)
def test_the_flag_is_named(line, arguments, expected):
    message = line(arguments)
    beginning, _, flag = expected.rpartition(" .* ") if " .* " in expected else ("", "", expected)
    assert message.startswith("polyencoder: ")
    assert beginning in message
    assert message.endswith(flag)


def test_unknown_flags_are_named_together():
    result = invoke("search", "--modle", "x", "-i", "y", "--topk=3", "--context", "--filters", "--", "--no-flag")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "unknown options: --modle (did you mean --model?), --topk (did you mean --top-k?)" in result.stderr
    assert "--filters" not in result.stderr  # the value of --context


def test_what_follows_two_hyphens_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-texts.txt").touch()
    done = invoke("encode", "-m", "none", "-o", "out.npy", "--", "-texts.txt")
    assert (done.exit_code, done.stderr) == (1, "polyencoder: ./-texts.txt: no text in it\n")


@pytest.mark.parametrize("flag", ["--bogus", "-x"])
def test_what_is_neither_a_command_nor_a_flag(flag):
    done = invoke(flag)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"polyencoder: no command '{flag}'; it must be one of rank, train, ")


def test_an_unknown_flag_is_no_file():
    """A name that a list of files would take: `-` alone, standard input, is one."""
    result = invoke("encode", "texts.txt", "--normalise", "-o", "out.npy")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--normalise" in result.stderr
    assert "did you mean --normalize?" in result.stderr.lower()


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
    assert get_flag(error.value.argument, "index") == f"--{argument}"


def test_a_command_without_such_a_flag_says_nothing_of_it():
    assert get_flag("rerank_k", "search") == "--rerank-k"
    assert get_flag("rerank_k", "train") is None
    assert get_flag("rerank_k", "no-command") is None
    assert get_flag(None, "search") is None


def test_other_names_are_those_of_options():
    assert set(OTHER_NAMES.values()) <= {name for command in COMMANDS for name in get_flags(command)}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["search"], "search requires --model, --index"),
        (["serve", "runs/my faq"], "serve requires --model"),
        (["search", "--top-k", "3", "m", "i"], "search requires --model, --index"),
        (["index", "faq.csv"], "index requires --out"),
        (["index", "--model", "m", "-c", "texts", "-o"], "index requires a value for --out"),
        (["train", "--train", "a", "--out", "b", "--report-to"], "train requires a value for --report-to"),
        (["train", "--teacher", "--train", "a", "--out", "b"], "train requires a value for --teacher"),
        (["evaluate", "--model", "m", "--measures"], "evaluate requires a value for --measures"),
        (["search", "--modle", "m", "-i", "x"], "unknown option: --modle (did you mean --model?)"),
        (["pretrain"], "pretrain requires CORPUS, --out"),
        (["pretrain", "texts.txt"], "pretrain requires --out"),
        (["pretrain", "--config", "run.yaml"], "unknown option: --config"),
        (["encode"], "encode requires TEXTS, --out"),
        (["export"], "export requires --model, --out"),
        (["export", "model"], "export requires --out"),
        (["export", "--out", "folder"], "export requires --model"),
        (["rank", "-m", "model"], "rank requires --context, --candidates"),
        (["evaluate", "--model", "m"], "give --data, examples to rank, or --qrels or --beir, judgements of retrieval"),
        (
            ["evaluate", "--model", "m", "--beir", "b", "--measures", "AP"],
            "give --index, or --rerank-run with --corpus or --index",
        ),
        (["index", "--out", "x"], "give --candidates, which are encoded, or --vectors, which exist"),
        # unknown flags are named before what is missing
        (["train", "--backbone", "none", "--train", "a", "--patience", "0", "--epoch=1", "--bf61"], UNKNOWN),
        (["train", "--patience", "0", "--epoch=1", "--bf61"], UNKNOWN),
        (["train", "--train", "pairs.jsonl", "--out", "out", "-x", "4"], "unknown option: -x"),
        (["train", "-x=4"], "unknown option: -x"),
        # a value that begins with a hyphen is no flag, and what follows -- is none either
        ([*SEARCH, "--context", "- hello", "--top-k"], "search requires a value for --top-k"),
        (["train", "--", "-", "-5", "--out", "x"], "train requires --train, --out"),
        # a text without quotes, and values without a flag
        ([*SEARCH, "--context", "where", "is", "it?"], f"unexpected 'is', 'it?': {QUOTES}"),
        (["train", "--backbone", "none", "--train", "-", "-5", "--out", "out"], f"unexpected '-5': {QUOTES}"),
        (["train", "--backbone", "none", "--train", "-", "-", "--out", "out"], f"unexpected '-': {QUOTES}"),
        ([*TRAIN, "--bf16=maybe"], 'Invalid value for --bf16: unable to convert "maybe" into bool.'),
        *(([*words, "--index", "two"], "--index is given twice: give it once") for words in OF_ONE_INDEX),
        (["evaluate", "-m", "a", "--compare", "b", "--compare", "c"], "--compare is given twice: give it once"),
        (["index", "-c", "a.txt", "--candidates", "b.txt"], f"--candidates {REPEATED}"),
        (["train", "--train", "a.jsonl", "--train=b.jsonl"], f"--train {REPEATED}"),
        (["update", "--add", "a.txt", "--add", "b.txt"], f"--add {REPEATED}"),
        (["evaluate", "-d", "a.jsonl", "-d", "b.jsonl"], f"-d {REPEATED}"),
    ],
)
def test_a_command_line_that_cannot_be_read(arguments, expected):
    done = invoke(*arguments)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"polyencoder: {expected}\n")


@pytest.mark.parametrize(
    ("text", "missing"),
    [("train: pairs.jsonl\n", "--out"), ("out: model\n", "--train"), ("epochs: 1\n", "--train, --out")],
)
def test_what_a_configuration_has_is_not_named_as_missing(tmp_path, text, missing):
    (tmp_path / "run.yaml").write_text(text)
    done = invoke("train", "--config", str(tmp_path / "run.yaml"))
    assert done.exit_code == 2
    assert done.stderr == f"polyencoder: train requires {missing}\n"


def test_a_configuration_may_have_all_that_is_required(tmp_path):
    (tmp_path / "run.yaml").write_text("train: pairs.jsonl\nout: model\nbackbone: encoder\n")
    _, bound = parse(["train", "--config", str(tmp_path / "run.yaml")])
    data = bound.arguments["settings"].data
    assert (data.train, data.out) == ("pairs.jsonl", "model")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["search", "--model", "m", "--help"], ["train", "--out", "m", "-h"]])
def test_help_is_shown_behind_flags_too(arguments):
    done = invoke(*arguments)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"Usage: polyencoder {' '.join(argument for argument in arguments[:-3])} ")


@pytest.mark.parametrize("command", ["search", "index"])
def test_the_lines_of_a_help_text_begin_in_one_column(command):
    """Help of plain dataclasses does, too, whose docstrings have line breaks and indentation."""
    rows = [line for line in invoke(command, "--help").stdout.splitlines() if re.match(r"│ {20}", line)]
    assert len({len(line) - len(line[1:].lstrip()) for line in rows}) == 1


@pytest.mark.slow
def test_help_and_wrong_flags_of_all_commands_need_no_torch():
    """Nor anything else that takes a second to import; neither do the checks of settings."""
    code = """
import contextlib, sys
heavy = "torch transformers tokenizers scipy sklearn faiss onnx onnxruntime datasets pyarrow pandas optuna fastapi"
sys.modules.update(dict.fromkeys(heavy.split()))  # None: an import of it is an error
from polyencoder.cli.main import COMMANDS, app, main
def run(*words):
    sys.argv = ["polyencoder", *words]
    with contextlib.suppress(SystemExit):
        main()
for name in COMMANDS:
    for words in ([name], *([name, part] for part in app[name] if not part.startswith("-"))):
        run(*words, "--help")
        run(*words)
run("search", "--bogus")
run("train", "--train", "a", "--out", "b", "--backbone", "c", "--architecture", "cross", "--n-codes", "4")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    errors = done.stderr.splitlines()
    for name in COMMANDS:
        assert f"Usage: polyencoder {name} " in done.stdout
        if name != "zoo":
            assert any(line.startswith(f"polyencoder: {name} requires ") for line in errors)
    assert errors[-2].startswith("polyencoder: unknown option: --bogus")
    assert errors[-1].startswith("polyencoder: n_codes is read only where architecture is poly, not cross: leave it")
    assert [line for line in errors if not line.startswith("polyencoder: ")] == []


def test_an_update_of_nothing_is_an_error(tmp_path):
    command_fails(ConfigError, "nothing to do: give --add", "update", "--model", tmp_path, "--index", tmp_path)
