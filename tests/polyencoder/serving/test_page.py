"""The page, in a real Chromium without a screen."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from polyencoder.data.pairs import read_all_pairs
from polyencoder.index.entries import Candidate
from tests.polyencoder.calibration.test_probability import calibrated as calibrate
from tests.polyencoder.serving.conftest import REPLIES, figures

pytestmark = pytest.mark.slow

MARKUP = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>&amp;<b>bold</b>"


@pytest.fixture
def violations(browser):
    """() -> what axe finds serious or critical in the page as it is, each rule with the elements."""
    axe = pytest.importorskip("axe_core_python", reason="no axe: pip install axe-core-python")
    source = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")

    def find_violations() -> dict[str, list[str]]:
        browser.execute_script(source)
        report = browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
        assert report["passes"]
        bad = [rule for rule in report["violations"] if rule["impact"] in ("serious", "critical")]
        return {rule["id"]: [node["html"] for node in rule["nodes"]] for rule in bad}

    return find_violations


@pytest.fixture
def scheme(browser):
    """(light or dark): what the system prefers."""

    def prefer(value: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": value}] if value else []
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    yield prefer
    prefer("")


@pytest.fixture
def calibrated(make_ranker):
    return calibrate(make_ranker("poly"), temperature=5.0, none=-3.0)


def test_an_empty_page_says_what_it_is_with_examples_to_click(serve, browser, wait, all_of, visit):
    client = serve("bi")
    visit(client, "", "5 candidates, not calibrated")
    assert "chooses the best reply from the candidates" in all_of("#welcome")[0].text
    first, *_ = wait(lambda: all_of("#examples button"))
    assert {button.text for button in all_of("#examples button")} <= {reply.text for reply in REPLIES}
    assert "or try words of its candidates" in all_of("#try")[0].text
    example = first.text
    first.click()
    wait(lambda: all_of(".reply"))
    assert [turn.text for turn in all_of(".said")] == [example]
    assert not all_of("#welcome")[0].is_displayed()
    assert browser.switch_to.active_element.get_attribute("id") == "message"
    all_of(".reply summary")[0].click()
    assert figures(all_of(".reply li")[0]).keys() >= {"score", "found", "id"}
    assert not all_of(".none")  # scores alone do not say how likely "none" is
    assert "not calibrated" in all_of(".note")[0].text
    all_of("#again")[0].click()
    assert all_of("#welcome")[0].is_displayed()
    assert not all_of(".turn")


def test_a_new_dialogue_forgets_the_request_under_way(serve, browser, wait, all_of, keys, visit):
    """The answer neither appears in the new dialogue nor is sent with its messages."""
    client = serve("bi")
    visit(client, "", "5 candidates")
    browser.execute_script("""
        const real = window.fetch;
        window.bodies = [];
        window.fetch = async (path, options) => {
          if (window.bodies.push(options.body) === 1) await new Promise((answer) => (window.answer = answer));
          return real(path, options);
        };
    """)
    all_of("#message")[0].send_keys("do you ski ?", keys.ENTER)
    wait(lambda: all_of(".said"))
    all_of("#again")[0].click()
    all_of("#message")[0].clear()
    browser.execute_script("window.answer()")
    all_of("#message")[0].send_keys("any pets ?", keys.ENTER)
    wait(lambda: all_of(".reply"))
    assert [turn.text for turn in all_of(".turn:not(.reply)")] == ["any pets ?"]
    bodies = [json.loads(body)["messages"] for body in browser.execute_script("return window.bodies")]
    assert bodies == [[{"role": "user", "content": text}] for text in ("do you ski ?", "any pets ?")]
    assert all_of("#message")[0].get_attribute("value") == ""


def test_an_address_with_another_part_opens_it(serve, browser, wait, all_of, tmp_path, visit):
    client = serve("bi", feedback=str(tmp_path / "feedback.jsonl"))
    visit(client, "", "5 candidates")
    for part in ("rerank", "search", ""):
        browser.execute_script("location.hash = arguments[0]", part)
        wait(lambda part=part: all_of(f"#{part or 'chat'}")[0].is_displayed())
        assert [tab.get_attribute("id") for tab in all_of("[role=tabpanel]") if tab.is_displayed()] == [part or "chat"]
    all_of("#rerank-tab")[0].click()
    assert all_of("#kept")[0].text == "It keeps those that you rate, with the question."


@pytest.mark.parametrize("records", [REPLIES, None])
def test_candidates_of_ones_own_are_ranked_also_without_an_index(
    serve, wait, all_of, drop, calibrated, records, keys, visit
):
    client = serve(calibrated, records=records)
    visit(client, "", "calibrated")
    if records is None:
        assert "Give your own candidates above" in all_of("#welcome")[0].text
    else:
        all_of("#own-part summary")[0].send_keys(keys.ENTER)
    drop("#own", "own.jsonl", 'i ski .\n\n{"text": "i have a cat ."}\n')
    wait(lambda: all_of("#own")[0].get_attribute("value"))
    all_of("#message")[0].send_keys("any pets ?", keys.ENTER)
    wait(lambda: all_of(".reply"))
    body = {"query": "any pets ?", "documents": ["i ski .", "i have a cat ."]}
    expected = client.post("/v1/rerank", json=body).json()["results"]
    assert all_of(".reply .text")[0].text == body["documents"][expected[0]["index"]]
    all_of(".reply summary")[0].click()
    actual = [figures(item)["probability"] for item in all_of(".reply li")]
    relevances = [result["relevance_score"] for result in expected]
    assert actual == [f"{100 * share:.1f} %" for share in (*relevances, 1 - sum(relevances))]


def test_a_chat_of_ones_own_candidates_repeats_no_turn_and_says_no_refusal(
    serve, browser, wait, all_of, drop, keys, visit
):
    client = serve("bi", records=None)
    visit(client, "", "no index")
    browser.execute_script("""
        const send = window.fetch;
        window.sent = [];
        window.fetch = (path, options) => {
            if (options.body) window.sent.push(JSON.parse(options.body).messages.map((message) => message.content));
            return send(path, options);
        };
    """)
    drop("#own", "own.txt", "i ski .\nI have\ta cat .\nany pets ?\n")
    wait(lambda: all_of("#own")[0].get_attribute("value"))
    questions = ["Any  pets ?", "do you ski ?", "and now ?", "well ?"]
    for number, text in enumerate(questions, start=1):
        if number == 4:
            drop("#own", "own.txt", "i ski .\nhello .\n")
            wait(lambda: "hello" in all_of("#own")[0].get_attribute("value"))
        all_of("#message")[0].send_keys(text, keys.ENTER)
        wait(lambda number=number: len(all_of(".reply")) == number)
    first, second, third, fourth = [reply.text for reply in all_of(".reply p.text")]
    assert {first, second} == {"i ski .", "I have a cat ."}
    assert (third, fourth) == ("I have no other answer.", "hello .")
    texts = {" ".join(text.split()): text for text in ("i ski .", "I have\ta cat .")}
    dialogue = [*questions[:1], texts[first], questions[1], texts[second], questions[2], questions[3]]
    assert browser.execute_script("return window.sent") == [dialogue[:1], dialogue[:3], dialogue]


def test_a_search_says_how_likely_each_result_is_and_how_it_was_found(serve, wait, all_of, calibrated, visit):
    client = serve(calibrated, examples=("any pets ?", "do you ski ?"))
    visit(client, "#search", "5 candidates")
    assert "lists the 10 that answer it best" in all_of("#search .welcome")[0].text
    assert not all_of("#chat")[0].is_displayed()
    example, other = wait(lambda: all_of("#search .examples button"))
    assert (example.text, other.text) == ("any pets ?", "do you ski ?")
    query = example.text
    example.click()
    wait(lambda: all_of("#search li"))
    expected = client.post("/v1/search", json={"query": query}).json()
    assert all(step in all_of("#search .results h2")[0].text for step in (*expected["milliseconds"], "5 candidates"))
    *items, none = all_of("#search li")
    assert [item.find_element("css selector", ".text").text for item in items] == [
        hit["text"] for hit in expected["results"]
    ]
    for item, hit in zip(items, expected["results"], strict=True):
        known = {"probability": f"{100 * hit['probability']:.1f} %", "score": f"{hit['score']:.3f}"}
        assert figures(item) == {**known, "found": hit["found"], "id": hit["id"], **hit["metadata"]}
    left = 1 - sum(hit["probability"] for hit in expected["results"])
    assert figures(none) == {"probability": f"{100 * left:.1f} %"}
    assert "every candidate of the index was compared" in all_of("#search .note")[0].text


@pytest.mark.parametrize("which", ["ranker", "reranker"])
def test_probabilities_of_a_search_are_those_of_the_model_that_orders_it(
    serve, make_ranker, browser, wait, all_of, calibrated, which
):
    """Where that model has none, neither "none of these" nor an error takes their place."""
    ranker, reranker = make_ranker("bi"), make_ranker("cross")
    (ranker if which == "ranker" else reranker).calibration = calibrated.calibration
    client = serve(ranker, reranker=reranker)
    info = client.get("/info").json()
    assert (info["calibrated"], info["search_calibrated"]) == (which == "ranker", which == "reranker")
    browser.get(f"{client.base_url}#search")
    example = wait(lambda: all_of("#search .examples button"))[0]
    assert ("not calibrated" in all_of("#about")[0].text) == (which == "ranker")
    example.click()
    labels = [figures(item) for item in wait(lambda: all_of("#search li"))]
    assert [set(label) == {"probability"} for label in labels[-2:]] == [False, which == "reranker"]
    assert all(("probability" in label) == (which == "reranker") for label in labels)
    assert ("not calibrated" in all_of("#search .note")[0].text) == (which == "ranker")


def test_a_search_without_results_says_no_more_than_that(serve, browser, wait, all_of, calibrated):
    client = serve(calibrated, min_probability=1.0, examples=("any pets ?",))
    browser.get(f"{client.base_url}#search")
    wait(lambda: all_of("#search .examples button"))[0].click()
    wait(lambda: all_of("#search .results h2"))
    assert all_of("#search .results h2")[0].text == "No candidate was good enough."
    assert not all_of("#search li")
    assert all_of("#search .note")[0].text == ""


def test_texts_are_sorted_with_the_keyboard_alone(serve, browser, wait, all_of, keys, visit):
    client = serve("cross", records=None)
    visit(client, "", "no index")
    active = lambda: browser.switch_to.active_element  # noqa: E731
    all_of("#chat-tab")[0].send_keys(keys.ARROW_LEFT)  # from the first to the last
    assert active().get_attribute("id") == "rerank-tab"
    assert active().get_attribute("aria-selected") == "true"
    assert not all_of("#own-part")[0].is_displayed()
    assert all_of("#kept")[0].text == "It keeps nothing of them."
    assert browser.current_url.endswith("#rerank")
    all_of("#sorted-example")[0].send_keys(keys.ENTER)
    wait(lambda: all_of("#rerank li"))
    documents = all_of("#documents")[0].get_attribute("value").split("\n")
    body = {"query": all_of("#question")[0].get_attribute("value"), "documents": documents}
    expected = client.post("/v1/rerank", json=body).json()["results"]
    assert [figures(item)["relevance"] for item in all_of("#rerank li")] == [
        f"{result['relevance_score']:.3f}" for result in expected
    ]
    all_of("#rerank-tab")[0].send_keys(keys.HOME)
    assert active().get_attribute("id") == "chat-tab"
    assert all_of("#chat")[0].is_displayed()


def test_it_is_accessible_in_light_and_dark_also_on_a_phone(
    serve, browser, wait, all_of, violations, scheme, calibrated, tmp_path
):
    client = serve(calibrated, feedback=str(tmp_path / "feedback.jsonl"))
    browser.set_window_size(360, 740)
    for preferred in ("light", "dark"):
        scheme(preferred)
        for part in ("chat", "search", "rerank"):
            browser.get(f"{client.base_url}?{preferred}{part}#{part}")
            wait(lambda: "5 candidates" in all_of("#about")[0].text)
            wait(lambda part=part: all_of(f"#{part} .examples button"))
            assert violations() == {}
            all_of(f"#{part} .examples button")[0].click()
            wait(lambda part=part: all_of(f"#{part} li"))
            for summary in all_of(".reply summary"):
                summary.click()
            assert violations() == {}
            width, inner = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
            assert width <= inner


def test_it_is_dark_where_the_system_is(serve, browser, scheme):
    client = serve("bi")
    levels = []
    for preferred in ("light", "dark"):
        scheme(preferred)
        browser.get(str(client.base_url))
        for selector in ("#say", "#welcome"):
            script = "return getComputedStyle(document.querySelector(arguments[0]))"
            background = browser.execute_script(f"{script}.backgroundColor", selector)
            text = browser.execute_script(f"{script}.color", selector)
            levels.append((luminance(background), luminance(text)))
    assert all(background - text > 0.6 for background, text in levels[:2])
    assert all(text - background > 0.6 for background, text in levels[2:])


def luminance(color: str) -> float:
    """About how bright a CSS color is, 0 to 1."""
    numbers = [float(number) for number in re.findall(r"[\d.]+", color)][:3]
    return sum(numbers) / 3 / (255 if color.startswith("rgb") else 1)


def test_a_person_talks_to_it_with_the_keyboard_and_says_what_was_good(
    serve, calibrated, browser, wait, all_of, tmp_path, keys, visit
):
    records = [*REPLIES, Candidate("markup", MARKUP)]
    client = serve(calibrated, records=records, feedback=str(tmp_path / "feedback.jsonl"))
    visit(client, "", "6 candidates")
    dialogue: list[str] = []
    for number, text in enumerate(["hello", MARKUP], start=1):
        all_of("#message")[0].send_keys(text, keys.ENTER)
        wait(lambda number=number: len(all_of(".reply")) == number)
        dialogue.append(text)
        messages = [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(dialogue)]
        expected = client.post("/v1/chat", json={"messages": messages}).json()
        assert [turn.text for turn in all_of(".said")][-1] == text
        reply = all_of(".reply")[-1]
        assert reply.find_element("css selector", "p.text").text == expected["reply"]
        summary = reply.find_element("css selector", "summary")
        assert f"{100 * expected['results'][0]['probability']:.1f} %" in summary.text
        summary.send_keys(keys.ENTER)
        *items, none = wait(lambda reply=reply: reply.find_elements("css selector", "li"))
        for step in expected["milliseconds"]:
            assert step in reply.find_element("css selector", ".note").text
        assert len(items) == len(expected["results"])
        left = 1 - sum(hit["probability"] for hit in expected["results"])
        assert none.find_element("css selector", ".text").text == "None of these"
        assert figures(none) == {"probability": f"{100 * left:.1f} %"}
        for item, hit in zip(items, expected["results"], strict=True):
            assert item.find_element("css selector", ".text").text == hit["text"]
            assert figures(item) == {
                "probability": f"{100 * hit['probability']:.1f} %",
                "score": f"{hit['score']:.3f}",
                "found": hit["found"],
                "id": hit["id"],
                **hit.get("metadata", {}),
            }
            bar = float(item.find_element("css selector", "meter").get_attribute("value"))
            assert bar == pytest.approx(hit["probability"], abs=1e-6)
        dialogue.append(expected["reply"])
    assert browser.title == "polyencoder"
    assert not all_of("main img, main script, main b")
    icons = all_of(".reply:last-child .up svg")
    assert icons
    assert all(icon.size["width"] > 10 for icon in icons if icon.is_displayed())

    up, down = (all_of(f".reply:last-child .{kind}")[position] for kind, position in (("up", 0), ("down", 1)))
    for button in (up, down):
        button.send_keys(keys.ENTER)
        wait(lambda button=button: button.get_attribute("aria-pressed") == "true")
    context = dialogue[:3]
    (pair,) = read_all_pairs(str(tmp_path / "feedback.jsonl"))
    assert pair.text == "\n".join(context)
    assert pair.label == expected["results"][0]["text"]
    rejected = json.loads((tmp_path / "feedback.jsonl.rejected.jsonl").read_text())
    assert rejected == {"context": context, "rejected": expected["results"][1]["text"]}


def test_it_fits_small_screens_and_needs_nothing_from_elsewhere(serve, browser, wait, all_of, keys):
    client = serve("bi", records=[Candidate("long", "a" * 300), *REPLIES])
    browser.set_window_size(360, 640)
    browser.get("about:blank")
    browser.get_log("browser")  # the messages of earlier pages, whose servers have ended
    browser.get(str(client.base_url))
    all_of("#message")[0].send_keys("b" * 200, keys.ENTER)
    wait(lambda: all_of(".reply"))
    all_of(".reply summary")[0].click()
    width, inner = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert width <= inner
    assert not [button for button in all_of(".thumbs") if button.is_displayed()]  # the server keeps no feedback
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert loaded
    assert all(name.startswith(str(client.base_url)) for name in loaded)
    problems = [message["message"] for message in browser.get_log("browser")]
    assert not problems


def test_it_asks_for_the_key_and_shows_errors(serve, browser, wait, all_of, keys):
    client = serve("bi", records=None, api_key="a-long-secret")
    browser.set_window_size(1000, 800)
    browser.get(str(client.base_url))
    wait(lambda: all_of("#key")[0].is_displayed())
    all_of("#key")[0].send_keys("a-long-secret", keys.TAB)
    wait(lambda: "no index" in all_of("#about")[0].text)
    all_of("#message")[0].send_keys("hello", keys.ENTER)
    wait(lambda: all_of(".problem"))
    assert "no index" in all_of(".problem")[0].text
    assert all_of("#message")[0].get_attribute("value") == "hello"
