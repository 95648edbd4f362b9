"""What all parts share: their counts, a tiny ranker, processes that are forked, and what an index must hold."""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from polyencoder.config import RankerConfig, TextConfig
from polyencoder.errors import PolyencoderError
from polyencoder.index import Candidate, FolderIndex, verify
from polyencoder.index.folder.files import is_ours
from polyencoder.index.meta import Fingerprints
from polyencoder.modeling.build import build_model
from polyencoder.modeling.encoder_config import build_scratch_config
from polyencoder.ranker import Ranker
from polyencoder.text.encoder import TextEncoder
from polyencoder.text.vocabulary import train_tokenizer

_DRAW = random.Random(0)
WORDS = ["".join(_DRAW.choices("abcdefghijklmnopqrstuvwxyz", k=_DRAW.randint(2, 4))) for _ in range(60)]
TEXTS = list(dict.fromkeys(" ".join(_DRAW.sample(WORDS, _DRAW.randint(1, 3))) for _ in range(200)))[:150]
CONTEXTS = [[" ".join(WORDS[:4])], ["hello", " ".join(WORDS[5:9])]]


@dataclass
class Counts:
    """The trials of a part, and what went wrong."""

    trials: int = 0
    lost: int = 0
    """States that are neither the old nor the new one, and what could not be opened any more."""
    wrong: int = 0
    """Results, vectors and errors that are not what they must be."""
    signals: int = 0
    """Processes that a signal ended, but for those that the part sent itself."""
    of: dict[str, int] = field(default_factory=dict)
    """How many trials of each kind."""
    failures: list[str] = field(default_factory=list)

    def count(self, kind: str, n: int = 1) -> None:
        self.of[kind] = self.of.get(kind, 0) + n

    def fail(self, how: str, message: str) -> None:
        setattr(self, how, getattr(self, how) + 1)
        self.failures.append(f"{how}: {message}")


class Budget(NamedTuple):
    """How long a part goes on: so many seconds or trials, whichever end first."""

    seconds: float = float("inf")
    trials: float = float("inf")

    def __call__(self, counts: Counts) -> Iterator[int]:
        end = time.monotonic() + self.seconds
        while counts.trials < self.trials and time.monotonic() < end:
            counts.trials += 1
            yield counts.trials - 1


