"""Reproduces a paper's table and compares the numbers:

    python -m benchmarks.reproduce TABLE [--row ROW] [--scale small] [--seeds 3]

A row consists of a few commands of this project. Their numbers are written to `--out`, a JSON file for each seed, and
printed beside the paper's and docs/results.md's. That page is generated from `tables/*.yaml` and
`benchmarks/results` (`--write-docs`). Models and checkpoints are kept in `--runs`: after a kill or `--max-seconds`, the
same command resumes. Several processes with the same command, say one for each core with OMP_NUM_THREADS=1, share the
runs. Exit codes: 3, work is left; 1, a run failed, or files that it needs are missing.

`--dry-run` checks the commands of each run and lists what is missing for it; `--display-commands` prints them;
`--smoke N` tries each with a few examples and N updates, and keeps nothing.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.reproduce import checks
from benchmarks.reproduce.page import PAGE, PICTURES, generate_page, iter_compared, read_measured
from benchmarks.reproduce.pictures import collect_answer_times, draw
from benchmarks.reproduce.plan import Planned, plan
from benchmarks.reproduce.results import RESULTS
from benchmarks.reproduce.runs import Bindings
from benchmarks.reproduce.scales import Scale, list_scale_names, read_scale
from benchmarks.reproduce.schedule import run_all
from benchmarks.reproduce.tables import list_table_names, read_table
from polyencoder.errors import PolyencoderError
from polyencoder.storage.files import write_text

OUT = Path("runs/results")
"""Default folder of results; the repository's are in `benchmarks/results`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    flags = _build_parser().parse_args(arguments)
    try:
        return _run(flags)
    except PolyencoderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _run(flags: argparse.Namespace) -> int:
    if flags.write_docs:
        return _write_docs(flags.out or RESULTS)
    scale = read_scale(flags.scale)
    bindings = _build_bindings(scale, flags)
    scale = replace(scale, places={name: value for name, value in bindings.named.items() if name != "data"})
    planned: dict[str, Planned] = {}
    selected = []
    for name in list_table_names() if flags.table == "all" else [flags.table]:
        table = read_table(name)
        rows = [table.get_row(row) for row in flags.row] if flags.row else table.rows
        selected.append((table, rows))
        for run, seeds in plan(table, scale, rows, seeds=flags.seeds):
            if run.name not in planned or planned[run.name].seeds < seeds:
                planned[run.name] = Planned(run, seeds)
    if not planned:
        raise PolyencoderError(f"{flags.table}: these rows have no runs at --scale {scale.name}; {PAGE} says why")
    if flags.display_commands:
        return _print_planned(list(planned.values()), bindings)
    if flags.dry_run:
        return _check(list(planned.values()), bindings)
    if flags.smoke:
        with tempfile.TemporaryDirectory() as folder:
            smoke = replace(bindings, runs=Path(folder), named={**bindings.named, "updates": str(flags.smoke)})
            once = [Planned(run.make_smoke_test(), 1) for run, _ in planned.values()]
            return run_all(once, scale=scale.name, bindings=smoke, out=None, deadline=None)
    deadline = None if flags.max_seconds is None else time.monotonic() + flags.max_seconds
    out = flags.out or OUT
    code = run_all(list(planned.values()), scale=scale.name, bindings=bindings, out=out, deadline=deadline)
    for table, rows in selected:
        for line in iter_compared(table, scale, rows, out):
            print(line)
    return code


def _write_docs(results: Path) -> int:
    """`--write-docs`: write docs/results.md and its pictures."""
    if not results.is_dir():
        raise PolyencoderError(f"{results}: no such folder of results")
    scales = [read_scale(name) for name in list_scale_names()]
    tables = {name: read_table(name) for name in list_table_names()}
    here = {name: [read_measured(table, scale, results) for scale in scales] for name, table in tables.items()}
    times = collect_answer_times(tables["poly-5"], tables["peers"], here["peers"])
    for name, table in tables.items():
        draw(table, here[name], times, PICTURES)
    write_text(PAGE, generate_page(results))
    return 0


def _check(planned: Sequence[Planned], bindings: Bindings) -> int:
    """`--dry-run`: print a line for each run; return 1 if a command's flags are invalid."""
    counts = dict.fromkeys(("ready", "invalid", "lack files or models"), 0)
    for item in planned:
        problems = checks.find_wrong(item.run, bindings)
        lacking = checks.find_missing(item.run, bindings)
        hours = f", {item.run.hours:g} h each" if item.run.hours else ""
        state = "; ".join(problems) if problems else f"missing: {'; '.join(lacking)}" if lacking else "ready"
        print(f"{item.run.name} ({item.seeds} x{hours}): {state}")
        counts["invalid" if problems else "lack files or models" if lacking else "ready"] += 1
    print(f"{len(planned)} runs: {', '.join(f'{count} {state}' for state, count in counts.items())}")
    return int(counts["invalid"] > 0)


def _print_planned(planned: Sequence[Planned], bindings: Bindings) -> int:
    for item in planned:
        for seed in range(item.seeds):
            print(f"# {item.run.name}, seed {seed}" + (f": missing: {item.run.missing}" if item.run.missing else ""))
            for step in item.run.steps:
                print(shlex.join(bindings.build_command(step, run=item.run.name, seed=seed)))
    return 0


def _build_bindings(scale: Scale, flags: argparse.Namespace) -> Bindings:
    named = {**scale.places, "data": str(flags.datapath)}
    for setting in flags.set:
        name, equals, value = setting.partition("=")
        if not equals or name not in scale.places:
            names = ", ".join(f"{key}=..." for key in scale.places)
            raise PolyencoderError(f"--set {setting}: must be one of {names}")
        named[name] = value
    return Bindings(named, runs=flags.runs)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.reproduce", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tables = [*list_table_names(), "all"]
    parser.add_argument("table", metavar="TABLE", choices=tables, help=", ".join(tables))
    parser.add_argument("--row", action="append", help="name of a row; may be repeated (default: all rows)")
    parser.add_argument("--scale", default="small", choices=list_scale_names(), help="default: small")
    parser.add_argument("--seeds", type=_parse_positive, help="number of seeds (default: the table's or the scale's)")
    parser.add_argument("--dry-run", action="store_true", help="report invalid flags and missing files; run nothing")
    parser.add_argument("--display-commands", action="store_true", help="print the commands; run nothing")
    parser.add_argument("--write-docs", action="store_true", help="write docs/results.md and its pictures; run nothing")
    parser.add_argument("--smoke", type=_parse_positive, metavar="N", help="try each run with N updates; keep nothing")
    parser.add_argument("--max-seconds", type=float, help="stop after this time; the same command resumes")
    parser.add_argument(
        "--out", type=Path, help=f"folder of results (default: {OUT}; with --write-docs: benchmarks/results)"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/reproduce"), help="folder of models and checkpoints")
    parser.add_argument("--datapath", type=Path, default=Path("../shared/data"), help="ParlAI's data folder")
    replaced = "replace an encoder, folder or hub id of the scale"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=replaced)
    return parser


def _parse_positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not an integer of at least 1")
    return int(text)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else the running command would outlive this process
    sys.exit(main())
