"""Mining against a naive reference: score everything, sort, and take what the settings say."""

from __future__ import annotations

from itertools import compress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cosine_similarity

from polyencoder import ConfigError, InputError
from polyencoder.index import Candidate
from polyencoder.settings.training import HardNegatives, parse_ranks
from polyencoder.training.hard_negatives import Miner

WORDS = ["dogs", "cats", "ski", "teach", "math", "mountains", "pets", "school"]
TEXTS = [f"i like {first} and {second} ." for first in WORDS for second in WORDS if first != second][:40]
CONTEXTS = ["do you have any pets ?", "what do you do for a living ?", "do you like to ski ?"]
LABELS = ["i like dogs and cats .", "i like teach and math .", "i am new to the index ."]


@pytest.fixture(scope="module")
def mined_from(make_model, tokenizer):
    """(architecture) -> a ranker, an index of TEXTS, and its scores [contexts, texts] and of the labels."""
    from polyencoder.ranker import Ranker
    from polyencoder.text import TextEncoder

    cached = {}

    def make(architecture):
        if architecture not in cached:
            model = make_model(architecture)
            ranker = Ranker(model, TextEncoder(tokenizer, model.config.text), device="cpu")
            cached[architecture] = ranker, ranker.index(TEXTS), ranker.score(CONTEXTS, TEXTS).tolist()
        return cached[architecture]

    return make


@st.composite
def draw_settings(draw):
    first, count = draw(st.integers(1, 20)), draw(st.integers(1, 5))
    last = first + count - 1 + draw(st.integers(0, 60))
    return HardNegatives(count=count, ranks=(first, last), max_similarity=draw(st.none() | st.floats(0.9, 0.999)))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["bi", "poly"])
@settings(max_examples=20, deadline=None)
@given(settings=draw_settings(), right=st.lists(st.sampled_from(TEXTS), max_size=3))
def test_as_scoring_everything_says(architecture, settings, right, mined_from):
    ranker, index, scores = mined_from(architecture)
    vectors = dict(zip([*TEXTS, *LABELS], torch.as_tensor(ranker.encode_candidates([*TEXTS, *LABELS])), strict=True))

    def near(positives, texts):
        """The largest cosine of each text with these."""
        pairs = [[cosine_similarity(vectors[text], vectors[right], dim=0) for right in positives] for text in texts]
        return [float(max(cosines)) for cosines in pairs]

    miner = Miner.from_index(ranker, index, settings)
    mined = miner(ranker.encode_contexts(CONTEXTS), LABELS, right=[right, [], right])
    for i, texts in enumerate(mined):
        excluded = {LABELS[i], *(right if i != 1 else [])}
        ranking = sorted(
            ((score, text) for score, text in zip(scores[i], TEXTS, strict=True) if text not in excluded), reverse=True
        )
        in_range = ranking[settings.ranks[0] - 1 : settings.ranks[1]]
        if settings.max_similarity is not None:
            cosines = near(excluded, [text for _, text in in_range])
            if any(abs(cosine - settings.max_similarity) < 1e-5 for cosine in cosines):
                continue
            passes = [cosine <= settings.max_similarity for cosine in cosines]
            in_range = [*compress(in_range, passes)]
        assert texts == [text for _, text in in_range[: settings.count]]


def test_nothing_that_is_the_label_but_for_case_and_spaces(make_ranker):
    ranker = make_ranker("bi")
    copies = ["I like dogs  and cats .", " i LIKE dogs and cats ."]
    index = ranker.index([*TEXTS, *copies])
    miner = Miner.from_index(ranker, index, HardNegatives(count=42, ranks=(1, 42)))
    (mined,) = miner(ranker.encode_contexts(CONTEXTS[:1]), LABELS[:1])
    assert sorted(mined) == sorted(set(TEXTS) - {LABELS[0]})


def test_nothing_that_becomes_the_tokens_of_the_label(make_ranker):
    ranker = make_ranker("bi")
    decomposed, composed = "a cafe\u0301 .", "a caf\u00e9 ."
    assert ranker.text.tokenize([decomposed]) == ranker.text.tokenize([composed])
    index = ranker.index([decomposed, "a cat ."])
    miner = Miner.from_index(ranker, index, HardNegatives(count=2, ranks=(1, 2)))
    (mined,) = miner(ranker.encode_contexts(CONTEXTS[:1]), [composed])
    assert mined == ["a cat ."]


