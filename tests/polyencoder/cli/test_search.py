"""`polyencoder search`: what it reads, finds and prints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from polyencoder.errors import CheckpointError, ConfigError, InputError, PolyencoderError, UsageError
from polyencoder.index import Candidate
from tests.commands import command_fails, run_command

pytestmark = pytest.mark.slow

CONTEXTS = [["hello , how are you ?"], ["do you ski ?", "no , i have two dogs ."]]


@pytest.fixture
def ranker(make_ranker):
    return make_ranker("poly")


@pytest.fixture
def folder(ranker, tmp_path, sentences) -> Path:
    """An index beside the model that made it: eight texts with their number, which is text if it is even.

    The first has an `m`, too.
    """
    ranker.save_pretrained(tmp_path / "model")
    records = [Candidate(f"id{i}", text, {"n": i if i % 2 else str(i)}) for i, text in enumerate(sentences)]
    records[0] = records[0]._replace(metadata={"n": "0", "m": 0})
    ranker.index(records, tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def run(folder, tmp_path):
    """(*arguments, input=None) -> the result of `polyencoder search` with the model and the index."""

    def call(*arguments: object, input: str | None = None):
        return run_command("search", "--model", tmp_path / "model", "--index", folder, *arguments, input=input)

    return call


@pytest.fixture
def ask(run):
    """(*arguments, input=None) -> the JSON object that is printed for each context."""

    def call(*arguments: object, input: str | None = None) -> list[dict]:
        return [json.loads(line) for line in run("--json", *arguments, input=input).stdout.splitlines()]

    return call


def test_diversity(ask, run, ranker, folder):
    flags = ("--context", "hello", "--top-k", 3, "--diversity", 0.9)
    (record,) = ask(*flags)
    hits = ranker.search("hello", folder, top_k=3, diversity=0.9)
    assert [hit["id"] for hit in record["hits"]] == [hit.id for hit in hits]
    assert {hit["considered"] for hit in record["hits"]} == {8}
    assert run(*flags).stdout.splitlines()[-1] == "  chosen from the best 8 (--diversity)"
    assert "chosen" not in run(*flags[:-2]).stdout
    for value in ("1.5", "much"):
        with pytest.raises(PolyencoderError, match="diversity"):
            run(*flags[:-1], value)


def test_groups(ask, run, ranker, folder):
    """By a field of one candidate and by a field of all; a note says from how many it chose."""
    flags = ("--context", "hello", "--top-k", 3, "--group-by", "n", "--group-size", 2)
    (record,) = ask(*flags)
    hits = ranker.search("hello", folder, top_k=3, group_by="n", group_size=2)
    assert [hit["id"] for hit in record["hits"]] == [hit.id for hit in hits]
    considered = record["hits"][0]["considered"]
    assert run(*flags).stdout.splitlines()[-1] == f"  chosen from the best {considered} (--group-by)"
    output = run("--context", "hello", "--top-k", 8, "--group-by", "m", "--diversity", 0.5).stdout
    assert output.splitlines()[-1] == "  chosen from the best 8 (--group-by and --diversity)"
    assert len(output.splitlines()) == 10


def test_hybrid(ask, run, ranker, folder, tmp_path, sentences):
    for flag in ("--hybrid", "--words-only"):
        search = ("--model", tmp_path / "model", "--index", folder, "--context", "hello", flag)
        command_fails(ConfigError, f"{folder}: has no words .* with `polyencoder index --words`", "search", *search)
    update = ["update", "--model", tmp_path / "model", "--index", folder]
    for count in ("words of 8 texts added", "words there already"):
        assert run_command(*update, "--words").stdout.splitlines() == [f"{folder}: {count}", f"{folder}: 8 candidates"]
    flags = ("--context", sentences[3], "--top-k", 3)
    (record,) = ask(*flags, "--hybrid")
    hits = ranker.search(sentences[3], folder, top_k=3, hybrid=True)
    assert [(hit["id"], hit["fused_score"]) for hit in record["hits"]] == [(hit.id, hit.fused_score) for hit in hits]
    (alone,) = ask(*flags, "--words-only", "--keep-turns")
    assert (alone["hits"][0]["id"], alone["hits"][0]["found"]) == ("id3", "words")
    row = run(*flags, "--words-only", "--keep-turns").stdout.splitlines()[1]
    assert f"{alone['hits'][0]['word_score']:.2f} by words  words  id3" in row
    nothing = "  no candidate has a word of the context, except its turns (--keep-turns keeps these)\n"
    assert run("--context", "?!", "--words-only").stdout == f"> ?!\n{nothing}"
    making = ("index", "--model", tmp_path / "model", "--words", "--candidates", "-", "--out", tmp_path / "new")
    run_command(*making, input="4711")
    assert "words: of all texts" in run_command("index", "--info", tmp_path / "new").stdout


def expected(ranker, context, folder, **settings) -> list[str]:
    return [hit.id for hit in ranker.search(context, folder, **settings)]


def answers(records: list[dict]) -> list[list[str]]:
    return [[hit["id"] for hit in record["hits"]] for record in records]


def test_a_search_has_one_index(folder, tmp_path):
    flags = ["search", "--model", tmp_path / "model", "--index", folder, "--context", "hi"]
    command_fails(UsageError, "--index", *flags, "--index", tmp_path / "more")
    command_fails(UsageError, "milvus", *flags, "--partial")


@pytest.mark.usefixtures("forked_commands")
def test_the_command(ranker, folder, tmp_path):
    """The real one, in a process of its own: text for people, one context of several turns."""
    command = [sys.executable, "-m", "polyencoder.cli.main", "search", "--model", tmp_path / "model"]
    command += ["--index", folder, "--top-k", "3", "--timing"]
    command += [part for turn in CONTEXTS[1] for part in ("--context", turn)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    heading, *rows = done.stdout.splitlines()
    assert heading == "> do you ski ? / no , i have two dogs ."
    hits = ranker.search(CONTEXTS[1], folder, top_k=3)
    assert [row.split(maxsplit=4) for row in rows] == [
        [str(rank), f"{hit.score:.4f}", "exact", hit.id, hit.text] for rank, hit in enumerate(hits, start=1)
    ]
    assert done.stderr.startswith("1 contexts, ")
    assert re.search(r"encode \d+\.\d+, search \d+\.\d+", done.stderr)


def test_contexts_of_lines_and_records(ask, ranker, folder, tmp_path):
    lines = f"{CONTEXTS[0][0]}\n\n{json.dumps({'context': CONTEXTS[1], 'id': 5})}\n"
    (tmp_path / "contexts.txt").write_text(lines)
    records = [{"text": CONTEXTS[0][0]}, {"context": CONTEXTS[1], "id": 5}]
    (tmp_path / "contexts.jsonl").write_text("\n".join(map(json.dumps, records)))
    by_standard_input = ask(input=lines)
    assert [record["context"] for record in by_standard_input] == CONTEXTS
    assert [record.get("id") for record in by_standard_input] == [None, 5]
    assert answers(by_standard_input) == [expected(ranker, context, folder) for context in CONTEXTS]
    assert ask("--contexts", tmp_path / "contexts.txt") == by_standard_input
    assert ask("--contexts", tmp_path / "contexts.jsonl") == by_standard_input
    assert answers(ask("--batch-size", 1, input=lines)) == answers(by_standard_input)


def test_filters(ask, ranker, folder):
    for flags, filter in [
        (["n=3"], {"n": 3}),
        (["n=4"], {"n": "4"}),
        (["n=3", "n=4"], {"n": [3, "4"]}),
        (["n=3", "m=4"], {"n": 99}),
        (["n>=2", "n<5"], {"n": {"$gte": 2, "$lt": 5}}),
        (["n!=3", "n!=4"], {"n": {"$nin": [3, "4"]}}),
    ]:
        filters = [part for flag in flags for part in ("--filter", flag)]
        assert answers(ask(*filters, "--context", "hello")) == [expected(ranker, "hello", folder, filter=filter)]


def test_nothing_is_left(run, sentences):
    """A filter leaves out all, or all candidates are turns."""
    output = run("--context", "hello", "--filter", "n=none").stdout
    assert output == "> hello\n  no candidate passes the filter\n"
    output = run(*[part for sentence in sentences for part in ("--context", sentence)]).stdout
    assert output.endswith("\n  every candidate is a turn of the context (--keep-turns keeps these)\n")


def test_turns_of_the_context(run, sentences):
    arguments = ["--context", sentences[2].upper(), "--context", "well", "--json"]
    done = run(*arguments)
    assert sentences[2] not in {hit["text"] for hit in json.loads(done.stdout)["hits"]}
    assert done.stderr.endswith(
        "left out 1 candidates that are turns of their own contexts (--keep-turns keeps them)\n"
    )
    with_turns = run(*arguments, "--keep-turns")
    assert sentences[2] in {hit["text"] for hit in json.loads(with_turns.stdout)["hits"]}
    assert "left out" not in with_turns.stderr


@pytest.mark.usefixtures("forked_commands")
def test_effort_and_length_of_lists(folder, ranker, tmp_path):
    """The real commands: one list of four is approximate; all four prove it, if they propose more than one row."""
    pytest.importorskip("faiss")

    def command(name: str, *options: object) -> str:
        arguments = [name, "--model", tmp_path / "model", "--index", folder, *options]
        words = [sys.executable, "-m", "polyencoder.cli.main", *map(str, arguments)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def hits(*options: object) -> tuple[list[str], set[str]]:
        record = json.loads(command("search", "--json", "--context", "hello", "--top-k", 2, *options))
        return answers([record])[0], {hit["found"] for hit in record["hits"]}

    command("update", "--faiss", "ivf-flat,nlist=4,nprobe=1")
    best = expected(ranker, "hello", folder, exactness="exact", top_k=2)
    assert hits()[1] <= {"approximate", "exact"}
    assert hits("--effort", 4) == (best, {"certified"})
    assert hits("--effort", 4, "--list-length", 2)[1] == {"approximate"}


def test_re_ranking(ask, run, ranker, folder, make_ranker, tmp_path):
    cross = make_ranker("cross")
    cross.save_pretrained(tmp_path / "cross")
    options = ["--context", "hello", "--rerank", tmp_path / "cross", "--rerank-k", 3, "--top-k", 5]
    (record,) = ask(*options)
    hits = ranker.search("hello", folder, top_k=5, rerank=cross, rerank_k=3)
    assert record["hits"] == [{key: value for key, value in hit._asdict().items() if value is not None} for hit in hits]
    assert ["rerank_score" in hit for hit in record["hits"]] == [True, True, True, False, False]
    result = run(*options, "--timing")
    assert "rerank" in result.stderr
    assert result.stdout.count("(of ") == 3


def fails(error: type[Exception], match: str, *arguments: object, input: str | None = None) -> None:
    command_fails(error, match, "search", *arguments, input=input)


def test_options_that_cannot_be_used(folder, tmp_path):
    for error, message, options in [
        (InputError, "top_k is 0", ["--top-k", 0]),
        (ConfigError, "group_size is read only with group_by", ["--group-size", 2]),
        (InputError, "--filter lang: must be KEY=VALUE", ["--filter", "lang"]),
        (InputError, "--filter =en: must be KEY=VALUE", ["--filter", "=en"]),
        (InputError, "cannot filter by 'lagn': no candidate of the index has this metadata", ["--filter", "lagn=en"]),
        (InputError, "cannot filter by 'lagn': no candidate of the index has this metadata", ["--filter", "lagn=NaN"]),
        (ConfigError, "index: effort given, but it has no FAISS index, .*build one with", ["--effort", "64"]),
        (CheckpointError, "nowhere: no index", ["--index", "nowhere"]),
        (CheckpointError, "polyencoder.json: no index", ["--index", "MODEL/polyencoder.json"]),
        (ConfigError, "contexts is not read with context: give one of them", ["--contexts", "contexts.txt"]),
        (InputError, "cannot re-rank: .* `polyencoder train --architecture cross", ["--rerank", "MODEL"]),
    ]:
        words = [str(option).replace("MODEL", str(tmp_path / "model")) for option in options]
        if "--index" not in words:
            words += ["--index", folder]
        fails(error, message, "--model", tmp_path / "model", "--context", "hello", *words)


def test_contexts_that_cannot_be_used(folder, tmp_path):
    for lines, message in [
        ("", "no context on standard input"),
        ("hello\n{no json\n", "standard input, line 2: begins with { but is not a JSON object"),
        ('{"context": []}\n', "line 1: 'context' is empty"),
        ('{"context": [1]}\n', "line 1: 'context', turn 0 is 1 .int.; it must be a text"),
    ]:
        fails(InputError, message, "--model", tmp_path / "model", "--index", folder, input=lines)
