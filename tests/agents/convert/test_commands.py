"""ParlAI's own commands with `-m convert`, from training to a conversation."""

from __future__ import annotations

import json
import shutil

import parlai.utils.logging as logging
import pytest
from parlai.core.agents import create_agent_from_model_file
from parlai.scripts.eval_model import EvalModel
from parlai.scripts.self_chat import SelfChat
from parlai.scripts.vacuum import Vacuum

from polyencoder import Ranker
from polyencoder.errors import CheckpointError, ConfigError
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

CHANCE = 1 / 8
CONVERSATION = "\n[DONE]\nwhere is the owl ?\n[DONE]\nwhere is the cat ?\n"


@pytest.fixture
def copied(fitted, tmp_path):
    """A copy of the model that has learned, in the test's own folder."""
    for suffix in ("", ".opt", ".dict", ".tokenizer.json"):
        shutil.copy(f"{fitted[0]}{suffix}", tmp_path / f"model{suffix}")
    return tmp_path / "model"


@pytest.mark.long
def test_a_learnable_task_is_learned(fitted):
    path, report = fitted
    validations = [
        report["loss"] for report in json.loads(path.with_name("model.trainstats").read_text())["valid_reports"]
    ]
    assert validations[-1] < 0.5 * validations[0]
    assert report["accuracy"] == report["hits@1"] == report["R8@1"] > 5 * CHANCE


def test_eval_model_repeats_the_last_validation(fitted, evaluate):
    path, report = fitted
    again = evaluate(path)
    names = ["accuracy", "hits@1", "hits@5", "R8@1", "R8@5", "rank", "mrr"]
    assert {name: again[name] for name in names} == {name: report[name] for name in names}
    assert again["loss"] == pytest.approx(report["loss"], rel=1e-4)


@pytest.mark.parametrize("source", ["file", "index"])
def test_interactive_answers_with_a_candidate(source, copied, candidates_file, labels, tmp_path, chat):
    options = {"fixed_candidates_path": str(candidates_file)}
    if source == "index":
        Ranker.from_pretrained(copied, device="cpu").index(labels, tmp_path / "index")
        options = {"index": str(tmp_path / "index")}
    answers = chat(copied, CONVERSATION, **options)
    assert len(answers) == 3
    assert set(answers) <= set(labels)
    assert answers[1:] == ["my owl is here .", "my cat is here ."]


def test_it_talks_to_itself(copied, candidates_file, labels, tmp_path):
    """ParlAI has no world for it but a task's."""
    options = {"fixed_candidates_path": str(candidates_file), "outfile": str(tmp_path / "said.jsonl")}
    options |= {"task": "self_chat", "num_self_chats": 2, "selfchat_max_turns": 3}
    SelfChat.main(model_file=str(copied), loglevel="error", **options)
    episodes = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert len(episodes) == 2
    assert {turn["text"] for episode in episodes for pair in episode["dialog"] for turn in pair} <= {*labels, "Hi!"}


# ---- what is read of a dialogue


def test_turns_stand_where_the_library_puts_them(fitted, respond):
    """The last turn; behind a separator those before it, most recent first, and the persona."""
    agent = create_agent_from_model_file(str(fitted[0]))
    seen = []
    text = agent.dict.text
    pad = text.pad
    text.pad = lambda rows: seen.extend(rows) or pad(rows)
    turns = ["your persona: i have a cat .\nhello !", "one", "two", "three", "where is the cat ?"]
    for turn in turns[:-1]:
        agent.observe({"id": "test", "text": turn, "episode_done": False})
        agent.self_observe({"text": f"so {turn[:3]}"})
    observed = agent.observe({"id": "test", "text": turns[-1], "episode_done": True, "label_candidates": ["a", "b"]})
    agent.batch_act([observed])
    lines = ["your persona: i have a cat .", "so two", "three", "so thr", "where is the cat ?"]
    assert seen[0] == text.tokenize_context(lines)
    last, extra = (text.tokenize([part])[0] for part in (lines[-1], "so thr three so two your persona: i have a cat ."))
    assert seen[0] == [*last, *text.separator_ids, *extra]


def test_a_multi_context_model_is_evaluated_with_less(fitted, evaluate):
    path, report = fitted
    assert evaluate(path, extra_contexts=3, context_vector="combined")["loss"] == pytest.approx(report["loss"])
    losses = [
        evaluate(path, **options)["loss"]
        for options in ({"extra_contexts": 0}, {"context_vector": "immediate"}, {"context_vector": "extra"})
    ]
    assert len({round(loss, 5) for loss in (report["loss"], *losses)}) == 4


