"""`/v1/select`: `Selector`'s choice over HTTP, with the limits and errors of other routes."""

from __future__ import annotations

import json
import math

import pytest

from polyencoder import Selector
from polyencoder.serving.config import Limits
from tests.polyencoder.calibration.test_probability import calibrated
from tests.polyencoder.serving.conftest import check_refused
from tests.polyencoder.test_selector import CHAT, TOOLS


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["poly", "late", "cross"])
def test_the_choice_is_the_selectors(serve, make_ranker, architecture):
    client = serve(calibrated(make_ranker(architecture)), records=None)
    tools = [*TOOLS, {"name": "none", "description": "x", "parameters": None}]  # what was sent comes back
    expected = Selector(client.service.engine.ranker).select(CHAT, tools)
    threshold = expected.chosen[1].probability - 1e-4
    for options, chosen in (({}, expected.chosen), ({"top_k": 3, "min_probability": threshold}, expected.chosen[:2])):
        answer = client.post("/v1/select", json={"messages": CHAT, "options": tools, **options})
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["none_probability"] == pytest.approx(expected.none_probability, abs=1e-5)
        assert [choice["index"] for choice in body["chosen"]] == [choice.index for choice in chosen]
        for row, choice in zip(body["chosen"], chosen, strict=True):
            assert (row["option"], row.get("name")) == (choice.option, choice.name)
            assert (row["score"], row["probability"]) == pytest.approx((choice.score, choice.probability), abs=1e-4)
        assert body["usage"]["total_tokens"] > 0


def test_what_was_chosen_stays(shared):
    body = {"query": "hello", "options": TOOLS, "top_k": 2, "keep": ["teach", "gone"]}
    assert shared.post("/v1/select", json=body).json()["chosen"][0]["name"] == "teach"


def test_a_model_without_calibration_has_no_probabilities(shared):
    body = shared.post("/v1/select", json={"query": "hello", "options": TOOLS}).json()
    assert "none_probability" not in body
    assert all("probability" not in choice for choice in body["chosen"])
    answer = shared.post("/v1/select", json={"query": "hello", "options": TOOLS, "min_probability": 0.5})
    check_refused(answer, "min_probability", "polyencoder calibrate")


@pytest.mark.slow
@pytest.mark.parametrize(("route", "fields"), [("select", {"options": ["a"]}), ("search", {})])
def test_errors_name_no_path_of_the_server(serve, make_ranker, tmp_path, route, fields):
    ranker = make_ranker("bi")
    ranker.source = tmp_path / "model"
    answer = serve(ranker).post(f"/v1/{route}", json={"query": "hello", "min_probability": 0.5, **fields})
    check_refused(answer, "min_probability", "this server's is not calibrated: leave it out, or calibrate the model")
    assert str(tmp_path) not in answer.text


def test_more_options_than_the_limit_are_not_read(serve, monkeypatch):
    client = serve("bi", records=None, limits=Limits(documents=3))
    monkeypatch.setattr("polyencoder.serving.select.read_options", lambda _: pytest.fail("read"))
    check_refused(client.post("/v1/select", json={"query": "a", "options": ["a"] * 4}), "options")


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"query": "a"}, "options", "options: Field required"),
        ({"query": " ", "options": ["a"]}, "query", "query is empty"),
        ({"query": "a", "options": []}, "options", "options is empty"),
        ({"query": "a", "options": ["a", " "]}, "options.1", "option 1 is empty"),
        ({"query": "a", "options": ["a", 3]}, "options.1", "options.1: Input should be a valid"),
        ({"query": "a", "options": ["a", {"name": "x"}]}, "options.1", "option 1 ('x') has no description"),
        ({"query": "a", "options": [TOOLS[0], TOOLS[0]]}, "options.1", "options 0 and 1 have the same name"),
        ({"query": "a", "options": ["a"], "top_n": 1}, "top_n", "did you mean top_k?"),
        ({"query": "a", "options": ["a"], "top_k": 0}, "top_k", "top_k"),
        ({"query": "a", "options": ["a"], "top_k": True}, "top_k", "is true, not a number"),
        ({"query": "a", "options": [{**TOOLS[0], "x": math.nan}]}, "options.0.x", "is nan; nan and infinity cannot be"),
        ({"query": "a", "options": ["a"], "min_probability": 2}, "min_probability", "min_probability"),
        ({"query": "a", "options": [{"name": "x", "description": "\ud800"}]}, "options.0.description", "surrogate"),
    ],
)
def test_what_is_wrong_is_said_with_its_field(shared, body, param, says):
    answer = shared.post("/v1/select", content=json.dumps(body), headers={"Content-Type": "application/json"})
    check_refused(answer, param, says)
