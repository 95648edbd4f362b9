"""Which files hold which rows of an index."""

from __future__ import annotations

import numpy as np

from polyencoder.index import FolderIndex
from polyencoder.index.folder.shards import list_missing, list_shards


def test_shards_are_all_rows_in_order(folder, ranker):
    """Eight texts, three in a shard."""
    meta = FolderIndex.open(folder, ranker).meta
    shards = list_shards(folder, meta)
    assert {first: rows for first, (_, rows) in shards.items()} == {0: 3, 3: 3, 6: 2}
    assert [len(np.load(path)) for path, _ in shards.values()] == [3, 3, 2]
    assert list_missing(folder, meta) == []
    shards[3][0].unlink()
    assert list_missing(folder, meta) == [3]