def test_a_text_that_the_index_has_many_times_is_one_negative(make_ranker):
    ranker = make_ranker("poly")
    index = ranker.index([Candidate(f"{text} {i}", text) for text in TEXTS[:6] for i in range(9)])
    miner = Miner.from_index(ranker, index, HardNegatives(count=3, ranks=(2, 4)))
    (mined,) = miner(ranker.encode_contexts(CONTEXTS[:1]), ["no text of it"])
    order = torch.as_tensor(ranker.score(CONTEXTS[:1], TEXTS[:6]))[0].argsort(descending=True).tolist()
    assert mined == [TEXTS[i] for i in order[1:4]]


@pytest.mark.slow
def test_fewer_than_wanted_where_there_are_no_more(make_ranker):
    ranker = make_ranker("bi")
    miner = Miner.from_index(ranker, ranker.index(TEXTS[:3]), HardNegatives(count=5, ranks=(2, 100)))
    assert [len(texts) for texts in miner(ranker.encode_contexts(CONTEXTS), [TEXTS[0], "a", "b"])] == [1, 2, 2]


def test_mining_takes_no_part_in_learning(make_ranker):
    ranker = make_ranker("bi")
    miner = Miner.from_index(ranker, ranker.index(TEXTS), HardNegatives(count=2))
    state = torch.get_rng_state()
    contexts = ranker.model.encode_context(ranker.text.batch_contexts(CONTEXTS))
    miner(contexts, LABELS)
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in ranker.model.parameters())


def test_by_words_the_ranks_are_bm25s(make_ranker, tmp_path):
    queries = ["dogs or cats ?", "who do you teach ?", "unheard-of"]
    index = make_ranker("bi").index(TEXTS, tmp_path, words=True)
    options = {"words_only": True, "top_k": len(TEXTS)}
    rankings = [[hit.text for hit in make_ranker("bi").search(query, index, **options)] for query in queries]
    ranker = make_ranker("cross")
    right = [[TEXTS[0]], [], []]
    mined = Miner.from_texts(ranker, TEXTS, HardNegatives(count=3, ranks=(2, 9)))(queries, LABELS, right=right)
    remaining = [[text for text in ranking if text not in (LABELS[i], *right[i])] for i, ranking in enumerate(rankings)]
    assert mined == [ranking[1:9][:3] for ranking in remaining]
    assert mined[2] == []
    with pytest.raises(InputError, match="a cross-encoder has no vectors, which") as error:
        Miner.from_texts(ranker, TEXTS, HardNegatives(count=1, max_similarity=0.9))
    assert error.value.argument == "max_positive_similarity"


def test_a_search_that_found_all_that_there_is_is_not_repeated(make_ranker, monkeypatch):
    requests = []
    texts = [*TEXTS, *(f"number {n}" for n in range(400))]
    miner = Miner.from_texts(make_ranker("bi"), texts, HardNegatives(count=1))
    find = miner._find
    monkeypatch.setattr(miner, "_find", lambda contexts, k: requests.append(k) or find(contexts, k))
    miner(["dogs ?"], [TEXTS[0]])
    assert len(requests) == 1


def test_no_contexts_have_no_negatives(make_ranker):
    ranker, settings = make_ranker("bi"), HardNegatives(count=1)
    none = ranker.encode_contexts(CONTEXTS).select([])
    assert Miner.from_index(ranker, ranker.index(TEXTS), settings)(none, []) == []
    assert Miner.from_texts(ranker, TEXTS, settings)([], []) == []


def test_ranks():
    assert parse_ranks("10-100") == (10, 100)
    assert parse_ranks("7") == (1, 7)
    for wrong in ("ten", "1-", "", "-5-3", "-5", "5--3"):
        with pytest.raises(ConfigError, match="give the first and the last, as in 10-100"):
            HardNegatives(count=1, ranks=wrong)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"count": -1}, "hard_negatives is -1; it must be at least 0"),
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
        Miner.from_index(make_ranker("cross"), index, HardNegatives(count=1))
    index.remove(["0"])
    with pytest.raises(InputError, match="no candidates to mine"):
        Miner.from_index(ranker, index, HardNegatives(count=1))
