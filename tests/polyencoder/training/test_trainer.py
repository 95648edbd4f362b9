"""The trainer: one step against plain torch, a run, parts that can be left out."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from polyencoder.data.collator import Collator
from polyencoder.data.example import Example
from polyencoder.errors import ConfigError, InputError, TrainingError
from polyencoder.settings.training import OptimizerConfig, ScheduleConfig
from polyencoder.training.callbacks.evaluation import Evaluation, KeepBest
from polyencoder.training.distillation import Distillation, DistillationConfig, Teacher
from polyencoder.training.objective import RankingObjective
from polyencoder.training.score_cache import ScoreCache
from polyencoder.training.trainer import Trainer
from tests.parameters import mostly_long
from tests.polyencoder.training.runs import (
    ARCHITECTURES,
    CONFIG,
    EXAMPLES,
    PLAIN,
    VALID,
    Kill,
    Losses,
    Stop,
    begun,
    callbacks,
    weights,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_step_is_plain_torch(make_ranker, architecture):
    """The gradient of the mean cross-entropy, clipped, and one update of AdamW with decay for matrices alone."""
    ranker, reference = begun(make_ranker(architecture)), begun(make_ranker(architecture))
    config = replace(CONFIG, schedule=ScheduleConfig(name="constant", warmup_updates=0), clip=0.5)
    batch = Collator(ranker.text)(EXAMPLES[:4])
    new = {id(parameter) for parameter in reference.model.new_parameters}
    outcome = Trainer(ranker, config).step(batch)

    model = reference.model.train()
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.dim() > 1 and id(p) not in new], "weight_decay": 0.01},
            {"params": [p for p in model.parameters() if p.dim() <= 1 and id(p) not in new], "weight_decay": 0.0},
            {"params": model.new_parameters, "weight_decay": 0.0, "lr": 0.05},  # 100 times, at most 0.05
        ],
        lr=1e-3,
    )
    text = reference.text
    trained = model.score_objectives(
        text.batch_contexts([example.turns for example in EXAMPLES[:4]]),
        text.batch_candidates([example.label for example in EXAMPLES[:4]]),
    )
    loss = sum(F.cross_entropy(scores, torch.arange(4)) for scores in trained.values())
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    model.after_batch()

    assert norm > 0.5
    assert float(outcome.losses.mean()) == pytest.approx(loss.item(), rel=1e-5)
    for ours, theirs in zip(weights(ranker.model), weights(model), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_labels_that_become_the_same_tokens_are_one_candidate(make_ranker, architecture):
    """The vocabulary is lower-cased: to the model "Yes ." is "yes ."."""
    turns = [example.turns for example in EXAMPLES[:3]]
    twins = [Example(*pair) for pair in zip(turns, ["Yes .", "no .", "yes ."], strict=True)]
    equal = [Example(*pair) for pair in zip(turns, ["yes .", "no .", "yes ."], strict=True)]
    ranker, twin = make_ranker(architecture), make_ranker(architecture)
    seen, expected = (Trainer(r, PLAIN).step(Collator(r.text)(e)) for r, e in ((ranker, twins), (twin, equal)))
    assert seen.pool.texts == ["Yes .", "no ."]
    assert torch.equal(seen.losses, expected.losses)
    for ours, theirs in zip(weights(ranker.model), weights(twin.model), strict=True):
        assert torch.equal(ours, theirs)
    trainer = Trainer(ranker, PLAIN)
    assert trainer.step(Collator(ranker.text)(twins[::2])) is None  # nothing to choose


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_accumulated_batches_are_one_large_batch(make_ranker, architecture):
    """Inline candidates, so that an example's loss does not depend on the batch that it is in."""
    examples = [replace(example, candidates=[example.label for example in EXAMPLES]) for example in EXAMPLES]
    large, small = begun(make_ranker(architecture)), begun(make_ranker(architecture))
    config = replace(PLAIN, candidates="inline")
    Trainer(large, config).step(Collator(large.text, "inline")(examples))
    trainer = Trainer(small, replace(config, accumulate=2))
    trainer.step(Collator(small.text, "inline")(examples[:4]))
    assert trainer.updates.count == 0
    trainer.step(Collator(small.text, "inline")(examples[4:]))
    assert trainer.updates.count == 1
    for expected, actual in zip(weights(large.model), weights(small.model), strict=True):
        torch.testing.assert_close(expected, actual, rtol=1e-4, atol=1e-6)


