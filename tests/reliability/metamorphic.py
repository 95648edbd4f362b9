"""What must not change a score does not, for every architecture and backend; and the backends agree.

A trial draws a model, contexts and candidates, and changes what is asked: candidates in another order, twice, one at a
time, beside a long one that pads the others, contexts alone. `differential`: ONNX graphs, bfloat16 and 8 bits give
torch's scores, and FAISS, PostgreSQL and Milvus, where they are installed, find what a scan finds, up to the ties that
are stated in TOLERANCE.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from polyencoder.export.onnx import export_onnx, exporters, quantize_int8
from polyencoder.index.open import open_index
from polyencoder.ranker import Ranker
from polyencoder.text.subwords.learning import SubwordSettings, count_words, learn_subwords
from tests.postgres import binaries, postgres_server
from tests.reliability.world import TEXTS, WORDS, Budget, Counts, entries, records, tiny_ranker

TOLERANCE = {"torch": 1e-4, "onnx": 1e-4, "bfloat16": 0.05, "onnx-int8": 0.25}
"""The largest difference from torch's float32, as a share of the largest score's absolute value."""
CONVERT = {"hidden_size": 16, "attention_limits": (2, 8), "attention_size": 8, "intermediate_size": 32,
           "reduction_size": 8, "head_sizes": (24, 24), "output_size": 16, "scale_batches": 0}  # fmt: skip
ARCHITECTURES = ["bi", "poly", "cross", "late", "convert"]
LONG = " ".join(WORDS[:30])


def reordered(ranker: Any, contexts: list[Any], texts: list[str], draw: random.Random) -> np.ndarray:
    order = draw.sample(range(len(texts)), len(texts))
    scores = np.asarray(ranker.score(contexts, [texts[i] for i in order]))
    return scores[:, np.argsort(order)]


def repeated(ranker: Any, contexts: list[Any], texts: list[str], draw: random.Random) -> np.ndarray:
    scores = np.asarray(ranker.score(contexts, [*texts, *texts]))
    return scores[:, len(texts) :]


def alone(ranker: Any, contexts: list[Any], texts: list[str], draw: random.Random) -> np.ndarray:
    return np.concatenate([np.asarray(ranker.score(contexts, [text])) for text in texts], axis=1)


def contexts_alone(ranker: Any, contexts: list[Any], texts: list[str], draw: random.Random) -> np.ndarray:
    return np.concatenate([np.asarray(ranker.score([context], texts)) for context in contexts])


def padded(ranker: Any, contexts: list[Any], texts: list[str], draw: random.Random) -> np.ndarray:
    """Beside a candidate and a context that are longer, and irrelevant."""
    return np.asarray(ranker.score([*contexts, [LONG, LONG]], [*texts, LONG]))[:-1, :-1]


CHANGES: list[Callable[..., np.ndarray]] = [reordered, repeated, alone, contexts_alone, padded]


def rankers(folder: Path, seed: int, names: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each architecture, with the same model by each backend."""
    (folder / "vocabulary").mkdir(parents=True)
    subwords = learn_subwords(count_words(TEXTS), SubwordSettings(min_count=2, buckets=9))
    (folder / "vocabulary" / "tokenizer.json").write_text(subwords.to_str(), encoding="utf-8")
    for name in names:
        if name == "convert":
            ranker = Ranker.from_vocabulary(folder / "vocabulary", device="cpu", **CONVERT)
        else:
            ranker = tiny_ranker(name, seed=seed)
        ranker.save_pretrained(folder / name)
        backends = {"torch": ranker}
        if name != "convert":
            backends["bfloat16"] = Ranker.from_pretrained(folder / name, dtype="bfloat16", device="cpu")
        if find_spec("onnxruntime") and find_spec("onnx"):
            with mock.patch.object(exporters, "IS_CURRENT", False):  # in a tenth of the time
                export_onnx(ranker, folder / name)
            backends["onnx"] = Ranker.from_pretrained(folder / name, backend="onnx", device="cpu")
            if name != "convert":
                quantize_int8(folder / name)
                backends["onnx-int8"] = Ranker.from_pretrained(folder / name, backend="onnx-int8", device="cpu")
        yield name, backends


