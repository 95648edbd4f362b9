"""Every command as someone uses it who means no good, or has no luck: one line that says what is wrong.

A row of a table is a command. The exit code is 1, and what is left behind is what was there before.
"""

from __future__ import annotations

import json
import socket
import sys
from contextlib import closing

import pytest

from polyencoder.cli.main import main
from polyencoder.index.folder.catalogue import Catalogue
from polyencoder.index.folder.database import connect
from polyencoder.ranker import Ranker
from tests.polyencoder.cli.commands import (
    ALL,
    CALIBRATE,
    COMMANDS,
    ENCODE,
    EVALUATE,
    EXPORT,
    IMPORT,
    INDEX,
    INSPECT,
    MINE,
    SEARCH,
    SERVE,
    TRAIN,
    UPDATE,
    instead,
    with_model,
)
from tests.processes import full_disk

pytestmark = pytest.mark.slow

LONG = "n" * 300
QUERIES = ["--qrels", "qrels", "--queries", "queries.tsv", "--index", "nothing"]
MODELS = ["notes.txt", LONG, f"{LONG}/x", "", "index", "texts.txt/below", "./no/such", "no/such", "x" * 5000]
WRITING = [
    *((command, "out") for command in (EXPORT, INDEX, TRAIN, IMPORT)),
    *((MINE, "out.jsonl"), (ENCODE, "out.npy")),
]
"""Commands, and what each of these writes."""


@pytest.mark.parametrize("name", ALL)
def test_what_is_no_model(name, refused):
    for model in MODELS:
        if (name, model) != ("check", "index"):  # which it takes, too: test_check.py
            refused(with_model(ALL[name], model))


@pytest.mark.parametrize("name", ["calibrate", "encode", "evaluate", "index", "search", "serve", "mine", "train"])
def test_what_is_no_device(name, refused):
    for device in ("cuda:99", "nonsense", "meta", "cpu:x", "cuda:-1"):
        assert "device" in refused([*COMMANDS[name], "--device", device])


@pytest.mark.skipif(__import__("torch").cuda.is_available(), reason="there is CUDA here")
def test_cuda_that_is_not_there(refused):
    assert "device 'cuda' cannot be used (torch finds no CUDA here); give cpu" in refused([*SEARCH, "--device", "cuda"])


def test_a_folder_in_place_of_a_model_file(refused):
    assert "model: is a folder; give the model's file in it" in refused(IMPORT)


