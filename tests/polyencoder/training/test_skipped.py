"""Runs whose batches have nothing to learn from end with an error, whatever their goal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyencoder import InputError
from polyencoder.settings.training import HardNegatives
from polyencoder.training.skipped import AT_FIRST, LATER, SkippedBatches
from polyencoder.training.trainer import Trainer
from tests.polyencoder.training.runs import EXAMPLES, PLAIN

MINED = HardNegatives(count=2, every=3)


@pytest.mark.slow
@pytest.mark.parametrize("hard", [HardNegatives(), MINED])
def test_a_number_of_updates_is_not_waited_for_where_no_batch_makes_one(hard, make_ranker):
    """Texts that differ, but become the same tokens: neither the batch nor mining gives another candidate."""
    forms = ("a caf\u00e9 .", "a cafe\u0301 .")
    same = [replace(example, label=forms[row % 2]) for row, example in enumerate(EXAMPLES)]
    trainer = Trainer(make_ranker("bi"), replace(PLAIN, max_updates=5, hard_negatives=hard), train=same)
    batches = AT_FIRST + (MINED.every if hard.count else 0)
    advice = "no hard negative was found in ranks 1-100" if hard.count else "data with different labels$"
    with pytest.raises(InputError, match=f"nothing was trained: in all of {batches} batches the label was .*{advice}"):
        trainer.fit()


def test_a_model_that_has_trained_is_given_more_batches():
    skipped = SkippedBatches(HardNegatives(count=1, every=7))
    for _ in range(2):
        skipped.count(is_skipped=False)
        for _ in range(LATER + 6):
            skipped.count(is_skipped=True)
    with pytest.raises(InputError, match="in each of the last 10007 batches .* in ranks 1-100") as error:
        skipped.count(is_skipped=True)
    assert error.value.argument == "batch_size"
