"""Prompts: what stands before contexts and candidates, whatever their length."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from polyencoder.config import TextConfig
from polyencoder.errors import ConfigError
from polyencoder.text import TextEncoder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "query", ":", *"abcdefgh", "your", "persona"]


def encoder(**fields) -> TextEncoder:
    """An encoder whose tokens are words, so that a text's tokens do not depend on what stands before it."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(WORDS[:4])
    return TextEncoder(tokenizer, TextConfig(**fields))


TURNS = st.lists(
    st.one_of(
        st.text("abcdefgh ", max_size=16),
        st.builds("your persona: {}\n{}".format, st.text("ab ", max_size=8), st.text("cd ", max_size=6)),
    ),
    max_size=6,
)


@given(TURNS, st.integers(5, 24), st.sampled_from(["sep", ""]))
def test_a_context_loses_old_turns_and_not_its_prompt(turns, length, separator):
    fields = {"separator": "[SEP]" if separator else "", "text_truncate": length}
    prompted = encoder(**fields, context_prompt="query: ").tokenize_context(turns)
    if length == 5:
        assert len(prompted) <= 5
    else:  # what remains is what fits beside the prompt
        start, *rest = encoder(**{**fields, "text_truncate": length - 2}).tokenize_context(turns)
        assert prompted == [start, 4, 5, *rest]


@given(st.text("abcdefgh ", max_size=40), st.integers(5, 24))
def test_a_candidate_loses_its_end_and_not_its_prompt(candidate, length):
    text = encoder(label_truncate=length, candidate_prompt="query: ")
    (ids,) = text.tokenize_candidates([candidate])
    assert ids == [2, *text.tokenize([f"query: {candidate}"])[0][: length - 2], 3]
    assert ids[:3] == [2, 4, 5]


def test_prompt_and_text_are_tokenized_as_one(tokenizer, text_config, sentences):
    """sentence-transformers does the same: the space at the end of a prompt belongs to the next word."""
    text = TextEncoder(tokenizer, replace(text_config, context_prompt="a query: ", candidate_prompt="the reply: "))
    for sentence in [*sentences[:5], ""]:
        alone = tokenizer.encode(f"a query: {sentence}", add_special_tokens=False).ids
        assert text.tokenize_context([sentence] if sentence else []) == [text.start_id, *alone, text.end_id]
        alone = tokenizer.encode(f"the reply: {sentence}", add_special_tokens=False).ids[:22]
        assert text.tokenize_candidates([sentence]) == [[text.start_id, *alone, text.end_id]]
    long = text.tokenize_context([" ".join(sentences)])
    head = tokenizer.encode("a query:", add_special_tokens=False).ids
    assert len(long) == 40
    assert long[1 : len(head) + 1] == head
    assert long[len(head) + 1 : -1] == text.tokenize([" ".join(sentences)])[0][len(head) - 38 :]  # its latest tokens


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"context_prompt": "a b c d e f", "text_truncate": 8}, "context_prompt has 6 tokens, which leaves no room"),
        ({"candidate_prompt": "a b c", "label_truncate": 5}, "candidate_prompt has 3 tokens, which leaves no room"),
        ({"context_prompt": "a", "truncation": "tokens"}, "context_prompt is 'a', but a ConveRT, or a model"),
        (
            {"candidate_prompt": "a", "truncation": "recent_first", "surround": False},
            "candidate_prompt is 'a', but a ConveRT, or a model",
        ),
        ({"context_prompt": 3}, "context_prompt is 3"),
    ],
)
def test_prompts_that_cannot_be(fields, message):
    with pytest.raises(ConfigError, match=message) as error:
        encoder(**fields)
    assert error.value.argument in (*fields, None)
