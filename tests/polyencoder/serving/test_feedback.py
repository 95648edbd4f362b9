"""`/v1/feedback`: lines that training reads, whole, whoever writes them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from polyencoder.data.pairs import read_all_pairs
from polyencoder.errors import ConfigError, PolyencoderError
from polyencoder.serving.feedback import Feedback
from tests.commands import run_command
from tests.polyencoder.calibration.test_probability import calibrated, promise
from tests.polyencoder.serving.conftest import check_refused
from tests.processes import full_disk

pytestmark = pytest.mark.slow


def test_good_replies_are_examples_to_train_with_and_others_stand_beside(serve, tmp_path):
    client = serve("bi", feedback=str(tmp_path / "said.jsonl"))
    assert client.get("/info").json()["feedback"]
    body = {"messages": [{"role": "user", "content": "hello \n there"}], "candidates": ["a", "b"]}
    for response, good in (("a", True), ("b", False), ("c", True)):
        answer = client.post("/v1/feedback", json=body | {"response": response, "good": good})
        assert answer.json() == {"status": "kept"}
    first, second = read_all_pairs(str(tmp_path / "said.jsonl"))
    assert first.text == "hello \n there"
    assert (first.label, list(first.candidates)) == ("a", ["a", "b"])
    assert (second.label, list(second.candidates)) == ("c", ["c", "a", "b"])
    rejected = json.loads((tmp_path / "said.jsonl.rejected.jsonl").read_text())
    assert rejected == {"context": ["hello \n there"], "rejected": "b"}


def test_promises_are_tested_by_the_replies_that_have_one(serve, make_ranker, tmp_path):
    """Each result of ten questions is rated; the promise is for the best result, which is rated good."""
    risks = (promise(threshold=0.0, risk=0.2), promise(threshold=0.99, risk=0.1))
    ranker = calibrated(make_ranker("bi"), promises=risks)
    ranker.save_pretrained(tmp_path / "model")
    path = tmp_path / "said.jsonl"
    client = serve(ranker, feedback=str(path))
    for number in range(10):
        body = {"messages": [{"role": "user", "content": f"question {number}"}]}
        results = client.post("/v1/chat", json=body).json()["results"]
        for hit in results:
            rating = {"response": hit["text"], "good": hit is results[0], "risk": hit.get("risk")}
            assert client.post("/v1/feedback", json=body | rating).status_code == 200
    assert len([*read_all_pairs(str(path))]) == 10
    assert len((tmp_path / "said.jsonl.rejected.jsonl").read_text().splitlines()) == 10 * (len(results) - 1) > 10
    done = run_command("calibrate", "--model", tmp_path / "model", "--feedback", path)
    assert "10 rated replies, 0 of them rejected" in done.stdout
    assert "Nothing speaks against a risk of 0.2" in done.stdout
    assert "No rated reply has a risk of 0.1." in done.stdout
    assert not done.stderr


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"risk": 2}, "risk"),
        ({"response": " "}, "response"),
        ({"candidates": ["b", " "]}, "candidates.1"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages"),
    ],
)
def test_what_training_would_refuse_is_not_kept(serve, tmp_path, wrong, param):
    client = serve("bi", records=None, feedback=str(tmp_path / "said.jsonl"))
    body = {"messages": [{"role": "user", "content": "hello"}], "response": "a", "good": True}
    check_refused(client.post("/v1/feedback", json=body | wrong), param)
    assert (tmp_path / "said.jsonl").read_text() == ""


def test_a_reply_without_other_candidates_is_trained_on_as_one(serve, tmp_path):
    client = serve("bi", records=None, feedback=str(tmp_path / "said.jsonl"))
    body = {"messages": [{"role": "user", "content": "hello"}], "response": "a", "candidates": ["a "], "good": True}
    assert client.post("/v1/feedback", json=body).json() == {"status": "kept"}
    (pair,) = read_all_pairs(str(tmp_path / "said.jsonl"))
    assert (pair.label, pair.candidates) == ("a", None)


def test_without_a_file_there_is_no_feedback(shared):
    assert not shared.get("/info").json()["feedback"]
    body = {"messages": [{"role": "user", "content": "hello"}], "response": "a", "good": True}
    assert shared.post("/v1/feedback", json=body).status_code == 422


def test_lines_of_several_workers_do_not_mix(tmp_path):
    workers = [Feedback(tmp_path / "said.jsonl") for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: workers[n % 4].write([str(n)], "x" * 20_000, candidates=[], good=True), range(40)))
    lines = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert sorted(int(line["context"][0]) for line in lines) == list(range(40))


def test_a_full_disk_leaves_no_half_of_a_line(tmp_path):
    feedback = Feedback(tmp_path / "said.jsonl")
    feedback.write(["a"], "b", candidates=[], good=True)
    with full_disk(), pytest.raises(PolyencoderError, match="cannot be written"):
        feedback.write(["a"], "b" * 5000, candidates=[], good=True)
    feedback.write(["c"], "d", candidates=[], good=True)
    assert [json.loads(line)["response"] for line in (tmp_path / "said.jsonl").read_text().splitlines()] == ["b", "d"]


def test_a_full_disk_leaves_the_new_file_of_a_rotation_alone(tmp_path, monkeypatch):
    path, old = tmp_path / "said.jsonl", tmp_path / "old.jsonl"
    feedback = Feedback(path)
    feedback.write(["a"], "b", candidates=[], good=True)

    @contextmanager
    def rotated():
        path.rename(old)
        path.write_text("new")
        yield

    monkeypatch.setattr(feedback, "_lock", rotated())
    with full_disk(), pytest.raises(PolyencoderError, match="cannot be written"):
        feedback.write(["a"], "b" * 5000, candidates=[], good=True)
    assert path.read_text() == "new"
    assert [json.loads(line)["response"] for line in old.read_text().splitlines()] == ["b"]


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"folder: cannot be written \(Is a directory\); give another file") as error:
        Feedback(tmp_path / "folder")
    assert error.value.argument == "feedback"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]  # without a lock
