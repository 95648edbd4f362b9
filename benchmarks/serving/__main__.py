"""Measures `polyencoder serve` under load, beside sentence-transformers behind FastAPI without batching.

    python -m benchmarks.serving --datapath ../shared/data --threads 2 --json

A closed loop over the loopback interface: each of `--clients` sends its next request as soon as it is answered, until
`--requests` were sent or `--seconds` are over; `requests` of a row is their number. Clients, our server (`--threads`
for the model) and the peer's run in separate processes. `rerank` orders 50 documents that are new to the server for a
query; `search` finds the ten best of `--candidates` for one. Ours is a poly-encoder of 64 codes around `--backbone`, or
of another `--architecture` (a late-interaction encoder's index has its tokens in int8), run by `--backend`. The peer is
a bi-encoder of the same weights in float32; `in process` calls `Ranker` or `Searcher` instead of the server. At each
number of clients all systems take turns, `--rounds` times; rows are printed to stderr as they come, with the load of
the machine before them.

With `--out FILE` each point, a case with a number of clients, is saved when it is done, and existing points are not
measured again: after an interruption repeat the command. `--only rerank:64` measures this point again.

`lost` counts requests to our server without a complete answer of status 200.

Texts are the responses in ParlAI's data folder, then the same with a number appended; without `--datapath` they are
synthetic. `--folder` keeps the model and the index for later runs.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from benchmarks.common import BACKBONE, build_parser, describe_machine, find_minilm_folder, print_report, use_threads
from benchmarks.search.texts import SYNTHETIC, make_candidates, read_candidates
from benchmarks.serving.points import DOCUMENTS, IN_PROCESS, MANY, OURS, PATHS, PEER, measure
from polyencoder.config import Backend
from polyencoder.export.folder import export_folder
from polyencoder.ranker import Ranker
from polyencoder.storage.files import write_text

CODES = 64
SETTINGS = ("architecture", "backend", "requests", "seconds", "rounds", "candidates")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--datapath", type=Path, help="ParlAI's data folder (default: made texts)")
    parser.add_argument("--backbone", help=f"folder of the pre-trained encoder (default: the package {BACKBONE})")
    parser.add_argument("--architecture", default="poly", choices=["bi", "poly", "late"], help="of ours")
    parser.add_argument("--backend", default="torch", choices=get_args(Backend), help="of ours")
    parser.add_argument("--cases", nargs="+", default=list(PATHS), choices=list(PATHS))
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, MANY, 200])
    parser.add_argument("--requests", type=int, default=1_000, help="of a point, at most (--quick: 64)")
    parser.add_argument("--seconds", type=float, default=300.0, help="of a point, at most, but for the last answers")
    parser.add_argument("--rounds", type=int, default=4, help="in which each point is measured (--quick: 1)")
    parser.add_argument("--candidates", type=int, default=100_000, help="of the index (--quick: 1,000 at most)")
    parser.add_argument("--folder", type=Path, help="where model and index are kept (default: nowhere)")
    parser.add_argument("--out", type=Path, help="a JSON file of the report, to which each point is added")
    parser.add_argument(
        "--only", nargs="+", type=_parse_point, metavar="CASE:CLIENTS", help="points to measure, those in --out again"
    )
    flags = parser.parse_args(arguments)
    if min(*flags.clients, flags.requests, flags.rounds, flags.candidates) < 1 or not flags.seconds > 0:
        parser.error("--clients, --requests, --rounds, --candidates and --seconds must be above 0")
    if flags.quick:
        flags.requests, flags.rounds, flags.candidates = min(flags.requests, 64), 1, min(flags.candidates, 1_000)
    use_threads(flags.threads)
    flags.threads = torch.get_num_threads()
    texts = make_candidates(flags.candidates) if flags.datapath is None else read_candidates(flags.datapath)
    report: dict[str, Any] = {
        "benchmark": "serving",
        "machine": describe_machine(),
        "settings": {
            "texts": SYNTHETIC if flags.datapath is None else "responses of ConvAI2, Ubuntu and DailyDialog",
            "words": round(sum(len(text.split()) for text in texts[:1_000]) / len(texts[:1_000]), 1),
            "documents": DOCUMENTS,
            **{name: getattr(flags, name) for name in SETTINGS},
        },
        "rows": [],
    }
    if flags.out is not None and flags.out.exists():
        report["rows"] = _read_rows(flags.out, report)
    measured = {(row["case"], row["clients"]) for row in report["rows"]}
    points = flags.only or [(case, n) for case in flags.cases for n in flags.clients if (case, n) not in measured]
    for rows in _measure(flags, points, texts):
        new_points = {(row["case"], row["clients"]) for row in rows}
        report["rows"] = [row for row in report["rows"] if (row["case"], row["clients"]) not in new_points] + rows
        if flags.out is not None:
            write_text(flags.out, json.dumps({**report, "summary": summarize(report["rows"])}, indent=2) + "\n")
        for row in rows:
            print(json.dumps(row), file=sys.stderr, flush=True)  # all of them take long
    report["summary"] = summarize(report["rows"])
    print_report(report, as_json=flags.json)


def _parse_point(value: str) -> tuple[str, int]:
    case, _, clients = value.partition(":")
    if case not in PATHS or not clients.isdigit() or int(clients) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is not one of {', '.join(PATHS)}, a colon and a number of clients")
    return case, int(clients)


def _read_rows(path: Path, report: dict[str, Any]) -> list[dict[str, Any]]:
    """Read the points measured before; SystemExit if their settings or machine differ."""
    before = json.loads(path.read_text(encoding="utf-8"))
    then, now = ([run["benchmark"], run["settings"], run["machine"]["threads"]] for run in (before, report))
    if then != now:
        raise SystemExit(f"{path}: was measured with {then}, this is {now}: give another --out")
    rows: list[dict[str, Any]] = before["rows"]
    return rows


def _measure(
    flags: argparse.Namespace, points: Sequence[tuple[str, int]], texts: list[str]
) -> Iterator[list[dict[str, Any]]]:
    """The rows of each point, measured with the folder's model, which is made if it is missing, and its index."""
    if not points:
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = flags.folder or Path(temporary)
        model = folder / "model"
        if not model.exists():
            torch.manual_seed(0)
            codes: dict[str, Any] = {"n_codes": CODES} if flags.architecture == "poly" else {}
            backbone = flags.backbone or find_minilm_folder()
            ranker = Ranker.from_backbone(backbone, flags.architecture, device="cpu", reduction="mean", **codes)
            export_folder(ranker, model, onnx=flags.backend != "torch", int8=flags.backend == "onnx-int8")
        ranker = Ranker.from_pretrained(model, backend=flags.backend, device="cpu")
        tokens = "int8" if flags.architecture == "late" else None
        ranker.index(texts[: flags.candidates], folder / "index", store_tokens=tokens)
        yield from measure(flags, points, model, folder / "index", texts)


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The numbers that matter, of `rerank` but for `lost`; None for what was not measured."""
    row_of = {(row["system"], row["clients"]): row for row in rows if row["case"] == "rerank"}

    def compute_ratio(column: str, clients: int, peer: str) -> float | None:
        ours, theirs = (row_of.get((system, clients), {}).get(column) for system in (OURS, peer))
        return ours / theirs if ours and theirs else None

    return {
        "throughput_64_vs_peer": compute_ratio("per_second", MANY, PEER),
        "p99_1_vs_in_process": compute_ratio("p99_ms", 1, IN_PROCESS),
        "lost": sum(row["lost"] for row in rows if row["system"].startswith(OURS)),
    }


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else the servers would keep running
    main()
