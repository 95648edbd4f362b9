"""Random changes and searches against a dictionary, and against brute force in float64.

A state machine of hypothesis makes any changes to an index of any kind; a dictionary says what it must hold. Searches
of larger indexes, with FAISS, filters, groups, words, removed rows and each type of stored vectors, must have the k
best scores whenever they say that they are exact or certified.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
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
from polyencoder.index import Candidate, FolderIndex
from polyencoder.index.base import Index
from polyencoder.index.folder.build import build_index
from polyencoder.index.meta import Fingerprints
from polyencoder.search.contexts import Contexts
from tests.reliability.world import Budget, Counts, World

WORDS = ["cat", "dog", "ski", "snow", "book", "tea", "red", "blue"]
PER_INDEX = 40  # searches of an index


class Searched:
    """A random index, and what brute force finds in it.

    Some hundred vectors, with equal and nearly equal ones and outliers; a part of them was removed.
    """

    def __init__(self, folder: Path, rng: np.random.Generator) -> None:
        rows, dim = int(rng.choice([rng.integers(3, 100), rng.integers(100, 1000)])), int(rng.choice([2, 8, 33]))
        vectors = rng.normal(size=(rows, dim)) * rng.choice([0.01, 1, 30])
        vectors[rng.random(rows) < 0.2] = vectors[0]  # several texts with one vector
        near = rng.random(rows) < 0.3
        vectors[near] = vectors[rows // 2] + rng.normal(size=(int(near.sum()), dim)) * 1e-5
        dtype, shard_size = str(rng.choice(["float32", "float16", "bfloat16", "int8"])), int(rng.choice([64, 1000]))
        vectors[rng.random(rows) < 0.02] *= 1e-2 if dtype == "float16" else 1e-4  # float16 refuses smaller ones
        records = [
            Candidate(f"id {row}", f"{' '.join(rng.choice(WORDS, 3))} {row}", {"n": row % 5, "half": row % 2 == 0}, "",
                      vector.astype(np.float32)) for row, vector in enumerate(vectors)
        ]  # fmt: skip
        later = [Candidate(f"later {n}", records[n % rows].text, {"n": n}) for n in range(5)]
        model = Fingerprints("made up")
        build_index(folder, records, model, dtype=dtype, words=True, shard_size=shard_size)
        self.index = index = FolderIndex.open(folder, model)
        if rng.random() < 0.9:
            index.build_faiss("ivf-flat", nlist=int(rng.integers(1, 1 + min(8, rows))), storage="float32")
        if rng.random() < 0.5:
            removed = {f"id {row}" for row in rng.choice(rows, rows // 3, replace=False)}
            index.remove(removed)
            records = [record for record in records if record.id not in removed]
        if rng.random() < 0.5:
            index.add(later)
            records += later
        self.records = {str(record.id): record for record in records}
        stored = index.get_vectors(self.records)
        self.stored = np.stack([stored[id_] for id_ in self.records]).astype(np.float64)

    def search(self, rng: np.random.Generator, counts: Counts) -> str | None:
        """What is wrong with a random search."""
        codes = rng.normal(size=(int(rng.choice([1, 2, 7])), self.stored.shape[1])) * rng.choice([0.1, 1, 5])
        contexts, attention = Contexts.from_encoding(codes[None].astype(np.float32)), str(rng.choice(["basic", "sqrt"]))
        self.index._model.get_attention = lambda *_: attention  # as if a model with this attention had made the index
        logits = self.stored @ contexts.vectors[0].astype(np.float64).T
        scaled = logits if attention == "basic" else logits / np.sqrt(self.stored.shape[1])
        weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        scores = dict(zip(self.records, (weights * logits).sum(1) / weights.sum(1), strict=True))
        top_k, how = int(rng.choice([1, 3, 10, 100])), str(rng.choice(["exact", *["certified"] * 3, "group", "words"]))
        filter_ = [None, None, {"half": True}, {"n": [1, 4]}, {"n": 3, "half": False}][rng.integers(5)]
        allowed = {id_: record for id_, record in self.records.items() if passes(record.metadata, filter_)}
        options: dict[str, Any] = {"exactness": how}
        if how == "certified" and self.index.meta.faiss and rng.random() < 0.8:
            options["list_length"] = int(rng.choice([5, 20, 80]))
        if how == "group":
            options = {"exactness": "certified", "group_by": "n"}
            best = {allowed[id_].metadata["n"]: id_ for id_ in sorted(allowed, key=lambda id_: scores[id_])}
            allowed = {id_: allowed[id_] for id_ in best.values()}
        elif how == "words":
            word, top_k = str(rng.choice(WORDS)), 1000
            options = {"texts": [[word]], "words_only": True}
            allowed = {id_: record for id_, record in allowed.items() if word in record.text.split()}
        (hits,) = self.index.search(contexts, top_k=top_k, filter=filter_, **options)
        counts.count(how if how in ("group", "words") else hits[0].found if hits else "nothing to find")
        expected = sorted((scores[id_] for id_ in allowed), reverse=True)[:top_k]
        tolerance = 1e-5 * max(1e-30, np.abs(logits).max())
        if how != "words" and any(hit.found not in ("exact", "certified") for hit in hits):
            return f"{how}: found { ({hit.found for hit in hits}) }"
        if how == "words" and {hit.id for hit in hits} != {*allowed}:
            return f"words: {len(hits)} hits, {len(allowed)} candidates have the word"
        if not np.allclose([hit.score for hit in hits], [scores[hit.id] for hit in hits], rtol=0, atol=tolerance):
            return f"{how}: a hit has another score than its own"
        returned = [hit.score for hit in hits] if how != "words" else sorted((hit.score for hit in hits), reverse=True)
        if len(hits) != len(expected) or not np.allclose(returned, expected, rtol=0, atol=tolerance):
            problem = f"not the best, {returned[:3]} and not {expected[:3]}"
            return f"{how}, {attention}, top {top_k}, filter {filter_}: {problem}"
        return None


def passes(metadata: Any, filter_: dict[str, Any] | None) -> bool:
    allowed = {key: value if isinstance(value, list) else [value] for key, value in (filter_ or {}).items()}
    return all(key in metadata and metadata[key] in values for key, values in allowed.items())


def run(*, seed: int, budget: Budget, folder: Path) -> Counts:
    world, counts, rng = World(seed=seed), Counts(), np.random.default_rng(seed)
    encoded = dict(zip(TEXTS, np.asarray(world.ranker.encode_candidates(TEXTS)), strict=True))
    folders = (folder / str(number) for number in count())

    def make(first: Candidate, variant: int) -> FolderIndex:
        path, dtype = next(folders), ("float32", "bfloat16", "int8")[variant % 3]
        build_index(path, [first], world.ranker, shard_size=2, dtype=dtype)
        return FolderIndex.open(path, world.ranker)

    for number in budget(counts):
        if number % 400 == 0:
            try:
                run_machine(make, lambda index: FolderIndex.open(index.folder, world.ranker), contexts=world.contexts,
                            encoded=encoded, examples=3, steps=10, seed=seed + number)  # fmt: skip
            except Exception as error:
                counts.fail("lost", f"any changes: {error!r}, {getattr(error, '__notes__', '')}")
            counts.count("sequences of changes", 3)
        if number % PER_INDEX == 0:
            for path in folder.iterdir():
                shutil.rmtree(path)
            searched = Searched(next(folders), rng)
        if problem := searched.search(rng, counts):
            counts.fail("wrong", f"search {number}: {problem}")
    return counts


# The state machine


IDS = st.sampled_from(
    ["a", "b", 'quote " and \\', "it's", "new\nline", "tab\t \x01 \u00e9 \U0001f642", "d'] or id in ['a"]
)
TEXTS = ["hello", "hi there", "bye", "do you ski ?", "yes"]
METADATA = st.sampled_from([None, {"k": 1}, {"k": 2, "nested": {"a": [1, None]}}, {"k": 'x" or "'}])
VECTORS = st.integers(0, 2).map(lambda axis: 3 * np.eye(16, dtype=np.float32)[axis])
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

    contexts: Any
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
            known = state.faiss.index.reconstruct_n(0, faiss.rows)
            np.testing.assert_array_equal(known, state.vectors.take(np.arange(faiss.rows)))

    @invariant()
    def same_as_the_dict(self):
        assert len(self.index) == len(self.oracle)
        assert self.index.get_texts(["none", *self.oracle]) == {id_: text for id_, (text, *_) in self.oracle.items()}
        vectors = {
            id_: self.encoded[text] if vector is None else vector for id_, (text, _, vector) in self.oracle.items()
        }
        stored = self.index.get_vectors(["none", *self.oracle])
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
                for row, hits in enumerate(self.index.search(self.contexts, top_k=len(self.oracle), filter=filter)):
                    assert {hit.id: (hit.text, hit.metadata) for hit in hits} == expected
                    assert len(hits) == len(expected)
                    hit_scores = [hit.score for hit in hits]
                    assert hit_scores == sorted(hit_scores, reverse=True)
                    np.testing.assert_allclose(hit_scores, [scores[hit.id][row] for hit in hits], rtol=1e-4, atol=1e-3)

    @property
    def tolerance(self) -> float:
        dtype = self.index.meta.dtype if isinstance(self.index, FolderIndex) else "float32"
        return {"float32": 1e-5, "bfloat16": 0.02, "int8": 0.05}[dtype]

    def _scores(self, vectors: dict[str, np.ndarray]) -> dict[str, list[float]]:
        """The paper's formula for each context: attend over the codes with each candidate, multiply with it."""
        scores: dict[str, list[float]] = {id_: [] for id_ in vectors}
        for row in range(self.contexts.batch_size):
            codes, mask = self.contexts.vectors[row], self.contexts.mask
            codes = (codes if mask is None else codes[mask[row]]).astype(np.float64)
            for id_, vector in vectors.items():
                logits = codes @ vector
                weights = np.exp(logits - logits.max())
                scores[id_].append(float(weights @ logits / weights.sum()))
        return scores


def run_machine(
    make: Callable[..., Index],
    reopen: Callable[..., Index],
    *,
    contexts: Any,
    encoded: dict[str, np.ndarray],
    examples: int,
    steps: int,
    seed: int | None = None,
) -> None:
    """Sequences of changes to `make(candidate, variant)`, opened anew by `reopen`."""
    machine = type("Machine", (AgainstADict,), {"contexts": contexts, "encoded": encoded})
    machine.make, machine.reopen = staticmethod(make), staticmethod(reopen)
    settings = hypothesis.settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    run_state_machine_as_test(machine if seed is None else hypothesis.seed(seed)(machine), settings=settings)