def differ(scores: np.ndarray, expected: np.ndarray, *, share: float) -> str | None:
    tolerance = share * max(1.0, float(np.abs(expected).max()))
    distance = float(np.abs(scores - expected).max())
    if scores.shape != expected.shape or not distance <= tolerance:
        return f"scores are {distance:.3g} from what they must be, more than {tolerance:.3g}"
    for now, then in zip(scores, expected, strict=True):  # the order is the same but for such ties
        ranked = then[np.argsort(-now, kind="stable")]
        if (np.maximum.accumulate(ranked[::-1])[::-1] - ranked > 2 * tolerance).any():
            return "another order"
    return None


@contextlib.contextmanager
def databases(folder: Path, ranker: Ranker, *, servers: bool) -> Iterator[dict[str, Any]]:
    """Indexes of the same candidates by each engine that is installed."""
    with contextlib.ExitStack() as stack:
        addresses = {"folder": str(folder / "scan")}
        if find_spec("faiss"):
            addresses["FAISS"] = str(folder / "faiss")
        if servers and find_spec("psycopg") and (programs := binaries()) is not None:
            addresses["PostgreSQL"] = f"{stack.enter_context(postgres_server(programs)).address}#candidates"
        if servers and find_spec("milvus_lite"):
            addresses["Milvus"] = f"milvus:{folder / 'milvus.db'}#candidates"
        indexes = {}
        for name, address in addresses.items():
            options = {"faiss": "ivf-flat,nlist=1,storage=float32"} if name == "FAISS" else {}
            ranker.index(records(entries(TEXTS)), address, **options).close()
            indexes[name] = stack.enter_context(open_index(address, ranker))
        yield indexes


def run(*, seed: int, budget: Budget, folder: Path) -> Counts:
    counts, draw = Counts(), random.Random(seed)
    whole = budget.trials > 100  # else not worth the time that exports and servers take
    by_architecture = dict(rankers(folder / "models", seed, ARCHITECTURES if whole else [draw.choice(ARCHITECTURES)]))
    separable = tiny_ranker("poly", seed=seed)
    with databases(folder, separable, servers=whole) as indexes:
        for number in budget(counts):
            contexts = [draw.sample(TEXTS, draw.randint(1, 3)) for _ in range(draw.randint(1, 4))]
            texts = draw.sample(TEXTS, draw.randint(2, 12))
            if number % 4 == 3:
                name = draw.choice([*indexes])
                counts.count(name)
                problem = _searched(indexes, name, separable.encode_contexts(contexts))
                where = name
            else:
                architecture = draw.choice([*by_architecture])
                backend = draw.choice([*by_architecture[architecture]])
                change = draw.choice([None, *CHANGES])
                ranker, torch_ranker = by_architecture[architecture][backend], by_architecture[architecture]["torch"]
                if change is None:
                    scores, expected = ranker.score(contexts, texts), torch_ranker.score(contexts, texts)
                else:
                    scores, expected = change(ranker, contexts, texts, draw), ranker.score(contexts, texts)
                counts.count(f"{architecture} {backend}")
                problem = differ(np.asarray(scores), np.asarray(expected), share=TOLERANCE[backend])
                where = f"{architecture} {backend}, {change.__name__ if change else 'as torch'}"
            if problem:
                counts.fail("wrong", f"trial {number}, {where}: {problem}")
    shutil.rmtree(folder / "models")
    return counts


def _searched(indexes: dict[str, Any], name: str, contexts: Any) -> str | None:
    exactness = {"FAISS": "certified"}.get(name, "exact")
    results, expected = (
        indexes[each].search(contexts, top_k=10, exactness=exactness if each == name else "exact")
        for each in (name, "folder")
    )
    scores, expected_scores = (np.array([[hit.score for hit in hits] for hits in each]) for each in (results, expected))
    if not np.allclose(scores, expected_scores, rtol=1e-4, atol=1e-4):
        return f"{name} finds scores that differ from a scan's by {np.abs(scores - expected_scores).max():.3g}"
    return None
