"""Measures ParlAI's evaluation in examples per second: our poly-encoder agent beside ParlAI's, at equal size.

    python -m benchmarks.evaluation --datapath ../shared/data --json

Both evaluate the same ConvAI2 validation examples with 20 inline candidates, from scratch (4 layers, 256 dimensions,
64 codes), in ParlAI's own evaluation loop and with the same teacher. Building agent and task is not timed. The agents
take turns, each in a separate process and built anew each time, so that nothing is cached between turns.
Ours runs in float32 and in bfloat16. Ratios are given in wall-clock time (`..._vs_...`) and in processor time
(`..._processor`), which is more stable on a busy machine. Ours encodes each distinct candidate once, which saves most
with all examples (`--examples 7801`): 22,687 of their 156,020 candidates are different.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.agents import CONVAI2, make_world, options, quiet_parlai, size
from benchmarks.common import argument_parser, in_its_own_process, machine, print_report, use_threads
from benchmarks.rate import encoded

AGENTS: dict[str, dict[str, Any]] = {
    "ours": {"model": "polyencoder"},
    "ours_bf16": {"model": "polyencoder", "bf16": True},
    "parlai": {"model": "transformer/polyencoder"},
}
SIZE = size(layers=4, dim=256, heads=4)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--datapath", help="ParlAI's data folder, with ConvAI2 in it (default: ParlAI's own)")
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--batchsize", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    examples, repeats = (200, 1) if flags.quick else (flags.examples, flags.repeats)
    where = {"datapath": flags.datapath} if flags.datapath else {}

    with tempfile.TemporaryDirectory() as folder:
        prepared = {
            name: options(
                folder=Path(folder) / name,
                training=False,
                eval_candidates="inline",
                batchsize=flags.batchsize,
                **SIZE,
                **agent,
                **where,
            )
            for name, agent in AGENTS.items()
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in AGENTS}
        shares: dict[str, list[float]] = {name: [] for name in AGENTS}
        counts: dict[str, int] = {}
        with ExitStack() as processes:
            evaluations = {
                name: processes.enter_context(in_its_own_process(partial(_evaluation, opt), threads=flags.threads))
                for name, opt in prepared.items()
            }
            for _ in range(repeats):
                for name, evaluate in evaluations.items():
                    seconds, processor, counts[name], share = evaluate(examples)
                    shares[name].append(share)
                    times[name].append((seconds / counts[name], processor / counts[name]))
    if len(set(counts.values())) > 1:
        raise SystemExit(f"the agents did not evaluate the same number of examples: {counts}")
    speeds, processor_speeds = (
        {name: 1 / statistics.median(turn[kind] for turn in turns) for name, turns in times.items()} for kind in (0, 1)
    )
    report = {
        "benchmark": "evaluation",
        "machine": machine(),
        "settings": {"task": CONVAI2, "examples": examples, "batchsize": flags.batchsize, "repeats": repeats, **SIZE},
        "rows": [
            {
                **AGENTS[name],
                "examples_per_second": speed,
                "examples_per_processor_second": processor_speeds[name],
            }
            | ({"share_of_product_rate": statistics.median(shares[name])} if any(shares[name]) else {})
            for name, speed in speeds.items()
        ],
        "summary": {
            "vs_parlai": speeds["ours"] / speeds["parlai"],
            "bf16_vs_parlai": speeds["ours_bf16"] / speeds["parlai"],
            "vs_parlai_processor": processor_speeds["ours"] / processor_speeds["parlai"],
            "bf16_vs_parlai_processor": processor_speeds["ours_bf16"] / processor_speeds["parlai"],
        },
    }
    print_report(report, as_json=flags.json)


def _evaluation(opt: Any) -> Callable[[int], tuple[float, float, int, float]]:
    """Time the evaluation loop with a new agent: wall-clock and processor seconds, number of examples, and the rate of
    our encoder's operations, without padding and cached candidates, as a share of the product rate (0 for others).
    """
    quiet_parlai()
    dtype = torch.bfloat16 if opt.get("bf16") else torch.float32

    def evaluate(examples: int) -> tuple[float, float, int, float]:
        world = make_world(opt)
        with encoded(world.get_agents()[-1].model) as seen:
            start, processor = time.perf_counter(), time.process_time()
            done = 0
            while done < examples and not world.epoch_done():
                world.parley()
                done += opt["batchsize"]
            seconds, processor = time.perf_counter() - start, time.process_time() - processor
        share = seen.share(seconds, dtype=dtype) if seen.calls else 0.0
        return seconds, processor, int(world.report()["exs"].value()), share

    return evaluate


if __name__ == "__main__":
    main()
