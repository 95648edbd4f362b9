"""A table of candidates becomes one with the vectors that the model makes of them, wherever it is encoded."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
import torch

from polyencoder.distributed import EncodeCandidates
from polyencoder.distributed.encoding import _loaded
from polyencoder.errors import InputError
from polyencoder.index import Fingerprints
from polyencoder.index.parts import FINGERPRINTS

pa = pytest.importorskip("pyarrow")


@pytest.fixture
def ranker(make_ranker, tmp_path):
    ranker = make_ranker("poly")
    ranker.save_pretrained(tmp_path / "model")
    return ranker


def test_a_table_with_vectors(ranker, tmp_path, sentences):
    metadata = [{"lang": "en"} if i % 2 else None for i in range(len(sentences))]
    table = pa.table({"n": range(len(sentences)), "text": sentences, "metadata": metadata})
    table = pa.concat_tables([table, table.slice(0, 1)])
    encode = copy.deepcopy(EncodeCandidates(str(tmp_path / "model"), device="cpu"))  # as pickle would
    assert len(pickle.dumps(encode)) < 1000
    made = encode(table)
    assert made.column_names == ["id", "text", "vector", "metadata"]
    assert made.column("text").to_pylist() == [*sentences, sentences[0]]
    assert json.loads(made.column("metadata")[1].as_py()) == {"lang": "en", "n": 1}
    vectors = torch.tensor(made.column("vector").to_pylist())
    expected = ranker.encode_candidates(sentences)
    assert vectors.equal(torch.cat([expected, expected[:1]]))
    assert Fingerprints(*json.loads(made.schema.metadata[FINGERPRINTS])) == Fingerprints.of(ranker)
    assert encode.fingerprints == Fingerprints.of(ranker)
    assert encode(table.to_batches()[0]).num_rows == len(sentences)
    assert _loaded.cache_info().misses == 1
    _loaded.cache_clear()


@pytest.mark.parametrize(
    ("column", "problem"),
    [({"text": ["a", " "]}, "^row 2: no text"), ({"words": ["a", "b"]}, "^row 1: has no 'text'; it has 'words'")],
)
def test_which_row_cannot_be_used(ranker, tmp_path, column, problem):
    with pytest.raises(InputError, match=problem):
        EncodeCandidates(str(tmp_path / "model"))(pa.table(column))
    _loaded.cache_clear()
