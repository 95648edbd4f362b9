"""The paper's Table 5: the time to answer ConvAI2 contexts with many candidates, context encoding included.

ParlAI's `transformer/polyencoder` and our rankers have the same transformer, a BERT-base with random weights (time does
not depend on them), and the same dictionary: ParlAI's agent is made and saved, and our poly-encoder is that file. All
know the candidates' vectors beforehand. These are drawn, and the candidates behind them texts that repeat, as nothing
depends on them either; but ours and ParlAI's must find the same reply. The systems take turns with each context.

A cross-encoder knows nothing beforehand; it has fewer contexts, as the row says.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.agents import make_agent, options, size
from polyencoder.index.meta import separable
from polyencoder.models import build_model
from polyencoder.ranker import Ranker
from polyencoder.scoring import search

__all__ = ["SIZE", "measure", "vs_parlai"]

SIZE = {"layers": 12, "dim": 768, "heads": 12}
"""BERT-base."""
CODES = 64
OURS, BF16, THEIRS = f"poly-{CODES}", f"poly-{CODES}, bf16", f"ParlAI's poly-{CODES}"
COUNTS = (1_000, 100_000)
Answer = Callable[[list[str]], tuple[str, float]]
"""From a context's turns to the reply and the seconds that its encoding took."""


def measure(
    datapath: Path,
    texts: Sequence[str],
    contexts: Sequence[list[str]],
    folder: Path,
    *,
    size_of: Mapping[str, int] = SIZE,
    counts: Sequence[int] = COUNTS,
    cross: tuple[int, int],
) -> list[dict[str, Any]]:
    """A row for each system and number of candidates; `cross` is how many contexts and candidates the last one has."""
    agent, ranker = _same_model(datapath, texts, folder, size_of)
    vectors = torch.randn(max(counts), separable(ranker).dim)
    rows = []
    for n in counts:
        candidates = [texts[i % len(texts)] for i in range(n)]
        systems = _ours(ranker, vectors[:n], candidates) | {THEIRS: _theirs(agent, vectors[:n], candidates)}
        rows += _timed(systems, contexts, candidates=n)
    n_contexts, n = cross
    crossed = Ranker(build_model(_cross_config(ranker), separable(ranker).context_tower), ranker.text, device="cpu")

    def answer(turns: list[str]) -> tuple[str, float]:
        return crossed.rank(turns, list(texts[:n]), top_k=1)[0].text, 0.0

    return rows + _timed({"cross-encoder": answer}, contexts[:n_contexts], candidates=min(n, len(texts)))


def vs_parlai(rows: Sequence[dict[str, Any]], column: str, *, ours: str = OURS) -> float | None:
    """How many times ParlAI's time ours is faster by, at the most candidates; `column` is the time."""
    most = max(row["candidates"] for row in rows)
    times = {row["system"]: row[column] for row in rows if row["candidates"] == most}
    return times[THEIRS] / times[ours] if {ours, THEIRS} <= times.keys() else None


def _timed(systems: Mapping[str, Answer], contexts: Sequence[list[str]], *, candidates: int) -> list[dict[str, Any]]:
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
    replies: dict[str, list[str]] = {name: [] for name in systems}
    for answer in systems.values():
        answer(contexts[0])  # not counted
    for turns in contexts:
        for name, answer in systems.items():
            start = time.perf_counter()
            reply, encoding = answer(turns)
            seconds[name].append((time.perf_counter() - start, encoding))
            replies[name].append(reply)
    return [
        {
            "case": "answering",
            "system": name,
            "candidates": candidates,
            "contexts": len(contexts),
            "mean_ms": 1e3 * statistics.mean(whole for whole, _ in seconds[name]),
            "median_ms": 1e3 * statistics.median(whole for whole, _ in seconds[name]),
            "after_encoding_ms": 1e3 * statistics.median(whole - encoding for whole, encoding in seconds[name]),
            "replies_as_parlai": _share_equal(replies[name], replies.get(THEIRS)) if name in (OURS, BF16) else None,
        }
        for name in systems
    ]


def _same_model(datapath: Path, texts: Sequence[str], folder: Path, size_of: Mapping[str, int]) -> tuple[Any, Ranker]:
    """ParlAI's agent, with a few candidates, and our ranker of the file that it saves."""
    file = folder / "candidates.txt"
    file.write_text("\n".join(texts[:2]), encoding="utf-8")
    opt = options(
        folder=folder / "parlai",
        training=False,
        model="transformer/polyencoder",
        model_file=str(folder / "model"),
        datapath=str(datapath),
        eval_candidates="fixed",
        fixed_candidates_path=str(file),
        encode_candidate_vecs=True,
        **size(**size_of, codes=CODES),
    )
    agent = make_agent(opt)
    agent.save(str(folder / "model"))
    return agent, Ranker.from_pretrained(folder / "model", device="cpu")


def _ours(ranker: Ranker, vectors: Tensor, candidates: Sequence[str]) -> dict[str, Answer]:
    """Bi- and poly-encoders around one tower, and the poly-encoder with weights and vectors in bfloat16."""
    model = separable(ranker)
    config = replace(model.config, share_encoders=True)

    def around(**changes: Any) -> Ranker:
        return Ranker(build_model(replace(config, **changes), model.context_tower), ranker.text, device="cpu")

    rounded = Ranker(copy.deepcopy(model), ranker.text, device="cpu")
    rounded.model.bfloat16()
    return {
        "bi-encoder": _answers(around(architecture="bi"), vectors, candidates),
        "poly-16": _answers(around(n_codes=16), vectors, candidates),
        OURS: _answers(ranker, vectors, candidates),
        "poly-360": _answers(around(n_codes=360), vectors, candidates),
        BF16: _answers(rounded, vectors.bfloat16(), candidates),
    }


def _answers(ranker: Ranker, vectors: Tensor, candidates: Sequence[str]) -> Answer:
    def answer(turns: list[str]) -> tuple[str, float]:
        start = time.perf_counter()
        context = ranker.encode_contexts([turns])
        encoded = time.perf_counter() - start
        best = search(context, vectors, k=1).indices
        return candidates[int(best)], encoded

    return answer


def _theirs(agent: Any, vectors: Tensor, candidates: Sequence[str]) -> Answer:
    """ParlAI's agent with these candidates as if it had encoded them."""
    agent.fixed_candidates = candidates
    agent.num_fixed_candidates = len(candidates)
    agent.fixed_candidate_vecs = torch.zeros(len(candidates), 1, dtype=torch.long)
    agent.fixed_candidate_encs = vectors.unsqueeze(0)
    encode = type(agent).get_ctxt_rep
    seconds = 0.0

    def timed(batch: Any) -> Any:
        nonlocal seconds
        start = time.perf_counter()
        encoded = encode(agent, batch)
        seconds = time.perf_counter() - start
        return encoded

    agent.get_ctxt_rep = timed

    def answer(turns: list[str]) -> tuple[str, float]:
        agent.reset()
        agent.observe({"id": "user", "text": "\n".join(turns), "episode_done": True})
        return agent.act()["text"], seconds

    return answer


def _cross_config(ranker: Ranker) -> Any:
    config = ranker.model.config
    text = replace(config.text, text_truncate=360, label_truncate=72)
    return replace(config, architecture="cross", text=text)


def _share_equal(replies: Sequence[str], others: Sequence[str] | None) -> float | None:
    if others is None:
        return None
    return sum(one == other for one, other in zip(replies, others, strict=True)) / len(replies)