def tiny_ranker(architecture: str = "poly", *, seed: int = 0, **fields: object) -> Ranker:
    """A ranker of random weights, whose vectors of TEXTS differ; on one thread, so that it can be forked."""
    torch.set_num_threads(1)
    tokenizer = train_tokenizer([*TEXTS, "hello"], vocabulary_size=400)
    backbone = build_scratch_config(
        vocabulary_size=tokenizer.get_vocab_size(), dim=16, n_layers=1, n_heads=2, ffn_dim=32, n_positions=64, dropout=0
    )
    config = RankerConfig(
        **{"architecture": architecture, "backbone": backbone | {"initializer_range": 0.5}, "n_codes": 4,
           "reduction": "mean", "text": TextConfig(text_truncate=40, label_truncate=24)} | fields
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_model(config).eval()
    return Ranker(model, TextEncoder(tokenizer, model.config.text), device="cpu")


class World:
    """A ranker, and what it computes of each text and context, once."""

    def __init__(self, *, seed: int = 0) -> None:
        self.ranker = tiny_ranker(seed=seed)
        self.fingerprints = Fingerprints.of(self.ranker)
        self.vectors = dict(zip(TEXTS, np.asarray(self.ranker.encode_candidates(TEXTS)), strict=True))
        self.contexts = self.ranker.encode_contexts(CONTEXTS)

    def problem(self, folder: Path, *states: Mapping[str, str], tolerance: float = 1e-4) -> str | None:
        """Why an index holds none of these states, texts by id, each with its own vector; None if it holds one."""
        try:
            verify(folder)
            index = FolderIndex.open(folder, self.fingerprints)
            try:
                return self.difference(index, *states, tolerance=tolerance)
            finally:
                index.close()
        except PolyencoderError as error:
            return f"cannot be read: {error}"

    def difference(
        self, index: FolderIndex, *states: Mapping[str, str], at_once: bool = True, tolerance: float = 1e-4
    ) -> str | None:
        """The same as `problem` for an open index: its texts, vectors, and the results of an exact search.

        Another process may change it meanwhile, unless `at_once`: then each result is that of a state of its own.
        """
        if not at_once:
            (hits, _) = index.search(self.contexts, top_k=1000, exactness=random.choice(["exact", "certified"]))
            texts = {hit.id: hit.text for hit in hits}
            if texts not in states:
                return "a search beside the writer gives the candidates of no state"
            expected = self.scores(texts)[0] if texts else {}
            if not all(abs(hit.score - expected[hit.id]) < 1e-3 for hit in hits):
                return "a search beside the writer gives another text's scores"
            return None
        names = {id_ for state in states for id_ in state}
        texts = index.get_texts(names)
        if texts not in states or len(index) != len(texts):
            return f"{len(index)} candidates: {sorted(texts.items())[:3]}..., not those of any state"
        for id_, vector in index.get_vectors(texts).items():
            if not np.allclose(vector, self.vectors[texts[id_]], atol=tolerance):
                return f"the vector of {id_!r} is not that of its text {texts[id_]!r}"
        if texts:
            for hits, expected in zip(index.search(self.contexts, top_k=len(texts)), self.scores(texts), strict=True):
                if {hit.id: hit.text for hit in hits} != texts or len(hits) != len(texts):
                    return "a search for all candidates misses some"
                if not np.allclose(
                    [hit.score for hit in hits], [expected[hit.id] for hit in hits], atol=100 * tolerance
                ):
                    return "a search gives scores that are not those of the texts"
        return None

    def scores(self, texts: Mapping[str, str]) -> list[dict[str, float]]:
        """The score of each id for each context, in float64: attend over the codes with the candidate, multiply."""
        stacked = np.stack([self.vectors[text] for text in texts.values()]).astype(np.float64)
        scores = []
        for codes in np.asarray(self.contexts.vectors, dtype=np.float64):
            logits = stacked @ codes.T
            weights = np.exp(logits - logits.max(axis=1, keepdims=True))
            scores.append(dict(zip(texts, (weights * logits).sum(1) / weights.sum(1), strict=True)))
        return scores

    def leftovers(self, folder: Path) -> set[str]:
        """Files of an index folder that belong to no state."""
        index = FolderIndex.open(folder, self.fingerprints)
        known = {"index.sqlite", "index.sqlite-wal", "index.sqlite-shm", "meta.json", ".lock"}
        known |= {file.name for file in index.state.files}
        index.close()
        return {name for name in os.listdir(folder) if name not in known or not is_ours(name)}


class Ended(NamedTuple):
    """How a child has ended."""

    signal: int
    """0 if none ended it."""
    text: str
    """What its work returned, or its traceback."""
    failed: bool


def begin(work: Callable[[], object]) -> tuple[int, int]:
    """Forks a process that does the work; gives its id, and the end of a pipe for `end`."""
    reader, writer = os.pipe()
    if child := os.fork():
        os.close(writer)
        return child, reader
    try:
        os.close(reader)
        try:
            answer = f"+{work()}"
        except BaseException:
            answer = f"-{traceback.format_exc(limit=-4, chain=False)}"
        os.write(writer, answer.encode(errors="replace")[:60_000])
    finally:
        os._exit(0)


def end(child: int, reader: int) -> Ended:
    """Waits for a process that `begin` has forked."""
    with open(reader, encoding="utf-8", errors="replace") as pipe:
        answer = pipe.read()
    status = os.waitpid(child, 0)[1]
    return Ended(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, answer[1:], answer[:1] != "+")


def in_child(work: Callable[[], object], *, seconds: int = 0) -> Ended:
    """Does the work in a forked process, which SIGALRM ends after so many seconds."""

    def limited() -> object:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        return work()

    return end(*begin(limited))


def records(texts: Mapping[str, str]) -> list[Candidate]:
    return [Candidate(id_, text) for id_, text in texts.items()]


def entries(texts: Iterable[str], *, start: int = 0) -> dict[str, str]:
    """These texts, each under an id of its own."""
    return {f"id {start + number}": text for number, text in enumerate(texts)}
