"""`polyencoder intents`: a head that is trained, measured, saved and used; and what is refused."""

from __future__ import annotations

import json

import pytest

from polyencoder.errors import CheckpointError, ConfigError, InputError, UsageError
from polyencoder.intents import IntentClassifier, train_intents
from polyencoder.ranker import Ranker
from tests.commands import run_command
from tests.polyencoder.intents.conftest import made

QUICK = ["--no-progress"]
TRAIN = ["train", "--train", "train.jsonl"]
TEST = [*TRAIN, "--test", "test.jsonl", "-m", "model"]
MLP = ["--head", "mlp", "--hidden-size", "16", "--max-epochs", "30"]


@pytest.fixture(scope="module")
def master(make_model, tokenizer, tmp_path_factory):
    """A model, and files of texts with labels."""
    from polyencoder.text import TextEncoder

    folder = tmp_path_factory.mktemp("intents")
    model = make_model("bi")
    Ranker(model, TextEncoder(tokenizer, model.config.text), device="cpu").save_pretrained(folder / "model")
    for name, part in (("train", made()[::2]), ("test", made()[1::2])):
        lines = [json.dumps({"text": one.text, "intent": one.label}) for one in part]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    (folder / "texts.txt").write_text("i like dogs .\n\nno more math !\n")
    return folder


@pytest.fixture
def run(master, tmp_path, monkeypatch):
    """(*arguments) -> what `polyencoder intents` prints, in a folder of its own."""
    for path in master.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str):
        return run_command("intents", *arguments).output

    return call


@pytest.mark.parametrize("head", [[], MLP])
def test_from_files_to_predictions(run, tmp_path, head):
    learn = [
        "train",
        "-m",
        "model",
        "--train",
        "train.jsonl",
        "--test",
        "test.jsonl",
        "--baseline",
        "tfidf",
        "--seeds",
        "2",
        *head,
    ]
    said = run(*learn, *QUICK, "-o", "head")
    assert "test      accuracy" in said
    assert "over 2 seeds" in said
    assert "TF-IDF    accuracy" in said
    assert "head: written. Next: polyencoder intents predict FILE --head head" in said
    printed = [json.loads(line) for line in run("predict", "texts.txt", "--head", "head").splitlines()]
    assert [one["text"] for one in printed] == ["i like dogs .", "no more math !"]
    classifier = IntentClassifier.from_pretrained(tmp_path / "head", Ranker.from_pretrained(tmp_path / "model"))
    for one, expected in zip(printed, classifier.predict([one["text"] for one in printed]), strict=True):
        assert one["intent"] == expected.label == next(iter(one["best"]))
        assert one["probability"] == pytest.approx(expected.probability)
        assert len(one["best"]) == 3
    none = run("predict", "texts.txt", "--head", "head", "--model", "model", "--min-probability", "1", "--top-k", "1")
    assert [json.loads(line)["intent"] for line in none.splitlines()] == [None, None]
    with pytest.raises(ConfigError, match="exists already"):
        run(*learn, *QUICK, "-o", "head")


def test_the_report_as_data(run):
    given = ["--train", "train.jsonl", "--test", "test.jsonl", "--per-intent", "4", "--seed", "7", "--json"]
    report = json.loads(
        run("train", "-m", "model", *given, *QUICK, *MLP, "--optimizer", "adam", "--learning-rate", "0.01")
    )
    assert (report["labels"], report["test_texts"]) == (3, 22)
    assert report["seeds"][0]["seed"] == 7
    assert report["seeds"][0]["texts"] == 9
    assert report["test"]["accuracy"] == report["seeds"][0]["test"]
    assert report["settings"]["learning_rate"] == 0.01
    wrong = sum(one["times"] for one in report["confusions"])
    assert wrong == round(22 * (1 - report["test"]["accuracy"]))


def test_a_line_of_json_is_a_record(run, tmp_path):
    run("train", "-m", "model", "--train", "train.jsonl", *QUICK, "-o", "head")
    (tmp_path / "lines.txt").write_text('{"text": "i like dogs ."}\nno more math !\n')
    printed = [json.loads(line) for line in run("predict", "lines.txt", "--head", "head").splitlines()]
    assert [one["text"] for one in printed] == ["i like dogs .", "no more math !"]


