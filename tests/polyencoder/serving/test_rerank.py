"""`/v1/rerank`, `/v2/rerank` and `/rerank`, asked by Cohere's own clients and by plain HTTP."""

from __future__ import annotations

import gzip
import json
import math

import cohere
import pytest

from polyencoder.text.passages import split_text
from tests.polyencoder.calibration.test_probability import calibrated
from tests.polyencoder.serving.conftest import check_refused

QUERY = "do you have any pets ?"
DOCUMENTS = ["i have two dogs and a cat .", "i am a teacher .", "hello", "i like to ski ."]


def results(answer) -> list[tuple[int, float]]:
    assert answer.status_code == 200, answer.text
    return [(row["index"], row["relevance_score"]) for row in answer.json()["results"]]


def expected(ranker, context=QUERY, documents=DOCUMENTS) -> list[tuple[int, float]]:
    return [
        (hit.index, 1 / (1 + math.exp(-hit.score)) if hit.probability is None else hit.probability)
        for hit in ranker.rank(context, documents)
    ]


def assert_same(actual, expected):
    assert [index for index, _ in actual] == [index for index, _ in expected]
    assert [value for _, value in actual] == pytest.approx([value for _, value in expected], abs=1e-5)
    assert all(0 <= value <= 1 for _, value in actual)


@pytest.mark.slow
def test_coheres_clients_of_both_versions_get_the_rankers_order(serve):
    client = serve("bi", records=None)
    ranker, url = client.service.engine.ranker, str(client.base_url).rstrip("/")
    first = cohere.Client(api_key="none", base_url=url)
    answer = first.rerank(
        query=QUERY, documents=DOCUMENTS, model="any", top_n=3, return_documents=True, max_chunks_per_doc=10
    )
    assert_same([(row.index, row.relevance_score) for row in answer.results], expected(ranker)[:3])
    assert [row.document.text for row in answer.results] == [DOCUMENTS[row.index] for row in answer.results]
    second = cohere.ClientV2(api_key="none", base_url=url)
    answer = second.rerank(query=QUERY, documents=DOCUMENTS, model="any", max_tokens_per_doc=4096, priority=1)
    assert_same([(row.index, row.relevance_score) for row in answer.results], expected(ranker))


@pytest.mark.parametrize("architecture", ["bi", "cross"])
def test_long_documents_have_the_score_of_their_best_passage(serve, architecture):
    client = serve(architecture, records=None)
    ranker = client.service.engine.ranker
    long = "hello . " * 30 + DOCUMENTS[0] + " hello ." * 30
    passages = split_text(long, ranker.text, tokens=ranker.text.candidate_room)
    answer = client.post("/v1/rerank", json={"query": QUERY, "documents": [*DOCUMENTS, long, long]})
    best = max(value for _, value in expected(ranker, documents=passages))
    scores = dict(expected(ranker)) | {len(DOCUMENTS): best, len(DOCUMENTS) + 1: best}
    assert dict(results(answer)) == pytest.approx(scores, abs=1e-5)
    (warning,) = answer.json()["meta"]["warnings"]
    assert "2 of 6 documents" in warning


