"""Training on graded candidates and several right ones: every objective, with every kind of ranker."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polyencoder.data.collator import Collator
from polyencoder.data.example import Example
from polyencoder.errors import ConfigError
from polyencoder.settings.train import TrainSettings
from polyencoder.settings.training import DistillationConfig, HardNegatives, TrainingConfig
from polyencoder.training.building import build_objective
from polyencoder.training.callbacks.hard_negatives import MinedNegatives
from polyencoder.training.distillation import Distillation, Teacher
from polyencoder.training.losses import LABEL_LOSSES, softmax_loss
from polyencoder.training.objective import RankingObjective
from polyencoder.training.score_cache import ScoreCache
from polyencoder.training.trainer import Trainer
from tests.parameters import mostly_long
from tests.polyencoder.training.runs import ARCHITECTURES, CONFIG, WORDS, Losses, begun

pytestmark = pytest.mark.slow

OBJECTIVES = {"softmax": softmax_loss, **LABEL_LOSSES}


def lists(words=WORDS):
    """The words' own sentences are right, the second half as much; others are wrong. One list is shorter."""
    examples = []
    for i, word in enumerate(words):
        other = words[i - 1]
        texts = [f"i like {other} .", f"my {word} .", f"i like {word} .", f"no {other} ."]
        examples.append(Example.graded([f"do you like {word} ?"], texts[: 3 + i % 2], [0, 0.5, 1, 0][: 3 + i % 2]))
    return examples


def inline(objective, **fields):
    return replace(CONFIG, candidates="inline", objective=objective, **fields)


