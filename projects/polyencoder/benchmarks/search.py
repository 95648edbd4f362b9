"""Search among many stored vectors: the exact scan, FAISS with exact re-scoring, and what other rankings would find.

For each number of codes, one context at a time, the median time and what was found of the true ten best:
- scan: all rows scored, fp32; scan_bf16: a bf16 pass and the best of it again in fp32; scan_int8: int8 vectors;
- hnsw, ivf-flat, ivf-pq: `FaissSearch` at several efforts;
- faiss-flat: the peer of the scan for one code, where the score is an inner product: FAISS's own brute force;
- maxsim-max, maxsim-sum: a ranking by the largest or the sum of the codes' inner products, as engines for many vectors
  do. Its recall says how far that is from the poly-encoder's score.

`certified_share` is over contexts with the most codes: how many of them end with a certificate, not with a scan.

The vectors are drawn, or grown from real ones: `--vectors FILE.npy` [n, dim] of a model's candidates (rows above n are
copies with noise), `--contexts-from FILE.npy` [contexts, codes, dim] of its contexts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyencoder.benchmarks.common import argument_parser, interleaved_ms, machine, print_report, use_threads
from polyencoder.extras import require
from polyencoder.index.approximate import FaissSearch
from polyencoder.index.exact import scan
from polyencoder.index.faiss_file import build_faiss
from polyencoder.index.vectors import Vectors, quantize, write_vectors
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring.search import RunningTopK

TOP_K = 10
RECALL_WANTED = 0.99
SHARD = 1 << 16
LENGTH = 20**0.5  # of all vectors: logits up to 20, as of models that are trained with cosines times 20
PERTURBED = 0.35  # the length of the noise, as a share, when a real vector is copied
DRAWN = (
    "Drawn: topics, one for each 100 rows, and 0.8 noise, both with variances that fall as 1 / (1 + i / 16) over the "
    "dimensions i. A context's codes: 0.7 one row, 0.5 another row for each code, 0.4 noise."
)
GROWN = f"Real vectors, and copies of them with noise of {PERTURBED} times their length."
# (list_length, effort) that are tried: effort is ef_search for hnsw, nprobe for ivf.
TRIED = {
    "hnsw": [(16, 16), (16, 32), (32, 64), (64, 128), (128, 256)],
    "ivf-flat": [(16, 4), (16, 16), (32, 32), (32, 64), (64, 128)],
    "ivf-pq": [(32, 16), (64, 32), (128, 64), (256, 128)],
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="stored vectors")
    parser.add_argument("--dim", type=int, default=384, help="of drawn vectors")
    parser.add_argument("--codes", type=int, nargs="+", default=[1, 16, 64], help="of drawn contexts")
    parser.add_argument("--contexts", type=int, default=100, help="over which recall is counted")
    parser.add_argument("--timed", type=int, default=10, help="of these, how many are timed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=list(TRIED), choices=list(TRIED))
    parser.add_argument("--vectors", type=Path, help="real vectors to grow from, .npy [n, dim]")
    parser.add_argument("--contexts-from", type=Path, help="real contexts, .npy [contexts, codes, dim]")
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    rows = flags.rows // 10 if flags.quick else flags.rows
    torch.manual_seed(0)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = None if flags.vectors is None else torch.from_numpy(np.load(flags.vectors)).float()
        vectors = _store(folder / "float32", _drawn(rows, flags.dim) if base is None else _grown(base, rows))
        small = _store(folder / "int8", (vectors.take(r) for r in torch.arange(rows).split(SHARD)), dtype="int8")
        if flags.contexts_from is None:
            contexts = {codes: _draw_contexts(vectors, flags.contexts, codes) for codes in flags.codes}
        else:
            real = torch.from_numpy(np.load(flags.contexts_from)[: flags.contexts]).float()
            contexts = {real.size(1): ContextEncoding(real)}
        truth = {codes: scan(context, vectors, top_k=TOP_K).indices for codes, context in contexts.items()}

        flat = _flat(vectors)
        timing = {"timed": flags.timed, "repeats": flags.repeats}
        report_rows = [
            row
            for codes, context in contexts.items()
            for row in _exact_rows(context, truth[codes], vectors, small, flat if codes == 1 else None, **timing)
        ]
        del flat
        certified_share = None
        for kind in flags.kinds:
            start = time.perf_counter()
            meta = build_faiss(vectors.folder, vectors, kind=kind)
            built = {
                "kind": kind,
                "build_s": time.perf_counter() - start,
                "size_mb": (vectors.folder / meta.file_name).stat().st_size / 2**20,
            }
            searcher = FaissSearch.open(vectors.folder, vectors)
            for codes, context in contexts.items():
                report_rows += _faiss_rows(searcher, context, truth[codes], built, **timing)
            if kind == "ivf-flat":
                found = searcher.search(contexts[max(contexts)], top_k=TOP_K, exactness="certified").found
                certified_share = found.count("certified") / len(found)

    settings = {"rows": rows, "dim": vectors.dim, "top_k": TOP_K, "contexts": flags.contexts, **timing}
    report = {
        "benchmark": "search",
        "machine": machine(),
        "settings": {**settings, "vectors": DRAWN if base is None else GROWN},
        "rows": report_rows,
        "summary": {**_best_index(report_rows, codes=max(contexts)), "certified_share": certified_share},
    }
    print_report(report, as_json=flags.json)


def _exact_rows(
    context: ContextEncoding, truth: Tensor, vectors: Vectors, small: Vectors, flat: Any, *, timed: int, repeats: int
) -> Iterator[dict[str, Any]]:
    """The rows of the report for all that looks at every vector."""
    ones = [context.select(i) for i in range(min(timed, context.batch_size))]

    def bf16(context: ContextEncoding) -> Tensor:
        return scan(context, vectors, top_k=TOP_K, compute_dtype=torch.bfloat16).indices

    ways = {
        "scan": lambda context: scan(context, vectors, top_k=TOP_K).indices,
        "scan_bf16": bf16,
        "scan_int8": lambda context: scan(context, small, top_k=TOP_K).indices,
    }
    if flat is not None:
        ways["faiss-flat"] = lambda context: torch.from_numpy(flat.search(context.vectors[:, 0].numpy(), TOP_K)[1])
    peers = {name: (lambda way=way: [way(one) for one in ones]) for name, way in ways.items()}
    times = interleaved_ms(peers, repeats=repeats)
    if context.n_codes > 1:  # for one code these are the score itself
        ways["maxsim-max"] = lambda context: _largest_logit(context, vectors)
        ways["maxsim-sum"] = lambda context: _logit_sum(context, vectors)
    sizes = {name: _size_mb(vectors) for name in ways} | {"scan_int8": _size_mb(small)}
    for name, way in ways.items():
        found = way(context)
        yield {
            "codes": context.n_codes,
            "kind": name,
            "ms": times[name] / len(ones) if name in times else None,
            "recall10": _recall(found, truth),
            "top1": (found[:, 0] == truth[:, 0]).float().mean().item(),
            "vs_scan": times["scan"] / times[name] if name in times else None,
            "size_mb": sizes[name],
        }


def _faiss_rows(
    searcher: FaissSearch, context: ContextEncoding, truth: Tensor, built: dict[str, Any], *, timed: int, repeats: int
) -> Iterator[dict[str, Any]]:
    """The rows of the report for one FAISS index."""
    ones = [context.select(i) for i in range(min(timed, context.batch_size))]
    for length, effort in TRIED[built["kind"]]:

        def find(context: ContextEncoding, length: int = length, effort: int = effort) -> Tensor:
            return searcher.search(context, top_k=TOP_K, list_length=length, effort=effort).rows

        # The scan takes its turns too, so that the ratio is of times on the same, perhaps busy, machine.
        times = interleaved_ms(
            {
                "index": lambda: [find(one) for one in ones],
                "scan": lambda: [scan(one, searcher.vectors, top_k=TOP_K) for one in ones[:3]],
            },
            repeats=repeats,
        )
        index_ms, scan_ms = times["index"] / len(ones), times["scan"] / len(ones[:3])
        found = find(context)
        yield {
            "codes": context.n_codes,
            "kind": built["kind"],
            "list_length": length,
            "effort": effort,
            "ms": index_ms,
            "recall10": _recall(found, truth),
            "top1": (found[:, 0] == truth[:, 0]).float().mean().item(),
            "vs_scan": scan_ms / index_ms,
            "size_mb": built["size_mb"],
            "build_s": built["build_s"],
        }


def _best_index(rows: list[dict[str, Any]], *, codes: int) -> dict[str, Any]:
    """The fastest that finds enough; if none does, the one that finds most."""
    indexed = [row for row in rows if row["codes"] == codes and row["kind"] in TRIED]
    enough = [row for row in indexed if row["recall10"] >= RECALL_WANTED]
    if not indexed:
        return {"ann_1m_recall10": None, "ann_1m_speedup": None}
    best = max(enough, key=lambda row: row["vs_scan"]) if enough else max(indexed, key=lambda row: row["recall10"])
    return {"ann_1m_recall10": best["recall10"], "ann_1m_speedup": best["vs_scan"]}


def _recall(found: Tensor, truth: Tensor) -> float:
    return (truth.unsqueeze(2) == found.unsqueeze(1)).any(dim=2).float().mean().item()


def _largest_logit(context: ContextEncoding, vectors: Vectors) -> Tensor:
    """The ten rows [batch, 10] whose largest inner product with any code is highest."""
    best = RunningTopK(TOP_K)
    for first, chunk in vectors.chunks(4096):
        logits = chunk @ context.vectors.flatten(0, 1).t()
        largest = logits.unflatten(1, context.vectors.shape[:2]).amax(dim=2).t()
        best.add(largest, torch.arange(first, first + len(chunk)))
    return best.best.indices


def _logit_sum(context: ContextEncoding, vectors: Vectors) -> Tensor:
    """The ten rows [batch, 10] with the highest sum of inner products, which is that with the sum of the codes."""
    return scan(ContextEncoding(context.vectors.sum(dim=1, keepdim=True)), vectors, top_k=TOP_K).indices


def _flat(vectors: Vectors) -> Any:
    faiss = require("faiss", extra="faiss")
    flat = faiss.IndexFlatIP(vectors.dim)
    for _, chunk in vectors.chunks(SHARD):
        flat.add(chunk.numpy())
    return flat


def _store(folder: Path, shards: Iterator[Tensor], *, dtype: Any = "float32") -> Vectors:
    folder.mkdir()
    row = 0
    for shard in shards:
        write_vectors(folder, row, *quantize(shard, dtype))
        row += len(shard)
    return Vectors.open(folder, dim=shard.size(1), dtype=dtype)


def _size_mb(vectors: Vectors) -> float:
    return sum(path.stat().st_size for path in vectors.folder.glob("vectors-*")) / 2**20


def _of_length(vectors: Tensor) -> Tensor:
    return LENGTH * torch.nn.functional.normalize(vectors, dim=-1)


def _noise(*size: int) -> Tensor:
    """Normal, of mean length 1, with few large directions, as real vectors have."""
    deviation = (1 + torch.arange(size[-1]) / 16).rsqrt()
    return torch.randn(*size) * deviation / deviation.norm()


def _drawn(rows: int, dim: int) -> Iterator[Tensor]:
    topics = _noise(max(1, rows // 100), dim)
    for first in range(0, rows, SHARD):
        n = min(SHARD, rows - first)
        yield _of_length(topics[torch.randint(len(topics), (n,))] + 0.8 * _noise(n, dim))


def _grown(base: Tensor, rows: int) -> Iterator[Tensor]:
    """The real vectors, then copies of random ones of them, which keep their length."""
    for first in range(0, rows, SHARD):
        n = min(SHARD, rows - first)
        real = base[first : first + n]
        copied = base[torch.randint(len(base), (n - len(real),))]
        length = copied.norm(dim=1, keepdim=True)
        noisy = copied + PERTURBED * length * torch.nn.functional.normalize(torch.randn_like(copied), dim=1)
        yield torch.cat([real, noisy * length / noisy.norm(dim=1, keepdim=True)])


def _draw_contexts(vectors: Vectors, contexts: int, codes: int) -> ContextEncoding:
    def some(n: int) -> Tensor:
        return vectors.take(torch.randint(len(vectors), (n,))) / LENGTH

    answer = some(contexts).unsqueeze(1)
    other = some(contexts * codes).unflatten(0, (contexts, codes))
    return ContextEncoding(_of_length(0.7 * answer + 0.5 * other + 0.4 * _noise(contexts, codes, vectors.dim)))


if __name__ == "__main__":
    main()
