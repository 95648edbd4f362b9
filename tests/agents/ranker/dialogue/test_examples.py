"""Examples that cannot be used: an error that names the example, or skipped and counted."""

from __future__ import annotations

import random

import pytest
from parlai.agents.ranker.dialogue.examples import choose_label
from parlai.core.message import Message

from polyencoder.errors import InputError
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

MODELS = ["polyencoder", "crossencoder", "biencoder"]
GOOD = {"text": "how are you ?", "labels": ["fine ."], "label_candidates": ["no .", "fine ."]}

# what is changed in a good example, the options, what the error says
BAD = {
    "empty text": ({"text": ""}, {}, "has no text: a context needs at least one word"),
    "no candidates": ({"label_candidates": []}, {}, "has no candidates of its own, which {flag} inline needs"),
    "all in the batch": (
        {"label_candidates": None},
        {"source": "batch-all-cands"},
        "no candidates of its own, which {flag} batch-all-cands needs; use {flag} fixed with --fixed-candidates-path",
    ),
    "only its label": ({"label_candidates": ["fine .", "fine ."]}, {}, "has one candidate, its label: with {flag}"),
    "label missing": ({"label_candidates": ["no .", "yes ."]}, {}, "has a label that is not among its 2 candidates"),
    "half a character in the context": ({"text": "a \ud83d"}, {}, "cannot be read: character 3 of"),
    "half a character in a candidate": ({"label_candidates": ["fine .", "\ud83d"]}, {}, "cannot be read: character 1"),
}


def example(change: dict, part: str) -> dict:
    """The good example with something changed, in training (`labels`) or evaluation (`eval_labels`)."""
    fields = {**GOOD, **change}
    fields[part] = fields.pop("labels")
    return {name: value for name, value in fields.items() if value is not None}


@pytest.fixture
def agent_for(make_agent):
    def make(model="biencoder", source="inline", **options):
        return make_agent(model, candidates=source, eval_candidates=source, **options)

    return make


@pytest.mark.parametrize("case", BAD)
def test_a_bad_example_is_an_error_that_names_it(case, agent_for, respond):
    change, options, problem = BAD[case]
    agent = agent_for(**options)
    for part, flag in (("labels", "--candidates"), ("eval_labels", "--eval-candidates")):
        with pytest.raises(InputError) as error:
            respond(agent, example(change, part))
        message = str(error.value)
        fragments = (problem.format(flag=flag), "--ignore-bad-candidates true", "task test0", "label 'fine .'")
        assert [part for part in fragments if part not in message] == []
        assert len(message.splitlines()) == 1


def test_an_error_tells_the_episode_apart(agent_for, respond):
    turns = [{"text": "hello", "labels": ["hi !"]}, example({"label_candidates": ["no ."]}, "labels")]
    with pytest.raises(InputError, match=r"example 'how are you \?', label 'fine \.', in the episode 'hello.*hi !"):
        respond(agent_for(), turns)


@pytest.mark.parametrize("case", BAD)
def test_a_bad_example_can_be_skipped_and_counted(case, agent_for, respond):
    change, options, _ = BAD[case]
    agent = agent_for(ignore_bad_candidates=True, **options)
    for part in ("labels", "eval_labels"):
        agent.reset_metrics()
        bad, good = respond(agent, example(change, part), example({}, part))
        report = agent.global_metrics.report()
        assert report["bad_examples"].value() == 1
        assert not {"text", "metrics"} & bad.keys()
        assert (report if part == "labels" else good["metrics"])["rank"].value() <= 2
        assert "text" not in respond(agent, example(change, part))[0]  # a whole batch of bad ones


@mostly_long("model", MODELS, quick=1)
def test_bad_examples_are_counted_in_reports(model, train, evaluate, make_task, task_of, tmp_path):
    turn = {"text": "a", "labels": "x"}
    episodes = [[{**turn, "label_candidates": candidates}] for candidates in (["x", "y"], ["y"]) * 3]
    bad = make_task(tmp_path, train=episodes)
    short = {"max_train_steps": 5, "batchsize": 2, "validation_every_n_epochs": 1.0, "ignore_bad_candidates": True}
    report = train(model, tmp_path / "model", **{**short, **bad, "candidates": "inline"})
    assert report["bad_examples"] == 3
    report = evaluate(tmp_path / "model", **bad)
    assert report["bad_examples"] == 3
    assert report["rank"] <= 2
    with pytest.raises(InputError, match="in the episode 'a' has a label that is not among its 1 candidates"):
        evaluate(tmp_path / "model", **{**bad, "ignore_bad_candidates": False})