def test_eval_model_in_a_shell(fitted, task, copied):
    """There ParlAI's evaluation has the options of training, of a model file without what trains it too."""
    before = copied.stat().st_size
    Vacuum.main(model_file=str(copied), no_backup=True)
    assert copied.stat().st_size < 0.6 * before
    flags = [part for name, value in task.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    for path, options in ((fitted[0], ["--context-vector", "immediate"]), (copied, [])):
        report = EvalModel.main("-mf", str(path), *flags, *options)
        assert report["exs"].value() == 24
    assert report["accuracy"].value() == fitted[1]["accuracy"]


def test_contexts_are_chosen_of_models_that_have_them(small, make, learn, fitted, tmp_path):
    with pytest.raises(ConfigError, match="only a multi-context convert model has contexts to choose from"):
        make(init_model=str(small()), context_vector="extra", datatype="valid")
    with pytest.raises(CheckpointError, match="--extra-contexts 2 contradicts --init-model .* trained with 0"):
        make(init_model=str(small()), extra_contexts=2)
    with pytest.raises(ConfigError, match="--context-vector extra: is for evaluation; leave it out in training"):
        learn(tmp_path / "model", init_model=str(fitted[0]), context_vector="extra")


def test_turns_are_numbered(small, make, vocabulary):
    with pytest.raises(ConfigError, match="--number-turns true: needs --extra-contexts"):
        make(vocabulary=str(vocabulary), number_turns=True, max_train_steps=1)
    agent = make(init_model=str(small(extra_contexts=3)), number_turns=True)
    text = agent.dict.text
    assert text.config.number_turns
    assert text.tokenize_context(["a", "b", "c"]) == [
        *text.tokenize(["c"])[0],
        *text.separator_ids,
        *text.tokenize(["0: b 1: a"])[0],
    ]


# ---- in 8 and 16 bits


def test_a_quantized_model_learns_and_is_kept_so(learn, small, evaluate, tmp_path):
    path = tmp_path / "model"
    options = {"quantization_aware": True, "quantization_update": 2, "num_epochs": 4.1}
    report = learn(path, init_model=str(small()), **options)
    again = evaluate(path)
    assert again["loss"] == pytest.approx(report["loss"], rel=1e-5)
    ranker = Ranker.from_pretrained(path, device="cpu")
    assert ranker.model.sizes.quantized
    assert ranker.model.sizes.quantization_update == 2
    ranker.save_pretrained(tmp_path / "folder")
    assert evaluate(None, init_model=str(tmp_path / "folder"), model="convert")["loss"] == pytest.approx(
        again["loss"], rel=1e-5
    )
    further = learn(tmp_path / "further", init_model=str(tmp_path / "folder"), num_epochs=2.1)
    assert further["loss"] < 3
    with pytest.raises(ConfigError, match="is quantized, which cannot be undone"):
        learn(tmp_path / "other", init_model=str(path), quantization_aware=False)


# ---- what other agents learn with


@mostly_long(
    "options",
    [
        {"hard_negatives": 2, "hard_negatives_every": 2},
        {"teacher_model": "crossencoder", "distillation_candidates": 3, "candidates": "inline"},
        {"grad_cache": 2},
        {"bf16": True},
        {"update_freq": 2, "label_smoothing": 0.2, "embedding_clip": 1.0},
        {"optimizer": "adadelta", "learningrate": 0.1, "lr_scheduler": "cosine", "final_learning_rate": 0.01},
    ],
    ids=lambda options: next(iter(options)),
    quick=2,
)
def test_it_learns_as_other_agents_do(options, learn, small, trained, tmp_path):
    if "teacher_model" in options:
        options = {**options, "teacher_model": str(trained(options["teacher_model"])[0])}
    path = tmp_path / "model"
    learn(path, init_model=str(small(extra_contexts=3)), **{"num_epochs": 2.1, "log_every_n_steps": 1, **options})
    stats = json.loads(path.with_name("model.trainstats").read_text())
    losses = [report["mean_loss"] for report in stats["train_reports"]]
    assert all(0 < loss < 100 for loss in losses)
    assert len({round(loss, 4) for loss in losses}) > 2


def test_a_resumed_run_that_is_too_short_for_the_scale_has_a_warning(learn, small, tmp_path, monkeypatch):
    logged: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda line: logged.append(str(line)))
    options = {"init_model": str(small(scale_batches=10)), "num_epochs": -1.0, "validation_every_n_epochs": -1.0}
    for updates in (5, 7):  # from the fourth
        learn(tmp_path / "model", **options, validation_every_n_steps=2, max_train_steps=updates)
    warnings = [line.partition(", with a scale")[0] for line in logged if "rises over" in line]
    assert warnings == [f"the scale of cosines rises over 10 batches, but the run ends after {n}" for n in (5, 7)]
