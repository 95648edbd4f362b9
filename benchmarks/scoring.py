"""Exact poly-encoder scoring against ParlAI's own module, on the same tensors.

For each number of candidates and of codes, batch 1, the median time of
- floor: the bare matrix product, candidates times codes, in torch;
- search: the ten best candidates, by `polyencoder.search`; torch_search: the same by torch;
- fp32_score: all scores;
- parlai: ParlAI's attention and dot product, without its sort.

Threads that share their cores with other processes wait for each other at every step, and the more steps the longer: on
a busy machine compare with `--threads 1`.

Needs ParlAI: `pip install --no-deps parlai==1.7.2`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.agents import import_quietly
from benchmarks.common import build_parser, measure_interleaved_ms, measure_peak_extra_mb, print_report, use_threads
from benchmarks.search import by_torch
from polyencoder.scoring import ContextEncoding, score
from polyencoder.search.contexts import Contexts
from polyencoder.search.scan import search

DIM = 768
TOP_K = 10
COUNTS = (1_000, 100_000)
HEADLINE = (100_000, 64)  # the case of the summary: candidates, codes

DRAWN = (
    "Candidates: 0.45 a topic (of 1000) + 0.89 noise. Codes: 0.35 the context's topic + 0.35 the code's own topic + "
    "0.87 noise. All parts normal, scaled so that logits of unrelated vectors have a standard deviation of 3; those of "
    "one topic are about 13 higher. They stand in for a trained model's vectors: a hundred candidates of each topic "
    "are rivals for the first places, where pure noise has a few lucky ones far apart."
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser(__doc__)
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    rank_with_parlai = _build_parlai_scorer()

    torch.manual_seed(0)
    repeats = 5 if flags.quick else 15
    code_counts = (16, 64) if flags.quick else (16, 64, 360)
    topics = torch.randn(1000, DIM)
    with torch.inference_mode():
        rows = []
        for n in COUNTS:
            candidates = draw_candidates(topics, n=n)
            for codes in code_counts:
                context = draw_contexts(topics, contexts=1, codes=codes)
                rows.append(measure(context, candidates, rank_with_parlai, repeats=repeats))

    headline = next(row for row in rows if (row["candidates"], row["codes"]) == HEADLINE)
    settings = {"dim": DIM, "top_k": TOP_K, "repeats": repeats, "vectors": DRAWN}
    summary = {
        "search_vs_parlai": headline["parlai_ms"] / headline["search_ms"],
        "search_vs_floor": headline["search_ms"] / headline["floor_ms"],
        "extra_memory_mb": headline["extra_memory_mb"],
    }
    print_report({"benchmark": "scoring", "settings": settings, "rows": rows, "summary": summary}, as_json=flags.json)


def draw_candidates(topics: Tensor, *, n: int) -> Tensor:
    """[n, dim], as `DRAWN` says."""
    topic = torch.randint(len(topics), (n,))
    return _scale(0.45 * topics[topic] + 0.89 * torch.randn(n, DIM))


def draw_contexts(topics: Tensor, *, contexts: int, codes: int) -> ContextEncoding:
    """Contexts of [codes, dim] each, as `DRAWN` says."""
    of_context = torch.randint(len(topics), (contexts, 1))
    of_code = torch.randint(len(topics), (contexts, codes))
    noise = torch.randn(contexts, codes, DIM)
    return ContextEncoding(_scale(0.35 * topics[of_context] + 0.35 * topics[of_code] + 0.87 * noise))


def _scale(vectors: Tensor) -> Tensor:
    """From unit variance to a product of two such vectors with a standard deviation of 3."""
    return vectors * (3 / DIM**0.5) ** 0.5


def measure(
    encoded: ContextEncoding, candidates: Tensor, parlai: Callable[[ContextEncoding, Tensor], Tensor], *, repeats: int
) -> dict[str, Any]:
    """One row of the report, of one context."""
    codes = encoded.vectors[0]
    arrays, rows = Contexts.from_encoding(encoded), candidates.numpy()
    search_rows = partial(search, arrays, rows, k=TOP_K)
    expected, parlai_scores = score(encoded, candidates), parlai(encoded, candidates)
    torch.testing.assert_close(parlai_scores, expected, rtol=1e-4, atol=1e-4)
    times = measure_interleaved_ms(
        {
            "floor": lambda: candidates @ codes.t(),
            "search": search_rows,
            "torch_search": lambda: by_torch.search(encoded, candidates, k=TOP_K),
            "fp32_score": lambda: score(encoded, candidates),
            "parlai": lambda: parlai(encoded, candidates),
        },
        repeats=repeats,
    )
    return {
        "candidates": len(candidates),
        "codes": encoded.n_codes,
        **{f"{name}_ms": value for name, value in times.items()},
        "search_vs_parlai": times["parlai"] / times["search"],
        "extra_memory_mb": measure_peak_extra_mb(search_rows),
        "parlai_extra_memory_mb": measure_peak_extra_mb(lambda: parlai(encoded, candidates)),
    }


def _build_parlai_scorer() -> Callable[[ContextEncoding, Tensor], Tensor]:
    """ParlAI's way for encoded candidates [1, n, dim] and batch size 1, where it needs no expansion."""
    import_quietly()
    from parlai.agents.transformer.polyencoder import PolyBasicAttention

    def score_by_parlai(context: ContextEncoding, candidates: Tensor) -> Tensor:
        attention = PolyBasicAttention("codes", context.n_codes, dim=2, attn="basic", get_weights=False)
        mask = context.vectors.new_ones(1, context.n_codes).byte()
        encodings = candidates.unsqueeze(0)
        attended = attention(encodings, context.vectors, mask_ys=mask, values=context.vectors)
        return torch.sum(attended * encodings, 2)

    return score_by_parlai


if __name__ == "__main__":
    main()
