from __future__ import annotations

from itertools import combinations, pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.text.batches import cut_into_batches, group_lengths, pad_arrays
from polyencoder.text.tokens import pad

sequences = st.lists(st.lists(st.integers(0, 1000), max_size=7), min_size=1, max_size=6)


@given(sequences)
def test_padding_is_undone_by_sequences(rows):
    """Whatever the ids, the padding's own among them: the mask says what is real, not the id."""
    batch = pad(rows, pad_id=5)
    assert batch.list_sequences() == rows
    assert len(batch) == len(rows)
    assert batch.ids.shape == batch.mask.shape == (len(rows), max(1, *map(len, rows), 1))
    assert batch.ids[~batch.mask].eq(5).all()
    assert batch.ids.dtype == torch.int64
    assert batch.mask.dtype == torch.bool
    assert batch.segments is None


def test_padding_is_on_the_right():
    batch = pad([[7, 8, 9], [6]], pad_id=0, segments=[[0, 1, 1], [1]])
    assert batch.ids.tolist() == [[7, 8, 9], [6, 0, 0]]
    assert batch.mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.segments is not None
    assert batch.segments.tolist() == [[0, 1, 1], [1, 0, 0]]


def test_padding_to_a_width():
    ids, mask = pad_arrays([[1, 2], [], [3]], pad_id=9, width=3)
    assert ids.tolist() == [[1, 2, 9], [9, 9, 9], [3, 9, 9]]
    assert mask.tolist() == [[True, True, False], [False, False, False], [True, False, False]]
    assert pad_arrays([[]], pad_id=9)[0].tolist() == [[9]]


def test_some_rows_are_no_wider_than_they_need():
    batch = pad([[7, 8, 9], [6], [5, 4], []], pad_id=0, segments=[[0, 1, 1], [1], [0, 1], []])
    part = batch.select(torch.tensor([2, 1]))
    assert part.list_sequences() == [[5, 4], [6]]
    assert part.ids.tolist() == [[5, 4], [6, 0]]
    assert part.segments is not None
    assert part.segments.tolist() == [[0, 1], [1, 0]]
    assert batch.select(torch.tensor([3])).list_sequences() == [[]]
    assert pad([[7, 8], [6]], pad_id=0).select(torch.tensor([1])).segments is None


def test_no_sequences():
    assert len(pad([], pad_id=0)) == 0


def test_to_moves_every_tensor():
    for batch in (pad([[7]], pad_id=0), pad([[7]], pad_id=0, segments=[[1]])):
        moved = batch.to("meta")
        assert moved.ids.device.type == moved.mask.device.type == "meta"
        assert (moved.segments is None) == (batch.segments is None)
        assert moved.segments is None or moved.segments.device.type == "meta"


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 100), st.none() | st.integers(1, 5))
def test_token_batches(lengths, max_tokens, batch_size):
    batches = cut_into_batches(lengths, max_tokens=max_tokens, batch_size=batch_size)

    order = [i for batch in batches for i in batch]
    assert sorted(order) == list(range(len(lengths)))  # every sequence once
    assert [lengths[i] for i in order] == sorted(lengths)  # from short to long

    def fits(batch: list[int]) -> bool:
        return len(batch) * max(lengths[i] for i in batch) <= max_tokens and (
            batch_size is None or len(batch) <= batch_size
        )

    assert all(fits(batch) or len(batch) == 1 for batch in batches)
    # and no batch is closed while the next sequence still has room in it
    assert not any(fits([*batch, following[0]]) for batch, following in pairwise(batches))


def cost(groups, lengths, pass_cost):
    return sum(len(group) * max(lengths[i] for i in group) + pass_cost for group in groups)


@given(st.lists(st.integers(1, 40), max_size=9), st.integers(0, 60))
def test_no_cut_of_the_sorted_sequences_costs_less(lengths, pass_cost):
    groups = group_lengths(lengths, pass_cost=pass_cost)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    in_order = [lengths[i] for group in groups for i in group]
    assert in_order == sorted(lengths)
    order, positions = sorted(range(len(lengths)), key=lengths.__getitem__), range(1, len(lengths))
    cuts = (cut for count in range(len(lengths)) for cut in combinations(positions, count))
    ways = [[order[a:b] for a, b in zip((0, *cut), (*cut, len(order)), strict=True)] for cut in cuts]
    assert cost(groups, lengths, pass_cost) == min((cost(way, lengths, pass_cost) for way in ways), default=0)


def test_one_long_sequence_does_not_widen_the_others():
    assert group_lengths([10, 300, 12, 11], pass_cost=50) == [[0, 3, 2], [1]]


def test_what_would_save_little_stays_together():
    assert len(group_lengths([50, 51, 52, 50] * 16)) == 1
