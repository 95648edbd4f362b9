"""Everything that only a GPU can show, in one command:

    python -m benchmarks.gpu --out FILE.json [--only PART ...] [--device cuda] [--quick]

Each part runs in a separate process, for at most eight minutes on one GPU, and its results are written to the file when
it is done; parts in the file are not run again unless `--only` names them. Needs torch and transformers; the part
`framework` needs ParlAI, `training` also sentence-transformers, and reports it if they are missing. Nothing outside the
repository is read: texts and weights are generated.

- attention: packed, padded and single sequences give the same outputs and gradients;
- precision: losses of training in float16 and bfloat16 beside float32;
- caching: gradient caching, and negatives gathered over NCCL, give the gradients of one large batch;
- resume: a run that is killed on the GPU and resumed ends as an uninterrupted one;
- framework: ParlAI's `multiprocessing_train` with fp16;
- training: tokens a second of BERT-base bi- and poly-encoders, batches of 512, beside sentence-transformers;
- answering: Table 5 of the poly-encoder paper, with the first-m encoders;

`--device cpu --quick` runs the same code in miniature where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import describe_machine
from benchmarks.gpu import equality, speed
from benchmarks.gpu.fixtures import Unavailable
from polyencoder.storage.files import write_text

PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "attention": equality.compare_attention,
    "precision": equality.compare_precision,
    "caching": equality.compare_caching,
    "resume": equality.resume,
    "framework": equality.run_multiprocessing_train,
    "training": speed.measure_training,
    "answering": speed.measure_answering,
}
"""Each runs on a device, in miniature if `quick`; gives `rows`, `summary` and `checks`, or some of them."""
LIMIT = 8 * 60  # seconds of a part


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file of results")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--quick", action="store_true", help="in miniature")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in this process: one part, no limit
    flags = parser.parse_args(arguments)
    if flags.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU: torch.cuda.is_available() is false; --device cpu --quick runs the same in miniature")
    report: dict[str, Any] = {"benchmark": "gpu", "machine": {}, "parts": {}}
    if flags.out.exists():
        report = json.loads(flags.out.read_text(encoding="utf-8"))
    gpu = torch.cuda.get_device_name() if flags.device == "cuda" else None
    names = flags.only or [name for name in PARTS if report["parts"].get(name, {}).get("status") != "done"]
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        part = _run(name, flags) if flags.here else _run_in_process(name, flags)
        report["parts"][name] = part
        report["machine"] = describe_machine() | {"gpu": gpu, "cuda": torch.version.cuda}
        write_text(flags.out, json.dumps(report, indent=2) + "\n")
        print(f"{name}: {part['status']}, {part['seconds']:.0f} s  {_shorten(part)}", file=sys.stderr, flush=True)
    return int(any(part["status"] in ("failed", "wrong") for part in report["parts"].values()))


def _run(name: str, flags: argparse.Namespace) -> dict[str, Any]:
    """One part: done, wrong if what must be equal is not, or unavailable."""
    start = time.perf_counter()
    torch.manual_seed(0)
    try:
        result = PARTS[name](device=flags.device, quick=flags.quick)
    except Unavailable as reason:
        return {"status": "unavailable", "why": str(reason), "seconds": time.perf_counter() - start}
    right = all(check["ok"] for check in result.get("checks", ()))
    return {"status": "done" if right else "wrong", "seconds": time.perf_counter() - start, **result}


def _run_in_process(name: str, flags: argparse.Namespace) -> dict[str, Any]:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "part.json"
        command = [sys.executable, "-m", "benchmarks.gpu", "--here", "--only", name, "--out", str(report)]
        command += ["--device", flags.device, *(["--quick"] if flags.quick else [])]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
            try:
                _, errors = process.communicate(timeout=LIMIT)
                why = errors.strip().splitlines()[-1:]
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)  # with what it started, which else keeps the GPU
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                why = [f"not over after {LIMIT} seconds"]
        if report.exists():
            part: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))["parts"][name]
            return part
    return {"status": "failed", "why": " ".join(why), "seconds": time.perf_counter() - start}


def _shorten(part: dict[str, Any]) -> str:
    if "why" in part:
        return str(part["why"])
    wrong = [check["check"] for check in part.get("checks", ()) if not check["ok"]]
    numbers = "  ".join(f"{name} {value:.4g}" for name, value in part.get("summary", {}).items() if value is not None)
    return f"wrong: {', '.join(wrong)}  {numbers}" if wrong else numbers


if __name__ == "__main__":
    sys.exit(main())
