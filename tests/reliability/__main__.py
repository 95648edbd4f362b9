"""`python -m tests.reliability`: injected faults, crashes, hostile files and random use, each with a seed and counts.

python -m tests.reliability --seconds 180            # all parts, in three minutes
python -m tests.reliability --only kill9 --seed 7    # one of them, as another run drew it
python -m tests.reliability --all                    # the trials that docs/reliability.md asks for
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")  # forked processes

PARTS = {  # the share of the time, and the trials of a whole run
    "nth_call": (3, 1_500),
    "crash_image": (3, 1_500),
    "kill9": (3, 1_000),
    "oracle": (2, 15_500),  # of which two thirds are exact or certified
    "foreign": (4, 10_000),
    "soak": (2, 100_000),
    "metamorphic": (2, 1_000),
    "calibration": (1, 200),
}


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with a command."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main() -> int:
    parser = Parser(prog="python -m tests.reliability", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=180.0, help="for all parts together")
    parser.add_argument("--seed", type=int, help="of what is drawn; a new one by default, which is printed")
    parser.add_argument("--only", nargs="+", choices=[*PARTS], default=[*PARTS], metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--all", action="store_true", help="until each part has had the trials of a whole run")
    options = parser.parse_args()
    if not hasattr(os, "fork"):
        parser.error("this platform has no fork; run it on Linux")
    if not options.seconds > 0:
        parser.error(f"--seconds is {options.seconds:g}; give a number above 0")
    seed = int.from_bytes(os.urandom(3), "big") if options.seed is None else options.seed
    total, bad = sum(PARTS[name][0] for name in options.only), 0
    for name in options.only:
        share, trials = PARTS[name]
        bad += not run_part(name, seed=seed, seconds=options.seconds * share / total, trials=trials, whole=options.all)
    return min(bad, 1)


def run_part(name: str, *, seed: int, seconds: float, trials: int, whole: bool) -> bool:
    """Runs a part and prints its counts; whether nothing was lost or wrong."""
    from tests.reliability.world import Budget

    module = importlib.import_module(f"tests.reliability.{name}")
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where a sync costs nothing
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        start = time.monotonic()
        budget = Budget(trials=trials) if whole else Budget(seconds=seconds)
        counts = module.run(seed=seed, budget=budget, folder=Path(folder))
    for failure in counts.failures[:20]:
        print(f"{name}: {failure[:2000]}", file=sys.stderr)
    kinds = ", ".join(f"{kind} {n:,}" for kind, n in sorted(counts.of.items()))
    print(
        f"{name} --seed {seed}: {counts.trials:,} trials, {counts.lost} lost, {counts.wrong} wrong, {counts.signals} "
        f"signals, {time.monotonic() - start:.0f} s ({kinds})",
        flush=True,
    )
    return not counts.failures


if __name__ == "__main__":
    sys.exit(main())
