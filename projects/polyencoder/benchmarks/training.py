"""Training examples per second: our poly-encoder agent beside ParlAI's own, and beside sentence-transformers.

    python -m polyencoder.benchmarks.training --datapath ../shared/data --backbone FOLDER --json

Three comparisons on ConvAI2, batches of 64, the other labels as negatives, contexts of 360 tokens and 20 utterances:
a tiny transformer (1 layer, 32 dimensions: what is left is the way of the data), a small one (4 layers, 256), both in
ParlAI's own training loop; and fine-tuning `--backbone` with our agent and with sentence-transformers' trainer
(MultipleNegativesRankingLoss), the same weights, batch, lengths, precision and examples. Loading is not timed. The
peers take turns, `--repeats` times; the ratio is that of the medians.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from polyencoder.benchmarks.agents import CONVAI2, make_world, options, size
from polyencoder.benchmarks.common import argument_parser, machine, print_report, use_threads

BATCH = 64
LEARNING_RATE = 5e-5
SIZES = {"datapath": size(layers=1, dim=32, heads=2, codes=16), "small": size(layers=4, dim=256, heads=4)}
COMMON = {
    "candidates": "batch",
    "batchsize": BATCH,
    "optimizer": "adamw",
    "learningrate": LEARNING_RATE,
    "lr_scheduler": "none",
}
FINE_TUNING = {
    "reduction_type": "mean",
    "normalize_sent_emb": True,
    "output_scaling": 4.47,
    "type_optimization": "all",
    "mutators": "flatten",
    "text_truncate": 360,
    "label_truncate": 72,
}
Run = Callable[[int], float]
"""Seconds of so many training steps."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--datapath", help="ParlAI's data folder, with ConvAI2 in it (default: ParlAI's own)")
    parser.add_argument("--backbone", help="a pre-trained encoder, to fine-tune beside sentence-transformers")
    parser.add_argument("--steps", type=int, default=10, help="of each turn")
    parser.add_argument("--repeats", type=int, default=3)
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    steps, repeats = (2, 1) if flags.quick else (flags.steps, flags.repeats)
    where = {"datapath": flags.datapath} if flags.datapath else {}

    rows: list[dict[str, Any]] = []
    summary: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case, dimensions in SIZES.items():
            peers = {
                peer: _loop(folder / f"{case}_{peer}", model=model, **dimensions, **where)
                for peer, model in {"ours": "polyencoder", "parlai": "transformer/polyencoder"}.items()
            }
            speeds = _speeds(peers, steps=steps, repeats=repeats)
            rows += [{"case": case, "peer": peer, "examples_per_second": speed} for peer, speed in speeds.items()]
            summary[f"{case}_vs_parlai"] = speeds["ours"] / speeds["parlai"]
        if flags.backbone:
            peers = {
                "ours": _loop(folder / "minilm", model="biencoder", backbone=flags.backbone, **FINE_TUNING, **where),
                "sentence_transformers": _sentence_transformers(flags.backbone, where),
            }
            speeds = _speeds(peers, steps=steps, repeats=repeats)
            rows += [{"case": "minilm", "peer": peer, "examples_per_second": speed} for peer, speed in speeds.items()]
            summary["minilm_vs_sentence_transformers"] = speeds["ours"] / speeds["sentence_transformers"]
    report = {
        "benchmark": "training",
        "machine": machine(),
        "settings": {"task": CONVAI2, "batchsize": BATCH, "steps": steps, "repeats": repeats},
        "rows": rows,
        "summary": summary,
    }
    print_report(report, as_json=flags.json)


def _speeds(peers: Mapping[str, Run], *, steps: int, repeats: int) -> dict[str, float]:
    """Examples per second of each peer: the median of its turns, after one that is not counted."""
    for run in peers.values():
        run(1)
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(repeats):
        for name, run in peers.items():
            seconds[name].append(run(steps))
    return {name: BATCH * steps / statistics.median(values) for name, values in seconds.items()}


def _loop(folder: Path, **flags: Any) -> Run:
    """Steps of ParlAI's training loop, which goes on where the turn before it stopped."""
    world = make_world(options(folder=folder, training=True, **COMMON, **flags))

    def run(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            world.parley()
        return time.perf_counter() - start

    return run


def _sentence_transformers(backbone: str, where: Mapping[str, Any]) -> Run:
    """Steps of sentence-transformers' trainer on pairs of the same task, shuffled in the same way."""
    try:
        peer, datasets = import_module("sentence_transformers"), import_module("datasets")
    except ImportError as error:
        raise SystemExit(f"this benchmark compares with sentence-transformers ({error}): pip install it") from None
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        """Seconds from the first step to the end of the last, without what the trainer does before and after."""

        start = seconds = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.start = self.start or time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.seconds = time.perf_counter() - self.start

    model = peer.SentenceTransformer(backbone, device="cpu")
    model.max_seq_length = 360
    pairs = iter(_pairs(where))

    def run(steps: int) -> float:
        rows = [next(pairs) for _ in range(steps * BATCH)]
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            peer.SentenceTransformerTrainer(
                model=model,
                args=peer.SentenceTransformerTrainingArguments(
                    output_dir=folder,
                    per_device_train_batch_size=BATCH,
                    max_steps=steps,
                    learning_rate=LEARNING_RATE,
                    save_strategy="no",
                    report_to=[],
                    disable_tqdm=True,
                    use_cpu=True,
                ),
                train_dataset=datasets.Dataset.from_list(rows),
                loss=peer.losses.MultipleNegativesRankingLoss(model, scale=20.0),
                callbacks=[clock],
            ).train()
        return clock.seconds

    return run


def _pairs(where: Mapping[str, Any]) -> Any:
    """`{"anchor": context, "positive": label}` for each example, in the shuffled order of the training task."""
    from parlai.core.params import ParlaiParser
    from parlai.core.teachers import create_task_agent_from_taskname

    opt = ParlaiParser(True, False).parse_kwargs(task=CONVAI2, datatype="train", mutators="flatten", **where)
    teacher = create_task_agent_from_taskname(opt)[0]
    while True:
        message = teacher.act()
        yield {"anchor": message["text"], "positive": message["labels"][0]}


if __name__ == "__main__":
    main()
