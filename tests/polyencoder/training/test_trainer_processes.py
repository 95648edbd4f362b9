"""The trainer in two processes: what one would learn, killed, stopped, out of time, without an example."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polyencoder.data.collator import Collator
from polyencoder.errors import InputError
from polyencoder.training.building import build_objective
from polyencoder.training.callbacks import Callback
from polyencoder.training.callbacks.checkpoints import Checkpoints
from polyencoder.training.callbacks.evaluation import Evaluation
from polyencoder.training.randomness import seed_everything
from polyencoder.training.trainer import Trainer
from tests.parameters import mostly_long
from tests.polyencoder.training.runs import ARCHITECTURES, CONFIG, EXAMPLES, PLAIN, VALID, Kill, Losses, Stop, weights

pytestmark = pytest.mark.slow


@mostly_long("architecture", ARCHITECTURES, quick=1)
def test_processes_learn_what_one_does(make_ranker, in_processes, architecture):
    """Two with half of each batch, the second with other weights at first: the same losses and weights."""

    def run(rank: int = 0, count: int = 1):
        ranker, losses = make_ranker(architecture, seed=rank), Losses()
        config = replace(PLAIN, batch_size=4 // count)
        Trainer(ranker, config, train=EXAMPLES, callbacks=[losses]).fit()
        return losses.values, weights(ranker.model)

    (first, ours), (second, theirs) = in_processes(lambda rank: run(rank, 2))
    alone, expected = run()
    assert [(value + other) / 2 for value, other in zip(first, second, strict=True)] == pytest.approx(alone, rel=1e-4)
    for value, other, weight in zip(ours, theirs, expected, strict=True):
        assert torch.equal(value, other)
        torch.testing.assert_close(value, weight, rtol=1e-3, atol=1e-5)


def test_what_one_process_has_alone_is_ranked_among_the_labels_of_all(make_ranker, in_processes):
    """The first has a single label, and no choice without the others'; texts of equal tokens are one candidate."""
    labels = ["a caf\u00e9 .", "a caf\u00e9 .", "a cafe\u0301 .", "hello"]
    examples = [replace(example, label=label) for example, label in zip(EXAMPLES[:4], labels, strict=True)]

    def run(part):
        ranker = make_ranker("bi")
        return build_objective(ranker, PLAIN)(Collator(ranker.text)(part)).losses.tolist()

    first, second = in_processes(lambda rank: run(examples[:2] if rank == 0 else examples[2:]))
    assert first + second == pytest.approx(run(examples), rel=1e-4, abs=1e-5)


def test_each_process_draws_dropout_of_its_own(make_ranker, in_processes):
    class Draw(Callback):
        def after_step(self, run, outcome) -> None:
            drawn.append(torch.rand(()).item())

    drawn: list[float] = []

    def run(rank: int):
        seed_everything(CONFIG.seed)
        Trainer(make_ranker("bi"), replace(PLAIN, batch_size=2), train=EXAMPLES, callbacks=[Draw()]).fit()
        return drawn

    first, second = in_processes(run)
    assert not {*first} & {*second}


def test_killed_processes_go_on_bit_by_bit(make_ranker, in_processes, tmp_path):
    """Each has its own dropout and, between two updates, its own gradients."""
    config = replace(CONFIG, batch_size=2, accumulate=2)

    def fit(folder, *others):
        ranker = make_ranker("bi")
        for module in ranker.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.1
        parts = [*others, Checkpoints(folder / "checkpoint.pt", settings={}, every_seconds=0)]
        Trainer(ranker, config, train=EXAMPLES, callbacks=parts).fit()
        return weights(ranker.model)

    def run(rank: int):
        unbroken = fit(tmp_path / "a")
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path / "b", Kill(3))
        again = fit(tmp_path / "b")
        return all(torch.equal(expected, actual) for expected, actual in zip(unbroken, again, strict=True))

    assert in_processes(run) == [True, True]


def test_a_callback_of_one_process_stops_all_of_them(make_ranker, in_processes):
    def run(rank: int):
        parts = [Stop(after=2)] if rank == 1 else []
        trainer = Trainer(make_ranker("bi"), replace(PLAIN, batch_size=2), train=EXAMPLES, callbacks=parts)
        return trainer.fit().updates, trainer.stopped

    assert in_processes(run) == [(2, "enough")] * 2


def test_a_limit_of_time_ends_all_processes_together(make_ranker, in_processes, tmp_path):
    """The first one's clock counts; nobody waits for an evaluation that the others do not make."""

    def run(rank: int):
        ranker = make_ranker("bi")
        config = replace(PLAIN, max_updates=None, max_seconds=0.3 if rank == 0 else 1000.0)
        parts = [Evaluation(ranker, VALID, every=1000)]
        return Trainer(ranker, config, train=EXAMPLES, callbacks=parts).fit().updates

    first, second = in_processes(run)
    assert first == second > 0


def test_where_a_process_has_no_example_all_say_so(make_ranker, in_processes):
    """None waits for it until the group's time is over, half an hour in a run of torchrun's."""

    def run(rank: int):
        with pytest.raises(InputError) as error:
            Trainer(make_ranker("bi"), CONFIG, train=EXAMPLES[:1]).fit()
        return str(error.value)

    messages = in_processes(run)
    assert messages[0] == messages[1]
    assert "too few training examples: process 1 of 2 has none" in messages[0]
