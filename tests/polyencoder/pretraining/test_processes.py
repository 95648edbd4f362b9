"""Two processes learn what one does, when each batch is all that is sorted together."""

from __future__ import annotations

import pytest
import torch

from polyencoder.data.epochs import Reader
from polyencoder.pretraining.batches import PairBatches, PairInputs
from polyencoder.pretraining.callbacks import HeldOut
from polyencoder.pretraining.corpus import Corpus
from polyencoder.pretraining.heads import NextName
from polyencoder.pretraining.objective import PretrainingObjective
from polyencoder.pretraining.start import Pretrained
from polyencoder.settings.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from polyencoder.training.trainer import Trainer
from tests.polyencoder.pretraining.conftest import LONGEST

EXAMPLES = 40  # of a step of each objective: some four epochs of the corpus
CONFIG = TrainingConfig(
    epochs=None,
    max_updates=6,
    candidates="inline",
    fine_tuned="all",
    optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
    schedule=ScheduleConfig(name="constant", warmup_updates=0),
)


@pytest.fixture
def learn(make_pretraining, piece_text, masking, talks):
    """(processes, rank, next) -> the weights after six updates, and the metrics of all examples."""

    def run(processes: int, rank: int = 0, next: NextName = "yes-no"):
        torch.manual_seed(rank)
        model = make_pretraining()
        inputs = PairInputs(piece_text, longest=LONGEST, masking=masking, next=next)
        corpus, objective = Corpus([talks], buffer=8), PretrainingObjective(model)
        examples = list(corpus.iter_items())
        evaluation = HeldOut(objective, examples, inputs, tokens=4 * LONGEST, every=100)
        batches = PairBatches(
            corpus,
            inputs,
            tokens=EXAMPLES * LONGEST,
            reader=Reader(rank, processes),
            pool=EXAMPLES // processes,
        )
        pretrained = Pretrained(model, piece_text, torch.device("cpu"), LONGEST, masking)
        Trainer(pretrained, CONFIG, batches=batches, objective=objective, callbacks=[batches, evaluation]).fit()
        return [p.detach().flatten().tolist() for p in model.parameters()], evaluation.report

    return run


@pytest.mark.slow
def test_two_processes_learn_what_one_does(learn, in_processes):
    expected, report = learn(1)
    for actual, measured in in_processes(lambda rank: learn(2, rank)):
        for tensor, expected_tensor in zip(actual, expected, strict=True):
            torch.testing.assert_close(torch.tensor(tensor), torch.tensor(expected_tensor), rtol=1e-4, atol=1e-5)
        assert measured == pytest.approx(report, rel=1e-4)


@pytest.mark.slow
def test_contrastive_learns_the_same_in_both(learn, in_processes):
    """Each has the responses of its own batch; the mean is over the examples of both."""
    (weights, report), (others, measured) = in_processes(lambda rank: learn(2, rank, "contrastive"))
    for weight, other_weight in zip(weights, others, strict=True):
        torch.testing.assert_close(torch.tensor(weight), torch.tensor(other_weight), rtol=0, atol=0)
    assert measured == report
