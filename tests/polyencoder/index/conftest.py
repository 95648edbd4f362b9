"""An index folder of a few candidates, what it must find, and any sequence of changes to an index of any kind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from polyencoder.errors import InputError
from polyencoder.index.base import Index
from polyencoder.index.entries import Candidate
from polyencoder.index.folder import FolderIndex
from polyencoder.index.folder.build import build_index
from polyencoder.index.vectors import Vectors
from polyencoder.ranker import Ranker
from polyencoder.scoring import ContextEncoding
from polyencoder.text import TextEncoder


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


IDS = st.sampled_from(
    ["a", "b", 'quote " and \\', "it's", "new\nline", "tab\t \x01 \u00e9 \U0001f642", "d'] or id in ['a"]
)
TEXTS = ["hello", "hi there", "bye", "do you ski ?", "yes"]
METADATA = st.sampled_from([None, {"k": 1}, {"k": 2, "nested": {"a": [1, None]}}, {"k": 'x" or "'}])
VECTORS = st.integers(0, 2).map(lambda place: 3 * np.eye(16, dtype=np.float32)[place])
RECORDS = st.builds(Candidate, IDS, st.sampled_from([*TEXTS, *TEXTS, " "]), METADATA, st.just(""), st.none() | VECTORS)
CHANGES = st.one_of(
    st.tuples(st.sampled_from(["add", "update", "put"]), st.lists(RECORDS, max_size=4)),
    st.tuples(st.just("remove"), st.lists(IDS, max_size=2)),
    st.tuples(st.sampled_from(["compact", "add_words"]), st.just([])),
    st.tuples(st.just("build_faiss"), st.sampled_from([["ivf-flat"], ["hnsw"]])),
)
BLOCKS = st.recursive(CHANGES, lambda inner: st.tuples(st.sampled_from(["keep", "fail"]), st.lists(inner, max_size=3)))
"""Changes, and what a block of `changing` does before it ends, or fails."""


class Oracle(dict[str, tuple[str, Any, Any]]):
    """What an index holds: the text, metadata and vector of each id; None for a vector that the model computes."""

    def change(self, how: str, items: list) -> int:
        """Makes a change and counts what it changed; InputError, and no change, where an index must refuse it."""
        after, changed = dict(self), 0
        for item in dict.fromkeys(items) if how == "remove" else items:  # an id is removed once
            if how == "remove":
                if item not in after:
                    raise InputError("unknown")
                del after[item]
                changed += 1
                continue
            old, new = after.get(item.id), (item.text, item.metadata, item.vector)
            if not item.text.strip() or (old is None and how == "update"):
                raise InputError("empty, or unknown")
            if old is not None:
                if item.vector is None and old[0] == item.text:
                    new = (*new[:2], old[2])
                if old[:2] == new[:2] and (old[2] is new[2] or np.array_equal(old[2], new[2])):
                    continue
                if how == "add":
                    raise InputError("taken")
            after[item.id] = new
            changed += 1
        self.clear()
        self.update(after)
        return changed


class AgainstADict(RuleBasedStateMachine):
    """Any sequence of changes leaves what a dict would hold. A subclass says how its index is made and opened."""

    contexts: ContextEncoding
    encoded: dict[str, np.ndarray]
    make: Callable[[Candidate, int], Index]
    reopen: Callable[[Index], Index]

    @initialize(first=RECORDS, variant=st.integers(0, 5))
    def begin(self, first, variant):
        first = first._replace(text="hello", vector=None)
        self.index = self.make(first, variant)
        self.others: list[Index] = []
        self.oracle = Oracle({first.id: (first.text, first.metadata, None)})

    @rule(step=BLOCKS)
    def change(self, step):
        self._play(*step, self.oracle)

    def _play(self, how: str, items: list, oracle: Oracle) -> None:
        if how in ("keep", "fail"):
            inside = Oracle(oracle)
            try:
                with self.index.changing():
                    for step in items:
                        self._play(*step, inside)
                    assert len(self.index) == len(self.oracle)  # nobody sees it yet
                    if how == "fail":
                        raise LookupError
            except LookupError:
                return
            oracle.clear()
            oracle.update(inside)
            return
        if how in ("compact", "add_words", "build_faiss"):
            if isinstance(self.index, FolderIndex) and (how != "build_faiss" or (oracle and find_spec("faiss"))):
                exact = {"storage": "float32"} if how == "build_faiss" else {}
                getattr(self.index, how)(*items, **exact)
            return
        if not self.index.takes_vectors and how != "remove":
            items = [item._replace(vector=None) for item in items]
        try:
            expected = oracle.change(how, items)
        except InputError:
            expected = None
        try:
            changed = getattr(self.index, how)(iter(items))
        except InputError:
            changed = None
        assert changed == expected

    @rule()
    def compact(self):
        if isinstance(self.index, FolderIndex):
            self.index.compact()
            assert len(self.index.vectors) == len({text for text, *_ in self.oracle.values()})

    @rule()
    def open_again(self):
        self.others.append(self.index)
        self.index = self.reopen(self.index)

    @precondition(lambda self: self.others)
    @rule()
    def use_another(self):
        """One that was opened before, which sees the changes of the others."""
        self.others.append(self.index)
        self.index = self.others.pop(0)

    def teardown(self):
        for index in self.others:
            index.close()

    @invariant()
    def faiss_has_the_vectors_of_its_rows(self):
        if isinstance(self.index, FolderIndex) and (faiss := self.index.meta.faiss) is not None:
            state = self.index.state
            known = state.faiss.lists.index.reconstruct_n(0, faiss.rows)
            np.testing.assert_array_equal(known, state.vectors.take(np.arange(faiss.rows)))

    @invariant()
    def same_as_the_dict(self):
        assert len(self.index) == len(self.oracle)
        assert self.index.texts_of(["none", *self.oracle]) == {id_: text for id_, (text, *_) in self.oracle.items()}
        vectors = {id_: self.encoded[text] if own is None else own for id_, (text, _, own) in self.oracle.items()}
        stored = self.index.vectors_of(["none", *self.oracle])
        assert stored.keys() == vectors.keys()
        for id_, vector in stored.items():
            np.testing.assert_allclose(vector, vectors[id_], atol=self.tolerance)
        scores = self._scores(stored)
        for filter in (None, {"k": 1}, {"k": 'x" or "'}, {"k": [None, 2]}):
            allowed = filter and (filter["k"] if isinstance(filter["k"], list) else [filter["k"]])
            expected = {i: v[:2] for i, v in self.oracle.items() if filter is None or (v[1] or {}).get("k") in allowed}
            if self.oracle:
                if self.index.has_words and filter is None:
                    turns = [["hello"]] * self.contexts.batch_size
                    for hits in self.index.search(self.contexts, texts=turns, words_only=True, top_k=20):
                        assert {hit.id for hit in hits} == {i for i, v in self.oracle.items() if v[0] == "hello"}
                for place, hits in enumerate(self.index.search(self.contexts, top_k=len(self.oracle), filter=filter)):
                    assert {hit.id: (hit.text, hit.metadata) for hit in hits} == expected
                    assert len(hits) == len(expected)
                    found = [hit.score for hit in hits]
                    assert found == sorted(found, reverse=True)
                    np.testing.assert_allclose(found, [scores[hit.id][place] for hit in hits], rtol=1e-4, atol=1e-3)

    @property
    def tolerance(self) -> float:
        dtype = self.index.meta.dtype if isinstance(self.index, FolderIndex) else "float32"
        return {"float32": 1e-5, "bfloat16": 0.02, "int8": 0.05}[dtype]

    def _scores(self, vectors: dict[str, np.ndarray]) -> dict[str, list[float]]:
        """The paper's formula for each context: attend over the codes with each candidate, multiply with it."""
        scores: dict[str, list[float]] = {id_: [] for id_ in vectors}
        for place in range(self.contexts.batch_size):
            codes, mask = self.contexts.vectors[place], self.contexts.mask
            codes = (codes if mask is None else codes[mask[place]]).astype(np.float64)
            for id_, vector in vectors.items():
                logits = codes @ vector
                weights = np.exp(logits - logits.max())
                scores[id_].append(float(weights @ logits / weights.sum()))
        return scores


@pytest.fixture
def check_any_changes(contexts, ranker):
    """(make, reopen, examples, steps): sequences of changes to `make(candidate, variant)`, opened anew by `reopen`."""

    def check(make, reopen, *, examples: int, steps: int) -> None:
        encoded = dict(zip(TEXTS, torch.as_tensor(ranker.encode_candidates(TEXTS)).numpy(), strict=True))
        machine = type("Machine", (AgainstADict,), {"contexts": contexts, "encoded": encoded})
        machine.make, machine.reopen = staticmethod(make), staticmethod(reopen)
        some = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
        run_state_machine_as_test(machine, settings=some)

    return check
