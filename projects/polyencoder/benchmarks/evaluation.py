"""Examples per second of ParlAI's evaluation: our poly-encoder agent beside ParlAI's own, at equal size.

    python -m polyencoder.benchmarks.evaluation --datapath ../shared/data --json

Both evaluate the same ConvAI2 validation examples with 20 inline candidates, from scratch (4 layers, 256 dimensions, 64
codes), in ParlAI's own evaluation loop and with the same teacher. Building agent and task is not timed. The agents take
turns, each time new ones, so that nothing is remembered from the turn before. Ours runs in float32 and in bfloat16.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyencoder.benchmarks.common import argument_parser, machine, print_report, use_threads

AGENTS: dict[str, dict[str, Any]] = {
    "ours": {"model": "polyencoder"},
    "ours_bf16": {"model": "polyencoder", "bf16": True},
    "parlai": {"model": "transformer/polyencoder"},
}
TASK = "selection:convai2"
SIZE = {
    "embedding_size": 256,
    "ffn_size": 1024,
    "n_layers": 4,
    "n_heads": 4,
    "poly_n_codes": 64,
    "variant": "xlm",
    "activation": "gelu",
    "learn_positional_embeddings": True,
    "embeddings_scale": False,
    "n_segments": 2,
    "reduction_type": "first",
    "history_size": 20,
    "text_truncate": 360,
    "label_truncate": 72,
    "n_positions": 512,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--datapath", help="ParlAI's data folder, with ConvAI2 in it (default: ParlAI's own)")
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--batchsize", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    examples, repeats = (200, 1) if flags.quick else (flags.examples, flags.repeats)
    where = {"datapath": flags.datapath} if flags.datapath else {}

    with tempfile.TemporaryDirectory() as folder:
        options = {
            name: _options(folder=Path(folder) / name, batchsize=flags.batchsize, **agent, **where)
            for name, agent in AGENTS.items()
        }
        times: dict[str, list[float]] = {name: [] for name in AGENTS}
        counts: dict[str, int] = {}
        for _ in range(repeats):
            for name, option in options.items():
                seconds, counts[name] = _evaluate(option, examples=examples)
                times[name].append(seconds / counts[name])
    if len(set(counts.values())) > 1:
        raise SystemExit(f"the agents did not evaluate the same number of examples: {counts}")
    speeds = {name: 1 / statistics.median(values) for name, values in times.items()}
    report = {
        "benchmark": "evaluation",
        "machine": machine(),
        "settings": {"task": TASK, "examples": examples, "batchsize": flags.batchsize, "repeats": repeats, **SIZE},
        "rows": [{**AGENTS[name], "examples_per_second": speed} for name, speed in speeds.items()],
        "summary": {
            "vs_parlai": speeds["ours"] / speeds["parlai"],
            "bf16_vs_parlai": speeds["ours_bf16"] / speeds["parlai"],
        },
    }
    print_report(report, as_json=flags.json)


def _options(*, folder: Path, batchsize: int, **others: Any) -> Any:
    """Options of an untrained agent whose dictionary is built from the training task."""
    try:
        from parlai.scripts.build_dict import build_dict, setup_args
        from parlai.utils import logging
    except ImportError as error:
        raise SystemExit(
            f"this benchmark compares with ParlAI ({error}): pip install --no-deps parlai==1.7.2"
        ) from None
    logging.logger.setLevel(logging.ERROR)  # ParlAI logs to standard output, where the report goes
    folder.mkdir()
    common = {
        "task": TASK,
        "datatype": "valid",
        "eval_candidates": "inline",
        "batchsize": batchsize,
        "dict_file": str(folder / "model.dict"),
        "dict_maxexs": 20_000,
        "dict_lower": True,
        "loglevel": "error",
    }
    opt = setup_args().parse_kwargs(**common, **SIZE, **others)
    build_dict(opt, skip_if_built=True)
    return opt


def _evaluate(opt: Any, *, examples: int) -> tuple[float, int]:
    """Seconds of the evaluation loop, and how many examples it went through."""
    from parlai.core.agents import create_agent
    from parlai.core.worlds import create_task

    opt = opt.copy()
    agent = create_agent(opt)
    world = create_task(opt, agent)
    start = time.perf_counter()
    done = 0
    while done < examples and not world.epoch_done():
        world.parley()
        done += opt["batchsize"]
    seconds = time.perf_counter() - start
    count = int(world.report()["exs"].value())
    return seconds, count


if __name__ == "__main__":
    main()
