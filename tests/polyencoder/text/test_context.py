from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.text.context import (
    add_person_tokens,
    join_turns,
    normalize_lines,
    normalize_text,
    select_latest_utterances,
    select_persona_lines,
    split_immediate_and_extra,
    surround,
)

START, END, SEPARATOR = -1, -2, -3


def layout(turns: list[list[int]], separator: list[int]) -> list[int]:
    joined = list(turns[0]) if turns else []
    for turn in turns[1:]:
        joined += [*separator, *turn]
    return [START, *joined, END]


def brute_force(turns: list[list[int]], separator: list[int], max_tokens: int) -> list[int]:
    """Tries to keep all turns, then all but the first, ...; when not even the last fits, its latest tokens."""
    for first in range(len(turns)):
        if len(tokens := layout(turns[first:], separator)) <= max_tokens:
            return tokens
    return layout([turns[-1][-(max_tokens - 2) :]] if turns else [], separator)


@st.composite
def dialogues(draw) -> list[list[int]]:
    """Turns of few tokens, each token a number of its own, so that nothing can be mistaken for another."""
    lengths = draw(st.lists(st.integers(0, 6), max_size=6))
    tokens = iter(range(100))
    return [[next(tokens) for _ in range(length)] for length in lengths]


@given(dialogues(), st.integers(0, 3), st.integers(3, 30))
def test_like_trying_all_numbers_of_turns(turns, n_separators, max_tokens):
    separator = [SEPARATOR] * n_separators
    joined = join_turns(turns, start=START, end=END, separator=separator, max_tokens=max_tokens)
    assert joined == brute_force(turns, separator, max_tokens)
    assert len(joined) <= max_tokens


PERSONA_TOKENS = [[1, 2], [3]]


@pytest.mark.parametrize(
    ("max_tokens", "expected"),
    [
        (14, [START, 1, 2, SEPARATOR, 3, SEPARATOR, 4, SEPARATOR, 5, SEPARATOR, 6, 7, END]),
        (12, [START, 1, 2, SEPARATOR, 3, SEPARATOR, 5, SEPARATOR, 6, 7, END]),  # an earlier turn goes first
        (9, [START, 1, 2, SEPARATOR, 3, SEPARATOR, 6, 7, END]),
        (8, [START, 1, 2, SEPARATOR, 6, 7, END]),
        (7, [START, 1, 2, SEPARATOR, 6, 7, END]),
        (6, [START, 3, SEPARATOR, 6, 7, END]),  # the last turn keeps half
        (5, [START, 3, SEPARATOR, 7, END]),
        (4, [START, 6, 7, END]),
        (3, [START, 7, END]),
    ],
)
def test_the_persona_is_kept_before_earlier_turns(max_tokens, expected):
    options = {"start": START, "end": END, "separator": [SEPARATOR], "max_tokens": max_tokens}
    assert join_turns([*PERSONA_TOKENS, [4], [5], [6, 7]], persona={0, 1}, **options) == expected


@given(dialogues(), st.integers(0, 3), st.integers(3, 30), st.data())
def test_a_persona_costs_earlier_turns_alone(turns, n_separators, max_tokens, data):
    persona = data.draw(st.sets(st.integers(0, max(0, len(turns) - 2)))) if len(turns) > 1 else set()
    options = {"start": START, "end": END, "separator": [SEPARATOR] * n_separators, "max_tokens": max_tokens}
    joined = join_turns(turns, persona=persona, **options)
    assert len(joined) <= max_tokens
    seen = [token for token in joined if token not in (START, END, SEPARATOR)]
    assert seen == [token for turn in turns for token in turn if token in seen]
    if turns:
        assert (not turns[-1]) or seen[-1] == turns[-1][-1]
        needed = layout(
            [turn for i, turn in enumerate(turns) if i in {*persona, len(turns) - 1}],
            [SEPARATOR] * n_separators,
        )
        if len(needed) <= max_tokens:
            assert {token for i in persona for token in turns[i]} <= set(seen)


