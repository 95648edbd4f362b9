"""`/v1/search`: what the library's search finds, with its settings and its errors."""

from __future__ import annotations

import dataclasses
import json

import pytest

from polyencoder.index.hits import Hit
from polyencoder.index.options import SearchOptions
from polyencoder.serving.search import SearchParameters, SearchResult
from tests.polyencoder.calibration.test_probability import calibrated
from tests.polyencoder.serving.conftest import REPLIES, check_refused

QUERY = "do you have any pets ?"


def ids(answer) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [hit["id"] for hit in answer.json()["results"]]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["bi", "poly", "convert"])
def test_results_are_those_of_the_library(serve, architecture):
    client = serve(architecture)
    ranker, index = client.service.engine.ranker, client.service.index
    answer = client.post("/v1/search", json={"query": QUERY, "top_k": 3})
    body, expected = answer.json(), ranker.search(QUERY, index, top_k=3)
    assert [result["id"] for result in body["results"]] == [hit.id for hit in expected]
    for result, hit in zip(body["results"], expected, strict=True):
        assert (result["text"], result["metadata"], result["found"]) == (hit.text, hit.metadata, "exact")
        assert result["score"] == pytest.approx(hit.score, abs=1e-4)
    assert body["milliseconds"].keys() == {"tokenize", "queue", "encode", "search"}


def test_filters_and_turns_of_the_context(serve):
    client = serve("bi")
    ranker, index = client.service.engine.ranker, client.service.index
    answer = client.post("/v1/search", json={"query": QUERY, "top_k": 2, "diversity": 0.9})
    assert ids(answer) == [hit.id for hit in ranker.search(QUERY, index, top_k=2, diversity=0.9)]
    assert {result["considered"] for result in answer.json()["results"]} == {len(index)}
    assert client.post("/v1/search", json={"query": QUERY, "diversity": 2}).status_code == 422
    assert ids(client.post("/v1/search", json={"query": QUERY, "filter": {"lang": "de"}})) == ["tag"]
    assert ids(client.post("/v1/search", json={"query": QUERY, "filter": {"lang": {"$lt": "en"}}})) == ["tag"]
    grouped = client.post("/v1/search", json={"query": QUERY, "top_k": 3, "group_by": "lang", "group_size": 2})
    assert ids(grouped) == [hit.id for hit in ranker.search(QUERY, index, top_k=3, group_by="lang", group_size=2)]
    for wrong in ({"group_size": 2}, {"group_by": "lang", "group_size": 0}, {"group_by": "lagn"}):
        assert client.post("/v1/search", json={"query": QUERY, **wrong}).status_code == 422
    messages = {"messages": [{"role": "user", "content": "Guten  Tag !"}]}
    assert "tag" not in ids(client.post("/v1/search", json=messages))
    assert "tag" in ids(client.post("/v1/search", json=messages | {"keep_turns": True}))


def test_words(serve):
    client = serve("bi")
    ranker, index = client.service.engine.ranker, client.service.index
    body = {"query": "guten morgen ?", "top_k": 2}
    refused = client.post("/v1/search", json=body | {"hybrid": True})
    assert refused.status_code == 422
    assert "has no words to search by" in refused.text
    index.add_words()
    answer = client.post("/v1/search", json=body | {"hybrid": True})
    assert ids(answer) == [hit.id for hit in ranker.search(body["query"], index, top_k=2, hybrid=True)]
    assert all(hit["fused_score"] > 0 for hit in answer.json()["results"])
    (alone,) = client.post("/v1/search", json=body | {"words_only": True}).json()["results"]
    assert (alone["id"], alone["found"]) == ("tag", "words")
    assert alone["word_score"] > 0


def test_probabilities_leave_out_what_is_not_likely(serve, make_ranker):
    client = serve(calibrated(make_ranker("bi"), temperature=5.0, none=-3.0))
    every = client.post("/v1/search", json={"query": QUERY}).json()["results"]
    threshold = every[1]["probability"]
    assert 0 < threshold < every[0]["probability"] < 1
    likely = client.post("/v1/search", json={"query": QUERY, "min_probability": threshold})
    assert ids(likely) == [hit["id"] for hit in every[:2]]


def test_words_alone_are_found_whatever_probability_the_server_asks_of_other_searches(serve, make_ranker):
    client = serve(calibrated(make_ranker("bi"), temperature=5.0, none=9.0), min_probability=0.9)
    client.service.index.add_words()
    body = {"query": "guten morgen ?"}
    assert ids(client.post("/v1/search", json=body)) == []
    assert ids(client.post("/v1/search", json=body | {"words_only": True})) == ["tag"]
    refused = client.post("/v1/search", json=body | {"words_only": True, "min_probability": 0.9})
    check_refused(refused, "min_probability")


def test_words_alone_are_found_though_the_server_says_how_many_a_late_interaction_encoder_reranks(serve):
    client = serve("late", rerank_k=2)
    client.service.index.add_words()
    answer = client.post("/v1/search", json={"query": "guten morgen ?", "words_only": True})
    assert ids(answer) == ["tag"]
    assert answer.json()["results"][0].get("rerank_score") is None


