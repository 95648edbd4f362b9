"""The chunk of gradient caching that fits, with a real error of torch raised at chosen sizes."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import partial

import pytest
import torch

from polyencoder.data.collator import Collator
from polyencoder.data.example import Example
from polyencoder.data.negatives import NegativeSampler
from polyencoder.errors import ConfigError, TrainingError
from polyencoder.modeling.backbone import Backbone
from polyencoder.training.building import build_objective
from polyencoder.training.callbacks.memory import MemoryLimit, check_can_find, longest_batch
from polyencoder.training.distributed import Processes
from polyencoder.training.trainer import Trainer
from tests.commands import invoke
from tests.polyencoder.training.runs import CONFIG, EXAMPLES, Kill, Losses, callbacks, weights

WORDS = ["do", "you", "like", "dogs", "or", "cats", "or", "snow", "or", "math", "or", "skis", "or", "pets", "?"]
LONG = [Example([" ".join(WORDS * (1 + i % 3))], example.label) for i, example in enumerate(EXAMPLES)]


@pytest.fixture
def room(monkeypatch, caplog):
    """(tokens) -> in training an encoder raises torch's error for more at once; returns what it was given."""
    caplog.set_level(logging.INFO, "polyencoder.training.callbacks.memory")
    forward, seen = Backbone.forward, []

    def within(tokens: int) -> list[int]:
        def limited(self, batch, **options):
            seen.append(batch.ids.numel())
            if self.training and seen[-1] > tokens:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {seen[-1]} tokens")
            return forward(self, batch, **options)

        monkeypatch.setattr(Backbone, "forward", limited)
        return seen

    return within


def run(ranker, *others, search=False, config=CONFIG, **changes):
    """A run's losses and weights, and the tokens that its objective keeps."""
    config = replace(config, **changes)
    objective, losses = build_objective(ranker, config), Losses()
    sampler = NegativeSampler([one.label for one in LONG], count=3, seed=0)
    collator = Collator(ranker.text, config.candidates)
    longest = partial(longest_batch, LONG, collator, size=config.batch_size, sampler=sampler)
    parts = [*([MemoryLimit(objective, longest)] if search else []), *others, losses]
    Trainer(ranker, config, train=LONG, sampler=sampler, objective=objective, callbacks=parts).fit()
    return losses.values, weights(ranker.model), objective.max_tokens


def equal(one, other):
    return one[0] == other[0] and all(map(torch.equal, one[1], other[1])) and one[2] == other[2]


@pytest.mark.parametrize(("architecture", "contexts", "accumulate"), [("bi", 1, 1), ("poly", 2, 1), ("bi", 2, 3)])
def test_the_run_is_that_of_the_setting_that_was_found(make_ranker, room, caplog, architecture, contexts, accumulate):
    """Bit by bit: the search leaves no trace in weights, optimizer and random numbers."""
    length = make_ranker(architecture).text.config.longest_context
    changes = {"max_updates": 3, "accumulate": accumulate}
    expected = run(make_ranker(architecture), **changes, grad_cache=contexts)
    seen = room(contexts * length + length // 2)
    found = run(make_ranker(architecture), **changes, search=True)
    assert found[2] == contexts * length
    assert equal(found, expected)
    assert max(seen) > contexts * length, "larger ones were tried"
    assert caplog.messages == [f"memory: a batch of {CONFIG.batch_size} examples fits with grad_cache {contexts}"]


def test_a_cross_encoder_finds_its_tokens(make_ranker, room, caplog):
    text = make_ranker("cross").text.config
    length = text.longest_context + text.label_truncate
    changes = {"max_updates": 3, "candidates": "inline"}
    expected = run(make_ranker("cross"), **changes, pair_tokens=2 * length)
    room(3 * length)
    assert equal(run(make_ranker("cross"), **changes, search=True), expected)
    assert caplog.messages == [f"memory: a batch of {CONFIG.batch_size} examples fits with pair_tokens {2 * length}"]


def test_a_batch_that_fits_whole_is_not_cut(make_ranker, room, caplog):
    expected = run(make_ranker("bi"))
    seen = room(10**6)
    assert equal(run(make_ranker("bi"), search=True), expected)
    assert expected[2] is None
    assert max(seen) > 0
    assert caplog.messages == [f"memory: a batch of {CONFIG.batch_size} examples fits whole"]


def test_nothing_fits(make_ranker, room):
    room(3)
    with pytest.raises(TrainingError, match="not even with one sequence of .* tokens at a time: give a smaller"):
        run(make_ranker("bi"), search=True)


def test_a_resumed_run_keeps_what_was_found(make_ranker, room, tmp_path, monkeypatch):
    length = make_ranker("bi").text.config.longest_context
    room(2 * length)
    whole = run(make_ranker("bi"), search=True)
    ranker = make_ranker("bi")
    with pytest.raises(KeyboardInterrupt):
        run(ranker, *callbacks(ranker, tmp_path, Kill(3)), search=True)
    monkeypatch.setattr(MemoryLimit, "_found", lambda *_: pytest.fail("searched again"))
    ranker = make_ranker("bi")
    losses, _, limit = run(ranker, *callbacks(ranker, tmp_path), search=True)
    assert (losses, limit) == (whole[0][-len(losses) :], 2 * length)


def test_the_longest_batch_has_the_longest_of_both_sides(make_ranker):
    ranker = make_ranker("bi")
    batch = longest_batch(LONG, Collator(ranker.text), size=3, sampler=None)
    longest = max(len(ids) for one in LONG for ids in [ranker.text.context_ids(one.turns)])
    assert batch.contexts.ids.size(1) == longest
    assert max(map(len, (one.label for one in LONG))) == max(map(len, batch.pool.texts))


def test_the_longest_batch_has_different_responses(make_ranker):
    """Equal ones are one candidate: a batch of them alone has nothing to rank, and would seem to fit."""
    often = [Example(["hi"], "the longest response , which is that of many examples .")] * 5
    batch = longest_batch([*often, *LONG], Collator(make_ranker("bi").text), size=4, sampler=None)
    assert len(batch) == 4
    assert len({*batch.pool.texts}) == 4


def test_where_it_cannot_be_found(tmp_path, backbone_folder):
    check_can_find(torch.device("cuda"), Processes(0, 1))
    with pytest.raises(ConfigError, match="runs in one process"):
        check_can_find(torch.device("cuda"), Processes(0, 2))
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"context": "hi", "response": "hello"}) * 1)
    flags = ["--train", tmp_path / "pairs.jsonl", "--out", tmp_path / "out", "--device", "cpu", "--find-batch-size"]
    refused = invoke("train", "--backbone", backbone_folder("bert"), *flags)
    assert refused.exit_code == 1
    assert refused.stderr.splitlines()[-1] == (
        "polyencoder: find_batch_size needs a GPU: on a CPU the system ends a process that has no memory left; give "
        "grad_cache (a cross-encoder: pair_tokens) instead (flag --find-batch-size)"
    )
    assert not (tmp_path / "out").exists()
    assert (
        "find_batch_size is not read with grad_cache"
        in invoke("train", "--backbone", "b", *flags, "--grad-cache", 2).stderr
    )
