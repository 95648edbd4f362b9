"""Vectors that exist become rows of a table: nothing is encoded, and each candidate keeps its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyencoder.errors import InputError
from polyencoder.index import Candidate, Fingerprints, open_index
from polyencoder.index.open import make_index
from polyencoder.index.postgres import PostgresIndex

pytestmark = pytest.mark.slow


def test_vectors_that_exist(where, ranker, sentences):
    vectors = torch.as_tensor(ranker.encode_candidates(sentences)).numpy()
    rows = enumerate(zip(sentences, vectors, strict=True))
    given = [Candidate(f"r{i}", text, {"n": i}, vector=vector) for i, (text, vector) in rows]
    make_index(iter(given), where, Fingerprints(Fingerprints.of(ranker).model))
    index = open_index(where, ranker)
    assert isinstance(index, PostgresIndex)
    contexts = ranker.encode_contexts(["hello , how are you ?", "do you ski ?"])
    in_memory = ranker.index([one._replace(vector=None) for one in given])
    expected = in_memory.search(contexts, top_k=5)
    for hits, best in zip(index.search(contexts, top_k=5, exactness="exact"), expected, strict=True):
        assert [hit.id for hit in hits] == [hit.id for hit in best]
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in best], rel=1e-4, abs=1e-4)
    first = contexts.vectors[:, 0]
    scores = torch.from_numpy(vectors) @ first.T
    index.put([Candidate("r0", sentences[0], {"n": -1}, vector=-10 * vectors[0])])  # another vector of the same text
    for context, found in enumerate(open_index(where).search(first, filter={"n": [1, 2, -1]}, top_k=3)):
        wanted = sorted([*scores[1:3, context].tolist(), -10 * scores[0, context].item()], reverse=True)
        assert [hit.score for hit in found] == pytest.approx(wanted, rel=1e-4)
    with pytest.raises(InputError, match="its vector has 3 numbers, not 16"):
        index.add([{"text": "short", "vector": [1, 2, 3]}])
    assert len(index) == len(sentences)
    in_memory.close()


def test_each_row_keeps_its_own_vector(where):
    unit = np.eye(4, dtype=np.float32)
    make_index([Candidate(id_, "hello", vector=unit[i]) for i, id_ in enumerate("ab")], where, Fingerprints("theirs"))
    index = open_index(where)
    index.update([Candidate("a", "hello", {"n": 1}), Candidate("b", "hello", {"n": 1})])
    assert [index.search(unit[i : i + 1], top_k=1)[0][0].id for i in range(2)] == ["a", "b"]
    with pytest.raises(InputError, match="was opened without its model"):
        index.put([Candidate("c", "one", vector=unit[2]), Candidate("c", "two")])
    index.add([Candidate("c", "one", vector=unit[2]), Candidate("c", "one", vector=unit[2])])
    with pytest.raises(InputError, match="which has other values in its vector"):
        index.add([Candidate("c", "one", vector=unit[3])])
    assert index.search(unit[2:3], top_k=1)[0][0].id == "c"
    index.put([Candidate("c", "one", vector=unit[3])])
    assert [index.search(unit[i : i + 1], top_k=1)[0][0].score for i in (2, 3)] == [0, 1]
    index.close()