def test_a_cross_encoder_orders_the_first_results(serve, make_ranker):
    ranker, cross = make_ranker("bi"), make_ranker("cross")
    client = serve(ranker, reranker=cross, rerank="cross", rerank_k=3)
    expected = ranker.search(QUERY, client.service.index, rerank=cross, rerank_k=3)
    answer = client.post("/v1/search", json={"query": QUERY})
    assert ids(answer) == [hit.id for hit in expected]
    scores = [hit.get("rerank_score") for hit in answer.json()["results"]]
    assert scores[:3] == pytest.approx([hit.rerank_score for hit in expected[:3]], abs=1e-5)
    assert scores[3:] == [None] * (len(scores) - 3)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"query": QUERY, "min_probability": 0.5}, "calibrated"),
        ({"query": QUERY, "filter": {"lang": 3}}, "cannot filter by 'lang': 3 is a number, and in this metadata field"),
        ({"query": QUERY, "effort": 3}, "no FAISS index"),
        ({"query": QUERY, "exactness": "perhaps"}, "exactness"),
        ({"query": QUERY, "top_k": 1001}, "top_k is 1001"),
        ({"query": QUERY, "list_length": 4097}, "list_length is 4097; it must be at most 4096"),
        ({"query": QUERY, "topk": 3}, "'topk' is not a field of this request; did you mean top_k?"),
        ({"query": QUERY, "zzz": 3}, "'zzz' is not a field of this request; it must be one of "),
        ({"query": [{"role": "user"}]}, "query.0.content: Field required"),
        ({"query": " "}, "query is empty"),
        ({"query": []}, "query has no message of the user; give at least one"),
        ({"messages": ["hello"]}, "messages.0: Input should be an object"),
        ({"messages": [{"role": "system", "content": "i ski ."}]}, "messages has no message of the user"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0.type: Input should"),
    ],
)
def test_what_does_not_fit_is_said(shared, body, says):
    answer = shared.post("/v1/search", json=body)
    assert answer.status_code == 422
    assert says in answer.json()["message"]


@pytest.mark.parametrize("name", ["effort", "list_length", "top_k", "group_size"])
@pytest.mark.parametrize("value", [10**400, 1e400, True, "3", 0, -1])
def test_a_number_that_cannot_be_is_said_with_its_field(shared, name, value):
    body = json.dumps({"query": QUERY, "group_by": "lang", name: value}).replace("Infinity", "1e400")
    check_refused(shared.post("/v1/search", content=body, headers={"Content-Type": "application/json"}), name)


@pytest.mark.parametrize("route", ["search", "rerank", "select", "chat", "embeddings"])
def test_a_field_with_half_a_character_in_its_name_is_refused(shared, route):
    answer = shared.post(f"/v1/{route}", content=b'{"\\ud83d": 1}', headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert "ud83d" in answer.json()["message"]


def test_options_and_results_are_those_of_the_library():
    fields = {field.name for field in dataclasses.fields(SearchOptions)}
    assert fields <= SearchParameters.model_fields.keys()
    assert {*Hit._fields} == {*SearchResult.model_fields}


@pytest.mark.parametrize("filter", [{"length": 3}, {"lang": {"a": 1}}, {"lang": {"$gt": 3}}, {'a"b': 1}])
def test_a_filter_that_does_not_fit_is_said_with_its_field(shared, filter):
    check_refused(shared.post("/v1/search", json={"query": QUERY, "filter": filter}), "filter")


def test_a_server_without_an_index_says_so(serve):
    answer = serve("bi", records=None).post("/v1/search", json={"query": QUERY})
    assert answer.status_code == 422
    assert "no index to search: make one with `polyencoder index " in answer.json()["message"]
    assert "`polyencoder serve --model MODEL --index INDEX`" in answer.json()["message"]


def make_messages(*texts) -> list[dict]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def chat(client, **body) -> dict:
    answer = client.post("/v1/chat", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_reply_is_the_best_of_the_index_for_the_dialogue(serve):
    client = serve("poly")
    turns = ["hello", "how are you ?", "do you ski ?"]
    answer = chat(client, messages=make_messages(*turns))
    hits = client.service.engine.ranker.search(turns, client.service.index)
    assert answer["reply"] == hits[0].text
    assert [hit["id"] for hit in answer["results"]] == [hit.id for hit in hits]


def test_no_reply_comes_twice_and_when_everything_was_said_there_is_no_answer(serve):
    client = serve("bi", no_answer="that is all .")
    dialogue, replies = [], []
    for _ in range(len(REPLIES) + 1):
        answer = chat(client, messages=make_messages(*dialogue, "hello"))
        replies.append(answer["reply"])
        dialogue += ["hello", answer["reply"]]
    assert sorted(replies[:-1]) == sorted(reply.text for reply in REPLIES)
    assert (replies[-1], answer["answered"]) == ("that is all .", False)


def test_no_good_answer(serve, make_ranker):
    client = serve(calibrated(make_ranker("bi"), none=50.0), min_probability=0.9, no_answer="no idea .")
    answer = chat(client, messages=make_messages("hello"))
    assert (answer["reply"], answer["answered"], answer["results"]) == ("no idea .", False, [])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": make_messages("hello", "hi")}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": make_messages(" ")}, "messages"),
        ({"messages": make_messages("a", "b", "\n")}, "messages"),
        ({}, "messages"),
        ({"messages": make_messages("hello"), "session": "f" * 32}, "session"),
    ],
)
def test_what_is_no_chat_is_an_error(shared, body, param):
    check_refused(shared.post("/v1/chat", json=body), param)
