"""Search, measured in eight cases (`--cases`), each described in its module:

- answering: the paper's Tables 5 and 9, beside ParlAI's `transformer/polyencoder`, on a CPU or `--device cuda`;
- peers: an answer among up to a million candidates and its memory, beside sentence-transformers;
- scan: the exact search of stored vectors beside torch, FAISS and usearch, in processor time;
- indexed: a million vectors, the scan beside FAISS;
- memory: peak memory of indexing and searching a million candidates;
- encoding: candidates per second beside sentence-transformers;
- engines: the same vectors in an index folder, in Milvus and in PostgreSQL (`--engines`, `--postgres`);
- tokens: a late-interaction encoder (`--model`) beside PLAID, the index of PyLate.

    python -m benchmarks.search --datapath ../shared/data --model MODEL --json

MODEL is a trained bi- or poly-encoder. Its vectors of real labels are extended to `--rows` by noisy copies; so are
those of `--backbone`, an untrained encoder with `--codes` codes. Without either the million vectors are random, and
cases that need an encoder use MiniLM. `--vectors` and `--contexts-from` give vectors that were encoded before.

With torch and transformers only, without ParlAI and data:

    PYTHONPATH=projects python -m benchmarks.search --cases answering --made-texts --device cuda --json
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import BACKBONE, build_parser, find_minilm_folder, print_report, use_threads
from benchmarks.search import answering, encoding, engines, indexed, memory, peers, scanning, tokens
from benchmarks.search.systems import FORMULA
from benchmarks.search.texts import SYNTHETIC, read_candidates, read_contexts
from benchmarks.search.vectors import DRAWN, GROWN, draw, draw_contexts, grow, store
from polyencoder.errors import PolyencoderError
from polyencoder.index.faiss.kinds import parse_faiss
from polyencoder.index.vectors import Vectors
from polyencoder.ranker import Ranker
from polyencoder.scoring import ContextEncoding

Lazy = Callable[[], Ranker]
CASES = ("encoding", "answering", "peers", "scan", "indexed", "memory", "engines", "tokens")
MILLION = 1_000_000  # rows, by which the summary names its numbers


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--datapath", type=Path, default=Path("../shared/data"), help="ParlAI's data folder")
    parser.add_argument("--model", help="a trained ranker, as of Ranker.from_pretrained")
    parser.add_argument("--backbone", help=f"an encoder, where there is no model (default: the package {BACKBONE})")
    parser.add_argument("--codes", type=int, default=64, help="of --backbone, and of contexts that are drawn")
    usual = [case for case in CASES if case not in ("engines", "tokens")]
    parser.add_argument("--cases", nargs="+", default=usual, choices=CASES, help="all but engines and tokens")
    parser.add_argument("--rows", type=int, default=MILLION, help="stored vectors, and candidates that are indexed")
    parser.add_argument("--dim", type=int, default=384, help="of vectors that are drawn")
    parser.add_argument("--real", type=int, default=100_000, help="of the vectors, how many are of real texts")
    parser.add_argument("--contexts", type=int, default=100, help="that are answered, and over which recall is counted")
    parser.add_argument("--scanned", type=int, default=20, help="of these, how many all that is slow gets")
    parser.add_argument(
        "--kinds", nargs="+", default=["hnsw", "ivf-flat"], type=_parse_kind, help="of FAISS index, as for --faiss"
    )
    parser.add_argument("--engines", nargs="+", default=["folder", "milvus"], choices=engines.ENGINES, help="engines")
    parser.add_argument("--postgres", help="engines: the address of a server with pgvector, postgres://...")
    parser.add_argument("--vectors", type=Path, help="of real candidates, .npy [n, dim]")
    parser.add_argument("--contexts-from", type=Path, help="vectors of real contexts, .npy [contexts, codes, dim]")
    parser.add_argument("--systems", nargs="+", default=[], choices=peers.SYSTEMS, help="peers: these alone")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="of the case answering")
    parser.add_argument(
        "--made-texts",
        action="store_true",
        help="answering: with made texts and a vocabulary of their own, without ParlAI's agent and --datapath",
    )
    flags = parser.parse_args(arguments)
    if (flags.device != "cpu" or flags.made_texts) and flags.cases != ["answering"]:
        parser.error("--device cuda and --made-texts are for --cases answering alone")
    if flags.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA device here")
    if "tokens" in flags.cases and not flags.model:
        parser.error("--cases tokens needs --model, a late-interaction encoder")
    if ("postgres" in flags.engines) != bool(flags.postgres):
        parser.error("--engines postgres and --postgres ADDRESS belong together")
    use_threads(flags.threads)
    if flags.quick:
        flags.rows, flags.real, flags.contexts = (max(1, n // 10) for n in (flags.rows, flags.real, flags.contexts))
    torch.manual_seed(0)
    ranker = cache(lambda: _load_ranker(flags))
    rows: list[dict[str, Any]] = []
    for case in flags.cases:
        with tempfile.TemporaryDirectory() as folder:
            rows += _measure(case, flags, ranker, Path(folder))
    options = {name: value for name, value in vars(flags).items() if name not in ("json", "threads", "postgres")}
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()} | {
        "grown": GROWN if flags.vectors or _has_encoder(flags) else DRAWN,
        "texts": SYNTHETIC if flags.made_texts else None,
        "note": None,
    }
    if flags.rows != MILLION:
        settings["note"] = f"the summary's ann_1m, index_1m and bi_1m are of {flags.rows:,} rows"
    report = {"benchmark": "search", "settings": settings, "rows": rows, "summary": summarize(rows)}
    print_report(report, as_json=flags.json)


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The numbers that matter, None for cases that were not run."""
    rows_of = {case: [row for row in rows if row["case"] == case] for case in CASES}
    table = [row for row in rows_of["answering"] if not row["system"].startswith("cross-encoder")]
    best = indexed.select_fastest(rows_of["indexed"]) or {}
    certified = next((row["share"] for row in rows_of["indexed"] if row["kind"] == "certified"), None)
    encoders = [row["ours_vs_this"] for row in rows_of["encoding"][1:]]
    beside = [row for row in rows_of["peers"] if "median_ms" in row]
    theirs = answering.compute_speedup(beside, "median_ms", ours=peers.BI, than=peers.THEIR_BI)
    return {
        "poly64_100k_vs_parlai": answering.compute_speedup(table, "median_ms"),
        "poly64_100k_scoring_vs_parlai": answering.compute_speedup(table, "after_encoding_ms"),
        "poly64_100k_scoring_vs_formula": answering.compute_speedup(table, "after_encoding_ms", than=FORMULA),
        "ann_1m_recall10": best.get("recall10"),
        "ann_1m_speedup": best.get("vs_scan"),
        "certified_share": certified,
        "index_1m_peak_mb": next((row["peak_mb"] for row in rows_of["memory"] if row["work"] == "index"), None),
        "encode_vs_sentence_transformers": min(encoders, default=None),
        "bi_1m_vs_sentence_transformers": theirs,
    }


