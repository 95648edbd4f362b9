"""Candidates of a batch, through the agents: equal labels never each other's negative, every source in each use."""

from __future__ import annotations

import parlai.utils.logging as logging
import pytest
import torch
import torch.nn.functional as F
from parlai.agents.ranker.agent import RankerAgent
from parlai.core.message import Message
from parlai.scripts.display_model import DisplayModel
from parlai.scripts.eval_model import EvalModel
from parlai.scripts.interactive import Interactive
from parlai.scripts.train_model import TrainModel

from polyencoder.errors import ConfigError, InputError
from tests.parameters import mostly_long

MODELS = ["biencoder", "polyencoder", "crossencoder"]


def batch_loss(agent, respond, pairs: list[tuple[str, str]]) -> float:
    respond(agent, *[{"text": text, "labels": [label]} for text, label in pairs])
    return agent.global_metrics.report()["mean_loss"].value()


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_equal_labels_are_not_each_others_negative(model, make_agent, respond):
    """The loss over the deduplicated labels, computed from the library's scores before the step."""
    pairs = [("how are you ?", "fine ."), ("are you well ?", "fine ."), ("bye", "see you ."), ("tired ?", "no .")]
    agent = make_agent(model, candidates="batch")
    text = agent.dict.text
    contexts = text.batch_contexts([[context] for context, _ in pairs])
    with torch.no_grad():
        scores = agent.ranker.train()(contexts, text.batch_candidates(["fine .", "see you .", "no ."]))
    expected = F.cross_entropy(scores, torch.tensor([0, 0, 1, 2]))
    assert batch_loss(agent, respond, pairs) == pytest.approx(float(expected), rel=1e-5)
    report = agent.global_metrics.report()
    rank = [1 + int((row > row[column]).sum()) for row, column in zip(scores, [0, 0, 1, 2], strict=True)]
    assert report["rank"].value() == pytest.approx(sum(rank) / 4)
    assert report["train_accuracy"].value() == pytest.approx(rank.count(1) / 4)


@pytest.mark.parametrize("model", MODELS)
def test_a_batch_of_one_label_is_left_out_and_counted(model, make_agent, respond):
    agent = make_agent(model, candidates="batch", eval_candidates="batch")
    before = [parameter.clone() for parameter in agent.model.parameters()]
    turns = [{"text": text, "labels": ["hi ."]} for text in ("hello", "good morning")]
    respond(agent, *turns)
    assert agent.global_metrics.report()["without_negatives"].value() == 2
    assert "mean_loss" not in agent.global_metrics.report()
    assert all(torch.equal(old, new) for old, new in zip(before, agent.model.parameters(), strict=True))
    replies = respond(agent, *[{"text": turn["text"], "eval_labels": turn["labels"]} for turn in turns])
    assert not any("metrics" in reply or "text" in reply for reply in replies)
    assert agent.global_metrics.report()["without_negatives"].value() == 4


def test_an_evaluation_that_begins_with_a_batch_of_one_is_an_error(make_agent, respond):
    """Later one is what the examples left over, and counted."""
    turns = [{"text": f"hello {i}", "eval_labels": [f"hi {i} ."]} for i in range(3)]
    agent = make_agent("biencoder", datatype="valid", eval_candidates="batch")
    with pytest.raises(
        InputError, match="--eval-candidates batch: a batch of one example .* give .*--batchsize 2 or more"
    ):
        respond(agent, turns[0])
    assert all("metrics" in reply for reply in respond(agent, *turns[:2]))
    assert "metrics" not in respond(agent, turns[2])[0]
    assert agent.global_metrics.report()["without_negatives"].value() == 1


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@mostly_long("source", ["batch", "inline", "fixed", "batch-all-cands"], quick=2)
def test_every_source_in_training_and_in_evaluation(model, source, make_agent, respond, candidates_file, labels):
    options = {"candidates": source, "eval_candidates": source, "fixed_candidates_path": str(candidates_file)}
    agent = make_agent(model, encode_candidate_vecs=False, **options)
    chosen = [{"text": f"hello {i}", "label_candidates": labels[i : i + 3]} for i in range(3)]
    seen = {
        "batch": [set(labels[:3])] * 3,
        "inline": [set(labels[i : i + 3]) for i in range(3)],
        "fixed": [set(labels)] * 3,
        "batch-all-cands": [set(labels[:5])] * 3,
    }
    before = [parameter.clone() for parameter in agent.model.parameters()]
    respond(agent, *[{**turn, "labels": [labels[i]]} for i, turn in enumerate(chosen)])
    assert any(not torch.equal(old, new) for old, new in zip(before, agent.model.parameters(), strict=True))
    replies = respond(agent, *[{**turn, "eval_labels": [labels[i]]} for i, turn in enumerate(chosen)])
    assert [set(reply["text_candidates"]) for reply in replies] == seen[source]
    for reply, label in zip(replies, labels[:3], strict=True):
        assert reply["text_candidates"].index(label) + 1 == reply["metrics"]["rank"].value()


