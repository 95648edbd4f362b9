"""A cross-encoder that reads a context once (`uni`) beside what it starts from, a late-interaction encoder.

    python -m benchmarks.uni --contender uni --model LATE --train TRAIN --valid VALID --seconds 60 --json uni.json
    python -m benchmarks.uni --compare late.json uni.json

Each contender starts as the model LATE and is trained for the same time on the same examples: `late`, the model itself,
and `uni`. Both are evaluated before and after. Times: one context and 20 or 100 candidates, from tokens to scores, also
of `pairs`, the library's cross-encoder.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import machine, print_report, use_threads
from benchmarks.uni.contenders import Late, Score, Uni, pairs
from benchmarks.uni.data import Data, drawn, read_examples
from benchmarks.uni.measures import example_ranks, metrics, rank_ms, table
from benchmarks.uni.training import Goal, Rates, fit, say
from polyencoder import Ranker
from polyencoder.modeling.late import LateEncoder

CONTENDERS = ("late", "uni")


def main(arguments: Sequence[str] | None = None) -> None:
    flags = _parser().parse_args(arguments)
    if flags.compare:
        reports = [json.loads(path.read_text(encoding="utf-8")) for path in flags.compare]
    else:
        if missing := [name for name in ("model", "train", "valid") if getattr(flags, name) is None]:
            raise SystemExit(f"--{missing[0]} is missing")
        if math.inf == flags.seconds == flags.updates:
            raise SystemExit("give --seconds or --updates")
        use_threads(flags.threads)
        reports = [run(flags)]
        if flags.json:
            flags.json.write_text(json.dumps(reports[0]), encoding="utf-8")
    print_report(table(reports), as_json=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", type=Path, nargs="+", help="print the table of these reports, and train nothing")
    parser.add_argument("--contender", choices=CONTENDERS, default="uni")
    parser.add_argument("--model", type=Path, help="a trained late-interaction encoder around a BERT")
    parser.add_argument("--train", type=Path, help="ConvAI2's text file, or a file of pairs")
    parser.add_argument("--valid", type=Path, help="the same, with candidates")
    parser.add_argument("--examples", type=int, help="random training examples (default: all)")
    parser.add_argument("--evaluated", type=int, help="random validation examples (default: all)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of training, evaluations not counted")
    parser.add_argument("--updates", type=float, default=math.inf, help="of training, instead of seconds or as a limit")
    parser.add_argument("--evaluations", type=int, default=1, help="at equal distances, the last one at the end")
    parser.add_argument("--batch", type=int, default=32, help="contexts of an update")
    parser.add_argument("--pool", type=int, default=0, help="examples whose labels are its candidates (default: batch)")
    parser.add_argument("--learning-rate", type=float, default=1e-4, help="of the encoder's weights")
    parser.add_argument("--head-rate", type=float, default=1e-3, help="of the head's")
    parser.add_argument("--bias-rate", type=float, default=1e-2, help="of the biases on attention to the context")
    parser.add_argument("--bias", type=float, default=-6.0, help="these at the start")
    parser.add_argument(
        "--max-tokens", type=int, default=1 << 17, help="of which activations are kept, of pairs at once"
    )
    parser.add_argument("--repeats", type=int, default=5, help="contexts of the times; 0: no times")
    parser.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file of the report")
    return parser


def run(flags: argparse.Namespace) -> dict[str, Any]:
    """Trains and evaluates one contender."""
    torch.manual_seed(flags.seed)
    device = torch.device(flags.device)
    ranker = Ranker.from_pretrained(flags.model, device=device)
    if not isinstance(ranker.model, LateEncoder):
        raise SystemExit(f"{flags.model}: is a {ranker.model.title}; give a late-interaction encoder")
    train = Data(ranker.text, drawn(read_examples(flags.train), flags.examples), device=device)
    valid = Data(ranker.text, drawn(read_examples(flags.valid), flags.evaluated), device=device)
    if not all(valid.own):
        raise SystemExit(f"{flags.valid}: has examples without candidates")
    say(f"{len(train)} examples to train on, {len(valid)} to evaluate")
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=flags.precision == "bfloat16")
    times: dict[str, dict[str, float]] = {}
    if flags.repeats:
        with autocast:
            timed: dict[str, Score] = {name: contender(name, ranker.model, flags) for name in CONTENDERS}
            timed["pairs"] = pairs(str(flags.model), device=device)
            times = rank_ms(timed, valid, repeats=flags.repeats)
    model, curve = contender(flags.contender, ranker.model, flags), []
    found: dict[str, list[int]] = {}

    def evaluate(updates: int, seconds: float) -> None:
        name = "trained" if updates else "start"
        with autocast:
            found[name] = example_ranks(model, valid)
        curve.append({"updates": updates, "seconds": seconds, **metrics(found[name])})
        say(
            f"{updates} updates, {seconds:.1f} s: "
            + ", ".join(f"{key} {value:.4g}" for key, value in curve[-1].items())
        )

    evaluate(0, 0.0)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    updates, seconds = fit(
        model,
        train.batches(flags.batch, pool=flags.pool, seed=flags.seed),
        Goal(flags.seconds, flags.updates, flags.evaluations),
        Rates(flags.learning_rate, flags.head_rate, flags.bias_rate),
        autocast=autocast,
        evaluate=evaluate,
    )
    return {
        "benchmark": "uni",
        "contender": flags.contender,
        "machine": machine() | ({"gpu": torch.cuda.get_device_name()} if device.type == "cuda" else {}),
        "settings": _settings(flags),
        "start": metrics(found["start"]),
        "trained": metrics(found["trained"]),
        "updates": updates,
        "seconds": seconds,
        "examples_per_second": updates * flags.batch / seconds,
        "peak_gb": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
        "curve": curve,
        "ms": times,
        "weights": model.learned_weights(),
        "ranks": found,
    }


def contender(name: str, late: LateEncoder, flags: argparse.Namespace) -> Late:
    """A contender that starts as a copy of the late-interaction encoder."""
    own, device = copy.deepcopy(late), next(late.parameters()).device
    if name == "uni":
        return Uni(own, bias=flags.bias, max_tokens=flags.max_tokens).to(device)
    return Late(own)


def _settings(flags: argparse.Namespace) -> dict[str, Any]:
    """The flags, of paths their last part alone: where they lie is the machine's."""
    left_out = ("compare", "json")
    given = {
        name: value for name, value in vars(flags).items() if name not in left_out and value not in (None, math.inf)
    }
    return {name: value.name if isinstance(value, Path) else value for name, value in given.items()}


if __name__ == "__main__":
    main()
