"""An index folder of a few candidates, what it must find, and any sequence of changes to an index of any kind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

from polyencoder.index.base import Index
from polyencoder.index.entries import Candidate
from polyencoder.index.folder.build import build_index
from polyencoder.index.folder.index import FolderIndex
from polyencoder.index.vectors import Vectors
from polyencoder.ranker import Ranker
from polyencoder.scoring import ContextEncoding
from polyencoder.text import TextEncoder
from tests.polyencoder.index.postgres.tables import names
from tests.reliability.oracle import TEXTS, run_machine


@pytest.fixture(scope="session")
def open_vectors():
    """(folder, *, dim, dtype): all files of vectors of a folder, as `Vectors`."""

    def open_all(folder: Path, **settings) -> Vectors:
        names = [path.name for path in folder.glob("vectors-*.npy") if path.name.count(".") == 1]
        return Vectors.open(folder, names, **settings)

    return open_all


@pytest.fixture(scope="session")
def make_poly(make_model, tokenizer) -> Callable[[], Ranker]:
    """() -> a ranker of its own around the one model, which no test changes."""
    model = make_model("poly")
    return lambda: Ranker(model, TextEncoder(tokenizer, model.config.text), device="cpu")


@pytest.fixture
def ranker(make_poly) -> Ranker:
    return make_poly()


@pytest.fixture(scope="session")
def candidates(sentences) -> list[Candidate]:
    """Eight texts, the first two of them under a second id."""
    once = [Candidate(str(i), text, {"n": i, "even": i % 2 == 0}) for i, text in enumerate(sentences)]
    return [*once, Candidate("twin 0", sentences[0], {"n": 0}), Candidate("twin 1", sentences[1])]


@pytest.fixture(scope="session")
def built(tmp_path_factory, make_poly, candidates) -> Path:
    """The index that tests have copies of."""
    folder = tmp_path_factory.mktemp("built") / "index"
    build_index(folder, candidates, make_poly(), shard_size=3, model_name="models/mine")
    return folder


@pytest.fixture
def folder(tmp_path, built) -> Path:
    return shutil.copytree(built, tmp_path / "index")


@pytest.fixture
def index(folder, ranker) -> FolderIndex:
    return FolderIndex.open(folder, ranker)


@pytest.fixture
def make_where(request, tmp_path) -> Callable[[str], str]:
    """(engine) -> the address of a new index: in Milvus or PostgreSQL, else in a folder."""

    def make(engine: str) -> str:
        if engine == "milvus":
            pytest.importorskip("milvus_lite")
            return f"milvus:{tmp_path}/a.db"
        if engine == "postgres":
            return f"{request.getfixturevalue('postgres').address}#{next(names)}"
        return str(tmp_path / "index")

    return make


@pytest.fixture
def dialogues() -> list[list[str]]:
    return [["hello , how are you ?"], ["do you ski ?", "no , i have two dogs ."]]


@pytest.fixture
def contexts(ranker, dialogues) -> ContextEncoding:
    return ranker.encode_contexts(dialogues)


@pytest.fixture
def assert_finds(dialogues):
    """(index, ranker, candidates, **filter): a search gives all of these, best first, scored as ranking does."""

    def check(index: FolderIndex, ranker: Ranker, candidates: Iterable[Candidate], **filter) -> None:
        expected = {candidate.id: (candidate.text, candidate.metadata) for candidate in candidates}
        assert len(index) >= len(expected)
        results = index.search(ranker.encode_contexts(dialogues), top_k=len(index), filter=filter or None)
        for dialogue, hits in zip(dialogues, results, strict=True):
            assert {hit.id: (hit.text, hit.metadata) for hit in hits} == expected
            assert len(hits) == len(expected)
            scores = [hit.score for hit in hits]
            assert scores == sorted(scores, reverse=True)
            ranked = (
                torch.as_tensor(ranker.score([dialogue], [hit.text for hit in hits]))[0] if hits else torch.empty(0)
            )
            torch.testing.assert_close(torch.tensor(scores), ranked, rtol=1e-4, atol=1e-3)
            assert {hit.found for hit in hits} <= {"exact"}

    return check


@pytest.fixture
def check_any_changes(contexts, ranker):
    """(make, reopen, examples, steps): sequences of changes to `make(candidate, variant)`, opened anew by `reopen`."""

    def check(make, reopen: Callable[[Index], Index], *, examples: int, steps: int) -> None:
        encoded = dict(zip(TEXTS, torch.as_tensor(ranker.encode_candidates(TEXTS)).numpy(), strict=True))
        run_machine(make, reopen, contexts=contexts, encoded=encoded, examples=examples, steps=steps)

    return check
