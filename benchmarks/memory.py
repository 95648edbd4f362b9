"""Measures the peak memory of a training step, with and without a limit on the activations kept at a time.

    python -m benchmarks.memory --json

A BERT-base-sized model from scratch with dropout, random contexts of 360 tokens and candidates of 72; one
step of AdamW each, including the optimizer's state. A poly-encoder with 64 codes and the other labels of the batch as
negatives: a plain batch, and 512 examples with the memory of `--grad-cache` contexts. A cross-encoder with 16 examples
of 16 candidates, all of 432 tokens, in pieces of `--pair-tokens`, and 64 pairs at once. `--lora RANK` trains adapters
of this rank in the place of the encoders' weights. Each case runs in a separate process, whose whole peak counts:
weights, gradients, optimizer state and imports.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from benchmarks.common import build_bert_config, build_parser, call_alone, print_report, read_memory_mb, use_threads
from polyencoder.config import Architecture, RankerConfig, TextConfig
from polyencoder.modeling.build import build_model
from polyencoder.text import TokenBatch
from polyencoder.training.gradient_caching import encode

VOCABULARY = 30_522
CONTEXT_TOKENS, CANDIDATE_TOKENS = 360, 72


class Case(NamedTuple):
    """One measurement: a batch of `examples` with as many candidates; `limit`: tokens kept at a time, None for all."""

    name: str
    architecture: Architecture
    examples: int
    candidates: int
    limit: int | None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--batch", type=int, default=512, help="examples of the poly-encoder's large batch")
    parser.add_argument("--plain-batch", type=int, default=16, help="examples of the batch without a limit")
    parser.add_argument("--grad-cache", type=int, default=4, help="contexts whose activations are kept at a time")
    parser.add_argument("--pair-tokens", type=int, default=1728, help="tokens of pairs that are kept at a time")
    parser.add_argument("--layers", type=int, default=12, help="layers of the encoders")
    parser.add_argument("--dim", type=int, default=768, help="dimensions of the encoders")
    parser.add_argument("--lora", type=int, help="rank of the adapters to train; without, all weights are trained")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16 (autocast)")
    parser.add_argument("--only", action="append", help="run only this case; may be repeated")
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)  # as the processes of the cases do: the report names their number
    if flags.quick:
        flags.layers, flags.dim = 2, 64
    settings = {"context_tokens": CONTEXT_TOKENS, "candidate_tokens": CANDIDATE_TOKENS}
    settings |= {name: getattr(flags, name) for name in ("layers", "dim", "bf16", "lora", "threads")}
    cache = flags.grad_cache * CONTEXT_TOKENS
    cases = [
        Case("poly plain", "poly", flags.plain_batch, flags.plain_batch, None),
        Case("poly cached", "poly", flags.batch, flags.batch, cache),
        Case("cross plain", "cross", 8, 8, None),
        Case("cross limited", "cross", 16, 16, flags.pair_tokens),
    ]
    if flags.only:
        cases = [case for case in cases if case.name in flags.only]
    rows = [call_alone(_measure, case, settings, threads=flags.threads) for case in cases]
    summary = {f"{row['name']}, GB": row["peak_gb"] for row in rows}
    report = {"benchmark": "memory", "settings": settings, "rows": rows, "summary": summary}
    print_report(report, as_json=flags.json)


def _measure(case: Case, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one step of a new model; return its seconds and the peak memory of this process."""
    torch.manual_seed(0)
    model = build_model(_build_config(case, dim=settings["dim"], layers=settings["layers"])).train()
    if settings["lora"]:
        model.add_adapters(rank=settings["lora"])
    contexts = _make_tokens(case.examples, CONTEXT_TOKENS)
    candidates = _make_tokens(case.candidates, CANDIDATE_TOKENS)
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=5e-5)
    start, processor = time.perf_counter(), time.process_time()
    with torch.autocast("cpu", torch.bfloat16, enabled=settings["bf16"]):
        if model.has_vectors:
            scores = model.score(*encode(model, contexts, candidates, max_tokens=case.limit))
        else:
            scores = model(contexts, candidates, max_tokens=case.limit)
    F.cross_entropy(scores.float(), torch.arange(len(scores))).backward()
    optimizer.step()
    seconds = {"seconds": time.perf_counter() - start, "processor_seconds": time.process_time() - processor}
    return {**case._asdict(), **seconds, "peak_gb": read_memory_mb("VmHWM") / 1024}


def _build_config(case: Case, *, dim: int, layers: int) -> RankerConfig:
    size = {"layers": layers, "dim": dim, "heads": dim // 64}
    backbone = build_bert_config(size, vocabulary_size=VOCABULARY, dropout=0.1, attention_dropout=0.1)
    text = TextConfig(text_truncate=CONTEXT_TOKENS, label_truncate=CANDIDATE_TOKENS)
    return RankerConfig(architecture=case.architecture, backbone=backbone, text=text)


def _make_tokens(n: int, length: int) -> TokenBatch:
    ids = torch.randint(1000, VOCABULARY, (n, length))
    return TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool))


if __name__ == "__main__":
    main()
