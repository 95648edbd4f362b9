"""Inputs: what stands where, what is kept of long texts, and that a cross-encoder reads the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.pretraining.inputs import build_pair_batch, build_pair_input
from polyencoder.text import TextEncoder
from tests.polyencoder.pretraining.conftest import TALKS


def test_a_context_its_response_and_what_stands_around_them(piece_text):
    pair = build_pair_input(piece_text, TALKS[0][:2], TALKS[0][2], longest=100)
    tokens = [piece_text.tokenizer.id_to_token(token_id) for token_id in pair.ids]
    encodings = piece_text.tokenizer.encode_batch(TALKS[0][:3], add_special_tokens=False)
    first, second, third = (encoding.tokens for encoding in encodings)
    assert tokens == ["[S]", *first, "[NEWLINE]", *second, "[S]", *third, "[S]"]
    assert tokens[pair.context :] == [*third, "[S]"]


def test_it_is_what_a_cross_encoder_reads(piece_text, make_config):
    """The context is the same, and the candidate without its start token."""
    turns, response = TALKS[3][:3], TALKS[3][3]
    pair = build_pair_input(piece_text, turns, response, longest=100)
    context, candidate = piece_text.tokenize_context(turns), piece_text.tokenize_candidates([response])[0]
    if len(context) + len(candidate) - 1 == len(pair.ids):
        assert list(pair.ids) == [*context, *candidate[1:]]
    else:  # cut there, by its own lengths
        assert list(pair.ids)[-len(candidate) + 1 :] == candidate[1:]


@given(turns=st.lists(st.integers(1, 30), min_size=1, max_size=5), response=st.integers(1, 60))
def test_a_response_is_whole_where_it_fits_and_the_context_has_a_quarter(tokenizer, text_config, turns, response):
    longest, text = 40, TextEncoder(tokenizer, text_config)
    spoken = [" ".join(["you"] * count) for count in turns]
    pair = build_pair_input(text, spoken, " ".join(["you"] * response), longest=longest)
    assert len(pair.ids) <= longest
    lengths = [len(ids) for ids in text.tokenize(spoken)]
    whole = len(text.tokenize([" ".join(["you"] * response)])[0])
    response_length = len(pair.ids) - pair.context - 1
    context = sum(lengths) + len(lengths) - 1
    if whole <= longest - 3 - min(context, (longest - 3) // 4):
        assert response_length == whole
    else:
        assert pair.context - 2 <= context
        assert response_length >= (longest - 3) * 3 // 4 - 1


def test_apart_both_are_what_a_bi_encoder_reads(piece_text):
    pair = build_pair_input(piece_text, TALKS[0][:1], TALKS[0][1], longest=100, apart=True)
    assert list(pair.ids[: pair.context]) == piece_text.tokenize_context(TALKS[0][:1])
    assert list(pair.ids[pair.context :]) == piece_text.tokenize_candidates([TALKS[0][1]])[0]
    for longest in range(10, 24):
        pair = build_pair_input(piece_text, TALKS[0][:2], TALKS[0][2] * 2, longest=longest, apart=True)
        assert len(pair.ids) == longest


def test_of_responses_that_are_apart_equal_ones_are_one(piece_text):
    pairs = [(TALKS[0][:1], "great !"), (TALKS[1][:1], TALKS[1][1]), (TALKS[2][:1], "great  !")]
    inputs = [build_pair_input(piece_text, *pair, longest=24, apart=True) for pair in pairs]
    batch = build_pair_batch(inputs, pad_id=piece_text.pad_id)
    contexts, responses = [pair.ids[: pair.context] for pair in inputs], [pair.ids[pair.context :] for pair in inputs]
    assert batch.contexts.list_sequences() == [list(ids) for ids in (*contexts, *responses[:2])]
    assert batch.answers.tolist() == [0, 1, 0]
    assert batch.targets is batch.follows is None


def test_a_batch(piece_text, masking):
    inputs = [build_pair_input(piece_text, talk[:1], talk[1], longest=24) for talk in TALKS]
    labelled = [type(pair)(pair.ids, pair.context, follows=number % 2 == 0) for number, pair in enumerate(inputs)]
    batch = build_pair_batch(labelled, pad_id=piece_text.pad_id)
    assert batch.contexts.list_sequences() == [list(pair.ids) for pair in inputs]
    assert batch.contexts.segments.sum(1).tolist() == [len(pair.ids) - pair.context for pair in inputs]
    assert batch.follows.tolist() == [1, 0, 1, 0]
    assert batch.targets is None
    with pytest.raises(AttributeError):
        batch.targets = 1
