"""`polyencoder chat`: each line is answered in view of the dialogue before it."""

from __future__ import annotations

import pytest

from polyencoder import ConfigError, InputError
from polyencoder.calibration.probability import FitData
from polyencoder.errors import CheckpointError, UsageError
from polyencoder.serving.config import NO_ANSWER
from tests.commands import command_fails, run_command
from tests.polyencoder.calibration.test_probability import calibrated, promise

pytestmark = pytest.mark.slow

TEXTS = ["i like to ski .", "two dogs and a cat .", "i teach math .", "hello there !"]


@pytest.fixture
def ranker(make_ranker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ranker = make_ranker("bi")
    ranker.save_pretrained("model")
    (tmp_path / "replies.txt").write_text("\n".join(TEXTS))
    return ranker


def replies(*arguments: object, spoken: str) -> list[str]:
    return run_command("chat", "-m", "model", *arguments, input=spoken).stdout.splitlines()


def test_each_reply_follows_the_whole_dialogue(ranker, tmp_path):
    """No reply repeats a turn of it."""
    index, turns, expected = ranker.index(TEXTS, tmp_path / "index"), [], []
    for spoken in ("hi !", "do you have pets ?", "two dogs and a cat ."):
        turns.append(spoken)
        turns.append(ranker.search(turns, index, top_k=1)[0].text)
        expected.append(turns[-1])
    index.close()
    spoken = "hi !\n\n  do you have pets ?\ntwo dogs and a cat ."
    assert replies("--index", "index", spoken=spoken) == expected
    assert replies("-c", "replies.txt", spoken=spoken) == expected
    assert replies("-c", *TEXTS, spoken=spoken) == expected
    assert len({*expected}) == 3


def test_who_asks_for_more_than_it_has_gets_no_answer(ranker):
    assert replies("-c", *TEXTS, spoken="a\n" * 5)[4] == NO_ANSWER
    assert replies("-c", "a", "--no-answer", "ask a person", spoken="a\n") == ["ask a person"]


@pytest.mark.parametrize(("threshold", "answers"), [(0.99, False), (0.0, True), (None, True)])
def test_the_promise_for_the_index_decides_whether_it_answers(ranker, tmp_path, threshold, answers):
    ranker.index(TEXTS, tmp_path / "index").close()
    promises = () if threshold is None else (promise(threshold=threshold),)
    fitted_on = FitData(data="", examples=9, candidates=8, date="", index="index")
    calibrated(ranker, none=50.0, promises=promises, fitted_on=fitted_on).save_pretrained("model")
    assert (replies("--index", "index", spoken="hi !\n") != [NO_ANSWER]) is answers
    assert replies("--index", "index", "--min-probability", "0", spoken="hi !\n") != [NO_ANSWER]
    assert replies("-c", *TEXTS, spoken="hi !\n") != [NO_ANSWER]  # no promise for these


def test_what_is_refused(ranker):
    for arguments, error, message in [
        ([], UsageError, "--index, or --candidates"),
        (["--candidates=-"], UsageError, "--candidates -: .*give a file"),
        (["-c", "a", "--index", "index"], ConfigError, "candidates"),
        (["-c", "no.jsonl"], InputError, "no.jsonl.*: no such file"),
        (["--index", "nowhere"], CheckpointError, "nowhere"),
        (["-c", "a", "--min-probability", "0.5"], ConfigError, "calibrate"),
    ]:
        command_fails(error, message, "chat", "-m", "model", *arguments, input="hi\n")