@pytest.mark.parametrize(
    ("turns", "after_newline", "expected"),
    [
        (["a", "b", "c"], False, ["__p1__ a", "__p2__ b", "__p1__ c"]),
        (["your persona: x", "a", "b"], False, ["__p2__ your persona: x", "a", "__p1__ b"]),
        (["your persona: x\na", "b"], False, ["__p2__ your persona: x\na", "__p1__ b"]),
        (["your persona: x\na", "b", "c\nd"], True, ["your persona: x\n__p1__ a", "__p2__ b", "c\n__p1__ d"]),
        (["a", "b\nc", "d"], True, ["__p1__ a", "__p2__ b\nc", "__p1__ d"]),
        (["your persona: x", "your persona: y"], False, ["__p1__ your persona: x", "your persona: y"]),
        (["__p1__ a", "b"], False, ["__p1__ a", "b"]),
    ],
)
def test_person_tokens(turns, after_newline, expected):
    assert add_person_tokens(turns, after_newline=after_newline) == expected


@pytest.mark.parametrize(("max_tokens", "words"), [(3, [1]), (4, [1, 2]), (5, [1, 2, 3]), (6, [1, 2, 3])])
def test_a_candidate_keeps_its_first_words(max_tokens, words):
    assert surround([1, 2, 3], start=START, end=END, max_tokens=max_tokens) == [START, *words, END]
    assert surround([], start=START, end=END, max_tokens=max_tokens) == [START, END]


PERSONA = ["your persona: i ski .", "partner's persona: i have a cat .", "__p1__ Your Persona: i read ."]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, [*PERSONA, "d"]),
        (2, [*PERSONA, "c", "d"]),
        (3, [*PERSONA[:2], "b", PERSONA[2], "c", "d"]),
        (4, ["a", *PERSONA[:2], "b", PERSONA[2], "c", "d"]),
        (9, ["a", *PERSONA[:2], "b", PERSONA[2], "c", "d"]),
        (-1, ["a", *PERSONA[:2], "b", PERSONA[2], "c", "d"]),
    ],
)
def test_persona_lines_stay_and_do_not_count(size, expected):
    lines = ["a", *PERSONA[:2], "b", PERSONA[2], "c", "d"]
    assert select_latest_utterances(lines, size=size) == expected
    assert select_persona_lines(lines) == PERSONA


def test_what_is_said_of_personas_is_an_utterance():
    assert select_persona_lines(["i like your persona: it is nice", "your personality: nice", "my persona: none"]) == []
    assert select_latest_utterances([], size=3) == []


TURNS = ["your persona: i ski .", "Hey!", "Hello how are you?", "Fine, strange weather recently right?", "Yeah"]


@pytest.mark.parametrize(
    ("size", "extra"),
    [
        (1, ""),
        (2, "Fine, strange weather recently right? your persona: i ski ."),
        (3, "Fine, strange weather recently right? Hello how are you? your persona: i ski ."),
        (-1, "Fine, strange weather recently right? Hello how are you? Hey! your persona: i ski ."),
    ],
)
def test_immediate_and_extra_contexts(size, extra):
    assert split_immediate_and_extra(TURNS, size=size) == ("Yeah", extra)


def test_extra_contexts_have_their_numbers_where_they_are_wanted():
    extra = "0: Fine, strange weather recently right? 1: Hello how are you? your persona: i ski ."
    assert split_immediate_and_extra(TURNS, size=3, numbered=True) == ("Yeah", extra)


@pytest.mark.parametrize(
    ("lines", "pair"),
    [
        ([], ("", "")),
        (["hi"], ("hi", "")),
        (["your persona: a .", "hi"], ("hi", "your persona: a .")),
        (["your persona: a .", "your persona: b ."], ("your persona: b .", "your persona: a .")),  # nothing said yet
    ],
)
def test_contexts_without_much_in_them(lines, pair):
    assert split_immediate_and_extra(lines, size=11) == pair


@pytest.mark.parametrize("other", ["Hi  there !", " hi there !\t", "HI THERE !", "hi\u00a0there !"])
def test_the_same_answer(other):
    assert normalize_text(other) == normalize_text("hi there !")


def test_other_answers():
    assert len({normalize_text(text) for text in ("hi there !", "hi there", "hithere !", "hi there ! hi there !")}) == 4


def test_the_turns_of_a_context_and_their_lines():
    lines = {"your persona: i ski .", "hi !"}
    assert normalize_lines(["your persona: I ski .\n Hi !", "", "hi !"]) == lines | {"your persona: i ski . hi !"}
    assert normalize_lines("Hi !\r\nyou ?") == {"hi !", "you ?", "hi ! you ?"}