def test_parlais_own_way_of_scoring(make_agent, respond, labels):
    """`score_candidates` of ids, shared by the batch or each example's own, gives what the agent's answers are from."""
    agent = make_agent("polyencoder", datatype="valid", return_cand_scores=True)
    turns = [{"text": text, "label_candidates": labels} for text in ("where is the cat ?", "i look for a pig .")]
    replies = respond(agent, *turns)
    text = agent.dict.text
    contexts = text.batch_contexts([[turn["text"]] for turn in turns])
    batch = type("Batch", (), {"text_vec": contexts.ids, "text_mask": contexts.mask})
    ids = text.batch_candidates(labels).ids
    with torch.no_grad():
        shared = agent.score_candidates(batch, ids)
        separate = agent.score_candidates(batch, torch.stack([ids, ids]))
    assert torch.allclose(shared, separate, atol=1e-5)
    for row, reply in zip(shared, replies, strict=True):
        assert row.sort(descending=True).values.tolist() == pytest.approx(reply["sorted_scores"], abs=1e-4)


@pytest.mark.parametrize("part", ["labels", "eval_labels"])
def test_one_fixed_candidate_is_no_choice(part, make_agent, respond, candidates_file):
    candidates_file.write_text("hi .\n", encoding="utf-8")
    flag = "--candidates" if part == "labels" else "--eval-candidates"
    name = flag.removeprefix("--").replace("-", "_")  # the other one would be looked at first
    options = {"candidates": "batch", "eval_candidates": "batch", name: "fixed"}
    options |= {"fixed_candidates_path": str(candidates_file)}
    with pytest.raises(InputError, match=f"with {flag} fixed and one candidate there is nothing"):
        respond(make_agent("biencoder", **options), {"text": "hello", part: ["hi ."]})


# ---- flags that ask for candidates

SOURCES = {
    "batch of one": ({"batchsize": 1}, "--candidates batch .* --batchsize 1 leaves none: give --batchsize 2 or more"),
    "batch of one in evaluation": (
        {"batchsize": 1, "candidates": "inline", "eval_candidates": "batch"},
        "--eval-candidates batch .* --batchsize 1 leaves none",
    ),
    "eval batch of one": ({"batchsize": 8, "eval_batchsize": 1, "eval_candidates": "batch"}, "--eval-candidates batch"),
    "no use for negatives": ({"num_negatives": 5, "eval_candidates": "batch"}, "--num-negatives 5 has no effect"),
}


@pytest.mark.parametrize("case", SOURCES)
@pytest.mark.parametrize("model", MODELS)
def test_training_that_could_not_learn_or_measure_does_not_start(model, case, make_agent, tmp_path):
    options, message = SOURCES[case]
    more = {"task": "selection:sample", "candidates": "batch", "load_from_checkpoint": True} | options
    with pytest.raises(ConfigError, match=message):
        make_agent(model, **more)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options", [{}, {"candidates": "inline", "batchsize": 1}, {"hard_negatives": 2, "batchsize": 1}]
)
def test_training_that_can_learn_starts(options, make_agent):
    agent = make_agent("biencoder", load_from_checkpoint=True, **options)
    assert agent.opt["batchsize"] == options.get("batchsize", 32)


