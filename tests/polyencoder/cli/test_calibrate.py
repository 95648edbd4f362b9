"""`polyencoder calibrate` and what `polyencoder search --min-probability` makes of it."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from polyencoder import Ranker
from polyencoder.errors import ConfigError, InputError
from polyencoder.export.folder import export_folder
from polyencoder.index.searcher import Searcher
from tests.commands import run_command
from tests.parameters import mostly_long
from tests.polyencoder.calibration.test_probability import calibrated, promise

pytestmark = pytest.mark.slow


@pytest.fixture
def ranker(make_ranker):
    return make_ranker("poly")


@pytest.fixture
def texts() -> list[str]:
    words = ["ski", "dogs", "cat", "math", "hello", "you", "teacher", "mountains", "thank", "brother"]
    rng = random.Random(0)
    return sorted({" ".join(rng.choices(words, k=rng.randint(2, 6))) for _ in range(90)})


@pytest.fixture
def write(ranker, texts, tmp_path):
    """(orders) -> a file of 60 examples; the response of most is what `orders` ranks first."""

    def make(orders: Ranker, *, among: list[str]) -> Path:
        rng = random.Random(1)
        rows = []
        for i in range(60):
            context = rng.sample(texts, 2)
            candidates = rng.sample(among, 8)
            first = orders.rank(context, candidates, top_k=1)[0].text
            rows.append({"context": context, "response": first if i % 4 else candidates[0], "candidates": candidates})
        path = tmp_path / "examples.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return make


def call(*arguments: object) -> str:
    return run_command(*arguments).stdout


@mostly_long("architecture", ["poly", "cross", "late"], quick=1)
def test_candidates_of_examples(make_ranker, write, texts, tmp_path, architecture):
    ranker = make_ranker(architecture)
    ranker.save_pretrained(tmp_path / "model")
    path = write(ranker, among=texts)
    output = call("calibrate", "--model", tmp_path / "model", "--data", path, "--risk", "0.9,0.1")
    assert output.startswith("60 examples; the first candidate is right in ")
    assert "at most 90 % are wrong (95 % confidence, " in output
    assert "No threshold promises a risk of 0.1.\nThe smallest risk that these examples could promise is 0." in output
    assert f"calibration.json: written, for ranking candidates (60 examples of {path.name}" in output
    loaded = Ranker.from_pretrained(tmp_path / "model", device="cpu")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    likely = [loaded.rank(row["context"], row["candidates"], top_k=1)[0].probability for row in rows]
    assert sum(likely) / len(likely) > 1 / 16  # the first of 8, one of which is right half of the time, by chance
    assert len(set(likely)) > 50


def test_columns_of_other_names(ranker, write, texts, tmp_path):
    ranker.save_pretrained(tmp_path / "model")
    path, named = write(ranker, among=texts), tmp_path / "named.jsonl"
    usual = call("calibrate", "--model", tmp_path / "model", "--data", path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    table = [{"q": row["context"], "a": row["response"], "c": row["candidates"]} for row in rows]
    named.write_text("".join(json.dumps(row) + "\n" for row in table))
    names = ["--context", "q", "--response", "a", "--candidates-column", "c"]
    output = call("calibrate", "--model", tmp_path / "model", "--data", named, *names)
    assert output == usual.replace(path.name, named.name)
    with pytest.raises(InputError, match="has no 'context'; it has 'q'"):
        call("calibrate", "--model", tmp_path / "model", "--data", named)


def test_an_index_is_searched(ranker, write, texts, tmp_path):
    ranker.save_pretrained(tmp_path / "model")
    ranker.index(texts, tmp_path / "index")
    path = write(ranker, among=texts)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        del row["candidates"]
        row["response"] = ranker.search(row["context"], tmp_path / "index", top_k=1)[0].text
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--model", tmp_path / "model", "--index", tmp_path / "index"]
    output = call("calibrate", *options, "--data", path)
    assert "the first candidate is right in 100.0%" in output
    assert f"written, for searching index (60 examples of {path.name} among {len(texts)} candidates" in output

    question = [*options, "--context", "hello", "--context", "do you ski ?"]
    (hit, *_) = json.loads(call("search", *question, "--json"))["hits"]
    assert 0 < hit["probability"] < 1
    assert f"  {hit['probability']:4.0%}  exact  " in call("search", *question)
    assert call("search", *question, "--min-probability", "1.0").endswith(
        f"\n  no candidate is probable enough; the best is right with {hit['probability']:.1%}: {hit['text']}\n"
    )
    nothing = json.loads(call("search", *question, "--json", "--min-probability", 1))
    assert (nothing["hits"], nothing["best_left_out"]) == ([], hit)
    with pytest.raises(ConfigError, match="max_risk is 0.1, and the calibration promises none for searching index"):
        call("search", *question, "--max-risk", "0.1")
    call("calibrate", *options, "--data", path, "--risk", "0.5", "--unanswerable", "0.01")
    assert json.loads(call("search", *question, "--json", "--max-risk", "0.5"))["hits"][0]["risk"] == 0.5
    with pytest.raises(ConfigError, match="promises 0.5 for searching index: give one of these"):
        call("search", *question, "--max-risk", "0.1")


def test_an_index_that_contains_the_questions(make_ranker, texts, tmp_path):
    """A bi-encoder whose towers are alike finds nothing nearer to a question than the question."""
    ranker = make_ranker("bi", share_encoders=True, normalize=True)
    ranker.save_pretrained(tmp_path / "model")
    index = ranker.index(texts, tmp_path / "index")
    rows = []
    for i, text in enumerate(texts[:60]):
        first = ranker.search(text, index, top_k=1)[0].text
        rows.append({"context": text.upper(), "response": first if i % 4 else texts[i - 7]})
    (tmp_path / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--model", tmp_path / "model", "--index", tmp_path / "index", "--data", tmp_path / "examples.jsonl"]
    with pytest.raises(InputError, match=r"the right answer comes first in 0 of 60 examples"):
        call("calibrate", *options, "--keep-turns")
    assert not (tmp_path / "model" / "calibration.json").exists()
    output = call("calibrate", *options)
    assert "the first candidate is right in 7" in output
    assert "candidates that are turns of their own contexts (--keep-turns keeps them)" in output


def test_a_cross_encoder_that_re_ranks(ranker, make_ranker, write, texts, tmp_path):
    ranker.save_pretrained(tmp_path / "model")
    cross = make_ranker("cross")
    cross.save_pretrained(tmp_path / "cross")
    index = ranker.index(texts, tmp_path / "index")
    path = write(cross, among=texts)
    first = Searcher(ranker, index, top_k=1, reranker=cross, rerank_k=12)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for i, (row, hits) in enumerate(zip(rows, first([row["context"] for row in rows]), strict=True)):
        row["response"] = hits[0].text if i % 4 else texts[i]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--model", tmp_path / "model", "--index", tmp_path / "index", "--rerank", tmp_path / "cross"]
    call("calibrate", *options, "--rerank-k", 12, "--data", path)
    assert not (tmp_path / "model" / "calibration.json").exists()
    hits = json.loads(call("search", *options, "--rerank-k", 12, "--context", "hello", "--json"))["hits"]
    assert all(0 < hit["probability"] < 1 for hit in hits)


def test_what_cannot_be_used(ranker, write, texts, tmp_path, monkeypatch):
    ranker.save_pretrained(tmp_path / "model")
    path = write(ranker, among=texts)
    options = ["calibrate", "--data", path]
    with pytest.raises(ConfigError, match="rerank is read only with index: give that too"):
        call(*options, "--model", tmp_path / "model", "--rerank", tmp_path / "model")
    with pytest.raises(ConfigError, match="export a hub's model to a folder first"):
        call(*options, "--model", "nowhere/model")
    monkeypatch.setattr("polyencoder.cli.calibrate.load", pytest.fail)  # nothing is scored before
    for risk in (0, 1, 90):
        with pytest.raises(InputError, match=f"risk is {risk}.0; it must be between 0 and 1"):
            call(*options, "--model", tmp_path / "model", "--risk", risk)
    with pytest.raises(InputError, match="a risk of 0.05 needs at least 118 examples, .* there are 60"):
        call(*options, "--model", tmp_path / "model", "--risk", 0.05)
    with pytest.raises(ConfigError, match="confidence is read only with risk"):
        call(*options, "--model", tmp_path / "model", "--confidence", 0.9)
    assert not (tmp_path / "model" / "calibration.json").exists()


def test_a_calibration_is_for_one_precision(make_ranker, write, texts, tmp_path):
    pytest.importorskip("onnxruntime")
    ranker = make_ranker("bi")
    export_folder(ranker, tmp_path / "model", int8=True)
    data = write(ranker, among=texts)
    call("calibrate", "--model", tmp_path / "model", "--data", data)
    assert Ranker.from_pretrained(tmp_path / "model", backend="onnx").calibration is not None
    with pytest.warns(UserWarning, match=r"calibration\.json: not used, .* with another (--)?backend"):
        assert Ranker.from_pretrained(tmp_path / "model", backend="onnx-int8").calibration is None
    output = call("calibrate", "--model", tmp_path / "model", "--data", data, "--backend", "onnx-int8")
    assert "calibration.json: written" in output
    assert "by the backend onnx-int8 alone: calibration error" in (tmp_path / "model" / "README.md").read_text()
    assert Ranker.from_pretrained(tmp_path / "model", backend="onnx-int8").calibration is not None
    with pytest.warns(UserWarning, match=r"calibration\.json: not used"):
        assert Ranker.from_pretrained(tmp_path / "model").calibration is None


def test_calibrations_for_ranking_and_for_an_index_are_kept_side_by_side(ranker, write, texts, tmp_path):
    ranker.save_pretrained(tmp_path / "model")
    index = ranker.index(texts, tmp_path / "index")
    path = write(ranker, among=texts)
    options = ["calibrate", "--model", tmp_path / "model", "--data", path]
    for first, second in ((options, [*options, "--index", tmp_path / "index"]),) * 2:
        call(*first)
        output = call(*second)
        assert "the one for ranking candidates (60 examples of " in output
        options = [*options, "--unanswerable", "0.3"]
    saved = json.loads((tmp_path / "model" / "calibration.json").read_text())
    assert (saved["fitted_on"]["candidates"], saved["fitted_on"]["index"]) == (8, None)
    assert saved["index"]["fitted_on"]["candidates"] == len(texts)
    assert saved["temperature"] != saved["index"]["temperature"]
    loaded = Ranker.from_pretrained(tmp_path / "model", device="cpu")
    assert loaded.calibration.fitted_on.data == path.name
    assert Searcher(loaded, index).calibration == loaded.calibration.index != loaded.calibration
    output = call("calibrate", "--model", tmp_path / "model", "--data", path)
    assert "the one for searching index (" in output
    assert not (tmp_path / "model" / "README.md").exists()


def test_the_card_shows_how_reliable_probabilities_are(ranker, write, texts, tmp_path):
    export_folder(ranker, tmp_path / "model")
    output = call("calibrate", "--model", tmp_path / "model", "--data", write(ranker, among=texts))
    card = (tmp_path / "model" / "README.md").read_text()
    (error,) = re.findall(r"^error .* (\d\.\d+)$", output, re.M)
    assert f"calibration error {error}," in card
    assert str(tmp_path) not in card
    assert "](reliability.svg)" in card
    picture = (tmp_path / "model" / "reliability.svg").read_text()
    assert "<svg" in picture
    call("export", tmp_path / "model", tmp_path / "model", "--dtype", "bfloat16")
    assert "](reliability.svg)" in (tmp_path / "model" / "README.md").read_text()
    assert (tmp_path / "model" / "reliability.svg").read_text() == picture


def test_pairs_without_candidates_get_drawn_ones(ranker, write, texts, tmp_path):
    ranker.save_pretrained(tmp_path / "model")
    path = write(ranker, among=texts)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({"context": r["context"], "response": r["response"]}) + "\n" for r in rows))
    output = call("calibrate", "--model", tmp_path / "model", "--data", path, "--num-negatives", 3)
    assert f"60 of the examples had no candidates: other responses of {path} were drawn" in output
    assert "among 4 candidates" in output
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigError, match="num_negatives: every example has candidates of its own"):
        call("calibrate", "--model", tmp_path / "model", "--data", path, "--num-negatives", 3)


@pytest.mark.parametrize(("rejected", "is_held"), [(0, True), (3, True), (12, False), (None, True)])
def test_ratings_test_the_promises(make_ranker, tmp_path, capsys, rejected, is_held):
    """With 40 rated replies and a risk of 0.1: 3 rejections are few, 12 are not."""
    ranker = calibrated(make_ranker("bi"), promises=(promise(threshold=0.2),))
    of_searches = replace(ranker.calibration, promises=(promise(threshold=0.3),))
    ranker.calibration = replace(ranker.calibration, index=of_searches)
    ranker.save_pretrained(tmp_path / "model")
    ratings = tmp_path / "said.jsonl"
    ratings.write_text('{"context": ["a"], "response": "b", "risk": 0.1}\n' * (40 - (rejected or 0)))
    if rejected is not None:
        line = '{"context": ["a"], "rejected": "b", "risk": 0.1}\n'
        (tmp_path / "said.jsonl.rejected.jsonl").write_text(line * rejected)
    done = run_command("calibrate", "--model", tmp_path / "model", "--feedback", ratings)
    assert f"40 rated replies, {rejected or 0} of them rejected" in done.stdout
    assert ("is not held" in done.stderr) is not is_held
    assert (done.stdout + done.stderr).count("a risk of 0.1") + done.stderr.count("A risk of 0.1") == 1


@pytest.mark.parametrize("lines", ["", '{"context": ["a"], "response": "b"}\n' * 40])
def test_ratings_that_test_nothing(make_ranker, tmp_path, lines):
    (tmp_path / "said.jsonl").write_text(lines)
    for promises, message in (((), "promises no risk"), ((promise(threshold=0.2),), "has no ratings")):
        calibrated(make_ranker("bi"), promises=promises).save_pretrained(tmp_path / message)
        with pytest.raises(InputError, match=message):
            call("calibrate", "--model", tmp_path / message, "--feedback", tmp_path / "said.jsonl")


def test_flags_that_would_do_nothing_are_errors(tmp_path):
    for options, message in [
        ("--data x.jsonl --keep-turns", "keep_turns is read only with index"),
        ("--data x.jsonl --rerank-k 3", "rerank_k is read only with index"),
        ("--data x.jsonl --index index --num-negatives 3", "num_negatives is not read with index"),
        *(
            (f"--feedback said.jsonl --{name} {value}", f"{name} is not read with feedback")
            for name, value in {"data": "x", "risk": 0.1, "index": "x", "seed": 1, "delimiter": "tab"}.items()
        ),
    ]:
        with pytest.raises(ConfigError, match=message):
            call("calibrate", "--model", tmp_path / "model", *options.split())
