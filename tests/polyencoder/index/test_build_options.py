"""An option of a new index that its engine does not have is an error that names it."""

from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError
from polyencoder.index.build_options import IndexOptions


@pytest.mark.parametrize(
    ("engine", "changes", "message"),
    [
        (None, {"milvus": "flat"}, "milvus is 'flat', the kind of an index in milvus, but the index is elsewhere"),
        ("milvus", {"postgres": "flat"}, "postgres is 'flat', the kind of an index in postgres"),
        ("milvus", {"words": True}, "milvus:x: words are only for index folders and PostgreSQL"),
        ("postgres", {"shard_size": 9}, "shard_size is only for index folders"),
        ("postgres", {"store_tokens": "int8"}, "store_tokens is only for index folders"),
    ],
)
def test_what_it_lacks(engine, changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        IndexOptions(**changes).check_engine(engine, "milvus:x")
    assert caught.value.argument in changes


@pytest.mark.parametrize("changes", [{"workers": 0}, {"shard_size": 1 << 32}, {"dtype": "float64"}, {"faiss": True}])
def test_values_that_cannot_be(changes):
    with pytest.raises(ConfigError) as caught:
        IndexOptions(**changes)
    assert caught.value.argument in changes


def test_the_address_is_shown_without_its_password():
    with pytest.raises(ConfigError, match=r"^postgres://me@db/chat#replies: dtype is only"):
        IndexOptions(dtype="int8").check_engine("postgres", "postgres://me:secret@db/chat#replies")
