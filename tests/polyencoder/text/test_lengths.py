from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from polyencoder.text.lengths import length_groups


def cost(groups, lengths, pass_cost):
    return sum(len(group) * max(lengths[i] for i in group) + pass_cost for group in groups)


@given(st.lists(st.integers(1, 40), max_size=9), st.integers(0, 60))
def test_no_cut_of_the_sorted_sequences_costs_less(lengths, pass_cost):
    groups = length_groups(lengths, pass_cost=pass_cost)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    in_order = [lengths[i] for group in groups for i in group]
    assert in_order == sorted(lengths)
    order, places = sorted(range(len(lengths)), key=lengths.__getitem__), range(1, len(lengths))
    cuts = (cut for count in range(len(lengths)) for cut in combinations(places, count))
    ways = [[order[a:b] for a, b in zip((0, *cut), (*cut, len(order)), strict=True)] for cut in cuts]
    assert cost(groups, lengths, pass_cost) == min((cost(way, lengths, pass_cost) for way in ways), default=0)


def test_one_long_sequence_does_not_widen_the_others():
    assert length_groups([10, 300, 12, 11], pass_cost=50) == [[0, 3, 2], [1]]


def test_what_would_save_little_stays_together():
    assert len(length_groups([50, 51, 52, 50] * 16)) == 1
