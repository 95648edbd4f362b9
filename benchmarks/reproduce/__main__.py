"""A paper's table, run and compared:

    python -m benchmarks.reproduce TABLE [--row ROW] [--scale small] [--seeds 3]

Each row is a few commands of this project, whose numbers go into `--out`, a JSON file for each seed, and are printed
beside the paper's and this project's. docs/results.md is made of `benchmarks/results`, which has
this project's, and of `tables/*.yaml` (`--write-docs`). Models and checkpoints are kept in `--runs`: what was killed,
or stopped by `--max-seconds`, goes on when it is started again with the same command. Where this is started several
times, say once for each core with OMP_NUM_THREADS=1, the processes share the runs among themselves. Exit code 3: there
is more to do; 1: a run failed, or lacks something that could be there.

`--dry-run` says of each run whether its commands are understood and what is missing for it; `--display-commands` prints
them; `--smoke N` runs each with a few examples and N updates, which is no result and is not kept.
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
from benchmarks.reproduce.comparison import compared
from benchmarks.reproduce.page import PAGE, PICTURES, measured, page
from benchmarks.reproduce.pictures import answer_times, draw
from benchmarks.reproduce.plan import Planned, plan
from benchmarks.reproduce.results import RESULTS
from benchmarks.reproduce.runs import Places
from benchmarks.reproduce.scales import Scale, read_scale, scale_names
from benchmarks.reproduce.schedule import run_all
from benchmarks.reproduce.tables import read_table, table_names
from polyencoder.errors import PolyencoderError
from polyencoder.storage.files import write_text

OWN = Path("runs/results")
"""Where results are kept that are no contribution to this repository's."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; gives its exit code."""
    flags = _parser().parse_args(arguments)
    try:
        return _run(flags)
    except PolyencoderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _run(flags: argparse.Namespace) -> int:
    if flags.write_docs:
        return _write_docs(flags.out or RESULTS)
    scale = read_scale(flags.scale)
    places = _places(scale, flags)
    scale = replace(scale, places={name: value for name, value in places.named.items() if name != "data"})
    planned: dict[str, Planned] = {}
    asked = []
    for name in table_names() if flags.table == "all" else [flags.table]:
        table = read_table(name)
        rows = [table.row(row) for row in flags.row] if flags.row else table.rows
        asked.append((table, rows))
        for one in plan(table, scale, rows, seeds=flags.seeds):
            if one.run.name not in planned or planned[one.run.name].seeds < one.seeds:
                planned[one.run.name] = one
    if not planned:
        raise PolyencoderError(f"{flags.table}: nothing is run of these rows at --scale {scale.name}; {PAGE} says why")
    if flags.display_commands:
        return _display(list(planned.values()), places)
    if flags.dry_run:
        return _check(list(planned.values()), places)
    if flags.smoke:
        with tempfile.TemporaryDirectory() as folder:
            few = replace(places, runs=Path(folder), named={**places.named, "updates": str(flags.smoke)})
            once = [Planned(one.run.smoke(), 1) for one in planned.values()]
            return run_all(once, scale=scale.name, places=few, out=None, deadline=None)
    deadline = None if flags.max_seconds is None else time.monotonic() + flags.max_seconds
    out = flags.out or OWN
    code = run_all(list(planned.values()), scale=scale.name, places=places, out=out, deadline=deadline)
    for table, rows in asked:
        for line in compared(table, scale, rows, out):
            print(line)
    return code


def _write_docs(results: Path) -> int:
    """`--write-docs`: the pictures and the page that shows them."""
    scales = [read_scale(name) for name in scale_names()]
    tables = {name: read_table(name) for name in table_names()}
    here = {name: [measured(table, scale, results) for scale in scales] for name, table in tables.items()}
    times = answer_times(tables["poly-5"], tables["peers"], here["peers"])
    for name, table in tables.items():
        draw(table, here[name], times, PICTURES)
    write_text(PAGE, page(results))
    return 0


def _check(planned: Sequence[Planned], places: Places) -> int:
    """`--dry-run`: a line for each run, and 1 if a command is not understood."""
    ready, refused = 0, 0
    for one in planned:
        said = checks.wrong(one.run, places)
        lacking = checks.missing(one.run, places)
        hours = f", {one.run.hours:g} h each" if one.run.hours else ""
        state = "; ".join(said) if said else f"missing: {'; '.join(lacking)}" if lacking else "ready"
        print(f"{one.run.name} ({one.seeds} x{hours}): {state}")
        refused += bool(said)
        ready += not said and not lacking
    print(
        f"{len(planned)} runs: {ready} ready, {refused} not understood, {len(planned) - ready - refused} lack something"
    )
    return int(refused > 0)


def _display(planned: Sequence[Planned], places: Places) -> int:
    for one in planned:
        for seed in range(one.seeds):
            print(f"# {one.run.name}, seed {seed}" + (f": missing: {one.run.missing}" if one.run.missing else ""))
            for step in one.run.steps:
                print(shlex.join(places.command(step, run=one.run.name, seed=seed)))
    return 0


def _places(scale: Scale, flags: argparse.Namespace) -> Places:
    named = {**scale.places, "data": str(flags.datapath)}
    for setting in flags.set:
        name, equals, value = setting.partition("=")
        if not equals or name not in scale.places:
            names = ", ".join(f"{one}=..." for one in scale.places)
            raise PolyencoderError(f"--set {setting}: must be one of {names}")
        named[name] = value
    return Places(named, runs=flags.runs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reproduce",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "table", metavar="TABLE", choices=[*table_names(), "all"], help=", ".join([*table_names(), "all"])
    )
    parser.add_argument("--row", action="append", help="a row by its name; again for more (default: all rows)")
    parser.add_argument("--scale", default="small", choices=scale_names(), help="default: small")
    parser.add_argument("--seeds", type=_positive, help="how many (default: as the table or the scale says)")
    parser.add_argument("--dry-run", action="store_true", help="say what is not understood or missing, and run nothing")
    parser.add_argument("--display-commands", action="store_true", help="print the commands, and run nothing")
    parser.add_argument("--write-docs", action="store_true", help="make docs/results.md and its pictures; run nothing")
    parser.add_argument("--smoke", type=_positive, metavar="N", help="try each run with N updates; keeps nothing")
    parser.add_argument("--max-seconds", type=float, help="stop after so long; the same command goes on")
    parser.add_argument(
        "--out",
        type=Path,
        help=f"the folder of results (default: {OWN}; of --write-docs, benchmarks/results, which the repository keeps)",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/reproduce"), help="of models and checkpoints")
    parser.add_argument("--datapath", type=Path, default=Path("../shared/data"), help="ParlAI's data folder")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another encoder, folder or hub id than the scale's",
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is no number from 1 on")
    return int(text)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # or the command that is running would go on alone
    sys.exit(main())
