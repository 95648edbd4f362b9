"""What the agent hears as turns of a ConveRT's context."""

from __future__ import annotations

import json

import pytest
from parlai.agents.convert.convert import ConvertHistory
from parlai.core.agents import create_agent
from parlai.core.worlds import create_task

from polyencoder import Ranker


@pytest.fixture
def history() -> ConvertHistory:
    return ConvertHistory({}, size=3)


def test_lines_of_messages_are_turns_and_replies_are_whole(history):
    history.update_history({"text": "your persona: i ski .\nhello !\nhow are you ?"})
    history.add_reply("fine\nthank you")
    history.update_history({"text": "good"})
    assert history.list_turns() == ["your persona: i ski .", "hello !", "how are you ?", "fine\nthank you", "good"]
    history.update_history({"text": "one\ntwo\nthree", "context_turns": ["one", "two\nthree"]})
    assert history.list_turns()[-2:] == ["one", "two\nthree"]
    history.reset()
    assert history.list_turns() == []
    history.update_history({"text": "one\ntwo"})
    assert history.list_turns() == ["one", "two"]


def test_the_agent_scores_whole_turns_as_the_library_does(small, tmp_path):
    turns, response = ["hi", "is it the cat\nor the owl ?"], "the owl"
    pair = {"context": turns, "response": response, "candidates": [response, "the cat", "no one"]}
    (tmp_path / "valid.jsonl").write_text(json.dumps(pair))
    folder = small(extra_contexts=3)
    ranker = Ranker.from_pretrained(folder, device="cpu")
    options = {"model": "convert", "model_file": str(folder), "eval_candidates": "inline", "datatype": "valid"}
    options |= {"no_cuda": True, "return_cand_scores": True, "loglevel": "error"}
    agent = create_agent(options, requireModelExists=True)
    opt = {**agent.opt, "task": "selection:jsonl", "selection_folder": str(tmp_path), "batchsize": 1}
    world = create_task(opt, agent)
    world.parley()
    reply = world.get_acts()[1]
    expected = ranker.rank(turns, pair["candidates"])
    assert reply["text_candidates"] == [match.text for match in expected]
    assert [float(score) for score in reply["sorted_scores"]] == pytest.approx(
        [match.score for match in expected], abs=1e-5
    )
