"""Updates that are not finite, of scaled losses: the scaler leaves them out, but not for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polyencoder.errors import TrainingError
from polyencoder.training.skipped import OVERFLOWS, FiniteUpdates
from polyencoder.training.trainer import Trainer
from tests.polyencoder.training.runs import EXAMPLES, PLAIN, weights


def test_gradients_that_no_scale_makes_finite_end_training():
    finite = FiniteUpdates(limit=3)
    for number in range(2 * OVERFLOWS - 1):  # one update between them begins the count anew
        finite.check_scaled(1.0 if number == OVERFLOWS - 1 else float("inf"), number=number)
    with pytest.raises(TrainingError, match="update 100: the gradients are not finite at any scale of the loss"):
        finite.check_scaled(float("nan"), number=100)


def test_a_short_run_whose_updates_all_overflow_is_an_error(make_ranker):
    ranker = make_ranker("bi")
    before = weights(ranker.model)
    trainer = Trainer(ranker, replace(PLAIN, max_updates=2), train=EXAMPLES)
    trainer.updates.precision._scaler = torch.amp.GradScaler("cpu")  # that of float16, which needs a GPU
    for parameter in ranker.model.parameters():
        parameter.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(TrainingError, match="nothing was trained: all of 2 updates were left out"):
        trainer.fit()
    assert all(torch.equal(old, new) for old, new in zip(before, weights(ranker.model), strict=True))
