"""Which labels are encoded when, for mining among them; what is mined: test_hard_negatives.py and test_graded.py."""

from __future__ import annotations

import logging

import pytest

from polyencoder.data.collator import Collator
from polyencoder.training.callbacks.hard_negatives import MinedNegatives
from polyencoder.training.hard_negatives import HardNegatives
from polyencoder.training.trainer import Trainer
from tests.polyencoder.training.runs import CONFIG, EXAMPLES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("trained", "expected"),
    [
        (True, ["6 labels seen so far", "6 labels seen so far", "8 labels seen so far"]),
        (False, ["6 labels seen so far", "0 new labels", "2 new labels"]),
    ],
)
def test_a_ranker_that_is_not_trained_encodes_each_label_once(make_ranker, caplog, trained, expected):
    caplog.set_level(logging.INFO, "polyencoder.training.callbacks.hard_negatives")
    ranker = make_ranker("bi")
    miner = ranker if trained else make_ranker("bi", seed=1)
    miner.model.requires_grad_(trained)
    callback = MinedNegatives(miner, HardNegatives(count=1, every=1))
    trainer = Trainer(ranker, CONFIG, train=EXAMPLES, callbacks=[callback])
    collate = Collator(ranker.text)
    for start in (0, 3, 0, 6):
        trainer.step(collate(EXAMPLES[start : start + 3]))
    messages = [message.removeprefix("hard negatives: encoded the ").split(", in ")[0] for message in caplog.messages]
    assert messages == expected


@pytest.mark.parametrize(("first", "warned"), [(2, False), (3, True)])
def test_ranks_that_so_few_labels_do_not_have(make_ranker, caplog, first, warned):
    ranker = make_ranker("bi")
    callback = MinedNegatives(ranker, HardNegatives(count=1, every=1, ranks=(first, 9)))
    trainer = Trainer(ranker, CONFIG, train=EXAMPLES, callbacks=[callback])
    for _ in range(2):
        trainer.step(Collator(ranker.text)(EXAMPLES[:3]))
    assert ("a label is ranked among 2 others" in caplog.text) == warned
