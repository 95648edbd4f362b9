"""`/v1/chat`: dialogues that come with the request."""

from __future__ import annotations

import pytest

from polyencoder.calibration import Calibration
from polyencoder.encoding.fingerprint import model_fingerprint
from tests.polyencoder.serving.conftest import REPLIES


def said(*texts) -> list[dict]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def chat(client, **body) -> dict:
    answer = client.post("/v1/chat", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_reply_is_the_best_of_the_index_for_the_dialogue(serve):
    client = serve("poly")
    turns = ["hello", "how are you ?", "do you ski ?"]
    answer = chat(client, messages=said(*turns))
    hits = client.service.engine.ranker.search(turns, client.service.index)
    assert answer["reply"] == hits[0].text
    assert [one["id"] for one in answer["results"]] == [hit.id for hit in hits]


def test_no_reply_comes_twice_and_when_everything_was_said_there_is_no_answer(serve):
    client = serve("bi", no_answer="that is all .")
    dialogue, replies = [], []
    for _ in range(len(REPLIES) + 1):
        answer = chat(client, messages=said(*dialogue, "hello"))
        replies.append(answer["reply"])
        dialogue += ["hello", answer["reply"]]
    assert sorted(replies[:-1]) == sorted(one.text for one in REPLIES)
    assert (replies[-1], answer["answered"]) == ("that is all .", False)


def test_no_good_answer(serve, make_ranker):
    ranker = make_ranker("bi")
    fingerprint = model_fingerprint(ranker.model, ranker.text)
    ranker.calibration = Calibration(temperature=1.0, none=50.0, fingerprint=fingerprint)
    client = serve(ranker, min_probability=0.9, no_answer="no idea .")
    answer = chat(client, messages=said("hello"))
    assert (answer["reply"], answer["answered"], answer["results"]) == ("no idea .", False, [])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": said("hello", "hi")}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": said(" ")}, "messages"),
        ({"messages": said("a", "b", "\n")}, "messages"),
        ({}, "messages"),
        ({"messages": said("hello"), "session": "f" * 32}, "session"),
    ],
)
def test_what_is_no_chat_is_an_error(shared, body, param):
    answer = shared.post("/v1/chat", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)