@pytest.mark.parametrize(("model", "size"), [("biencoder", 32), ("polyencoder", 32), ("crossencoder", 16)])
def test_batch_sizes_of_training_alone_have_a_default(model, size):
    assert TrainModel.setup_args().parse_kwargs(model=model, task="selection:sample")["batchsize"] == size
    assert TrainModel.setup_args().parse_kwargs(model=model, task="selection:sample", batchsize=1)["batchsize"] == 1
    for script in (EvalModel, DisplayModel, Interactive):
        assert script.setup_args().parse_kwargs(model=model)["batchsize"] == 1


@pytest.mark.slow
def test_a_later_evaluation_asks_for_inline_candidates(train, evaluate, tmp_path):
    """Candidates of the batch were for the validations of training, unless a flag asks for them again."""
    short = {"eval_candidates": "batch", "num_epochs": 1.1, "validation_every_n_epochs": 1.0}
    assert "R8@1" not in train("biencoder", tmp_path / "model", **short)
    assert "R8@1" in evaluate(tmp_path / "model")
    report = evaluate(tmp_path / "model", eval_candidates="batch")
    assert "R8@1" not in report
    assert "rank" in report


@pytest.mark.parametrize("name", ["eval_candidates", "interactive_candidates"])
def test_words_are_no_replies(make_agent, name):
    with pytest.raises(
        ConfigError, match=f"--{name.replace('_', '-')} vocab is not supported: .* are not replies; use "
    ):
        make_agent("biencoder", **{name: "vocab"})


@pytest.mark.parametrize("source", ["inline", "batch-all-cands"])
def test_several_labels_among_the_candidates_are_all_right(source, make_agent, respond):
    """In training and in evaluation; a label that is no candidate does not matter."""
    turn = {"text": "do you ski ?", "label_candidates": ["yes .", "i ski .", "no ."]}
    several, single = ["i ski .", "yes .", "maybe ."], ["no ."]
    agent = make_agent("biencoder", candidates=source, eval_candidates=source, train_predict=True)
    observed = [
        agent.clone().observe(Message({"id": "test", "episode_done": True, **turn, "labels": labels}))
        for labels in (several, single)
    ]
    batch = agent.batchify(observed)
    assert batch.right == [{"i ski .": 1, "yes .": 1}, None]
    outcomes = []
    step = agent.trainer.step
    agent.trainer.step = lambda examples: outcomes.append(step(examples)) or outcomes[-1]
    agent.train_step(batch)
    (outcome,) = outcomes
    p = outcome.scores.softmax(1)
    columns = [outcome.pool.list_candidates(0).index(text) for text in ("i ski .", "yes .")]
    assert float(outcome.losses[0]) == pytest.approx(-float(p[0, columns].sum().log()), abs=1e-5)
    (reply,) = respond(agent, {**turn, "eval_labels": several})
    order = reply["text_candidates"]
    assert reply["metrics"]["rank"].value() == min(order.index(text) for text in ("i ski .", "yes .")) + 1
    assert reply["metrics"]["nDCG@10"].value() > 0


def test_to_show_training_data_is_not_to_train(task):
    with pytest.raises(ConfigError, match="-dt train: this would train; show training data as train:evalmode"):
        DisplayModel.main(model="biencoder", datatype="train", loglevel="error", **task)


def test_a_trained_model_that_is_shown_does_not_train(task, trained, capsys, monkeypatch):
    """Without -dt it shows validation data, though the model file has the options of training."""
    agents: list[RankerAgent] = []
    warnings: list[str] = []
    model_file = str(trained("biencoder")[0])
    monkeypatch.setattr(RankerAgent, "shutdown", lambda self: agents.append(self))
    monkeypatch.setattr(logging, "warning", warnings.append)
    flags = {"use_reply": "model", "cap_num_predictions": 2, "loglevel": "error"}
    DisplayModel.main(model_file=model_file, num_examples=1, **flags, **task)
    assert "model: " in capsys.readouterr().out
    assert [agent.trainer for agent in agents] == [None]
    assert not [line for line in warnings if "hits@" in line]  # nothing is reported