def test_an_answer_says_how_many_documents_were_cut_or_split(serve):
    client = serve("bi", records=None)
    assert "warnings" not in client.post("/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS}).json()["meta"]
    documents = [*DOCUMENTS, "dogs and cats " * client.service.engine.ranker.text.config.label_truncate]
    ranked = client.post("/v1/rerank", json={"query": QUERY, "documents": documents}).json()
    embedded = client.post("/v1/embeddings", json={"input": documents}).json()
    for answer, what in ((ranked, "best passage"), (embedded, "label_truncate")):
        (warning,) = answer["meta"]["warnings"]
        assert "1 of 5" in warning
        assert what in warning


def test_coheres_client_shows_what_was_wrong(serve):
    client = serve("bi", records=None)
    with pytest.raises(cohere.UnprocessableEntityError, match="documents is empty"):
        cohere.ClientV2(api_key="none", base_url=str(client.base_url)).rerank(query=QUERY, documents=[], model="any")


@pytest.mark.parametrize("route", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_each_route_ranks_and_only_version_1_gives_documents_back(serve, route):
    client = serve("cross", records=None)
    documents = [DOCUMENTS[0], {"text": DOCUMENTS[1], "id": 7, "title": None}, *DOCUMENTS[2:]]
    body = {"query": QUERY, "documents": documents, "return_documents": True}
    answer = client.post(route, json=body)
    assert_same(results(answer), expected(client.service.engine.ranker))
    returned = {row["index"]: row.get("document") for row in answer.json()["results"]}
    assert returned[1] == (None if route == "/v2/rerank" else documents[1])
    assert returned[0] == (None if route == "/v2/rerank" else {"text": documents[0]})
    assert answer.json()["usage"]["total_tokens"] > 0


def test_relevance_is_the_probability_of_a_calibrated_model(serve, make_ranker):
    ranker = calibrated(make_ranker("poly"))
    client = serve(ranker, records=None)
    documents = [*DOCUMENTS, DOCUMENTS[0]]  # which is one candidate, there twice
    ranking = results(client.post("/v1/rerank", json={"query": QUERY, "documents": documents, "top_n": 2}))
    assert_same(ranking, expected(ranker, documents=documents)[:2])
    assert expected(ranker)[0][1] == ranker.rank(QUERY, DOCUMENTS)[0].probability


@pytest.mark.slow
@pytest.mark.parametrize("field", ["query", "messages"])
def test_messages_are_turns_and_the_system_s_if_asked_the_persona(serve, field):
    client = serve("poly", records=None)
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "system", "content": "i ski .\nyour persona: i have a dog ."},
        {"role": "assistant", "content": [{"type": "text", "text": "how are you ?"}]},
        {"role": "user", "content": QUERY},
    ]
    persona, turns = ["your persona: i ski .", "your persona: i have a dog ."], ["hello", "how are you ?", QUERY]
    ranking = results(client.post("/v1/rerank", json={field: messages, "documents": DOCUMENTS}))
    assert_same(ranking, expected(client.service.engine.ranker, turns))
    client = serve("poly", records=None, system="persona")
    ranking = results(client.post("/v1/rerank", json={field: messages, "documents": DOCUMENTS}))
    assert_same(ranking, expected(client.service.engine.ranker, [*persona, *turns]))


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"documents": ["a"]}, None, "give either query or messages"),
        ({"query": "a", "messages": [], "documents": ["a"]}, None, "give either query or messages"),
        ({"query": "a", "documents": ["a", 3]}, "documents.1", "documents.1: Input should be a valid string"),
        ({"query": "a", "documents": ["a"], "top_n": 0}, "top_n", "top_n"),
        ({"query": " ", "documents": ["a"]}, "query", "query is empty"),
        ({"query": "a", "documents": ["a", "\ud800"]}, "documents.1", "lone surrogate"),
        ({"query": "a", "documents": ["a", " "]}, "documents.1", "documents.1 is empty"),
        ({"query": "a", "documents": [{"text": "a", "x": "\ud800"}]}, "documents.0.x", "lone surrogate"),
        ({"query": "a", "documents": [{"text": "a", "\ud800": 1}]}, "documents.0", "lone surrogate"),
        ({"messages": [{"role": "bot", "content": "x"}], "documents": ["a"]}, "messages.0.role", "messages.0.role"),
        ({"messages": [{"role": "user"}], "documents": ["a"]}, "messages.0.content", "messages.0.content: Field"),
        ({"query": "a"}, "documents", "documents"),
    ],
)
def test_what_is_wrong_is_said_with_its_field(shared, body, param, says):
    answer = shared.post("/v1/rerank", content=json.dumps(body), headers={"Content-Type": "application/json"})
    check_refused(answer, param, says)


def test_what_is_not_json_is_said_with_its_place(shared):
    answer = shared.post("/v1/rerank", content=b'{"query": ', headers={"Content-Type": "application/json"})
    assert answer.json()["message"] == "the body is not JSON: Expecting value at character 11"
    assert answer.json()["error"]["param"] is None


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (gzip.compress(b'{"query": "a"}', mtime=0), "can't decode byte"),
        ('{"query": "für"}'.encode("latin-1"), "can't decode byte"),
        ('{"query": "\\"", "documents": [1]}'.encode("utf-16"), "utf-16"),
        ('{"query": "a"}'.encode("utf-32-le"), "utf-32"),
        (b"[" * 20_000, "recursion"),
        (b'{"top_n": ' + b"9" * 5000 + b"}", "4300 digits"),
    ],
)
def test_a_body_that_cannot_be_read_is_said_with_what_to_send(shared, body, cause):
    answer = shared.post("/v1/rerank", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert cause in answer.json()["message"]
    assert answer.json()["message"].endswith("send JSON in UTF-8, not compressed")


@pytest.mark.parametrize("architecture", ["bi", "cross"])
def test_texts_of_text_embeddings_inference_are_ranked(serve, architecture):
    client = serve(architecture, records=None)
    answer = client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, "return_text": True}).json()
    expected = client.service.engine.ranker.rank([QUERY], DOCUMENTS)
    assert [row["index"] for row in answer] == [hit.index for hit in expected]
    assert [row["score"] for row in answer] == pytest.approx([1 / (1 + math.exp(-hit.score)) for hit in expected])
    assert [row["text"] for row in answer] == [hit.text for hit in expected]
    body = {"query": QUERY, "texts": DOCUMENTS, "raw_scores": True, "truncate": True, "truncation_direction": "Right"}
    answer = client.post("/rerank", json=body).json()
    assert [row["score"] for row in answer] == pytest.approx([hit.score for hit in expected], abs=1e-4)
    assert {*answer[0]} == {"index", "score"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"texts": []}, "texts"),
        ({"texts": ["a", " "]}, "texts.1"),
        ({"texts": ["a"], "documents": ["a"]}, "documents"),
        ({"documents": ["a", " "]}, "documents.1"),
        ({}, "documents"),
    ],
)
def test_a_wrong_request_is_said_with_its_field(shared, body, param):
    check_refused(shared.post("/rerank", json={"query": "a", **body}), param)