@mostly_long("architecture", ARCHITECTURES, quick=1)
def test_a_run_learns(make_ranker, architecture):
    ranker, losses = make_ranker(architecture), Losses()
    config = replace(CONFIG, max_updates=40, optimizer=OptimizerConfig(learning_rate=3e-3))
    progress = Trainer(ranker, config, train=EXAMPLES, callbacks=[losses]).fit()
    assert (progress.updates, progress.batches, progress.examples) == (40, 40, 160)
    assert sum(losses.values[-5:]) < 0.5 * sum(losses.values[:5])
    assert not ranker.model.training


def test_what_is_not_finite_is_not_trained(make_ranker):
    ranker = make_ranker("bi")
    config = replace(ranker.model.config)
    object.__setattr__(config, "output_scaling", 1e30)  # scores overflow; a configuration would refuse it
    ranker.model.config = config
    before = weights(ranker.model)
    with pytest.raises(TrainingError, match=r"update 3: the loss is (nan|inf), as in the 3 updates up to it"):
        Trainer(ranker, replace(CONFIG, max_nonfinite=3), train=EXAMPLES).fit()
    for old, new in zip(before, weights(ranker.model), strict=True):
        assert torch.equal(old, new)
    with pytest.raises(TrainingError, match="nothing was trained: all of 2 updates were left out"):
        Trainer(ranker, replace(PLAIN, max_updates=2), train=EXAMPLES).fit()


def test_the_last_evaluation_is_not_why_a_run_was_stopped(make_ranker, tmp_path):
    ranker = make_ranker("bi")
    config = replace(CONFIG, max_updates=50, optimizer=OptimizerConfig(learning_rate=1e-9))
    callbacks = [Evaluation(ranker, VALID, every=8), KeepBest(ranker, tmp_path, patience=1), Stop(after=3)]
    trainer = Trainer(ranker, config, train=EXAMPLES, callbacks=callbacks)
    assert (trainer.fit().updates, trainer.stopped) == (3, "enough")


def test_two_callbacks_of_one_name(make_ranker):
    ranker = make_ranker("bi")
    evaluations = [Evaluation(ranker, VALID, every=8), Evaluation(ranker, VALID[:2], every=8)]
    with pytest.raises(ConfigError, match="2 callbacks are named 'evaluation'"):
        Trainer(ranker, CONFIG, train=EXAMPLES, callbacks=evaluations)


def test_a_student_comes_nearer_to_its_teacher(make_ranker):
    teacher = Teacher(make_ranker("cross", seed=3), ScoreCache(None))
    student = make_ranker("bi", seed=1)
    loss = Distillation(teacher, DistillationConfig(teacher="given", weight=1.0))
    collator = Collator(student.text, "batch", with_turns=True)
    trainer = Trainer(
        student,
        replace(CONFIG, schedule=ScheduleConfig(name="constant", warmup_updates=0)),
        objective=RankingObjective(student.model, student.text, loss=loss),
    )
    values = [trainer.step(collator(EXAMPLES[:4])) for _ in range(30)]
    divergence = [total / count for total, count in (step.sums["distillation_loss"] for step in values)]
    assert divergence[-1] < 0.5 * divergence[0]
    assert teacher.num_scored == 16  # once for each pair


@pytest.mark.parametrize(
    ("reports", "best_updates", "stopped"),
    [
        ([(0.5, 0.6, 1.0), (0.6, 0.7, 1.0), (0.4, 0.9, 0.1)], 2, False),
        ([(0.6, 0.6, 1.0), (0.6, 0.7, 2.0), (0.6, 0.7, 1.0)], 3, True),  # a tie goes to MRR, then to the loss
        ([(0.6, 0.7, 1.0), (0.6, 0.7, 1.0), (0.6, 0.6, 0.1)], 2, True),  # then to the later
        ([(float("nan"), 0.7, 1.0), (0.1, 0.2, float("nan")), (0.1, 0.2, 3.0)], 3, False),
        ([(0.2, 0.3, 1.0), (0.2, 0.3, 1.0)], 2, False),
        ([(0.05, 0.3, 1.0), (0.04, 0.3, 1.0)], 0, False),  # the model before training has .1
    ],
)
def test_the_best_of_equal_evaluations(make_ranker, tmp_path, caplog, reports, best_updates, stopped):
    ranker = make_ranker("bi")
    best = KeepBest(ranker, tmp_path, patience=2)
    trainer = Trainer(ranker, CONFIG, callbacks=[best])
    best.keep(trainer, {"hits@1": 0.1, "mrr": 0.2, "loss": 4.0})
    for number, values in enumerate(reports, start=1):
        trainer.updates.count = number
        trainer.evaluated(dict(zip(("hits@1", "mrr", "loss"), values, strict=True)))
    assert best.updates == best_updates
    assert (trainer.stopped is not None) == stopped
    with caplog.at_level("INFO", "polyencoder"):
        trainer.end()
    which = f"after {best_updates} of {len(reports)} updates" if best_updates else "as before training"
    assert f"kept: the model {which}: hits@1" in caplog.text


