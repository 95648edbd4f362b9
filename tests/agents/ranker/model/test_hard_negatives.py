"""`--hard-negatives N` through ParlAI: what joins the batch, when, and that the model learns with it."""

from __future__ import annotations

import parlai.utils.logging as logging
import pytest

from polyencoder import ConfigError, Ranker
from polyencoder.training.objective import RankingObjective
from tests.parameters import mostly_long

MODELS = ["biencoder", "polyencoder"]


def turns_of(animals) -> list[dict]:
    return [{"text": f"where is the {animal} ?", "labels": [f"my {animal} is here ."]} for animal in animals]


@pytest.fixture
def pools(monkeypatch):
    """The pool of each batch that was trained."""
    pools = []
    step = RankingObjective.__call__

    def record(self, batch):
        pools.append(batch.pool)
        return step(self, batch)

    monkeypatch.setattr(RankingObjective, "__call__", record)
    return pools


@pytest.mark.slow
@mostly_long("bf16", [False, True], quick=1)
@pytest.mark.parametrize("model", MODELS)
def test_mined_ones_join_the_batch(model, bf16, trained, make_agent, respond, pools):
    """The first two batches have their labels; from the third on two of the wrong labels seen so far for each."""
    options = {"learningrate": 1e-9, "warmup_updates": -1}  # the model stays as it is, so that its rankings do
    options |= {"hard_negatives": 2, "hard_negatives_every": 2, "hard_negative_ranks": "2-3", "candidates": "batch"}
    agent = make_agent(model, init_model=str(trained(model)[0]), reduction_type="mean", bf16=bf16, **options)
    pools.clear()  # of the training that made the model
    batches = [turns_of(["cat", "dog", "cow"]), turns_of(["hen", "pig"]), turns_of(["owl", "cat"]), turns_of(["fox"])]
    for batch in batches:
        respond(agent, *batch)
        assert agent.model.training
    ranker = Ranker.from_pretrained(trained(model)[0], device="cpu")
    seen = [turn["labels"][0] for batch in batches[:3] for turn in batch]
    for number, (batch, pool) in enumerate(zip(batches, pools, strict=True)):
        labels = [turn["labels"][0] for turn in batch]
        mined = set()
        for turn in batch if number >= 2 else []:
            ranking = ranker.rank(turn["text"], list(dict.fromkeys(seen)))
            mined |= set([match.text for match in ranking if match.text != turn["labels"][0]][1:3])
        assert pool.texts[: len(labels)] == labels
        assert len(set(pool.texts)) == len(pool.texts)
        if not bf16:  # which rounds, so that another may come next
            assert set(pool.texts) == {*labels, *mined}
        assert [pool.texts[column] for column in pool.labels.tolist()] == labels
        assert pool.mask is None  # a text is in the pool once: an example's own label is no negative of it


@pytest.mark.slow
def test_a_cross_encoders_are_those_of_its_start(trained, make_agent, respond, pools):
    """From the second batch on each example has the wrong labels seen so far that the bi-encoder ranks highest."""
    start = str(trained("biencoder")[0])
    agent = make_agent("crossencoder", init_model=start, hard_negatives=2, hard_negatives_every=1)
    pools.clear()
    batches = [turns_of(["cat", "dog", "cow", "owl"]), turns_of(["hen", "pig"]), turns_of(["fox"])]
    for batch in batches:
        respond(agent, *[{**turn, "label_candidates": [*turn["labels"], "no"]} for turn in batch])
    ranker = Ranker.from_pretrained(start, device="cpu")
    seen = []
    for number, (batch, pool) in enumerate(zip(batches, pools, strict=True)):
        seen += [turn["labels"][0] for turn in batch]
        for row, turn in enumerate(batch):
            label = turn["labels"][0]
            ranking = [match.text for match in ranker.rank(turn["text"], seen) if match.text != label]
            assert pool.lists[row] == [label, "no", *(ranking[:2] if number else [])]
            assert pool.lists[row][int(pool.labels[row])] == label
    with pytest.raises(ConfigError, match="mined by vectors, and a cross-encoder has none"):
        make_agent("crossencoder", hard_negatives=2)


@pytest.mark.slow
def test_a_run_that_is_too_short_for_them_has_a_warning(train, tmp_path, monkeypatch):
    warnings = []
    monkeypatch.setattr(logging, "warning", warnings.append)
    train("biencoder", tmp_path / "model", hard_negatives=3, num_epochs=1.0)
    assert any("no hard negatives are mined" in str(warning) and "500 updates" in str(warning) for warning in warnings)


@pytest.mark.parametrize(
    ("options", "argument", "message"),
    [
        ({"candidates": "batch-all-cands"}, "hard_negatives", "join the candidates 'batch' or 'inline', not"),
        ({"candidates": "fixed"}, None, "--hard-negatives join --candidates batch or inline, not fixed"),
        ({"hard_negative_ranks": "5-5"}, "hard_negative_ranks", "2 are wanted, but the ranks 5-5 are fewer"),
        ({"hard_negative_ranks": "best"}, "hard_negative_ranks", "ranks 'best': give the first and the last"),
    ],
)
def test_what_cannot_be(options, argument, message, make_agent):
    """The command adds the flag of the argument."""
    with pytest.raises(ConfigError, match=message) as error:
        make_agent("biencoder", **{"candidates": "batch", "hard_negatives": 2} | options)
    assert error.value.argument == argument
