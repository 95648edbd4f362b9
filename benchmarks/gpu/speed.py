"""Measures the speed of training, beside sentence-transformers, and of answering: the paper's Table 5."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import Work, import_peer, measure_interleaved_ms
from benchmarks.gpu.fixtures import TINY, make_examples, make_ranker
from benchmarks.search import answering
from benchmarks.search.encoding import load_sentence_transformer
from benchmarks.search.systems import BERT_BASE, FORMULA
from benchmarks.search.texts import make_candidates, make_contexts
from polyencoder.config import Architecture
from polyencoder.data.collator import Collator
from polyencoder.data.example import Example
from polyencoder.ranker import Ranker
from polyencoder.training import TrainingConfig
from polyencoder.training.trainer import Trainer

PEER = "sentence-transformers"
RATE = 2e-5


def measure_training(*, device: str, quick: bool) -> dict[str, Any]:
    """Steps in bfloat16 of a batch of 512: at once where the memory allows it, and by gradient caching of 64."""
    batch, size = (8, TINY) if quick else (512, BERT_BASE)
    data = make_examples(batch, turns=8)
    config = TrainingConfig.of(
        max_updates=1_000, batch_size=batch, fine_tuned="all", precision="bfloat16", learning_rate=RATE
    )
    kinds: list[Architecture] = ["bi", "poly"]
    rows: list[dict[str, Any]] = []
    for architecture in kinds:
        for cached in (0, 2 if quick else 64):
            ranker = make_ranker(architecture, data, device=device, size=size, reduction="mean", share_encoders=True)
            steps: dict[str, Work] = {"ours": _build_our_step(ranker, config, data, cached)}
            with tempfile.TemporaryDirectory() as folder:
                if architecture == "bi" and not cached and importlib.util.find_spec("sentence_transformers"):
                    steps[PEER] = _build_peer_step(ranker, data, Path(folder), device=device)
                about = {"architecture": architecture, "grad_cache": cached, "batch": batch}
                rows += [{**about, **row} for row in _time_steps(steps, ranker, data, repeats=2 if quick else 5)]
            torch.cuda.empty_cache()
    speeds = {(row["architecture"], row["grad_cache"], row["peer"]): row.get("tokens_per_second") for row in rows}
    ours, peer = speeds.get(("bi", 0, "ours")), speeds.get(("bi", 0, PEER))
    return {"rows": rows, "summary": {"bi_vs_sentence_transformers": ours / peer if ours and peer else None}}


def _time_steps(
    steps: Mapping[str, Work], ranker: Ranker, data: Sequence[Example], *, repeats: int
) -> list[dict[str, Any]]:
    """A row for each peer."""
    try:
        times = measure_interleaved_ms(steps, repeats=repeats)
    except torch.cuda.OutOfMemoryError:
        return [{"peer": name, "why": "not enough GPU memory"} for name in steps]
    lengths = [len(ranker.text.tokenize_context(example.turns)) for example in data]
    lengths += [len(ids) for ids in ranker.text.tokenize_candidates([example.label for example in data])]
    return [
        {
            "peer": name,
            "ms": ms,
            "examples_per_second": len(data) / ms * 1e3,
            "tokens_per_second": sum(lengths) / ms * 1e3,
            "peak_gb": torch.cuda.max_memory_allocated() / 2**30 if ranker.device.type == "cuda" else None,
        }
        for name, ms in times.items()
    ]


def _build_our_step(ranker: Ranker, config: TrainingConfig, data: Sequence[Example], cached: int) -> Work:
    trainer, collate = Trainer(ranker, replace(config, grad_cache=cached)), Collator(ranker.text)
    return lambda: trainer.step(collate(list(data)))


def _build_peer_step(ranker: Ranker, data: Sequence[Example], folder: Path, *, device: str) -> Work:
    """A step of MultipleNegativesRankingLoss on the same encoder, tokenizing included, in the same precision."""
    losses = import_peer("sentence_transformers.sentence_transformer.losses")
    ranker.save_pretrained(folder)
    model = load_sentence_transformer(folder).to(device).train()
    loss = losses.MultipleNegativesRankingLoss(model, scale=20.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    contexts, labels = ["\n".join(example.turns) for example in data], [example.label for example in data]

    def tokenize(texts: Sequence[str]) -> dict[str, Any]:
        tokens = model.preprocess(list(texts))
        return {name: value.to(device) if hasattr(value, "to") else value for name, value in tokens.items()}

    def run_step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            value = loss([tokenize(contexts), tokenize(labels)], torch.arange(len(data), device=device))
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return run_step


def measure_answering(*, device: str, quick: bool) -> dict[str, Any]:
    """Milliseconds an answer with 1,000 and 100,000 candidates: bi, poly-m, first-m; the cross-encoder with 1,000."""
    with tempfile.TemporaryDirectory() as folder:
        rows = answering.measure(
            None,
            make_candidates(1_000),
            make_contexts(3 if quick else 100),
            Path(folder),
            size_of=TINY if quick else BERT_BASE,
            counts=(20, 100) if quick else (1_000, 100_000),
            cross=(1, 20) if quick else (10, 1_000),
            device=device,
        )
    table = [row for row in rows if not row["system"].startswith("cross-encoder")]
    faster = answering.compute_speedup(table, "after_encoding_ms", than=FORMULA)
    return {"rows": rows, "summary": {"poly64_scoring_vs_formula": faster}}
