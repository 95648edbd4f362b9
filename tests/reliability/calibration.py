"""The stated risk is held: as often as it says, over many samples of made-up answers and of searches of an index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from scipy.stats import binom

from benchmarks.risk import Outcome, measure_promised, split
from polyencoder.calibration.fitting import Observations
from polyencoder.calibration.probability import DEPTH
from polyencoder.calibration.risk import Answers, prove
from polyencoder.index import Candidate, FolderIndex
from polyencoder.index.folder.build import build_index
from polyencoder.index.meta import Fingerprints
from polyencoder.search.contexts import Contexts
from tests.reliability.world import Budget, Counts

CONFIDENCE = 0.9
UNANSWERABLE = 0.5
CHANCE = 1e-5  # of so many broken promises, where they are held as often as they say


def made_up(n: int, rng: np.random.Generator) -> Answers:
    """Answers whose probability orders them well and is far from true."""
    x = rng.normal(size=n)
    return Answers(1 / (1 + np.exp(-1.5 * x)), rng.random(n) < 1 / (1 + np.exp(-2.5 * x - 1)))


def searched(folder: Path, rng: np.random.Generator, *, examples: int, rows: int = 150, dim: int = 16) -> Observations:
    """The results of an index of random vectors for noisy ones."""
    vectors = rng.normal(size=(rows, dim)).astype(np.float32)
    records = [Candidate(str(row), f"text {row}", None, "", vector) for row, vector in enumerate(vectors)]
    build_index(folder, records, Fingerprints("made up"))
    targets = rng.integers(rows, size=examples)
    noise = rng.normal(size=(examples, dim)) * rng.choice([0.2, 0.5, 1.0], size=(examples, 1))
    with FolderIndex.open(folder) as index:
        contexts = Contexts.from_encoding((vectors[targets] + noise).astype(np.float32))
        hits = index.search(contexts, top_k=DEPTH, exactness="exact")
    right = [[hit.id == str(row) for hit in each] for each, row in zip(hits, targets, strict=True)]
    scores = [[hit.score for hit in each] for each in hits]
    return Observations(
        torch.tensor(scores, dtype=torch.float64), torch.tensor(right), torch.full((examples,), rows), depth=DEPTH
    )


def run(*, seed: int, budget: Budget, folder: Path) -> Counts:
    counts, rng = Counts(), np.random.default_rng(seed)
    pool = searched(folder / "index", rng, examples=4_000)
    answerable = torch.as_tensor(rng.random(len(pool)) >= UNANSWERABLE)
    answered = pool.keep_right_where(answerable)
    for number in budget(counts):
        risk = (0.05, 0.1, 0.2)[number // 2 % 3]
        if number % 2:
            sample, others = split(len(pool), 400, rng)
            outcomes = measure_promised(
                pool.select(sample), answered.select(others),
                risks=[risk], unanswerable=UNANSWERABLE, confidence=CONFIDENCE, seed=number,
            )  # fmt: skip
            outcome, kind = outcomes[risk], "index"
        else:
            promise = prove(made_up(300, rng), made_up(300, rng), risk=risk, confidence=CONFIDENCE)
            outcome, kind = promise and Outcome.from_answers(made_up(20_000, rng), promise.threshold), "made up"
        if outcome is None:
            counts.count(f"{kind}: none promised")
        else:
            counts.count(f"{kind}: held" if outcome.wrong <= risk else f"{kind}: broken")
    for kind in ("index", "made up"):
        broken = counts.of.get(f"{kind}: broken", 0)
        promised = broken + counts.of.get(f"{kind}: held", 0)
        if promised and binom.sf(broken - 1, promised, 1 - CONFIDENCE) < CHANCE:
            counts.fail("wrong", f"{kind}: {broken} of {promised} promises are broken")
    return counts
