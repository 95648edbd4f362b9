"""`--teacher-model` through ParlAI: what is trained, that the teacher is asked once, and what cannot be."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from parlai.scripts.train_model import TrainModel

from polyencoder import CheckpointError, ConfigError, Ranker
from polyencoder.training.distillation import Teacher
from polyencoder.training.losses import distillation_kl, margin_mse
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

STUDENTS = ["biencoder", "polyencoder", "lateencoder", "crossencoder"]
TURNS = [
    [{"text": "hello", "labels": ["my cat is here ."]}, {"text": "where is the dog ?", "labels": ["my dog is here ."]}],
    {"text": "i look for a cow .", "labels": ["my cow is here ."]},
    {"text": "tell me , is the hen with you ?", "labels": ["my hen is here ."]},
]


def with_candidates(turns, candidates):
    """The same turns with these candidates; the last of them is asked for the first example alone."""
    last = [turn[-1] if isinstance(turn, list) else turn for turn in turns]
    for i, turn in enumerate(last):
        turn = {**turn, "label_candidates": candidates if i == 0 else [turn["labels"][0], *candidates[4:-1]]}
        yield [*turns[i][:-1], turn] if isinstance(turns[i], list) else turn


@pytest.fixture
def teacher_file(trained):
    return str(trained("crossencoder")[0])


@pytest.fixture
def pairs_requested(monkeypatch):
    """The number of pairs in each request to a teacher's ranker."""
    requests = []
    ask = Teacher._ask

    def record(self, contexts, candidates, index):
        requests.append(int((index >= 0).sum()))
        return ask(self, contexts, candidates, index)

    monkeypatch.setattr(Teacher, "_ask", record)
    return requests


@pytest.mark.parametrize(("source", "loss"), [("batch", "kl"), ("inline", "margin-mse")])
@mostly_long("student", STUDENTS, quick=2)
def test_labels_and_teacher_are_mixed(student, source, loss, teacher_file, make_agent, respond, steps, labels):
    options = {"candidates": source, "teacher_model": teacher_file, "distillation_loss": loss}
    options |= {"distillation_temperature": 2.0} if loss == "kl" else {}
    agent = make_agent(student, distillation_weight=0.3, **options)
    turns = list(with_candidates(TURNS, labels)) if source == "inline" else TURNS
    respond(agent, *turns)
    ((scores, pool, losses),) = steps
    teacher = Ranker.from_pretrained(teacher_file, device="cpu")
    contexts = [["hello", "my cat is here .", "where is the dog ?"], TURNS[1]["text"], TURNS[2]["text"]]
    expected = []
    for i, context in enumerate(contexts):
        candidates, label = list(pool.list_candidates(i)), pool.labels[i : i + 1]
        ours = scores[i : i + 1, : len(candidates)]
        theirs = torch.as_tensor(teacher.score([context], candidates))
        hard = F.cross_entropy(ours, label)
        if loss == "kl":
            soft = distillation_kl(ours, theirs, temperature=2.0)
        else:
            soft = margin_mse(ours, theirs, label)
        expected.append((0.7 * hard + 0.3 * soft).item())
    report = agent.global_metrics.report()
    if student == "lateencoder":  # whose search has a loss of its own
        more = (losses - torch.tensor(expected)).mean().item()
        assert more == pytest.approx(report["search_loss"].value(), rel=1e-3, abs=1e-4)
    else:
        assert losses.tolist() == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert report["teacher_pairs"].value() == sum(len(pool.list_candidates(i)) for i in range(3))
    assert report["mean_loss"].value() == pytest.approx(losses.mean().item(), rel=1e-4)


def test_no_pair_is_asked_for_twice(teacher_file, labels, tmp_path, pairs_requested):
    """Three epochs of a task that gives each example once in each, then another seed and another kind of student."""
    pairs = [{"context": label.replace("my", "where is the"), "response": label} for label in labels]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair | {"candidates": labels}) + "\n" for pair in pairs))
    options = {"task": "selection:jsonl", "selection_file": str(tmp_path / "pairs.jsonl"), "candidates": "inline"}
    options |= {"batchsize": 5, "num_epochs": 3.0, "validation_every_n_epochs": 3.0, "loglevel": "error"}
    options |= {"embedding_size": 16, "ffn_size": 16, "n_layers": 1, "n_heads": 1, "dict_maxtokens": 400}
    options |= {"teacher_model": teacher_file, "teacher_scores": str(tmp_path / "scores")}
    TrainModel.main(model="biencoder", model_file=str(tmp_path / "first"), **options)
    assert sum(pairs_requested) == len(pairs) * len(labels)
    pairs_requested.clear()
    TrainModel.main(model="polyencoder", model_file=str(tmp_path / "second"), seed=7, **options)
    assert pairs_requested == []


def test_scores_are_kept_beside_the_model(teacher_file, train, evaluate, easy_task, tmp_path, pairs_requested):
    options = {**easy_task, "candidates": "inline", "teacher_model": teacher_file, "num_epochs": 1.1}
    train("biencoder", tmp_path / "model", **options)
    assert (tmp_path / "model.teacher.sqlite").is_file()
    requests = len(pairs_requested)
    evaluate(tmp_path / "model", teacher_model="no/such/teacher", teacher_scores=str(tmp_path / "unused"), **easy_task)
    assert len(pairs_requested) == requests
    assert not (tmp_path / "unused").exists()  # evaluation needs no teacher


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"teacher_model": "no/such"}, CheckpointError, "no/such: no such folder or file, and not downloaded"),
        ({"teacher_model": "TEXT"}, CheckpointError, "notes.txt"),
        ({"teacher_model": "EMPTY"}, CheckpointError, "no polyencoder.json in it; it looks like an empty folder"),
        ({"distillation_weight": 1.5}, ConfigError, "distillation_weight is 1.5; it must be at most 1"),
        (
            {"distillation_loss": "margin-mse", "distillation_temperature": 2.0},
            ConfigError,
            "--distillation-temperature 2.0 is read only with --distillation-loss kl",
        ),
        ({"distillation_candidates": 1}, ConfigError, "asks about 1 candidates; give 0, for all, or at least 2"),
        ({"teacher_model": None, "teacher_scores": "x"}, ConfigError, "--teacher-scores x is read only"),
    ],
)
def test_what_cannot_be(options, error, message, teacher_file, make_agent, tmp_path):
    (tmp_path / "notes.txt").write_text("I am no model.\n")
    (tmp_path / "empty").mkdir()
    names = {"TEXT": str(tmp_path / "notes.txt"), "EMPTY": str(tmp_path / "empty")}
    options = {"teacher_model": teacher_file} | {key: names.get(value, value) for key, value in options.items()}
    options = {key: value for key, value in options.items() if value is not None}
    with pytest.raises(error, match=message) as caught:
        make_agent("biencoder", candidates="batch", **options)
    if message.endswith(("at most 1", "at least 2")):
        assert caught.value.argument in options  # the command adds its flag
