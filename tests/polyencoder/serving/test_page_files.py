"""Files that are dropped on the page, in a real Chromium without a screen."""

from __future__ import annotations

import json

import pytest

from polyencoder.serving.config import Limits
from tests.polyencoder.serving.conftest import figures

pytestmark = pytest.mark.slow


def test_a_dropped_file_is_searched_in_place_of_the_index_as_far_as_the_limits_reach(serve, wait, all_of, drop, visit):
    client = serve("bi", limits=Limits(documents=2))
    visit(client, "#search", "5 candidates")
    record = {"id": "parrot", "text": "i have a parrot .", "metadata": {"page": 7}}
    drop("h1", "mine.jsonl", f"i ski .\n{json.dumps(record)}\nno .\nhi .\n")
    note = wait(lambda: all_of("#own-note")[0].text)
    assert note.startswith("mine.jsonl: 2 candidates, ranked with each question, in place of the index's")
    assert note.endswith("this server ranks no more in a request; 2 are left out.")
    all_of("#query")[0].send_keys("any pets ?\n")
    wait(lambda: all_of("#search li"))
    body = {"query": "any pets ?", "documents": ["i ski .", "i have a parrot ."]}
    expected = client.post("/v1/rerank", json=body).json()["results"]
    labels = {item.find_element("css selector", ".text").text: figures(item) for item in all_of("#search li")}
    assert [*labels] == [body["documents"][result["index"]] for result in expected]
    relevance = {body["documents"][result["index"]]: f"{result['relevance_score']:.3f}" for result in expected}
    assert labels["i have a parrot ."] == {"relevance": relevance["i have a parrot ."], "id": "parrot", "page": "7"}


def test_a_file_without_text_replaces_nothing_and_dropped_text_is_the_browsers(
    serve, browser, wait, all_of, drop, visit
):
    client = serve("bi", records=None)
    visit(client, "#rerank", "no index")
    all_of("#documents")[0].send_keys("i ski .")
    for name, content, why in (
        ("latin.txt", list("caf\xe9".encode("latin-1")), "it is not text in UTF-8"),
        ("empty.txt", "\n \r\n", "it has no text"),
    ):
        drop("h1", name, content)
        wait(lambda name=name, why=why: all_of("#documents-note")[0].text == f"{name}: not read: {why}")
        assert all_of("#documents")[0].get_attribute("value") == "i ski ."
    untouched = """
        const data = new DataTransfer();
        data.setData("text/plain", "a line");
        const event = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
        return document.querySelector("#documents").dispatchEvent(event);
    """
    assert browser.execute_script(untouched)
    drop("h1", "bom.txt", list("\ufeffhi .\r\nno .".encode()))
    wait(lambda: all_of("#documents")[0].get_attribute("value") == "hi .\nno .")
