"""Training a ConveRT from files: what suits it is the default, and its folder works like any ranker's."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from polyencoder.data.collator import Collator
from polyencoder.data.example import Example
from polyencoder.errors import ConfigError
from polyencoder.evaluation import recall_at_1
from polyencoder.ranker import Ranker
from polyencoder.training import TrainSettings, train_ranker
from polyencoder.training.objective import RankingObjective
from tests.commands import run_command
from tests.polyencoder.training.runs import CONVERT, THINGS

pytestmark = pytest.mark.slow


@pytest.fixture
def make_settings(tmp_path, vocabulary):
    """(**settings) -> the settings of a small run over files that this writes."""
    records = [
        {"context": ["hello !", f"do you like the {thing} {i} ?"], "response": f"the {thing} is great , {i} ."}
        for thing in THINGS
        for i in range(3)
    ]
    for name, part in (("train", records), ("valid", records[::3])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in part))
    files = {"train": str(tmp_path / "train.jsonl"), "valid": str(tmp_path / "valid.jsonl"), "device": "cpu"}
    defaults = {**files, "out": str(tmp_path / "out"), "architecture": "convert", "batch_size": 10, "patience": None}

    def make(**fields) -> TrainSettings:
        start = {} if "init" in fields else {"vocabulary": str(vocabulary), **CONVERT}
        return TrainSettings(**{**defaults, **start, **fields})

    return make


def test_the_papers_numbers_are_the_defaults():
    training = TrainSettings(train="a", out="b", architecture="convert", vocabulary="c").training
    assert (training.batch_size, training.clip, training.epochs) == (512, 0.0, 3.0)
    optimizer, schedule = training.optimizer, training.schedule
    values = (optimizer.name, optimizer.learning_rate, optimizer.rho, optimizer.weight_decay)
    assert values == ("adadelta", 1.0, 0.9, 1e-5)
    assert optimizer.embedding_clip == 1.0
    assert (schedule.name, schedule.warmup_updates, schedule.final_learning_rate) == ("cosine", 0, 0.001)

    settings = TrainSettings(train="a", out="b", architecture="convert", init="c")
    training = settings.training
    rates = training.optimizer.learning_rate, training.schedule.final_learning_rate
    assert (*rates, training.batch_size) == (0.1, 0.0001, 256)
    assert (training.max_updates, settings.convert.dropout, training.label_smoothing) == (60_000, 0.2, 0.2)
    changed = TrainSettings(train="a", out="b", architecture="convert", init="c", learning_rate=0.5)
    assert changed.training.optimizer.learning_rate == 0.5

    others = TrainSettings(train="a", out="b", backbone="c")
    training = others.training
    optimizer = training.optimizer
    assert (optimizer.learning_rate, optimizer.name, training.clip, training.batch_size) == (5e-5, "adamw", 1.0, 32)


def test_a_trained_convert_is_a_ranker_like_any_other(make_settings, tmp_path):
    report = train_ranker(make_settings(epochs=20, optimizer="adamw", learning_rate=6e-3, evaluations=0.1))
    assert report.trained["hits@1"] > max(0.5, report.before["hits@1"])

    ranker = Ranker.from_pretrained(tmp_path / "out", device="cpu")
    assert int(ranker.model.scale.batches) > 0
    assert "| scores | cosines times" in (tmp_path / "out" / "README.md").read_text()
    replies = [f"the {thing} is great , 1 ." for thing in THINGS]
    contexts = [["hello !", f"do you like the {thing} 1 ?"] for thing in THINGS]
    scores = torch.as_tensor(ranker.score(contexts, replies))
    scale = float(ranker.model.scale())
    assert scores.abs().max() <= scale * 1.0001

    index = ranker.index(replies, tmp_path / "index")
    for context, row in zip(contexts, scores, strict=True):
        hits = ranker.search(context, index, top_k=3)
        assert [hit.text for hit in hits] == [reply.text for reply in ranker.rank(context, replies, top_k=3)]
        torch.testing.assert_close(torch.tensor([hit.score for hit in hits]), row.topk(3).values)

    unseen = ([*turns[:-1], f"well , {turns[-1]}"] for turns in contexts)
    examples = ({"context": c, "response": r, "candidates": replies} for c, r in zip(unseen, replies, strict=True))
    (tmp_path / "examples.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    command = ["calibrate", "--model", str(tmp_path / "out"), "--data", str(tmp_path / "examples.jsonl")]
    run_command(*command)
    ranker = Ranker.from_pretrained(tmp_path / "out", device="cpu")
    assert 0 < ranker.rank(contexts[0], replies, top_k=1)[0].probability <= 1


def test_three_objectives_are_summed(make_convert_ranker):
    ranker = make_convert_ranker(extra_contexts=10)
    examples = [
        Example(["hello , do you ski ?", "i like dogs .", f"do you have any {thing} ?"][i % 2 * 2 :], thing)
        for i, thing in enumerate(THINGS)
    ]
    batch = Collator(ranker.text)(examples)
    outcome = RankingObjective(ranker.model, ranker.text)(batch)

    model = ranker.model
    parts = model.split_objectives(model.encode_objectives(batch.contexts))
    vectors = model.encode_candidates(batch.candidates)
    losses = {
        name: F.cross_entropy(model.score(contexts, vectors), batch.pool.labels, reduction="none")
        for name, contexts in parts.items()
    }
    has_history = torch.tensor([i % 2 == 0 for i in range(len(THINGS))])
    losses["extra"] = losses["extra"] * has_history
    torch.testing.assert_close(outcome.losses, sum(losses.values()).detach())
    assert outcome.loss.item() == pytest.approx(float(sum(losses.values()).mean().detach()), rel=1e-5)
    assert torch.equal(outcome.scores, model.score(parts["combined"], vectors).detach())
    assert outcome.sums["extra_loss"] == (pytest.approx(float(losses["extra"].sum().detach()), rel=1e-5), 5)
    assert outcome.sums["immediate_loss"][1] == 10


@pytest.mark.long
def test_a_multi_context_model_learns_from_what_was_said_before(make_settings, make_convert_ranker, tmp_path):
    """The thing is in an earlier turn, so a model of the last turn alone cannot know it."""
    records = [{"context": [f"do you like {thing} ?", "yes .", "what ?"], "response": f"{thing} ."} for thing in THINGS]
    for name, part in (("train", records), ("valid", records)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in part))
    numbers = {"epochs": 100, "optimizer": "adamw", "learning_rate": 1e-2, "evaluations": 0.02, "num_negatives": 9}
    make_convert_ranker(extra_contexts=10).save_pretrained(tmp_path / "small")  # in all sizes: flags set few
    train_ranker(make_settings(init=str(tmp_path / "small"), dropout=0.0, max_updates=100, **numbers))
    ranker = Ranker.from_pretrained(tmp_path / "out", device="cpu")
    assert ranker.text.config.history_size == 11

    def hits(vector: str = "combined", turns: int = 3) -> float:
        ranker.model.context_vector = vector
        replies = [record["response"] for record in records]
        examples = [Example(record["context"][-turns:], record["response"], replies) for record in records]
        return recall_at_1(ranker, examples)

    assert hits() > 0.7
    assert hits("extra") > 0.7
    assert hits("immediate") == hits(turns=1) == hits(turns=2) == 0.1  # the same for all ten


def test_a_run_that_goes_on_with_a_model_keeps_its_scale_and_sizes(make_settings, tmp_path, caplog):
    train_ranker(make_settings(max_updates=4))
    assert "rises over 10 batches, but the run ends after 4, with a scale of " in caplog.text
    first = Ranker.from_pretrained(tmp_path / "out", device="cpu").model
    train_ranker(make_settings(init=str(tmp_path / "out"), out=str(tmp_path / "next"), max_updates=2, epochs=None))
    second = Ranker.from_pretrained(tmp_path / "next", device="cpu").model
    # the folder may hold the model before training, the better one; the last one is in the checkpoint
    last = torch.load(tmp_path / "next" / "training" / "checkpoint.pt", weights_only=True)["run"]["model"]
    assert int(last["scale.batches"]) == int(first.scale.batches) + 2
    assert second.sizes.dropout == 0.2
    assert second.sizes.attention_limits == first.sizes.attention_limits == (2, 8)
    assert second.sizes.head_sizes == first.sizes.head_sizes == (24, 24)
    caplog.clear()
    train_ranker(make_settings(head_sizes="24,8", max_updates=10, out=str(tmp_path / "small"), epochs=None))
    assert "rises over" not in caplog.text  # of a run that is long enough
    assert Ranker.from_pretrained(tmp_path / "small", device="cpu").model.sizes.head_sizes == (24, 8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"backbone": "x"}, "starts from a vocabulary"),
        ({"vocabulary": None}, "starts from a vocabulary"),
        ({"history_size": 3}, "history_size is read only where"),
        ({"attention_limits": "3,five"}, "attention_limits is 'five'; it must be a whole number"),
        ({"head_sizes": "12,0"}, "head_sizes is 0; it must be at least 1"),
        ({"architecture": "bi", "vocabulary": None, "backbone": "x"}, "architecture is convert, not bi"),
        ({"init": "x", "hidden_size": 3}, "hidden_size is not read with init"),
    ],
)
def test_settings_that_contradict_each_other(make_settings, fields, message):
    with pytest.raises(ConfigError, match=message):
        train_ranker(make_settings(**fields))


def test_a_single_context_model_gets_no_contexts(make_settings, make_convert_ranker, tmp_path):
    make_convert_ranker().save_pretrained(tmp_path / "single")
    with pytest.raises(ConfigError, match="a single-context convert model") as error:
        train_ranker(make_settings(init=str(tmp_path / "single"), extra_contexts=3, epochs=1))
    assert error.value.argument == "extra_contexts"


def test_turns_are_numbered(make_settings, tmp_path):
    train_ranker(make_settings(extra_contexts=3, number_turns=True, max_updates=1))
    text = Ranker.from_pretrained(tmp_path / "out", device="cpu").text
    assert text.tokenize_context(["cat", "ski", "pets"]) == [
        *text.tokenize(["pets"])[0],
        *text.separator_ids,
        *text.tokenize(["0: ski 1: cat"])[0],
    ]


def test_a_vocabulary_of_another_kind_is_an_error(make_settings, backbone_folder):
    with pytest.raises(ConfigError, match="not a vocabulary of ConveRT's subwords; train one with `polyencoder vocab`"):
        train_ranker(make_settings(vocabulary=str(backbone_folder("bert"))))
