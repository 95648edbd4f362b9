"""The paper's intent classifier learns, keeps its best epoch, and is the same for the same seed."""

from __future__ import annotations

import csv
import json

import pytest
import torch

from benchmarks.reproduce import intents
from benchmarks.reproduce.intents import TABLE_8, HeadConfig, Vectors, draw_per_label, fit, score


@pytest.fixture
def clouds() -> tuple[Vectors, Vectors]:
    """Vectors around four points, and which point each is around: 80 to train on, 40 held out."""
    labels = torch.arange(120) % 4
    noise = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
    vectors = 3 * torch.nn.functional.one_hot(labels, 6).float() + noise
    return Vectors(vectors[:80], labels[:80]), Vectors(vectors[80:], labels[80:])


@pytest.mark.parametrize("config", [TABLE_8[25], TABLE_8[34], HeadConfig()], ids=str)
def test_a_head_learns_and_is_the_one_that_was_measured(clouds, config):
    train, valid = clouds
    random = torch.get_rng_state()
    options = {"num_labels": 4, "config": config, "max_epochs": 20, "seed": 3}
    head, reached = fit(train, valid, **options)
    assert reached.accuracy > 0.85  # 0.25 by chance
    assert score(head, valid) == reached
    assert fit(train, valid, **options)[1] == reached
    assert torch.equal(torch.get_rng_state(), random)


def test_a_head_that_gets_worse_is_the_one_before(clouds):
    """Labels that vectors say nothing of: every epoch that fits them is worse on the held-out ones."""
    train, valid = clouds
    shuffled = Vectors(train.vectors, train.labels[torch.randperm(80, generator=torch.Generator().manual_seed(1))])
    config = HeadConfig(optimizer="adam")
    head, best = fit(shuffled, valid, num_labels=4, config=config, seed=0)
    _, first = fit(shuffled, valid, num_labels=4, config=config, max_epochs=1, seed=0)
    assert score(head, valid) == best
    assert best.loss <= first.loss


def test_a_scale_of_vectors_changes_nothing(clouds):
    train, valid = clouds
    options = {"num_labels": 4, "config": HeadConfig(), "max_epochs": 3, "seed": 0}
    _, reached = fit(train, valid, **options)
    _, scaled = fit(*(Vectors(100 * part.vectors + 7, part.labels) for part in clouds), **options)
    assert scaled == pytest.approx(reached, abs=1e-4)


def test_the_grid_is_the_papers():
    assert len({*TABLE_8}) == len(TABLE_8) == 50
    assert {(config.hidden_layers, config.optimizer) for config in TABLE_8} == {
        (layers, optimizer) for layers in (0, 1, 2) for optimizer in ("adam", "sgd")
    }


def test_each_label_has_held_out_texts_and_others():
    labels = ["a"] * 2 + ["b"] * 30 + ["c"]
    held_out, trained = draw_per_label(labels, intents._compute_tenth, seed=0)
    counts = [[labels[i] for i in part].count(label) for part in (held_out, trained) for label in "abc"]
    assert counts == [1, 3, 0, 1, 27, 1]
    assert draw_per_label(labels, intents._compute_tenth, seed=1) != (held_out, trained)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--seeds", "2"], ["--grid", "--max-epochs", "2"], ["--per-intent", "2"]])
def test_files_become_a_report(flags, bert, tmp_path, capsys):
    for split, names in (("train", "abcdef"), ("test", "xyz")):
        rows = [(f"the {word} of {name}", word) for word in ("card", "pin") for name in names]
        with (tmp_path / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "category"), *rows])
    intents.main(
        ["--model", str(bert), "--train", str(tmp_path / "train.csv"), "--test", str(tmp_path / "test.csv"), *flags]
    )
    report = json.loads(capsys.readouterr().out)
    assert (report["labels"], report["test_texts"]) == (2, 6)
    assert 0 <= report["valid"]["accuracy"] <= 1
    assert set(report["test"]) == {"accuracy", "deviation"}
