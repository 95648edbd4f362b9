"""Parts are the vectors of the index that encodes by itself; a run that is killed and started again writes the rest."""

from __future__ import annotations

import pytest

from polyencoder.distributed import EncodeCandidates, encode_parts
from polyencoder.errors import InputError
from polyencoder.index import Candidate, FolderIndex, build_index, open_index, vectors_from
from polyencoder.index.parts import fingerprints_of
from tests.polyencoder.distributed.conftest import contents

pq = pytest.importorskip("pyarrow.parquet")

ROWS = 4


@pytest.fixture
def ranker(make_ranker):
    return make_ranker("poly")


@pytest.fixture
def candidates(sentences) -> list[Candidate]:
    texts = [*sentences, *(f"{text} {i}" for i, text in enumerate(sentences))]
    return [Candidate(str(i) if i % 2 else None, text, {"n": i} if i % 3 else None) for i, text in enumerate(texts)]


def test_the_index_of_parts_is_the_index_of_texts(tmp_path, ranker, encode, candidates):
    assert encode_parts(iter(candidates), tmp_path / "parts", encode, rows=ROWS) == len(candidates)
    assert sorted(contents(tmp_path / "parts"))[:2] == ["part-000000000000.parquet", "part-000000000004.parquet"]
    paths = tmp_path / "parts" / "*.parquet"
    build_index(tmp_path / "given", vectors_from(paths), fingerprints_of(paths), shard_size=ROWS)
    build_index(tmp_path / "encoded", candidates, ranker, shard_size=ROWS)
    given, encoded = (open_index(tmp_path / name, ranker) for name in ("given", "encoded"))
    assert isinstance(given, FolderIndex)
    for one, other in zip(given.vectors.names, encoded.vectors.names, strict=True):
        assert (given.folder / one).read_bytes() == (encoded.folder / other).read_bytes()
    contexts = ranker.encode_contexts(["do you ski ?", "hello"])
    assert given.search(contexts, top_k=99) == encoded.search(contexts, top_k=99)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("call", [1, 2, 4])
def test_killed_and_started_again(tmp_path, monkeypatch, encode, candidates, call):
    encode_parts(candidates, tmp_path / "undisturbed", encode, rows=ROWS)
    encoded = []

    def until_then(table):
        encoded.append(table.num_rows)
        if len(encoded) == call:
            raise Killed
        return encode(table)

    until_then.fingerprints, until_then.like = encode.fingerprints, lambda _: until_then
    with pytest.raises(Killed):
        encode_parts(candidates, tmp_path / "parts", until_then, rows=ROWS)
    kept = contents(tmp_path / "parts")
    assert len(kept) == call - 1
    encode_parts(candidates, tmp_path / "parts", until_then, rows=ROWS)
    assert contents(tmp_path / "parts") == contents(tmp_path / "undisturbed")
    assert len(encoded) == len(contents(tmp_path / "parts")) + 1  # nothing twice but what was lost


def test_other_parts_are_no_parts_of_this_run(tmp_path, encode, candidates, make_ranker):
    folder = tmp_path / "parts"
    encode_parts(candidates, folder, encode, rows=ROWS)
    before = contents(folder)
    with pytest.raises(InputError, match=r"part-000000000004\.parquet: was made from other candidates"):
        encode_parts([*candidates[:5], *candidates[6:]], folder, encode, rows=ROWS)
    with pytest.raises(InputError, match=r"part-000000000000\.parquet: was made from other candidates"):
        encode_parts(candidates, folder, encode, rows=ROWS + 1)
    with pytest.raises(InputError, match=r"part-000000000008\.parquet has other candidates than the other parts"):
        encode_parts(candidates[:8], folder, encode, rows=ROWS)
    make_ranker("poly", seed=1).save_pretrained(tmp_path / "other")
    with pytest.raises(InputError, match=r"part-000000000000\.parquet: was made from other models"):
        encode_parts(candidates, folder, EncodeCandidates(str(tmp_path / "other")), rows=ROWS)
    assert contents(folder) == before
    (folder / "part-000000000004.parquet").write_bytes(b"half")
    with pytest.raises(InputError, match=r"part-000000000004\.parquet: damaged"):
        encode_parts(candidates, folder, encode, rows=ROWS)
    with pytest.raises(InputError, match="the input is empty"):
        encode_parts([], tmp_path / "none", encode)
