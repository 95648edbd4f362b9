"""An index folder of a few candidates, what it must find, and any sequence of changes to an index of any kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from polyencoder.index.base import Index
from polyencoder.index.entries import Candidate
from polyencoder.index.folder import FolderIndex
from polyencoder.index.folder.build import build_index
from polyencoder.index.vectors import Vectors
from polyencoder.ranker.ranker import Ranker
from polyencoder.scoring import ContextEncoding


@pytest.fixture(scope="session")
def open_vectors():
    """(folder, *, dim, dtype): all files of vectors of a folder, as `Vectors`."""

    def open_all(folder: Path, **settings) -> Vectors:
        names = [path.name for path in folder.glob("vectors-*.npy") if ".scales" not in path.name]
        return Vectors.open(folder, names, **settings)

    return open_all


@pytest.fixture
def ranker(make_ranker) -> Ranker:
    return make_ranker("poly")


@pytest.fixture
def candidates(sentences) -> list[Candidate]:
    """Eight texts, the first two of them under a second id."""
    once = [Candidate(str(i), text, {"n": i, "even": i % 2 == 0}) for i, text in enumerate(sentences)]
    return [*once, Candidate("twin 0", sentences[0], {"n": 0}), Candidate("twin 1", sentences[1])]


@pytest.fixture
def folder(tmp_path, ranker, candidates) -> Path:
    build_index(tmp_path / "index", candidates, ranker, shard_size=3, model_name="models/mine")
    return tmp_path / "index"


@pytest.fixture
def index(folder, ranker) -> FolderIndex:
    return FolderIndex.open(folder, ranker)


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
            ranked = ranker.score([dialogue], [hit.text for hit in hits])[0] if hits else torch.empty(0)
            torch.testing.assert_close(torch.tensor(scores), ranked, rtol=1e-4, atol=1e-3)
            assert {hit.found for hit in hits} <= {"exact"}

    return check


IDS = st.sampled_from(
    ["a", "b", 'quote " and \\', "it's", "new\nline", "tab\t \x01 \u00e9 \U0001f642", "d'] or id in ['a"]
)
TEXTS = st.sampled_from(["hello", "hi there", "bye", "do you ski ?", "yes"])
METADATA = st.sampled_from([None, {"k": 1}, {"k": 2, "nested": {"a": [1, None]}}, {"k": 'x" or "'}])
RECORDS = st.builds(Candidate, IDS, TEXTS, METADATA, vector=st.none())


class AgainstADict(RuleBasedStateMachine):
    """Any sequence of changes leaves what a dict would hold. A subclass says how its index is made and opened."""

    contexts: ContextEncoding
    make: Callable[[Candidate, int], Index]
    reopen: Callable[[Index], Index]

    @initialize(first=RECORDS, variant=st.integers(0, 5))
    def begin(self, first, variant):
        self.index = self.make(first, variant)
        self.oracle = {first.id: (first.text, first.metadata)}

    @rule(records=st.lists(RECORDS, max_size=5))
    def add(self, records):
        new = {r.id: r for r in records if r.id not in self.oracle}
        self.index.add(iter(new.values()))
        self.oracle |= {r.id: (r.text, r.metadata) for r in new.values()}

    @rule(ids=st.sets(IDS))
    def remove(self, ids):
        gone = sorted(ids & self.oracle.keys())
        self.index.remove(gone)
        for id_ in gone:
            del self.oracle[id_]

    @rule(records=st.lists(RECORDS, max_size=4))
    def update(self, records):
        there = [r for r in records if r.id in self.oracle]
        self.index.update(iter(there))
        self.oracle |= {r.id: (r.text, r.metadata) for r in there}

    @rule(records=st.lists(RECORDS, max_size=4))
    def put(self, records):
        self.index.put(iter(records))
        self.oracle |= {r.id: (r.text, r.metadata) for r in records}

    @rule()
    def compact(self):
        if isinstance(self.index, FolderIndex):
            self.index.compact()
            assert len(self.index.vectors) == len({text for text, _ in self.oracle.values()})

    @rule(kind=st.sampled_from(["flat", "hnsw"]))
    def build_faiss(self, kind):
        if isinstance(self.index, FolderIndex) and len(self.index.vectors) and find_spec("faiss"):
            self.index.build_faiss(kind, storage="float32")

    @rule()
    def open_again(self):
        self.index = self.reopen(self.index)

    @invariant()
    def faiss_has_the_vectors_of_its_rows(self):
        if isinstance(self.index, FolderIndex) and (faiss := self.index.meta.faiss) is not None:
            state = self.index.state
            known = torch.from_numpy(state.faiss.index.reconstruct_n(0, faiss.rows))
            assert known.equal(state.vectors.take(torch.arange(faiss.rows)))

    @invariant()
    def same_as_the_dict(self):
        assert len(self.index) == len(self.oracle)
        assert self.index.texts_of(["none", *self.oracle]) == {id_: text for id_, (text, _) in self.oracle.items()}
        for filter in (None, {"k": 1}, {"k": 'x" or "'}, {"k": [None, 2]}):
            allowed = filter and (filter["k"] if isinstance(filter["k"], list) else [filter["k"]])
            expected = {i: v for i, v in self.oracle.items() if filter is None or (v[1] or {}).get("k") in allowed}
            if self.oracle:
                for hits in self.index.search(self.contexts, top_k=len(self.oracle), filter=filter):
                    assert {hit.id: (hit.text, hit.metadata) for hit in hits} == expected
                    assert len(hits) == len(expected)


@pytest.fixture
def check_any_changes(contexts):
    """(make, reopen, examples, steps): sequences of changes to `make(candidate, variant)`, opened anew by `reopen`."""

    def check(make, reopen, *, examples: int, steps: int) -> None:
        machine = type("Machine", (AgainstADict,), {"contexts": contexts})
        machine.make, machine.reopen = staticmethod(make), staticmethod(reopen)
        some = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
        run_state_machine_as_test(machine, settings=some)

    return check
