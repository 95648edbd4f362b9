"""Mining against a naive reference: score everything, sort, and take what the settings say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder import ConfigError, InputError
from polyencoder.index import Candidate
from polyencoder.training.hard_negatives import HardNegatives, Miner, parse_ranks

WORDS = ["dogs", "cats", "ski", "teach", "math", "mountains", "pets", "school"]
TEXTS = [f"i like {one} and {other} ." for one in WORDS for other in WORDS if one != other][:40]
CONTEXTS = ["do you have any pets ?", "what do you do for a living ?", "do you like to ski ?"]
LABELS = ["i like dogs and cats .", "i like teach and math .", "i am new to the index ."]


@pytest.fixture(scope="module")
def mined_from(make_model, tokenizer):
    """(architecture) -> a ranker, an index of TEXTS, and its scores [contexts, texts] and of the labels."""
    from polyencoder.ranker.ranker import Ranker
    from polyencoder.text import TextEncoder

    made = {}

    def make(architecture):
        if architecture not in made:
            model = make_model(architecture)
            ranker = Ranker(model, TextEncoder(tokenizer, model.config.text), device="cpu")
            scores, of_labels = ranker.score(CONTEXTS, TEXTS), ranker.score(CONTEXTS, LABELS).diagonal()
            made[architecture] = ranker, ranker.index(TEXTS), scores.tolist(), of_labels.tolist()
        return made[architecture]

    return make


@st.composite
def wanted(draw):
    first, count = draw(st.integers(1, 20)), draw(st.integers(1, 5))
    last = first + count - 1 + draw(st.integers(0, 60))
    return HardNegatives(count=count, ranks=(first, last), margin=draw(st.none() | st.floats(0, 2)))


@pytest.mark.parametrize("architecture", ["bi", "poly"])
@settings(max_examples=40, deadline=None)
@given(wanted=wanted(), right=st.lists(st.sampled_from(TEXTS), max_size=3))
def test_as_scoring_everything_says(architecture, wanted, right, mined_from):
    ranker, index, scores, of_labels = mined_from(architecture)
    mined = Miner(ranker, index, wanted)(ranker.encode_contexts(CONTEXTS), LABELS, right=[right, [], right])
    for i, texts in enumerate(mined):
        excluded = {LABELS[i], *(right if i != 1 else [])}
        ranking = sorted(
            ((score, text) for score, text in zip(scores[i], TEXTS, strict=True) if text not in excluded), reverse=True
        )
        in_range = ranking[wanted.ranks[0] - 1 : wanted.ranks[1]]
        if wanted.margin is not None:
            gap = min(abs(score - of_labels[i] + wanted.margin) for score, _ in ranking)
            if gap < 1e-4:
                continue  # rounding decides
            in_range = [(score, text) for score, text in in_range if score <= of_labels[i] - wanted.margin]
        assert texts == [text for _, text in in_range[: wanted.count]]


def test_nothing_that_is_the_label_but_for_case_and_spaces(make_ranker):
    ranker = make_ranker("bi")
    copies = ["I like dogs  and cats .", " i LIKE dogs and cats ."]
    index = ranker.index([*TEXTS, *copies])
    miner = Miner(ranker, index, HardNegatives(count=42, ranks=(1, 42)))
    (mined,) = miner(ranker.encode_contexts(CONTEXTS[:1]), LABELS[:1])
    assert sorted(mined) == sorted(set(TEXTS) - {LABELS[0]})


def test_nothing_that_becomes_the_tokens_of_the_label(make_ranker):
    ranker = make_ranker("bi")
    decomposed, composed = "a cafe\u0301 .", "a caf\u00e9 ."
    assert ranker.text.ids([decomposed]) == ranker.text.ids([composed])
    index = ranker.index([decomposed, "a cat ."])
    miner = Miner(ranker, index, HardNegatives(count=2, ranks=(1, 2)))
    (mined,) = miner(ranker.encode_contexts(CONTEXTS[:1]), [composed])
    assert mined == ["a cat ."]


def test_a_text_that_the_index_has_many_times_is_one_negative(make_ranker):
    ranker = make_ranker("poly")
    index = ranker.index([Candidate(f"{text} {i}", text) for text in TEXTS[:6] for i in range(9)])
    miner = Miner(ranker, index, HardNegatives(count=3, ranks=(2, 4)))
    (mined,) = miner(ranker.encode_contexts(CONTEXTS[:1]), ["no text of it"])
    order = ranker.score(CONTEXTS[:1], TEXTS[:6])[0].argsort(descending=True).tolist()
    assert mined == [TEXTS[i] for i in order[1:4]]


def test_fewer_than_wanted_where_there_are_no_more(make_ranker):
    ranker = make_ranker("bi")
    miner = Miner(ranker, ranker.index(TEXTS[:3]), HardNegatives(count=5, ranks=(2, 100)))
    assert [len(texts) for texts in miner(ranker.encode_contexts(CONTEXTS), [TEXTS[0], "a", "b"])] == [1, 2, 2]


def test_mining_takes_no_part_in_learning(make_ranker):
    ranker = make_ranker("bi")
    miner = Miner(ranker, ranker.index(TEXTS), HardNegatives(count=2, margin=0.0))
    state = torch.get_rng_state()
    contexts = ranker.model.encode_context(ranker.text.contexts(CONTEXTS))
    miner(contexts, LABELS)
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in ranker.model.parameters())


def test_ranks():
    assert parse_ranks("10-100") == (10, 100)
    assert parse_ranks("7") == (1, 7)
    for wrong in ("ten", "1-", "", "-5-3"):
        with pytest.raises(ConfigError, match="give the first and the last, as in 10-100"):
            HardNegatives(count=1, ranks=wrong)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"count": -1}, "their number is -1; it must be at least 1"),
        ({"count": 1, "ranks": (0, 100)}, "the ranks are 0-100; give the first and the last"),
        ({"count": 1, "ranks": (9, 8)}, "the ranks are 9-8"),
        ({"count": 5, "ranks": (10, 13)}, "5 are wanted, but the ranks 10-13 are fewer"),
    ],
)
def test_settings_that_cannot_be(fields, message):
    with pytest.raises(ConfigError, match=message):
        HardNegatives(**fields)


def test_what_cannot_be_mined(make_ranker):
    ranker = make_ranker("bi")
    index = ranker.index([Candidate("0", "one text")])
    with pytest.raises(InputError, match="a cross-encoder has no vectors"):
        Miner(make_ranker("cross"), index, HardNegatives(count=1))
    with pytest.raises(InputError, match="3 contexts, but 2 labels"):
        Miner(ranker, index, HardNegatives(count=1))(ranker.encode_contexts(CONTEXTS), LABELS[:2])
    index.remove(["0"])
    with pytest.raises(InputError, match="the index is empty: no candidates to mine"):
        Miner(ranker, index, HardNegatives(count=1))
