"""Measures training in examples per second: our poly-encoder agent beside ParlAI's and sentence-transformers.

    python -m benchmarks.training --datapath ../shared/data --backbone FOLDER --json

Three comparisons on ConvAI2, batches of 64 (`--batch`), the other labels as negatives, contexts of 360 tokens and 20
utterances: a tiny transformer (1 layer, 32 dimensions, to time the data pipeline), a small one (4 layers,
256), both in ParlAI's own training loop; and fine-tuning `--backbone` with our agent and with sentence-transformers'
trainer (MultipleNegativesRankingLoss), the same weights, batch, lengths, precision and examples. Loading is not timed.
The peers take turns, each in a separate process, `--repeats` times; ratios compare medians, in wall-clock time
(`..._vs_...`) and in processor time (`..._processor`), which is more stable on a busy machine. `--bf16` trains our
agent in bfloat16.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.agents import CONVAI2, build_options, build_size_flags, open_teacher
from benchmarks.common import build_parser, import_peer, print_report, run_in_process, train_on_pairs, use_threads

CASES = ("datapath", "small", "backbone")
LEARNING_RATE = 5e-5
SIZES = {
    "datapath": build_size_flags(layers=1, dim=32, heads=2, codes=16),
    "small": build_size_flags(layers=4, dim=256, heads=4),
}
COMMON = {"candidates": "batch", "optimizer": "adamw", "learningrate": LEARNING_RATE, "lr_scheduler": "none"}
FINE_TUNING = {  # what sentence-transformers does: one encoder for both sides, trained as a whole, the cosine of means
    "share_encoders": True,
    "reduction_type": "mean",
    "normalize_sent_emb": True,
    "output_scaling": 4.47,
    "type_optimization": "all",
    "mutators": "flatten",
    "text_truncate": 360,
    "label_truncate": 72,
}
Training = Callable[[int], tuple[float, float]]
"""From a number of training steps to their seconds, by the clock and of the processor."""
Make = Callable[[], Training]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--datapath", help="ParlAI's data folder, with ConvAI2 in it (default: ParlAI's own)")
    parser.add_argument("--backbone", help="a pre-trained encoder, to fine-tune beside sentence-transformers")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, help="(backbone: if --backbone is given)")
    parser.add_argument("--batch", type=int, default=64, help="of all peers; sentence-transformers takes 8 GB for 64")
    parser.add_argument("--steps", type=int, default=10, help="of each turn")
    parser.add_argument("--bf16", action="store_true", help="our agent in bfloat16; its peers stay in float32")
    parser.add_argument("--repeats", type=int, default=3)
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    if flags.quick:
        flags.steps, flags.repeats = 2, 1
    where: dict[str, Any] = {"datapath": flags.datapath} if flags.datapath else {}
    common = {"batchsize": flags.batch, **where}

    bf16: dict[str, dict[str, Any]] = {"ours": {"bf16": True} if flags.bf16 else {}, "parlai": {}}
    rows: list[dict[str, Any]] = []
    summary: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        comparisons: dict[str, dict[str, Make]] = {
            case: {
                peer: partial(_build_loop, folder / f"{case}_{peer}", model=model, **bf16[peer], **common, **dimensions)
                for peer, model in {"ours": "polyencoder", "parlai": "transformer/polyencoder"}.items()
            }
            for case, dimensions in SIZES.items()
        }
        if flags.backbone:
            ours = {"model": "biencoder", "backbone": flags.backbone, **bf16["ours"], **common, **FINE_TUNING}
            comparisons["backbone"] = {
                "ours": partial(_build_loop, folder / "backbone", **ours),
                "sentence_transformers": partial(_build_peer, flags.backbone, where, batch=flags.batch),
            }
        for case, peers in comparisons.items():
            if case in flags.cases:
                measured = _measure(case, peers, flags)
                rows += measured
                summary |= _compute_ratios(*measured)
    settings = {"task": CONVAI2, "batchsize": flags.batch}
    settings |= {name: getattr(flags, name) for name in ("bf16", "steps", "repeats")}
    report = {"benchmark": "training", "settings": settings, "rows": rows, "summary": summary}
    print_report(report, as_json=flags.json)


def _measure(case: str, peers: Mapping[str, Make], flags: Namespace) -> list[dict[str, Any]]:
    """A row for each peer: examples per second, and per second of processor time.

    Medians over the peer's turns of `--steps` steps, after a warm-up turn.
    """
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in peers}
    with ExitStack() as processes:
        runs = {
            name: processes.enter_context(run_in_process(make, threads=flags.threads)) for name, make in peers.items()
        }
        for run in runs.values():
            run(1)
        for _ in range(flags.repeats):
            for name, run in runs.items():
                seconds[name].append(run(flags.steps))
    rows = []
    examples = flags.batch * flags.steps
    for name, turns in seconds.items():
        wall, processor = (statistics.median(values) for values in zip(*turns, strict=True))
        speeds = {"examples_per_second": examples / wall, "examples_per_processor_second": examples / processor}
        rows.append({"case": case, "peer": name, **speeds})
    return rows


def _compute_ratios(ours: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    name = f"{ours['case']}_vs_{other['peer']}"
    return {
        name: ours["examples_per_second"] / other["examples_per_second"],
        f"{name}_processor": ours["examples_per_processor_second"] / other["examples_per_processor_second"],
    }


def _build_loop(folder: Path, **flags: Any) -> Training:
    """A function that runs steps of ParlAI's training loop; each call continues the previous one."""
    opt = build_options(folder=folder, training=True, **COMMON, **flags)
    from parlai.core.agents import create_agent
    from parlai.core.worlds import create_task

    world = create_task(opt, create_agent(opt))

    def run(steps: int) -> tuple[float, float]:
        start, processor = time.perf_counter(), time.process_time()
        for _ in range(steps):
            world.parley()
        return time.perf_counter() - start, time.process_time() - processor

    return run


def _build_peer(backbone: str, where: Mapping[str, Any], *, batch: int) -> Training:
    """A function that runs steps of sentence-transformers' trainer on pairs of the same task, shuffled alike."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        """Seconds from the first step to the end of the last, without what the trainer does before and after."""

        start = seconds = (0.0, 0.0)

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if not self.start[0]:
                self.start = time.perf_counter(), time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.seconds = time.perf_counter() - self.start[0], time.process_time() - self.start[1]

    model = import_peer("sentence_transformers").SentenceTransformer(backbone, device="cpu")
    model.max_seq_length = 360
    pairs = iter(_build_pairs(where))

    def run(steps: int) -> tuple[float, float]:
        rows = [next(pairs) for _ in range(steps * batch)]
        clock = Clock()
        options = {"per_device_train_batch_size": batch, "max_steps": steps, "learning_rate": LEARNING_RATE}
        train_on_pairs(model, rows, callbacks=[clock], **options)
        return clock.seconds

    return run


def _build_pairs(where: Mapping[str, Any]) -> Any:
    """`{"anchor": context, "positive": label}` for each example, in the shuffled order of the training task."""
    teacher = open_teacher(CONVAI2, datatype="train", **where)
    while True:
        message = teacher.act()
        yield {"anchor": message["text"], "positive": message["labels"][0]}


if __name__ == "__main__":
    main()