@pytest.mark.parametrize(
    ("command", "problem"),
    [(EXPORT, "looks like a file of text or data, not a model"), (IMPORT, "(Unsupported operand ")],
)
def test_torchs_advice_to_run_a_file_is_not_passed_on(command, problem, refused):
    message = refused(with_model(command, "pairs.jsonl"))
    assert problem in message
    assert "weights_only" not in message


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (instead(TRAIN, "pairs.jsonl", "columns.csv"), "columns.csv, line 2: has no '"),
        (instead(EVALUATE, "pairs.jsonl", "columns.csv"), "columns.csv, line 2: has no '"),
        (instead(CALIBRATE, "pairs.jsonl", "columns.csv"), "columns.csv, line 2: has no '"),
        (instead(MINE, "pairs.jsonl", "columns.csv"), "columns.csv, line 2: has no '"),
        (instead(INDEX, "texts.txt", "columns.csv"), "columns.csv, line 2: has no '"),
        (instead(UPDATE, "texts.txt", "columns.csv"), "columns.csv, line 2: has no '"),
        (instead(TRAIN, "pairs.jsonl", "cell.csv"), "cell.csv, line 3: the response"),
        (instead(INDEX, "texts.txt", "cell.csv"), "cell.csv, line 3: no text in the field"),
        ([*CALIBRATE, "--index", "nothing"], "nothing: "),
        ([*MINE, "--index", "nothing"], "nothing: "),
        (["evaluate", "-m", "MODEL", *QUERIES], "nothing: "),
        ([*SERVE[:-1], "PORT"], "cannot listen on 127.0.0.1, port "),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_costs_nothing_is_checked_before_a_model_is_loaded(command, expected, refused, workdir, monkeypatch):
    (workdir / "columns.csv").write_text("question of;reply\nhello;hi\n")
    (workdir / "cell.csv").write_text("context,response,text\nhello,hi,hi\nhello,,\n")
    (workdir / "qrels").write_text("q1 0 d1 1\n")
    (workdir / "queries.tsv").write_text("q1\thello\n")
    monkeypatch.setattr(Ranker, "from_pretrained", lambda *_, **__: pytest.fail("a model was loaded"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert expected in refused([port if part == "PORT" else part for part in command])


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (instead(INSPECT, "texts.txt", "empty.txt"), "empty.txt: no candidate in it"),
        (["encode", "-m", "MODEL", "--kind", "candidate", "empty.txt", "--out", "x.parquet"], "no text in it"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_file_without_anything(command, expected, refused, workdir):
    (workdir / "empty.txt").touch()
    assert expected in refused(command)
    assert not (workdir / "parts").exists()


@pytest.mark.parametrize(("command", "out"), WRITING)
def test_places_that_cannot_be_written_to(command, out, refused):
    for where in ("texts.txt/below", "/proc/no/such", LONG, f"{LONG}/x", "pipe", "texts.txt"):
        refused(instead(command, out, where))


@pytest.mark.parametrize("where", ["", " "])
def test_a_place_without_a_name(where, refused):
    assert "empty" in refused(instead(INDEX, "out", where))
    assert "empty" in refused(instead(MINE, "out.jsonl", where))
    for command in (SEARCH, UPDATE):
        assert "the index is empty" in refused(instead(command, "index", where))


def test_no_file_takes_the_place_of_something_else(refused):
    for where in ("pipe", "model", "."):
        assert "is a folder or a device" in refused(instead(MINE, "out.jsonl", where))


def test_a_file_that_is_there(refused, workdir, monkeypatch, capsys):
    command = instead(MINE, "out.jsonl", "there.jsonl")
    assert "there.jsonl: exists already; give another name, or overwrite it (flag --overwrite)" in refused(command)
    monkeypatch.setattr(sys, "argv", ["polyencoder", *with_model(command, "model"), "--overwrite"])
    main()
    assert "not to be lost" not in (workdir / "there.jsonl").read_text()


@pytest.mark.parametrize(
    "command",
    [
        instead(MINE, "out.jsonl", "pairs.jsonl"),
        ["prepare-reddit", "pairs.jsonl", "-o", "pairs.jsonl"],
        [*INSPECT, "--html", "texts.txt"],
        ["evaluate", "-m", "MODEL", "-i", "index", "--qrels", "q", "--queries", "texts.txt", "--run-out", "texts.txt"],
    ],
)
def test_a_file_that_is_read_is_not_replaced(command, refused):
    """Even with --overwrite it stays."""
    assert "is read, and would be replaced; give another name" in refused([*command, "--overwrite"])


@pytest.mark.parametrize("name", ["export", "calibrate", "mine"])
def test_a_full_disk(name, refused):
    with full_disk(100):
        message = refused(COMMANDS[name])
    assert "cannot be written (" in message


FAISS = ["hnsw,m=999999999", "hnsw,m=-1", "hnsw,m=0", "hnsw,m=x", "hnsw,m=3,m=4", "hnsw,,", "", "nonsense", "flat,m=3"]
FAISS += ["hnsw,ef_search=999999999999999999999", "ivf-flat,nlist=99999999", "ivf-pq,pq_bits=40", "auto,m=3"]


@pytest.mark.parametrize("faiss", FAISS)
def test_what_faiss_cannot_build(faiss, refused):
    pytest.importorskip("faiss")
    refused([*INDEX, "--faiss", faiss])


@pytest.mark.parametrize(
    ("command", "where"),
    [
        (instead(TRAIN, "pairs.jsonl", "half_response.jsonl"), "half_response.jsonl, line 1"),
        (instead(MINE, "pairs.jsonl", "half_context.jsonl"), "half_context.jsonl, line 1"),
        (instead(MINE, "pairs.jsonl", "half_response.jsonl"), "half_response.jsonl, line 1"),
        (["search", "-m", "MODEL", "-i", "index", "--contexts", "half_context.jsonl"], "half_context.jsonl, line 1"),
        (instead(INDEX, "texts.txt", "half.jsonl"), "half.jsonl, line 2"),
        ([*SEARCH[:-1], "hi \udc80"], "turn 0"),
        ([*SEARCH, "--filter", "key=\udc80"], "--filter"),
        ([*SEARCH, "--filter", r'key="\ud83d"'], "--filter"),
        ([*EXPORT, "--int8", "--check", "half_context.jsonl"], "half_context.jsonl, line 1"),
    ],
    ids=str,
)
def test_half_a_character(command, where, refused):
    message = refused(command)
    assert where in message
    assert "is half of one (a lone surrogate" in message


def test_half_a_character_is_skipped_with_other_bad_candidates(workdir, monkeypatch, capsys):
    command = [*instead(INDEX, "texts.txt", "half.jsonl"), "--skip-bad-candidates"]
    monkeypatch.setattr(sys, "argv", ["polyencoder", *with_model(command, "model")])
    main()
    output = capsys.readouterr()
    assert output.out == "out: 1 candidates\n"
    assert "half.jsonl, line 2" in output.err


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        (SEARCH, ["--top-k 0", "--rerank cross --rerank-k 0", "--min-probability nan", "--min-probability 2"]),
        (SEARCH, ["--effort 0", "--list-length -1", "--backend nope"]),
        (MINE, ["-n 0", "--ranks x"]),
        (CALIBRATE, ["--risk nan", "--unanswerable -1"]),
        (INDEX, ["--workers 0", "--shard-size 99999999999999999999999", "--dtype float64"]),
        ([*EXPORT, "--dtype="], [""]),
        (["zoo"], ["convai2_pol", LONG]),
        ([*SEARCH[:3], *SEARCH[5:], "-i"], [LONG, "index/meta.json", "milvus:"]),
    ],
    ids=lambda words: words[0][:20],
)
def test_values_that_cannot_be(command, flags, refused):
    for words in flags:
        refused([*command, *words.split()])


VALUES = [None, "x", -1, 0, True, [], {}, 10**30, float("nan")]
FIELDS = ["n_codes", "reduction_outputs", "output_scaling", "normalize", "share_encoders", "reduction"]
FIELDS += ["context_vectors", "pair_start", "architecture", "poly_attention", "format_version", "text", "backbone"]
FIELDS += [
    "text.text_truncate",
    "text.history_size",
    "text.pad_token",
    "text.separator",
    "text.truncation",
    "backbone.hidden_size",
]
FIELDS += ["backbone.num_attention_heads", "backbone.num_hidden_layers", "backbone.vocab_size", "backbone.model_type"]
FIELDS += ["backbone.max_position_embeddings", "backbone.hidden_act", "backbone.layer_norm_eps"]
GOOD = {("normalize", True), ("share_encoders", True), ("pair_start", True)}  # of the right type; some fit no weights
GOOD |= {(name, value) for name in ("backbone.num_attention_heads", "backbone.layer_norm_eps") for value in (True, 0)}
GOOD |= {("text", "{}"), ("text.separator", "x")}


@pytest.mark.parametrize("field", FIELDS)
def test_a_configuration_that_was_edited(field, workdir, monkeypatch, capsys):
    """Whatever is in it: the model is not loaded, or it works."""
    original = (workdir / "model/polyencoder.json").read_text()
    for value in VALUES:
        config = json.loads(original)
        inner = config
        *path, last = field.split(".")
        for key in path:
            inner = inner[key]
        inner[last] = value
        (workdir / "model/polyencoder.json").write_text(json.dumps(config))
        monkeypatch.setattr(sys, "argv", ["polyencoder", *with_model(SEARCH, "model")])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        lines = [line for line in capsys.readouterr().err.splitlines() if "[transformers]" not in line]
        assert code in (0, 1)
        assert code == 0 or (len(lines) == 1 and lines[0].startswith("polyencoder: ")), (value, lines)
        wrong_type = value in ([], {}) or isinstance(value, (list, dict)) or value == 10**30
        if wrong_type and (field, str(value)) not in GOOD:
            assert code == 1, (field, value)


@pytest.mark.parametrize("field", ["architecture", "dim", "dtype", "model_name", "shard_size", "format_version"])
def test_an_index_whose_description_was_edited(field, refused, workdir):
    original = None
    for value in (None, -1, [], {}, 1.5, ...):
        with closing(connect(workdir / "index/index.sqlite")) as connection:
            catalogue = Catalogue(connection, workdir)
            original = original or json.loads(catalogue.read_description())
            values = {**original, field: value}
            if value is ...:
                del values[field]
            catalogue.describe(json.dumps(values))
        assert "index, its description: " in refused(SEARCH), value


@pytest.mark.parametrize(
    ("command", "out"),
    [
        *WRITING,
        (["vocab", "texts.txt", "--type", "bpe", "--out", "out"], "out"),
        (["pretrain", "texts.txt", "--backbone", "MODEL", "--max-steps", "1", "--out", "out"], "out"),
        (["prepare-reddit", "texts.txt", "--out", "out.jsonl"], "out.jsonl"),
        (SEARCH, "index"),
        (UPDATE, "index"),
        (SERVE, "index"),
        ([*SERVE, "--feedback", "out"], "out"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value[0]} {value[-2]}",
)
def test_addresses_of_a_kind_that_is_not_known(command, out, refused, workdir):
    before = sorted(path.name for path in workdir.iterdir())
    for where in ("mysql://user@host/db", "foo:bar//"):
        message = refused(instead(command, out, where))
        assert f"looks like an address, and {where.partition(':')[0]}: is not a known one" in message
        assert sorted(path.name for path in workdir.iterdir()) == before
