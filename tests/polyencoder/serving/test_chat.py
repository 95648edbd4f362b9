"""`/v1/chat`: dialogues that come with the request, and sessions."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest

from polyencoder.calibration import Calibration
from polyencoder.encoding.fingerprint import model_fingerprint
from polyencoder.serving.config import Limits
from tests.polyencoder.serving.conftest import REPLIES


def said(*texts) -> list[dict]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def chat(client, **body) -> dict:
    answer = client.post("/v1/chat", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_reply_is_the_best_of_the_index_for_the_dialogue(serve):
    client = serve("poly")
    answer = chat(client, messages=said("hello", "how are you ?", "do you ski ?"), persona=["i ski ."])
    turns = ["your persona: i ski .", "hello", "how are you ?", "do you ski ?"]
    hits = client.service.engine.ranker.search(turns, client.service.index)
    assert answer["reply"] == hits[0].text
    assert [one["id"] for one in answer["results"]] == [hit.id for hit in hits]
    assert "session" not in answer
    system = [{"role": "system", "content": "i ski ."}, *said("hello", "how are you ?", "do you ski ?")]
    assert chat(client, messages=system)["results"] == answer["results"]


def test_a_session_goes_on_as_the_same_dialogue_would(serve):
    client = serve("poly")
    dialogue, session = [], None
    for text in ["hello", "do you ski ?", "any pets ?"]:
        dialogue.append(text)
        stateless = chat(client, messages=said(*dialogue), persona="i ski .")
        begin = {"persona": "i ski ."} if session is None else {"session": session}
        kept = chat(client, message=text, **begin)
        assert kept["results"] == stateless["results"]
        session = kept["session"]
        dialogue.append(kept["reply"])
    assert len(set(dialogue[1::2])) == 3  # no reply twice


def test_when_everything_was_said_there_is_no_answer(serve):
    client = serve("bi", no_answer="that is all .")
    session: dict = {}
    replies = []
    for _ in range(len(REPLIES) + 1):
        answer = chat(client, message="hello", **session)
        session = {"session": answer["session"]}
        replies.append(answer["reply"])
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
    ("body", "status"),
    [
        ({"message": "hello", "session": "f" * 32}, 404),
        ({"message": "hello", "session": "x" * 65}, 422),
        ({"message": "hello", "messages": said("hello")}, 422),
        ({"messages": said("hello", "hi")}, 422),
        ({"messages": said("hello"), "session": "f" * 32}, 422),
        ({}, 422),
    ],
)
def test_what_is_no_chat_is_an_error(shared, body, status):
    assert shared.post("/v1/chat", json=body).status_code == status


def test_who_speaks_in_one_session_at_the_same_time_is_told_and_nothing_is_lost(serve):
    client = serve("bi")
    session = chat(client, message="hello")["session"]
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(
                lambda n: client.post("/v1/chat", json={"message": f"do you ski {n} ?", "session": session}), range(4)
            )
        )
    assert {answer.status_code for answer in answers} <= {200, 409}
    done = sum(answer.status_code == 200 for answer in answers)
    assert done >= 1
    assert len(client.service.sessions.read(session).turns) == 2 + 2 * done


def test_a_session_is_never_too_long_and_a_message_is_blamed_for_its_own_length(serve):
    client = serve("bi", limits=Limits(characters=100))
    session = {"persona": "i ski ." * 9}
    for _ in range(6):
        answer = chat(client, message="do you ski ?", **session)
        session = {"session": answer["session"]}
    answer = client.post("/v1/chat", json={"message": "x" * 101, **session})
    assert answer.json()["message"] == "message has 101 characters; it must have at most 100"
    assert chat(client, message="do you ski ?", **session)
    answer = client.post("/v1/chat", json={"message": "hello", "persona": "i ski ." * 20})
    assert answer.json()["message"] == "message and persona has 159 characters; it must have at most 100"


@pytest.mark.parametrize("body", [{"message": " "}, {"messages": said(" ")}, {"messages": said("a", "b", "\n")}])
def test_a_blank_message_is_an_error_though_there_is_a_persona(shared, body):
    answer = shared.post("/v1/chat", json={**body, "persona": "i ski ."})
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == next(iter(body))


def test_a_file_of_sessions_that_fails_is_an_error_with_its_reason(serve):
    client = serve("bi")
    session = chat(client, message="hello")["session"]
    with sqlite3.connect(client.service.sessions._path) as connection:
        connection.execute("ALTER TABLE sessions RENAME TO others")
    answer = client.post("/v1/chat", json={"message": "hello", "session": session})
    assert answer.status_code == 503
    assert "sessions cannot be stored now (no such table" in answer.json()["message"]