def test_examples_that_end_before_the_goal_are_an_error(make_ranker):
    ranker = make_ranker("bi")
    batch = Collator(ranker.text)(EXAMPLES[:2])
    with pytest.raises(InputError, match="too few training examples: the batches end after 1"):
        Trainer(ranker, PLAIN, batches=lambda: iter([batch])).fit()


def test_no_thread_makes_batches_behind_an_error(make_ranker):
    """Which is kept until Python ends, as the context of a SystemExit: then such a thread aborts the process."""
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt) as error:
        Trainer(make_ranker("bi"), PLAIN, train=EXAMPLES, callbacks=[Kill(after=1)]).fit()
    assert error.value.__traceback__ is not None
    assert threading.active_count() == before


def test_examples_without_a_choice_are_left_out_of_their_batch(make_ranker):
    """The batch trains as without them; a run of nothing else is an error, though its batches have several texts."""
    labels = [example.label for example in EXAMPLES[:2]]
    choices = [replace(example, candidates=[example.label, *labels]) for example in EXAMPLES[2:4]]
    alone = [replace(example, candidates=[example.label]) for example in EXAMPLES[4:6]]
    mixed, clean = make_ranker("poly"), make_ranker("poly")
    config = replace(PLAIN, candidates="inline")
    trainer = Trainer(mixed, config)
    outcome = trainer.step(Collator(mixed.text, "inline")([alone[0], choices[0], alone[1], choices[1]]))
    expected = Trainer(clean, config).step(Collator(clean.text, "inline")(choices))
    torch.testing.assert_close(outcome.losses, expected.losses)
    for actual, weight in zip(weights(mixed.model), weights(clean.model), strict=True):
        torch.testing.assert_close(actual, weight, rtol=1e-4, atol=1e-6)
    assert (trainer.skipped, trainer.skipped_examples) == (0, 2)
    resumed = Trainer(make_ranker("poly"), config)
    resumed.load_state_dict(trainer.state_dict())
    assert resumed.skipped_examples == 2
    with pytest.raises(InputError, match="nothing was trained: in all of 2 batches the label was the only candidate"):
        Trainer(make_ranker("bi"), replace(config, epochs=2.0, max_updates=None), train=alone * 2).fit()


def test_a_run_that_ends_before_its_first_update_is_an_error(make_ranker, tmp_path):
    ranker, config = make_ranker("bi"), replace(PLAIN, epochs=1.0, max_updates=None, accumulate=3)
    with pytest.raises(InputError, match="ended after 2 batches, before its first update, which takes .* of 3"):
        Trainer(ranker, config, train=EXAMPLES, callbacks=callbacks(ranker, tmp_path)).fit()
    assert not (tmp_path / "best").exists()


@pytest.mark.parametrize(("precision", "says"), [("bfloat16", True), ("float32", False)])
def test_a_precision_that_gains_nothing_says_so(make_ranker, monkeypatch, caplog, precision, says):
    monkeypatch.setattr("polyencoder.training.precision.explain_no_bf16_gain", lambda _: "no such instructions")
    Trainer(make_ranker("bi"), replace(CONFIG, precision=precision), train=EXAMPLES)
    assert ("bfloat16 gains nothing here: no such instructions" in caplog.text) == says


def test_nothing_to_learn_is_an_error(make_ranker):
    with pytest.raises(ConfigError, match="nothing to train on"):
        Trainer(make_ranker("bi"), CONFIG).fit()
