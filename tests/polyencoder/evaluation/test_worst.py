"""The worst errors, against a sort of all candidates in Python."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.data.example import Example
from polyencoder.evaluation.worst import find_worst_errors

# few values, so that there are ties
ROWS = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=6), min_size=1, max_size=8)


@given(ROWS, st.integers(1, 5), st.integers(1, 3))
def test_they_are_those_of_a_sort_of_everything(rows, count, most_above):
    texts = [[str(column) for column in range(len(row))] for row in rows]
    examples = [Example([f"context {i}"], row[len(row) // 2], row) for i, row in enumerate(texts)]
    scores = {i: torch.tensor(row, dtype=torch.float32) for i, row in enumerate(rows)}
    expected = []
    for example, row in zip(examples, rows, strict=True):
        order = sorted(range(len(row)), key=lambda column: (-row[column], column == int(example.label)))
        rank = order.index(int(example.label)) + 1
        if rank > 1:
            score = row[int(example.label)]
            expected.append((-rank, score - row[order[0]], example, [(str(c), row[c]) for c in order[: rank - 1]]))
    expected.sort(key=lambda error: error[:2])
    worst = find_worst_errors(examples, scores, count=count, most_above=most_above)
    assert [error.example for error in worst] == [error[2] for error in expected[:count]]
    for error, (rank, _, example, above) in zip(worst, expected[:count], strict=True):
        assert (error.rank, error.among) == (-rank, len(example.choices))
        assert error.right == (example.label, scores[examples.index(example)][int(example.label)])
        assert error.above == above[:most_above]


def test_equal_candidates_are_one_and_right_ones_are_no_error():
    examples = [Example(["a"], "x", ["y", "x", "y", "x"]), Example(["b"], "x", ["x", "y"])]
    scores = {0: torch.tensor([2.0, 1.0, 2.0, 1.0]), 1: torch.tensor([2.0, 1.0])}
    (error,) = find_worst_errors(examples, scores, count=5)
    assert (error.rank, error.among, error.above) == (2, 2, [("y", 2.0)])


def test_of_several_right_responses_the_best_ranked_one_counts():
    example = Example(["a"], "x", ["w", "x", "y", "z"], labels={"x": 2.0, "y": 1.0})
    (error,) = find_worst_errors([example], {0: torch.tensor([4.0, 1.0, 3.0, 2.0])}, count=5)
    assert (error.rank, error.right, error.above) == (2, ("y", 3.0), [("w", 4.0)])
    assert not find_worst_errors([example], {0: torch.tensor([2.0, 1.0, 3.0, 4.0 - 2.5])}, count=5)