def _measure(case: str, flags: argparse.Namespace, ranker: Lazy, folder: Path) -> list[dict[str, Any]]:
    """The rows of a case."""
    threads = torch.get_num_threads()
    if case == "encoding":
        texts = read_candidates(flags.datapath, 200 if flags.quick else 2_000)
        return encoding.measure(ranker(), texts, repeats=3 if flags.quick else 5)
    if case == "answering":
        datapath = None if flags.made_texts else flags.datapath
        return answering.measure(
            datapath,
            read_candidates(datapath, 1_000),
            read_contexts(datapath, flags.contexts),
            folder,
            cross=(1, 20) if flags.quick else (1, 1_000),
            device=flags.device,
        )
    if case == "peers":
        return peers.measure(
            flags.backbone or str(find_minilm_folder()),
            read_candidates(flags.datapath, flags.real),
            read_contexts(flags.datapath, flags.contexts),
            folder,
            counts=[n for n in peers.COUNTS if n < flags.rows] + [flags.rows],
            crossed=1 if flags.quick else 3,
            threads=threads,
            systems=flags.systems,
        )
    if case == "tokens":
        texts, turns = read_candidates(flags.datapath, flags.rows), read_contexts(flags.datapath, flags.contexts)
        return tokens.measure(ranker(), texts, turns, folder)
    if case == "memory":
        texts, turns = read_candidates(flags.datapath), read_contexts(flags.datapath, 10)
        return memory.measure(ranker(), texts, turns, folder, rows=flags.rows, threads=threads)
    vectors = _make_vectors(flags, ranker, folder / "float32")
    if case == "scan":
        of_codes = partial(draw_contexts, vectors, min(flags.contexts, 20))
        return scanning.measure(vectors, of_codes, codes=flags.codes, repeats=3 if flags.quick else 7)
    contexts = _make_contexts(flags, ranker, vectors, flags.contexts)
    if case == "indexed":
        return indexed.measure(vectors, contexts, folder / "int8", kinds=flags.kinds, scanned=flags.scanned, repeats=3)
    return engines.measure(vectors, contexts, folder, engines=flags.engines, postgres=flags.postgres, repeats=3)


def _make_vectors(flags: argparse.Namespace, ranker: Lazy, folder: Path) -> Vectors:
    real = _load_array(flags.vectors)
    if real is None and _has_encoder(flags):
        real = torch.from_numpy(ranker().encode_candidates(read_candidates(flags.datapath, flags.real)))
    return store(folder, draw(flags.rows, dim=flags.dim) if real is None else grow(real, flags.rows))


def _make_contexts(flags: argparse.Namespace, ranker: Lazy, vectors: Vectors, count: int) -> ContextEncoding:
    """`count` contexts, or all if there are fewer."""
    encoded = _load_array(flags.contexts_from)
    if encoded is not None:
        return ContextEncoding(encoded[:count])
    if _has_encoder(flags):
        each = [ranker().encode_contexts([turns]) for turns in read_contexts(flags.datapath, count)]  # without a mask
        return ContextEncoding(torch.from_numpy(np.concatenate([context.vectors for context in each])))
    return draw_contexts(vectors, count, codes=flags.codes)


def _has_encoder(flags: argparse.Namespace) -> bool:
    return bool(flags.model or flags.backbone)


def _parse_kind(text: str) -> str:
    """A kind of FAISS index with its parameters, as it was given."""
    try:
        parse_faiss(text)
    except PolyencoderError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _load_ranker(flags: argparse.Namespace) -> Ranker:
    if flags.model:
        return Ranker.from_pretrained(flags.model, device="cpu")
    return Ranker.from_backbone(
        flags.backbone or find_minilm_folder(), "poly", device="cpu", reduction="mean", n_codes=flags.codes
    )


def _load_array(path: Path | None) -> Tensor | None:
    return None if path is None else torch.from_numpy(np.load(path)).float()


if __name__ == "__main__":
    main()
