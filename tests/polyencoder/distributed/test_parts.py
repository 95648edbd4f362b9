"""Parts are the vectors of the index that encodes by itself; a run that is killed and started again writes the rest."""

from __future__ import annotations

import json

import pytest

from polyencoder.distributed import EncodeCandidates, encode_blocks, encode_parts
from polyencoder.distributed.blocks import in_this_process
from polyencoder.distributed.encoding import candidates_table
from polyencoder.errors import InputError
from polyencoder.index import Candidate, FolderIndex, build_index, open_index, vectors_from
from polyencoder.index.meta import Fingerprints
from polyencoder.index.parts import FINGERPRINTS, fingerprints_of
from polyencoder.ranker.encoding import candidate_fingerprint
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


@pytest.mark.parametrize("whole", [encode_parts, encode_blocks])
def test_parts_of_an_earlier_version_are_continued(tmp_path, encode, candidates, ranker, make_ranker, whole):
    """Its fingerprints of the same model had another form, which the new parts then have, too: an index needs one."""
    folder, given, settings = tmp_path / "parts", candidates, {"rows": ROWS}
    if whole is encode_blocks:
        pq.write_table(candidates_table(iter(candidates)), tmp_path / "candidates.parquet")
        given, settings = tmp_path / "candidates.parquet", {"rows": ROWS, "engine": in_this_process}
    whole(given, folder, encode, **settings)
    model, text = ranker.model, ranker.text
    before = Fingerprints(candidate_fingerprint(model, text, contexts=True), text.fingerprint(contexts=True))
    assert before != fingerprints_of(folder / "*.parquet") == Fingerprints.of(ranker)
    for path in folder.iterdir():
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({**table.schema.metadata, FINGERPRINTS: json.dumps(before)}), path)
    expected = {path: pq.read_table(path) for path in sorted(folder.iterdir())}
    for path in [*expected][1:3]:
        path.unlink()
    whole(given, folder, encode, **settings)
    assert sorted(folder.iterdir()) == [*expected]
    assert all(pq.read_table(path).equals(table, check_metadata=True) for path, table in expected.items())
    assert fingerprints_of(folder / "*.parquet") == before
    make_ranker("poly", seed=1).save_pretrained(tmp_path / "other")
    with pytest.raises(InputError, match=r"part-000000000000\.parquet: was made from other models"):
        whole(given, folder, EncodeCandidates(str(tmp_path / "other")), **settings)


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
