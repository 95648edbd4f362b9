"""The items of a server's batches."""

from __future__ import annotations

from polyencoder.serving.forward import candidate, context, pair


def test_an_item_counts_its_tokens():
    assert [item.cost for item in (context([1, 2]), candidate([1] * 7), pair([1, 2], [3]))] == [2, 7, 3]