@pytest.mark.parametrize("part", ["labels", "eval_labels"])
def test_a_label_alone_is_bad_also_beside_others(part, agent_for, respond):
    """Each example needs a choice itself: other texts of the batch do not help it."""
    agent = agent_for(ignore_bad_candidates=True)
    alone = [example({"labels": [text], "label_candidates": [text]}, part) for text in ("yes .", "no .")]
    replies = respond(agent, *alone, example({}, part))
    report = agent.global_metrics.report()
    assert report["bad_examples"].value() == 2
    if part == "eval_labels":
        assert ["metrics" in reply for reply in replies] == [False, False, True]
    with pytest.raises(InputError, match="has one candidate, its label"):
        respond(agent_for(), *alone)


def test_in_batch_candidates_need_a_label(make_agent, respond):
    agent = make_agent("biencoder", eval_candidates="batch")
    with pytest.raises(InputError, match="no label, which --eval-candidates batch takes as a candidate"):
        respond(agent, {"text": "hello"})


def test_an_empty_message_opens_an_interactive_dialogue(make_agent, respond, candidates_file):
    options = {"interactive_mode": True, "fixed_candidates_path": str(candidates_file)}
    assert respond(make_agent("biencoder", **options), {"text": ""})[0]["text"]


def test_a_conversation_survives_half_a_character(make_agent, respond, candidates_file):
    """A terminal in another encoding gives one: it is read as the sign for an unknown character."""
    agent = make_agent("biencoder", interactive_mode=True, fixed_candidates_path=str(candidates_file))
    for text in ("hi \udcff", "where is the cat ?"):
        observation = agent.observe(Message({"id": "human", "text": text, "episode_done": False}))
        assert agent.act()["text"].startswith("my ")
        assert observation["full_text"].startswith("hi \ufffd")


def test_a_conversation_without_candidates_is_an_error(make_agent, respond):
    agent = make_agent("biencoder", interactive_mode=True, interactive_candidates="inline")
    with pytest.raises(InputError, match="no candidates of its own, .* fixed with --fixed-candidates-path FILE"):
        respond(agent, {"text": "hello"})


def test_an_empty_turn_after_others_is_no_error(agent_for, respond):
    episode = [{"text": "hello", "eval_labels": ["hi !"]}, example({"text": ""}, "eval_labels")]
    with pytest.raises(InputError):
        respond(agent_for(), episode[1:])
    assert respond(agent_for(), episode)[0]["text"] in GOOD["label_candidates"]


def test_long_texts_are_shortened_in_the_message(agent_for, respond):
    with pytest.raises(InputError) as error:
        respond(agent_for(), {"text": "word " * 500, "labels": ["long " * 500], "label_candidates": ["x"]})
    assert len(str(error.value)) < 500


def test_one_of_several_labels_is_chosen_among_the_candidates():
    rng = random.Random(0)
    message = Message({"labels": ["a", "b", "c"], "label_candidates": ["b", "c", "d"]})
    assert {choose_label(message, rng) for _ in range(30)} == {"b", "c"}
    message = Message({"eval_labels": ["a", "b"], "label_candidates": ["d"]})
    assert {choose_label(message, rng) for _ in range(30)} == {"a", "b"}
    assert choose_label(Message({"labels": []}), rng) is None
    assert choose_label(Message({}), rng) is None


@pytest.mark.parametrize("source", ["inline", "batch", "batch-all-cands", "fixed"])
@pytest.mark.parametrize("labels", [[], [" "]])
def test_nothing_can_be_trained_without_a_label(source, labels, agent_for, respond, candidates_file):
    agent = agent_for(source=source, fixed_candidates_path=str(candidates_file))
    with pytest.raises(InputError, match="has no label to train on"):
        respond(agent, {**GOOD, "labels": labels})


def test_of_several_labels_one_of_the_fixed_candidates_is_taken():
    obs = Message({"labels": ["not there", "my cat is here ."]})
    labels = {choose_label(obs, random.Random(seed), among={"my cat is here .": 0}) for seed in range(20)}
    assert labels == {"my cat is here ."}
