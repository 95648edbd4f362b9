"""The one line of an error names the flag of the argument at fault, if the command has it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from polyencoder import ConfigError
from polyencoder.cli.main import COMMANDS, OTHER_NAMES, flag_of, flags_of, main, parse
from tests.commands import command_fails, invoke

TRAIN = ["train", "--train", "pairs.jsonl", "--out", "out", "--backbone", "none"]
MINE = ["mine", "-m", "none", "-p", "pairs.jsonl", "-o", "out.jsonl"]


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
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said.removesuffix("\n")

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
        (["--rerank-k", "50"], "rerank_k is read only with index: give that too, or leave it out"),
    ],
)
def test_a_server_reads_every_flag_that_is_given(line, options, message):
    assert line(["serve", "-m", "none", *options]).startswith(f"polyencoder: {message} (flag --")


def test_unknown_flags_are_named_together():
    result = invoke("search", "--modle", "x", "-i", "y", "--topk=3", "--context", "--filters", "--", "--no-flag")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "unknown options: --modle (did you mean --model?), --topk (did you mean --top-k?)" in result.stderr
    assert "--filters" not in result.stderr  # the value of --context


@pytest.mark.parametrize("start", [["--backbone", "none"], []])
def test_unknown_flags_are_named_before_what_is_missing(start):
    done = invoke("train", "--train", "pairs.jsonl", "--out", "out", *start, "--patience", "0", "--epoch=1", "--bf61")
    assert done.exit_code == 2
    named = "--epoch (did you mean --epochs?), --bf61 (did you mean --bf16?)"
    assert done.stderr == f"polyencoder: unknown options: {named}\n"


@pytest.mark.parametrize("line", ["train --train pairs.jsonl --out out -x 4", "train -x=4"])
def test_an_unknown_short_flag_is_named_before_what_is_missing(line):
    done = invoke(*line.split())
    assert (done.exit_code, done.stderr) == (2, "polyencoder: unknown option: -x\n")


def test_a_value_that_begins_with_a_hyphen_is_no_flag():
    done = invoke("search", "-m", "none", "-i", "none", "--context", "- hello", "--top-k")
    assert (done.exit_code, done.stderr) == (2, "polyencoder: search requires a value for --top-k\n")


def test_what_follows_two_hyphens_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-texts.txt").touch()
    done = invoke("encode", "-m", "none", "-o", "out.npy", "--", "-texts.txt")
    assert (done.exit_code, done.stderr) == (1, "polyencoder: ./-texts.txt: no text in it\n")


def test_flags_behind_two_hyphens_are_not_read():
    done = invoke("train", "--", "-", "-5", "--out", "x")
    assert (done.exit_code, done.stderr) == (
        2,
        "polyencoder: train requires --train, --out; what follows -- is no flag\n",
    )


@pytest.mark.parametrize("flag", ["--bogus", "-x"])
def test_what_is_neither_a_command_nor_a_flag(flag):
    done = invoke(flag)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"polyencoder: no command '{flag}'; it must be one of rank, train, ")


def test_a_text_without_quotes():
    done = invoke("search", "-m", "none", "-i", "none", "--context", "where", "is", "it?")
    assert done.exit_code == 2
    assert done.stderr == (
        "polyencoder: unexpected 'is', 'it?': a value follows its flag, and one with spaces is in quotes\n"
    )


@pytest.mark.parametrize("word", ["-5", "-"])
def test_a_value_without_a_flag(word):
    done = invoke("train", "--backbone", "none", "--train", "-", word, "--out", "out")
    assert (done.exit_code, done.stderr.partition(":")[2]) == (
        2,
        f" unexpected '{word}': a value follows its flag, and one with spaces is in quotes\n",
    )


@pytest.mark.parametrize(
    "words",
    [
        ["index", "-m", "none", "-o", "out", "-c", "a.txt", "--candidates", "b.txt"],
        ["train", "--backbone", "none", "--out", "out", "--train", "a.jsonl", "--train=b.jsonl"],
        ["update", "-m", "none", "-i", "none", "--add", "a.txt", "--add", "b.txt"],
        ["evaluate", "-m", "none", "-d", "a.jsonl", "-d", "b.jsonl"],
    ],
)
def test_a_flag_of_files_is_given_once(words):
    """The last value would be read, and the other files left out."""
    done = invoke(*words)
    assert done.exit_code == 2
    assert re.fullmatch(r"polyencoder: --?\w+ is given twice: give it once, with commas between files\n", done.stderr)


@pytest.mark.parametrize(
    "words",
    [
        ["update", "-m", "none", "--index", "one", "--remove-id", "a"],
        ["evaluate", "-m", "none", "--beir", "none", "--index", "one"],
        ["calibrate", "-m", "none", "-d", "none", "--index", "one"],
        ["mine", "-m", "none", "-p", "none", "-o", "none", "--index", "one"],
        ["evaluate", "-m", "none", "--beir", "none", "--compare", "one"],
    ],
)
def test_commands_of_one_index_take_no_second(words):
    """`polyencoder search` takes several; here the last one would be changed or measured, and the others not."""
    flag = next(word for word in words if word in ("--index", "--compare"))
    done = invoke(*words, flag, "two")
    assert (done.exit_code, done.stderr) == (2, f"polyencoder: {flag} is given twice: give it once\n")


def test_a_switch_with_a_value_that_it_cannot_have():
    done = invoke(*TRAIN, "--bf16=maybe")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == 'polyencoder: Invalid value for --bf16: unable to convert "maybe" into bool.\n'


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
    assert flag_of(error.value.argument, "index") == f"--{argument}"


def test_a_command_without_such_a_flag_says_nothing_of_it():
    assert flag_of("rerank_k", "search") == "--rerank-k"
    assert flag_of("rerank_k", "train") is None
    assert flag_of("rerank_k", "no-command") is None
    assert flag_of(None, "search") is None


def test_other_names_are_those_of_options():
    assert set(OTHER_NAMES.values()) <= {name for command in COMMANDS for name in flags_of(command)}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["search"], "search requires --model, --index"),
        (["serve", "runs/my faq"], "serve requires --model (did you mean --model 'runs/my faq'?)"),
        (["search", "--top-k", "3", "m", "i"], "search requires --model, --index (did you mean --model m --index i?)"),
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
        (
            ["evaluate", "--model", "m"],
            "give --data, examples to rank, or --qrels or --beir, judgements of retrieval",
        ),
        (
            ["evaluate", "--model", "m", "--beir", "b", "--measures", "AP"],
            "give --index, or --rerank-run with --corpus or --index",
        ),
        (["index", "--out", "x"], "give --candidates, which are encoded, or --vectors, which exist"),
    ],
)
def test_what_a_command_line_lacks_is_named(arguments, expected):
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert done.stderr == f"polyencoder: {expected}\n"


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


@pytest.mark.parametrize("arguments", [["search", "--model", "m", "--help"], ["train", "--out", "m", "-h"]])
def test_help_is_shown_behind_flags_too(arguments):
    done = invoke(*arguments)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"Usage: polyencoder {' '.join(one for one in arguments[:-3])} ")


@pytest.mark.parametrize("command", ["search", "index"])
def test_the_lines_of_a_help_text_begin_in_one_column(command):
    """Those of plain dataclasses, too, whose docstrings have line breaks and indentation."""
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
