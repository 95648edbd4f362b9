"""Answering a batch: what comes back, and that nobody's neighbours in the batch change it."""

from __future__ import annotations

import math

import parlai.utils.logging as logging
import pytest

from polyencoder.errors import ConfigError, InputError

pytestmark = pytest.mark.slow

MODELS = ["biencoder", "polyencoder", "crossencoder"]
RANKING = ["accuracy", "hits@1", "hits@5", "rank", "mrr", "f1"]
QUESTION = {"text": "where is the owl ?"}


def values(reply) -> dict[str, float]:
    return {name: metric.value() for name, metric in reply["metrics"].items()}


@pytest.fixture
def with_fixed(trained, make_agent, candidates_file):
    """(model, **options) -> the trained agent with the answers as its fixed candidates."""

    def make(model, **options):
        fixed = {"eval_candidates": "fixed", "fixed_candidates_path": str(candidates_file)}
        fixed |= {"encode_candidate_vecs": False, "datatype": "valid"}
        return make_agent(model, model_file=trained(model)[0], **{**fixed, **options})

    return make


# ---- a batch's neighbours


@pytest.mark.parametrize("model", MODELS[1:])
def test_metrics_are_the_same_at_any_batch_size(model, trained, evaluate, task_of):
    reports = [evaluate(trained(model)[0], batchsize=size, **task_of(model)) for size in (1, 3, 8)]
    for report in reports[1:]:
        assert {name: report[name] for name in RANKING} == {name: reports[0][name] for name in RANKING}
        assert report["loss"] == pytest.approx(reports[0]["loss"], rel=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_examples_with_different_numbers_of_candidates(model, trained, make_agent, respond, labels):
    """Padding is no candidate: it has no rank, no place in the answer, no part in the loss."""
    agent = make_agent(model, model_file=trained(model)[0], datatype="valid")
    turns = [
        {"text": f"i look for a {label}", "eval_labels": [label], "label_candidates": labels[i:]}
        for i, label in enumerate(labels[:-1])
    ]
    together = respond(agent, *turns)
    for turn, reply in zip(turns, together, strict=True):
        (alone,) = respond(agent, turn)
        n = len(turn["label_candidates"])
        assert sorted(reply["text_candidates"]) == sorted(turn["label_candidates"])
        assert reply["text_candidates"] == alone["text_candidates"]
        assert values(reply)["rank"] == values(alone)["rank"] <= n
        assert values(reply)["loss"] == pytest.approx(values(alone)["loss"], rel=1e-4, abs=1e-6)
        assert f"R{n}@1" in values(reply)


@pytest.mark.parametrize("model", MODELS)
def test_one_candidate_in_a_batch_of_several(model, trained, make_agent, respond):
    agent = make_agent(model, model_file=trained(model)[0], datatype="valid", return_cand_scores=True)
    turns = [{"text": f"hello {i}", "label_candidates": ["yes"]} for i in range(3)]
    for reply in respond(agent, *turns):
        assert reply["text"] == "yes"
        assert reply["text_candidates"] == ["yes"]
        assert len(reply["sorted_scores"]) == 1
    with pytest.raises(InputError, match="has one candidate, its label: with --eval-candidates inline"):
        respond(agent, {**turns[0], "eval_labels": ["yes"]})


# ---- what is asked for


@pytest.mark.parametrize("model", MODELS)
def test_scores_come_sorted_and_beside_their_candidates(model, trained, make_agent, respond, labels):
    agent = make_agent(model, model_file=trained(model)[0], datatype="valid", return_cand_scores=True)
    turns = [{**QUESTION, "label_candidates": labels}, {**QUESTION, "label_candidates": labels[3:0:-1]}]
    replies = respond(agent, *turns)
    for turn, reply in zip(turns, replies, strict=True):
        assert sorted(reply["text_candidates"]) == sorted(turn["label_candidates"])
        assert reply["sorted_scores"] == sorted(reply["sorted_scores"], reverse=True)
        assert reply["text"] == reply["text_candidates"][0]
    score = dict(zip(replies[0]["text_candidates"], replies[0]["sorted_scores"], strict=True))
    for text, value in zip(replies[1]["text_candidates"], replies[1]["sorted_scores"], strict=True):
        assert value == pytest.approx(score[text], abs=1e-4)  # a candidate's score does not hang on the others


def test_scores_are_left_out_unless_asked_for(trained, make_agent, respond, labels):
    agent = make_agent("biencoder", model_file=trained("biencoder")[0], datatype="valid")
    assert "sorted_scores" not in respond(agent, {**QUESTION, "label_candidates": labels})[0]


@pytest.mark.parametrize("source", ["inline", "fixed"])
def test_only_the_best_are_listed(source, with_fixed, respond, labels):
    turn = {**QUESTION, "label_candidates": labels, "eval_labels": [labels[0]]}
    (full,) = respond(with_fixed("polyencoder", eval_candidates=source), turn)
    for option, k in (("rank_top_k", 1), ("rank_top_k", 100), ("cap_num_predictions", 3)):
        (reply,) = respond(with_fixed("polyencoder", eval_candidates=source, **{option: k}), turn)
        assert reply["text_candidates"] == full["text_candidates"][:k]
        assert values(reply)["rank"] == values(full)["rank"]  # counted among all of them


@pytest.mark.parametrize("flag", ["--rank-top-k", "--cap-num-predictions"])
def test_hits_beyond_the_list_are_warned_of(flag, with_fixed, monkeypatch):
    warnings: list[str] = []
    monkeypatch.setattr(logging, "warning", warnings.append)
    with_fixed("biencoder")
    assert not [line for line in warnings if "hits@" in line]
    with_fixed("biencoder", **{flag.strip("-").replace("-", "_"): 5})
    assert [line for line in warnings if "hits@" in line] == [
        f"{flag} 5: hits@10, hits@100 are those of the 5 listed candidates; rank, mrr and RN@k count all"
    ]


def test_top_k_sampling_chooses_among_the_best(with_fixed, respond):
    agent = with_fixed("biencoder", inference="topk", topk=3)
    (best,) = respond(with_fixed("biencoder"), QUESTION)
    replies = {respond(agent, QUESTION)[0]["text"] for _ in range(40)}
    assert replies == set(best["text_candidates"][:3])
    with pytest.raises(ConfigError, match="--topk 3 is read only with"):
        with_fixed("biencoder", topk=3)


# ---- repeat blocking


@pytest.mark.parametrize("model", MODELS)
def test_each_example_blocks_what_was_said_in_its_own_dialogue(model, with_fixed, respond, labels):
    agent = with_fixed(model, repeat_blocking_heuristic=True, cap_num_predictions=3)
    episodes = [
        [{"text": "hello", "eval_labels": labels[:1]}, {"text": f"and then ?\n{labels[1].upper()} "}],
        [QUESTION],
        [{"text": labels[2], "eval_labels": labels[3:4]}, {"text": labels[4], "eval_labels": labels[5:6]}, QUESTION],
    ]
    blocked = [set(labels[:2]), set(), set(labels[2:6])]
    free = with_fixed(model, repeat_blocking_heuristic=False)
    for reply, everything, repeated in zip(respond(agent, *episodes), respond(free, *episodes), blocked, strict=True):
        assert reply["text_candidates"] == [t for t in everything["text_candidates"] if t not in repeated][:3]
        assert reply["text"] == reply["text_candidates"][0]


@pytest.mark.parametrize("model", MODELS[1:])
def test_a_report_ranks_what_the_reply_may_not_repeat(model, copy_of, evaluate, labels, make_task, tmp_path):
    """R8@k counts the rank, hits@k what the reply lists: the same, also of labels that are earlier turns."""
    task = make_task(tmp_path, train=[[{"text": f"what is it ?\n{label}", "labels": label}] for label in labels])
    (tmp_path / "answers.txt").write_text("\n".join(labels))
    options = {**task, "eval_candidates": "fixed", "fixed_candidates_path": str(tmp_path / "answers.txt")}
    report = evaluate(copy_of(model), **options, repeat_blocking_heuristic=True)
    plain = evaluate(copy_of(model), **options, repeat_blocking_heuristic=False)
    for k in (1, 5):
        assert report[f"hits@{k}"] == report[f"R8@{k}"] == plain[f"hits@{k}"]
    assert report["accuracy"] == 0, "each label was said before"
    assert plain["accuracy"] == plain["hits@1"] > 0


def test_when_everything_was_said_it_is_said_again(with_fixed, respond, labels):
    agent = with_fixed("biencoder", repeat_blocking_heuristic=True)
    reply, other = respond(agent, {"text": "\n".join(labels)}, QUESTION)
    assert sorted(reply["text_candidates"]) == sorted(labels)
    assert reply["text"] == reply["text_candidates"][0]
    assert sorted(other["text_candidates"]) == sorted(labels)


def test_inline_candidates_are_never_blocked(with_fixed, respond, labels):
    agent = with_fixed("biencoder", eval_candidates="inline", repeat_blocking_heuristic=True)
    (reply,) = respond(agent, {"text": labels[0], "label_candidates": labels})
    assert sorted(reply["text_candidates"]) == sorted(labels)


def test_an_agent_remembers_its_own_words_between_turns(with_fixed):
    agent = with_fixed("polyencoder", repeat_blocking_heuristic=True, interactive_mode=True).clone()
    replies = []
    for _ in range(8):
        agent.observe({**QUESTION, "episode_done": False})
        replies.append(agent.act()["text"])
        agent.self_observe({"text": replies[-1]})
    assert len(set(replies)) == 8
    agent.reset()
    agent.observe({**QUESTION, "episode_done": False})
    assert agent.act()["text"] == replies[0]


# ---- odd states


@pytest.mark.parametrize("model", MODELS)
def test_dropout_is_for_training_alone(model, make_agent, respond, labels):
    agent = make_agent(model, dropout=0.5, attention_dropout=0.5, return_cand_scores=True, eval_candidates="inline")
    turn = {**QUESTION, "label_candidates": labels}
    respond(agent, {"text": "hello", "labels": ["hi"], "label_candidates": ["hi", "bye"]})
    assert agent.model.training
    first, second = (respond(agent, turn)[0]["sorted_scores"] for _ in range(2))
    assert first == second
    assert not agent.model.training


def test_a_model_that_diverged_still_answers(make_agent, respond, labels):
    agent = make_agent("biencoder", datatype="valid")
    for parameter in agent.model.parameters():
        parameter.data.fill_(math.nan)
    (reply,) = respond(agent, {**QUESTION, "eval_labels": labels[:1], "label_candidates": labels})
    assert reply["text"] in labels
    assert values(reply)["rank"] == len(labels)


def test_a_train_step_can_say_what_it_would_have_answered(make_agent, respond, labels):
    agent = make_agent("biencoder", train_predict=True)
    replies = respond(agent, *[{"text": f"hello {label}", "labels": [label]} for label in labels])
    assert {reply["text"] for reply in replies} <= set(labels)


def test_of_equal_scores_the_labels_comes_last(make_agent, respond, labels):
    """So hits@k, which ParlAI counts from the reply, agrees with the rank: a model that collapsed is never right."""
    agent = make_agent("biencoder", eval_candidates="inline", datatype="valid")
    for parameter in agent.model.parameters():
        parameter.data.zero_()
    questions = [{"text": "hi", "eval_labels": [label], "label_candidates": labels[:5]} for label in labels[:5]]
    expected = [[*(other for other in labels[:5] if other != label), label] for label in labels[:5]]
    assert [reply["text_candidates"] for reply in respond(agent, *questions)] == expected