@mostly_long("architecture", ARCHITECTURES, quick=3)
def test_every_objective_is_that_of_the_rankers_scores(architecture, make_ranker):
    """The objective is computed from the lists' scores."""
    ranker, batch = begun(make_ranker(architecture)), lists()[:4]
    ranker.model.eval()
    expected = {}
    for name, loss in OBJECTIVES.items():
        rows = [torch.as_tensor(ranker.score([example.turns], example.choices)) for example in batch]
        labels = [[(example.labels or {}).get(text, 0.0) for text in example.choices] for example in batch]
        expected[name] = [float(loss(row.cpu(), torch.tensor([y]))) for row, y in zip(rows, labels, strict=True)]
    for name in OBJECTIVES:
        objective = build_objective(ranker, inline(name))
        outcome = objective(Collator(ranker.text, "inline")(batch))
        losses = outcome.losses
        if architecture in ("convert", "late"):  # several objectives are summed; the scores are the first one's
            pool = outcome.pool
            losses = OBJECTIVES[name](outcome.scores, pool.numbers)
        assert losses.tolist() == pytest.approx(expected[name], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("candidates", ["batch", "inline", "batch-all-cands"])
def test_one_right_candidate_trains_as_without_labels(candidates, make_ranker):
    """Bit for bit, with each source of candidates."""
    plain = [Example([f"do you like {word} ?"], f"i like {word} .", [f"i like {word} .", "no ."]) for word in WORDS]
    graded = [Example.graded(example.turns, example.choices, [1, 0]) for example in plain]
    losses = []
    for train in (plain, graded):
        heard = Losses()
        Trainer(
            make_ranker("bi"), replace(CONFIG, candidates=candidates, max_updates=3), train=train, callbacks=[heard]
        ).fit()
        losses.append(heard.values)
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", ["softmax", "lambdaloss", "bce"])
def test_gradient_caching_changes_nothing(name, make_ranker):
    """In-batch candidates: the right texts of the batch, each with the label that it has for the example, or 0."""
    batch = [Example(example.turns, example.label, labels=example.labels) for example in lists()]
    results = []
    for cache in (0, 2):
        ranker = make_ranker("poly")
        ranker.model.eval()  # without dropout
        outcome = build_objective(ranker, replace(CONFIG, objective=name, grad_cache=cache))(
            Collator(ranker.text)(batch)
        )
        outcome.loss.backward()
        gradients = [parameter.grad for parameter in ranker.model.parameters() if parameter.grad is not None]
        results.append((outcome.scores.shape, outcome.losses, torch.cat([part.flatten() for part in gradients])))
    (shape, losses, plain), (_, cached_losses, cached) = results
    assert shape == (8, 16)
    torch.testing.assert_close(cached_losses, losses)
    torch.testing.assert_close(cached, plain, rtol=1e-4, atol=1e-5)


def test_several_responses_are_no_negatives_of_each_other(make_ranker):
    """Each is a candidate; the softmax is content with any of them, which one response would not be."""
    ranker = make_ranker("bi")
    batch = [Example(["hi"], "cats", labels={"cats": 1, "dogs": 1}), Example(["you ?"], "math")]
    outcome = RankingObjective(ranker.model, ranker.text)(Collator(ranker.text)(batch))
    assert list(outcome.pool.texts) == ["cats", "dogs", "math"]
    p = outcome.scores.softmax(1)
    assert outcome.losses.tolist() == pytest.approx([-float((p[0, 0] + p[0, 1]).log()), -float(p[1, 2].log())])


def test_a_list_without_a_choice_is_skipped_and_counted(make_ranker):
    ranker = make_ranker("bi")
    all_right = Example.graded(["hi"], ["cats", "dogs"], [2, 1])
    equal = Example.graded(["hi"], ["cats", "dogs"], [1, 1])
    alone = Example.graded(["hi"], ["cats"], [0.5])
    usual = Example(["hi"], "cats", ["cats", "math"])
    batch = Collator(ranker.text, "inline")([all_right, equal, alone, usual])
    left = {"softmax": 1, "mse": 4, "ranknet": 2, "listnet": 2, "lambdaloss": 2}
    for name, count in left.items():
        objective = build_objective(ranker, inline(name))
        assert (len(objective(batch)), objective.skipped_examples) == (count, 4 - count)
    objective = build_objective(ranker, inline("softmax"))
    assert objective(Collator(ranker.text, "inline")([all_right, alone])) is None
    assert (objective.skipped, objective.skipped_examples) == (1, 2)


def test_mining_takes_nothing_that_is_right(make_ranker):
    """Mining leaves out all right texts of the example among those seen so far."""
    ranker = make_ranker("bi")
    callback = MinedNegatives(ranker, HardNegatives(count=4, every=1, ranks=(1, 100)))
    examples = [Example(example.turns, example.label, labels=example.labels) for example in lists()]
    trainer = Trainer(ranker, CONFIG, train=examples, callbacks=[callback])
    collate = Collator(ranker.text)
    for start in (0, 4, 0):
        trainer.step(collate(examples[start : start + 4]))
    batch = callback.before_step(trainer, collate(examples[:1]))
    assert len(batch.pool.texts) == 2 + 4
    assert batch.pool.list_right() == [examples[0].right]
    assert batch.pool.numbers.sum() == 1.5


def test_distillation_adds_to_any_objective(make_ranker):
    teacher = Teacher(make_ranker("cross", seed=3), ScoreCache(None))
    student = make_ranker("bi", seed=1)
    labels = build_objective(student, inline("ranknet")).loss
    batch = Collator(student.text, "inline", with_turns=True)(lists())

    def mean(weight):
        config = DistillationConfig(teacher="given", weight=weight)
        objective = RankingObjective(student.model, student.text, loss=Distillation(teacher, config, labels=labels))
        return float(objective(batch).losses.mean())

    student.model.eval()
    assert mean(0.5) == pytest.approx((mean(0.25) + mean(0.75)) / 2, rel=1e-4)


@pytest.mark.parametrize("kind", ["kl", "margin-mse"])
def test_a_teacher_skips_nothing_that_the_labels_train(make_ranker, kind):
    """It has nothing to say about a single candidate, whose label does all the same."""
    teacher = Teacher(make_ranker("cross", seed=3), ScoreCache(None))
    student, alone = make_ranker("bi", seed=1), Example.graded(["hi"], ["cats"], [0.5])
    labels = build_objective(student, inline("mse")).loss
    loss = Distillation(teacher, DistillationConfig(teacher="given", weight=0.25, kind=kind), labels=labels)
    student.model.eval()
    for others in ([], [Example(["hi"], "cats", ["cats", "math"])]):
        batch = Collator(student.text, "inline", with_turns=True)([alone, *others])
        taught, plain = (RankingObjective(student.model, student.text, loss=kind) for kind in (loss, labels))
        assert taught(batch).losses[0].item() == pytest.approx(0.75 * plain(batch).losses[0].item())
        assert taught.skipped_examples == plain.skipped_examples == 0


@pytest.mark.parametrize("candidates", ["batch", "batch-all-cands"])
def test_what_has_no_meaning_is_an_error(candidates):
    with pytest.raises(ConfigError, match=f"objective listnet has no meaning with candidates '{candidates}'"):
        TrainingConfig(objective="listnet", candidates=candidates)
    with pytest.raises(ConfigError, match="label_smoothing is read only where objective is softmax, not bce"):
        TrainingConfig(objective="bce", candidates=candidates, label_smoothing=0.1)


def test_a_convert_has_no_smoothing_with_another_objective():
    fields = {"train": "a", "valid": "b", "out": "c", "architecture": "convert", "vocabulary": "v"}
    assert TrainSettings.of(fields).training.label_smoothing == 0.2
    assert TrainSettings.of(fields, objective="ranknet").training.label_smoothing == 0
