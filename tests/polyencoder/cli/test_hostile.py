"""Every command as someone uses it who means no good, or has no luck: one line that says what is wrong.

A row of a table is a command. The exit code is 1, and what is left behind is what was there before.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import sys
from pathlib import Path

import pytest

from polyencoder.cli.main import main

LONG = "n" * 300
LOG = re.compile(r"\d\d:\d\d:\d\d ")  # of a training, before it stops
EXPORT, IMPORT, CHECK = ["export", "MODEL", "out"], ["import", "MODEL", "out"], ["check", "MODEL"]
CALIBRATE = ["calibrate", "-m", "MODEL", "-d", "pairs.jsonl"]
INDEX = ["index", "-m", "MODEL", "-c", "texts.txt", "-o", "out", "--no-progress"]
UPDATE = ["update", "-m", "MODEL", "-i", "index", "--add", "texts.txt"]
SEARCH = ["search", "-m", "MODEL", "-i", "index", "--context", "hi"]
MINE = ["mine", "-m", "MODEL", "-p", "pairs.jsonl", "-o", "out.jsonl", "--no-progress"]
EVALUATE = ["evaluate", "-m", "MODEL", "-d", "pairs.jsonl"]
TRAIN = ["train", "--train", "pairs.jsonl", "--init", "MODEL", "--out", "out"]
COMMANDS = {
    "evaluate": EVALUATE,
    "train": TRAIN,
    "export": EXPORT,
    "calibrate": CALIBRATE,
    "index": INDEX,
    "update": UPDATE,
    "search": SEARCH,
    "mine": MINE,
}


def with_model(command: list[str], model: str) -> list[str]:
    return [model if part == "MODEL" else part for part in command]


def instead(command: list[str], old: str, new: str) -> list[str]:
    return [new if part == old else part for part in command]


@pytest.fixture(scope="module")
def master(make_model, tokenizer, tmp_path_factory, sentences):
    """A folder with models, an index, and files of any kind."""
    from polyencoder.ranker import Ranker
    from polyencoder.text import TextEncoder

    folder = tmp_path_factory.mktemp("master")
    for name, kind in (("model", "poly"), ("cross", "cross")):
        model = make_model(kind)
        ranker = Ranker(model, TextEncoder(tokenizer, model.config.text), device="cpu")
        ranker.save_pretrained(folder / name)
        if name == "model":
            ranker.index(sentences, folder / "index")
    (folder / "texts.txt").write_text("\n".join(sentences))
    ranker = Ranker.from_pretrained(folder / "model", device="cpu")
    best = {text: ranker.rank(text, sentences)[0].text for text in sentences}
    records = [{"context": [text], "response": best[text], "candidates": sentences} for text in sentences] * 2
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, records)))
    (folder / "notes.txt").write_text("just some text\n")
    half = r'{"context": ["hi \ud83d"], "response": "a", "candidates": ["a", "b"]}'
    (folder / "half_context.jsonl").write_text(half)
    (folder / "half_response.jsonl").write_text(half.replace(r"hi \ud83d", "hi").replace('"a"', r'"a \ud83d"'))
    lines = ['{"text": "fine"}', r'{"text": "bad \ud83d"}', r'{"text": "good", "key": "\uDC00"}']
    (folder / "half.jsonl").write_text("\n".join(lines))
    (folder / "there.jsonl").write_text("not to be lost\n")
    return folder


@pytest.fixture
def place(master, tmp_path, monkeypatch):
    """A copy of it, in which commands run."""
    shutil.copytree(master, tmp_path / "place")
    os.mkfifo(tmp_path / "place" / "pipe")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


@pytest.fixture
def refused(place, monkeypatch, capsys):
    """(command) -> what it says, in one line; it ends with the exit code 1 and leaves nothing behind."""

    def run(command: list[str]) -> str:
        before = files_of(place)
        monkeypatch.setattr(sys, "argv", ["polyencoder", *with_model(command, "model")])
        with pytest.raises(SystemExit) as end:
            main()
        said = "\n".join(line for line in capsys.readouterr().err.splitlines() if not LOG.match(line))
        assert end.value.code == 1, said
        assert said.startswith("polyencoder: ")
        assert len(said.splitlines()) == 1, said
        assert len(said) < 700
        assert files_of(place) == before
        return said

    return run


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below it with what it holds, besides locks and the unfinished index that a next start goes on with."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    paths = (path for path in paths if path.relative_to(folder).parts[0] != "out")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("name", [*COMMANDS, "import", "check"])
@pytest.mark.parametrize(
    "model",
    ["notes.txt", LONG, f"{LONG}/x", "", "index", "texts.txt/below", "./no/such", "no/such", "x" * 5000],
)
def test_what_is_no_model(name, model, refused):
    command = {**COMMANDS, "import": IMPORT, "check": CHECK}[name]
    refused(with_model(command, model))


@pytest.mark.parametrize("name", ["calibrate", "evaluate", "index", "search", "mine", "train"])
@pytest.mark.parametrize("device", ["cuda:99", "nonsense", "meta", "cpu:x", "cuda:-1"])
def test_what_is_no_device(name, device, refused):
    assert "device" in refused([*COMMANDS[name], "--device", device])


@pytest.mark.skipif(__import__("torch").cuda.is_available(), reason="there is CUDA here")
def test_cuda_that_is_not_there(refused):
    assert "device 'cuda' cannot be used (torch finds no CUDA here); give cpu" in refused([*SEARCH, "--device", "cuda"])


@pytest.mark.parametrize(
    ("command", "out"),
    [(EXPORT, "out"), (INDEX, "out"), (TRAIN, "out"), (MINE, "out.jsonl"), (IMPORT, "out")],
)
@pytest.mark.parametrize("where", ["texts.txt/below", "/proc/no/such", LONG, f"{LONG}/x", "pipe", "texts.txt"])
def test_places_that_cannot_be_written_to(command, out, where, refused):
    refused(instead(command, out, where))


@pytest.mark.parametrize("where", ["", " "])
def test_a_place_without_a_name(where, refused):
    assert "empty" in refused(instead(INDEX, "out", where))
    assert "empty" in refused(instead(MINE, "out.jsonl", where))
    for command in (SEARCH, UPDATE):
        assert "the index is empty" in refused(instead(command, "index", where))


@pytest.mark.parametrize("where", ["pipe", "model", "."])
def test_no_file_takes_the_place_of_something_else(where, refused):
    assert "is a folder or a device" in refused(instead(MINE, "out.jsonl", where))


def test_a_file_that_is_there(refused, place, monkeypatch, capsys):
    command = instead(MINE, "out.jsonl", "there.jsonl")
    assert "there.jsonl: is there already; give another name, or overwrite it (flag --overwrite)" in refused(command)
    monkeypatch.setattr(sys, "argv", ["polyencoder", *with_model(command, "model"), "--overwrite"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert "not to be lost" not in (place / "there.jsonl").read_text()


@pytest.mark.parametrize("name", ["export", "calibrate", "mine"])
def test_a_full_disk(name, refused):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        said = refused(COMMANDS[name])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cannot be written (" in said


@pytest.mark.parametrize(
    "faiss",
    [
        *(
            "hnsw,m=999999999",
            "hnsw,m=-1",
            "hnsw,m=0",
            "hnsw,m=x",
            "hnsw,m=3,m=4",
            "hnsw,,",
            "",
            "nonsense",
            "flat,m=3",
        ),
        *("hnsw,ef_search=999999999999999999999", "ivf-flat,nlist=99999999", "ivf-pq,pq_bits=40", "auto,m=3"),
    ],
)
def test_what_faiss_cannot_build(faiss, refused):
    pytest.importorskip("faiss")
    refused([*INDEX, "--faiss", faiss])


@pytest.mark.parametrize(
    ("command", "where"),
    [
        ([*CALIBRATE[:-1], "half_context.jsonl"], "half_context.jsonl, line 1"),
        ([*EVALUATE[:-1], "half_context.jsonl"], "half_context.jsonl, line 1"),
        (instead(TRAIN, "pairs.jsonl", "half_response.jsonl"), "half_response.jsonl, line 1"),
        ([*CALIBRATE[:-1], "half_response.jsonl"], "half_response.jsonl, line 1"),
        (instead(MINE, "pairs.jsonl", "half_context.jsonl"), "half_context.jsonl, line 1"),
        (instead(MINE, "pairs.jsonl", "half_response.jsonl"), "half_response.jsonl, line 1"),
        (["search", "-m", "MODEL", "-i", "index", "--contexts", "half_context.jsonl"], "half_context.jsonl, line 1"),
        (instead(INDEX, "texts.txt", "half.jsonl"), "half.jsonl, line 2"),
        (instead(UPDATE, "texts.txt", "half.jsonl"), "half.jsonl, line 2"),
        ([*SEARCH[:-1], "hi \udc80"], "turn 0"),
        ([*SEARCH, "--filter", "key=\udc80"], "--filter"),
        ([*SEARCH, "--filter", r'key="\ud83d"'], "--filter"),
        ([*EXPORT, "--int8", "--check", "half_context.jsonl"], "half_context.jsonl, line 1"),
    ],
    ids=str,
)
def test_half_a_character(command, where, refused):
    said = refused(command)
    assert where in said
    assert "is half of one (a lone surrogate" in said


def test_half_a_character_is_skipped_with_other_bad_candidates(place, monkeypatch, capsys):
    command = [*instead(INDEX, "texts.txt", "half.jsonl"), "--skip-bad-candidates"]
    monkeypatch.setattr(sys, "argv", ["polyencoder", *with_model(command, "model")])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (0, "out: 1 candidates\n")
    assert "half.jsonl, line 2" in said.err


@pytest.mark.parametrize(
    "command",
    [
        [*SEARCH, "--top-k", "0"],
        [*SEARCH, "--rerank", "cross", "--rerank-k", "0"],
        [*SEARCH, "--min-probability", "nan"],
        [*SEARCH, "--min-probability", "2"],
        [*SEARCH, "--effort", "0"],
        [*SEARCH, "--list-length", "-1"],
        [*SEARCH, "--backend", "nope"],
        [*MINE, "-n", "0"],
        [*MINE, "--ranks", "x"],
        [*MINE, "--margin", "nan"],
        [*MINE, "--margin", "inf"],
        [*CALIBRATE, "--precision", "nan"],
        [*CALIBRATE, "--unanswerable", "-1"],
        [*INDEX, "--workers", "0"],
        [*INDEX, "--shard-size", "99999999999999999999999"],
        [*INDEX, "--dtype", "float64"],
        [*EXPORT, "--dtype", ""],
        ["zoo", "convai2_pol"],
        ["zoo", LONG],
        ["search", "-m", "MODEL", "-i", LONG, "--context", "hi"],
        ["search", "-m", "MODEL", "-i", "index/meta.json", "--context", "hi"],
        ["search", "-m", "MODEL", "-i", "milvus:", "--context", "hi"],
    ],
    ids=str,
)
def test_values_that_cannot_be(command, refused):
    refused(command)


TRAINING = {
    "data that is not there": (instead(TRAIN, "pairs.jsonl", "no.jsonl"), "no such file"),
    "no data": (instead(TRAIN, "pairs.jsonl", "empty.jsonl"), "empty.jsonl: has 0 pairs to learn from"),
    "too little data": (instead(TRAIN, "pairs.jsonl", "one.jsonl"), "one.jsonl: has 1 pairs to learn from"),
    "too little to stream": (
        [*instead(TRAIN, "pairs.jsonl", "one.jsonl"), "--streaming", "--valid", "pairs.jsonl"],
        "one.jsonl: has 1 pairs to learn from",
    ),
    "no data name": (instead(TRAIN, "pairs.jsonl", ""), "needs its training data (train)"),
    "a folder": (instead(TRAIN, "pairs.jsonl", "model"), "is a folder"),
    "another format": (instead(TRAIN, "pairs.jsonl", "notes.txt"), "notes.txt"),
    "no validation data": ([*TRAIN, "--valid", "empty.jsonl"], "empty.jsonl: has no pair to evaluate on"),
    "no such validation data": ([*TRAIN, "--valid", "no.jsonl"], "no such file"),
    "a column": ([*TRAIN, "--context", "question"], "has no 'question'; it has 'context', 'response', 'candidates'"),
    "too few candidates": (
        [*instead(TRAIN, "pairs.jsonl", "plain.jsonl"), "--candidates", "inline", "--num-negatives", "99"],
        "plain.jsonl has only",
    ),
    "nothing to start from": (["train", "--train", "pairs.jsonl", "--out", "out"], "give one of backbone"),
    "two to start from": ([*TRAIN, "--backbone", "model"], "give one of backbone"),
    "no backbone": (
        ["train", "--train", "pairs.jsonl", "--backbone", "./nothing", "--out", "out"],
        "nothing",
    ),
    "another architecture": ([*TRAIN, "--architecture", "bi"], "is of the architecture poly, not bi"),
    "no architecture": ([*TRAIN, "--architecture", "tri"], "architecture is 'tri'; it must be one of bi, poly"),
    "no file of settings": ([*TRAIN, "--config", "no.yaml"], "--config no.yaml: cannot be read"),
    "no settings": ([*TRAIN, "--config", "notes.txt"], "must hold `name: value` lines"),
    "an unknown setting": ([*TRAIN, "--config", "run.yaml"], "run.yaml: unknown setting 'epoch'; did you mean"),
    "a teacher": ([*TRAIN, "--teacher", "./nothing"], "nothing"),
    "a backbone's flag": ([*TRAIN, "--reduction", "mean"], "reduction is that of"),
    "streaming": ([*TRAIN, "--streaming"], "give validation data (valid)"),
    "a pipe": (
        [*TRAIN[:1], *instead(TRAIN[1:], "pairs.jsonl", "pipe"), "--streaming", "--valid", "pairs.jsonl"],
        "pipe",
    ),
    "hard negatives": ([*TRAIN, "--hard-negatives", "2", "--candidates", "inline"], "join the candidates 'batch'"),
}
NUMBERS = [
    *(f"--{name} {value}" for name in ("epochs", "max-updates", "max-seconds", "evaluations") for value in (0, -1)),
    *(f"--{name} nan" for name in ("epochs", "max-seconds", "evaluations", "learning-rate", "clip", "weight-decay")),
    *(f"--{name} inf" for name in ("learning-rate", "evaluations", "output-scaling", "weight-decay")),
    *("--batch-size 1", "--batch-size 0", "--learning-rate 0", "--clip -1", "--accumulate 0", "--grad-cache -1"),
    *("--pair-tokens -1", "--num-negatives 0", "--patience 0", "--precision float16", "--precision half"),
    *("--warmup-updates 9999", "--warmup-updates -1", "--weight-decay -1", "--max-nonfinite 0", "--shuffle-buffer 0"),
    *("--teacher MODEL --distillation-weight 2", "--teacher MODEL --distillation-temperature 0", "--history-size 0"),
    *("--teacher MODEL --distillation-candidates 1", "--teacher MODEL --distillation-loss l2", "--text-truncate 2"),
    *(
        "--hard-negatives -1",
        "--hard-negatives 2 --hard-negatives-every 0",
        "--hard-negatives 2 --hard-negative-ranks x",
    ),
    *(
        "--text-truncate 99999",
        "--label-truncate 0",
        "--output-scaling nan",
        "--output-scaling x",
        "--output-scaling -1",
    ),
    *("--candidates fixed", "--schedule steps", "--optimizer lion", "--fine-tuned none", "--save-every-seconds nan"),
    *("--seed 99999999999999999999999", "--hard-negatives 2 --hard-negative-margin nan"),
]


@pytest.mark.parametrize("name", TRAINING)
def test_a_training_that_cannot_be(name, refused, place):
    (place / "empty.jsonl").write_text("")
    (place / "one.jsonl").write_text('{"context": "hi", "response": "ho"}\n')
    (place / "run.yaml").write_text("epoch: 3\n")
    plain = [{"context": "hi", "response": f"number {n}"} for n in range(10)]
    (place / "plain.jsonl").write_text("\n".join(map(json.dumps, plain)))
    command, message = TRAINING[name]
    assert message in refused(command)
    assert not (place / "out").exists()


@pytest.mark.parametrize("flags", NUMBERS)
def test_numbers_that_no_training_can_have(flags, refused, place):
    refused([*TRAIN, *flags.split()])
    assert not list((place / "out").rglob("*"))


@pytest.mark.parametrize("flags", [["--epochs", "many"], ["--epoch", "3"]])
def test_flags_that_are_misspelt(flags, place, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["polyencoder", *with_model(TRAIN, "model"), *flags])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert flags[0] in capsys.readouterr().err
    assert not (place / "out").exists()


EVALUATION = {
    "data that is not there": ([*EVALUATE[:-1], "no.jsonl"], "no such file"),
    "no data": ([*EVALUATE[:-1], "empty.jsonl"], "empty.jsonl: has no example to evaluate on"),
    "a column": ([*EVALUATE, "--response", "answer"], "has no 'answer'"),
    "too few candidates": ([*EVALUATE[:-1], "one.jsonl"], "lower it (flag --num-negatives)"),
    "no k": ([*EVALUATE, "--hits-at", "x"], "hits_at is 'x'"),
    "no candidates": (
        [*EVALUATE, "--num-negatives", "0"],
        "num_negatives is 0; it must be at least 1 (flag --num-negatives)",
    ),
}


@pytest.mark.parametrize("name", EVALUATION)
def test_an_evaluation_that_cannot_be(name, refused, place):
    (place / "empty.jsonl").write_text("")
    (place / "one.jsonl").write_text('{"context": "hi", "response": "ho"}\n')
    command, message = EVALUATION[name]
    assert message in refused(command)


VALUES = [None, "x", -1, 0, True, [], {}, 10**30, float("nan")]
FIELDS = [
    "n_codes",
    "reduction_outputs",
    "output_scaling",
    "normalize",
    "share_encoders",
    "reduction",
    "context_vectors",
]
FIELDS += ["pair_start", "architecture", "poly_attention", "format_version", "text", "backbone", "text.text_truncate"]
FIELDS += ["text.history_size", "text.pad_token", "text.separator", "text.truncation", "backbone.hidden_size"]
FIELDS += ["backbone.num_attention_heads", "backbone.num_hidden_layers", "backbone.vocab_size", "backbone.model_type"]
FIELDS += ["backbone.max_position_embeddings", "backbone.hidden_act", "backbone.layer_norm_eps"]
GOOD = {("normalize", True), ("share_encoders", True), ("pair_start", True)}  # of the right type; some fit no weights
GOOD |= {(name, value) for name in ("backbone.num_attention_heads", "backbone.layer_norm_eps") for value in (True, 0)}
GOOD |= {("text", "{}"), ("text.separator", "x")}


@pytest.mark.parametrize("field", FIELDS)
def test_a_configuration_that_was_edited(field, place, monkeypatch, capsys):
    """Whatever is in it: the model is not loaded, or it works."""
    original = (place / "model/config.json").read_text()
    for value in VALUES:
        config = json.loads(original)
        inner = config
        *path, last = field.split(".")
        for key in path:
            inner = inner[key]
        inner[last] = value
        (place / "model/config.json").write_text(json.dumps(config))
        monkeypatch.setattr(sys, "argv", ["polyencoder", *with_model(SEARCH, "model")])
        with pytest.raises(SystemExit) as end:
            main()
        said = [line for line in capsys.readouterr().err.splitlines() if "[transformers]" not in line]
        assert end.value.code in (0, 1)
        assert end.value.code == 0 or (len(said) == 1 and said[0].startswith("polyencoder: ")), (value, said)
        wrong_type = value in ([], {}) or isinstance(value, (list, dict)) or value == 10**30
        if wrong_type and (field, str(value)) not in GOOD:
            assert end.value.code == 1, (field, value)


@pytest.mark.parametrize("field", ["architecture", "dim", "dtype", "model_name", "shard_size", "format_version"])
@pytest.mark.parametrize("value", [None, -1, [], {}, 1.5, ...], ids=str)
def test_an_index_whose_description_was_edited(field, value, refused, place, edit_json):
    edit_json(place / "index/meta.json", **{field: value})
    said = refused(SEARCH)
    assert f"{os.sep.join(('index', 'meta.json'))}: " in said