def test_a_model_that_is_no_longer_there(run, tmp_path):
    run("train", "-m", "model", "--train", "train.jsonl", *QUICK, "-o", "head")
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match="its encoder was .*model, which is not there; name it by --model"):
        run("predict", "texts.txt", "--head", "head")
    assert run("predict", "texts.txt", "--head", "head", "-m", "moved")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["train"], UsageError, "intents train requires --train"),
        (["predict", "texts.txt"], UsageError, "intents predict requires --head"),
        (["predict", "--head", "model"], UsageError, "intents predict requires TEXTS"),
        (["predict", "texts.txt", "--head", "model"], CheckpointError, "no such file"),
        (["predict", "texts.txt", "--head", "model", "-o", "head"], UsageError, "^unknown option: -o$"),
        (["predict", "texts.txt", "--head", "model", "--grid"], UsageError, "^unknown option: --grid$"),
        (["predict", "texts.txt", "--head", "model", "--json"], UsageError, "^unknown option: --json$"),
        ([*TRAIN, "-m", "model", "--head", "model"], ConfigError, "head is 'model'; it must be one of logistic, mlp"),
        ([*TRAIN, "-m", "model", "--dropout", "0.5"], ConfigError, "dropout is read only where head is mlp"),
        ([*TRAIN, "-m", "model", "--optimizer", "adam"], ConfigError, "optimizer is read only where head is mlp"),
        ([*TRAIN, "-m", "model", "--grid", "--head", "logistic"], ConfigError, "grid is read only where head is mlp"),
        ([*TRAIN, "-m", "model", "--min-probability", "0.5"], UsageError, "^unknown option: --min-probability$"),
        (TRAIN, UsageError, "give --model, a ranker, or --backbone"),
        (["train", "--train", "none.jsonl", "-m", "model"], InputError, "no such file"),
        ([*TEST, "--baseline", "bm25"], ConfigError, "baseline is 'bm25'; it must be tfidf"),
        ([*TRAIN, "-m", "model", "--baseline", "tfidf"], ConfigError, "baseline is read only with test"),
        ([*TRAIN, "-m", "model", "--head", "mlp", "--optimizer", "lion"], ConfigError, "optimizer is 'lion'"),
        ([*TRAIN, "-m", "model", "--kind", "r_x"], ConfigError, "kind is 'r_x'"),
        ([*TRAIN, "-m", "model", "--text-column", "q"], InputError, "line 1: has no 'q'"),
        ([*TRAIN, "-m", "model", "--per-intent", "0"], InputError, "per_intent is 0"),
        ([*TRAIN, "--test", "bad.jsonl", "-m", "model"], InputError, "bad.jsonl, line 1: the label"),
    ],
)
def test_what_it_refuses(run, tmp_path, arguments, error, message):
    (tmp_path / "bad.jsonl").write_text('{"text": "hi", "label": "new"}\n{"text": "hi", "label": "ski"}\n')
    with pytest.raises(error, match=message):
        run(*arguments, *(["-o", "head"] if "--train" in arguments else []))
    assert not (tmp_path / "head").exists()


def test_bad_records_are_left_out_and_counted(run, tmp_path, capsys):
    (tmp_path / "bad.jsonl").write_text('{"text": "hi", "label": "new"}\n{"text": "i ski", "label": "ski"}\n')
    given = ["train", "-m", "model", "--train", "train.jsonl", "--test", "bad.jsonl", "--skip-bad-examples", *QUICK]
    assert "1 bad record was left out; the first: bad.jsonl, line 1" in run(*given)


def test_a_head_that_appears_meanwhile_is_not_replaced(run, tmp_path, monkeypatch):
    """Another run's, which ends while this one trains."""
    arguments, others = [*TRAIN, "-m", "model", *QUICK], {}

    def slow_training(*parts, **options):
        report = train_intents(*parts, **options)
        report.classifier.save(tmp_path / "head")
        others.update({path.name: path.read_bytes() for path in (tmp_path / "head").iterdir()})
        return report

    monkeypatch.setattr("polyencoder.intents.training.train_intents", slow_training)
    with pytest.raises(CheckpointError, match="head: cannot be written .another process has written it meanwhile"):
        run(*arguments, "-o", "head")
    assert {path.name: path.read_bytes() for path in (tmp_path / "head").iterdir()} == others
    run(*arguments, "-o", "head", "--overwrite")
    (tmp_path / "head" / "head.json").unlink()
    with pytest.raises(ConfigError, match="head.safetensors: exists already"):
        run(*arguments, "-o", "head")
