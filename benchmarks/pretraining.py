"""Measures pre-training: peak memory of reading a corpus, and the speed of steps relative to their matrix products.

    python -m benchmarks.pretraining --gigabytes 10 --json

- corpus: one epoch of synthetic conversations (`--gigabytes`; no turn occurs twice) through `Corpus` and `PairBatches`,
  as `polyencoder pretrain` reads them, in a separate process: its peak memory above that of the imports after a
  twentieth, a fifth, a half and all of the corpus. The files are written below `--folder` first, and removed.
- steps: tokens a second, without padding, of masked-word batches of `--tokens` tokens: forward, backward and an
  Adam step, for encoders of 4 x 256 and 12 x 768 and a vocabulary of 30,000, with all sequences of a batch in one row
  (packed) and without, in turns. `share` is the time of large matrix products with six operations a parameter and token
  (`polyencoder.pretraining.rate`), divided by the time of the fastest step: at most 1. The rate of products is measured
  before and after, in the same run. Times are processor times, on a GPU wall-clock times.
- fairseq: the same steps, in turns with those of fairseq's RoBERTa of the same sizes, which must be installed
  (docs/pretraining.md). `vs_fairseq` is the ratio of medians.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import (
    argument_parser,
    interleaved_ms,
    machine,
    measured_alone,
    peak_mb,
    print_report,
    synchronize,
    use_threads,
)
from benchmarks.pretraining_fairseq import fairseq_stepping
from polyencoder.config import TextConfig
from polyencoder.modeling.encoder_config import scratch_config
from polyencoder.modeling.loading import build_backbone
from polyencoder.pretraining.batches import PairBatches, PairInputs
from polyencoder.pretraining.corpus import Corpus
from polyencoder.pretraining.heads import PretrainingModel
from polyencoder.pretraining.inputs import PairBatch
from polyencoder.pretraining.objective import PretrainingObjective
from polyencoder.pretraining.rate import matmul_throughput, step_flops
from polyencoder.pretraining.start import masking_of
from polyencoder.text import TextEncoder
from polyencoder.text.learning import PieceSettings, count_characters, learn_pieces

CASES = ("corpus", "steps", "fairseq")
SIZES = {"4 x 256": (4, 256, 4), "12 x 768": (12, 768, 12)}  # layers, dimensions, heads
SHARES = (0.05, 0.2, 0.5, 1.0)  # shares of the corpus after which memory is read
WORDS, TURNS, FILE = 5_000, 8, 1 << 26  # of the vocabulary, of a conversation, bytes of a file
LONGEST, VOCABULARY = 128, 30_000


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES[:2])
    parser.add_argument("--gigabytes", type=float, default=0.2, help="size of the corpus (--quick: at most 0.01)")
    parser.add_argument(
        "--folder", type=Path, help="where the corpus is written (default: the system's, for such files)"
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="(--quick: the first)")
    parser.add_argument("--tokens", type=int, default=4_096, help="of a batch of a step, padding included")
    parser.add_argument("--repeats", type=int, default=5, help="steps of each encoder (--quick: 1)")
    parser.add_argument("--read", type=Path, help="read the corpus of this folder here, and print what it took")
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    if flags.read is not None:
        print(json.dumps(read(flags.read)))
        return
    if flags.gigabytes <= 0 or flags.tokens < 4 * LONGEST or flags.repeats < 1:
        parser.error(f"--gigabytes must be above 0, --tokens at least {4 * LONGEST}, --repeats at least 1")
    size = int(1e9 * (min(0.01, flags.gigabytes) if flags.quick else flags.gigabytes))
    sizes = {name: SIZES[name] for name in (flags.sizes[:1] if flags.quick else flags.sizes)}
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    if "corpus" in flags.cases:
        rows, summary = corpus_rows(size, folder=flags.folder)
    settings = {"corpus_bytes": size, "tokens": flags.tokens, "repeats": flags.repeats}
    report = {"benchmark": "pretraining", "machine": machine(), "settings": settings, "rows": rows, "summary": summary}
    if "steps" in flags.cases:
        rows += step_rows(sizes, tokens=flags.tokens, repeats=1 if flags.quick else flags.repeats)
    if "fairseq" in flags.cases:
        rows += fairseq_rows(sizes, tokens=flags.tokens, repeats=1 if flags.quick else flags.repeats)
        summary |= {f"{row['case']}_vs_fairseq": row["vs_fairseq"] for row in rows if "vs_fairseq" in row}
    print_report(report, as_json=flags.json)


# ---- a corpus


def corpus_rows(size: int, *, folder: Path | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows and summary of one epoch of a corpus of `size` bytes."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        if shutil.disk_usage(name).free < 1.1 * size:
            raise SystemExit(f"{name}: has no room for a corpus of {size:,} bytes; give another --folder")
        write_corpus(Path(name), size=size)
        found = measured_alone("benchmarks.pretraining", "--read", name, what="the corpus")
    rows = [{"case": "corpus", **mark} for mark in found["marks"]]
    return rows, {"corpus_peak_mb": found["marks"][-1]["peak_mb"], "corpus_mb_per_second": found["mb_per_second"]}


def write_corpus(folder: Path, *, size: int) -> None:
    """Write files of synthetic conversations with words of unequal frequency; no turn occurs twice."""
    rng = np.random.default_rng(0)
    letters = [rng.integers(0, 26, rng.integers(2, 9)) for _ in range(WORDS)]
    words = ["".join(chr(97 + letter) for letter in word) for word in letters]
    written = number = 0
    while written < size:
        number += 1
        limit = min(FILE, size - written)
        with open(folder / f"{number:04}.jsonl", "w", encoding="utf-8") as file:
            here = 0
            while here < limit:
                chosen = (WORDS * rng.random((TURNS, 10)) ** 3).astype(int)
                said = rng.integers(0, 1 << 30, TURNS)  # so that no two turns are alike
                turns = [f"{' '.join(words[i] for i in row)} {n}" for row, n in zip(chosen, said, strict=True)]
                here += file.write(json.dumps({"turns": turns}) + "\n")
            written += here


def read(folder: Path) -> dict[str, Any]:
    """Read one epoch of a corpus; peak memory in MB (2**20 bytes) above that of the imports, after each share."""
    files = sorted(map(str, folder.glob("*.jsonl")))
    size = sum(Path(file).stat().st_size for file in files)
    with open(files[0], encoding="utf-8") as file:
        texts = [turn for line, _ in zip(file, range(2_000), strict=False) for turn in json.loads(line)["turns"]]
    with open(files[0], "rb") as first:
        examples = round(size / (sum(len(line) for line, _ in zip(first, range(2_000), strict=False)) / 2_000)) * (
            TURNS - 1
        )
    text = text_encoder(texts)
    inputs = PairInputs(text, longest=LONGEST, masking=masking_of(text, 0.15))
    before, start, seen, marks = peak_mb(), time.perf_counter(), 0, []
    peak, shares = 0.0, iter(SHARES)
    share = next(shares)
    for batch in PairBatches(Corpus(files), inputs, tokens=32_000)():
        seen += len(batch)
        if seen >= min(share, 0.999) * examples:
            peak = max(peak, peak_mb() - before)  # the system's count is not exact
            read_gb, seconds = round(share * size / 1e9, 4), time.perf_counter() - start
            marks.append({"read_gb": read_gb, "peak_mb": peak, "seconds": seconds})
            if (following := next(shares, None)) is None:
                break
            share = following
    return {"marks": marks, "mb_per_second": size / 1e6 / marks[-1]["seconds"]}


def text_encoder(texts: Sequence[str]) -> TextEncoder:
    settings = PieceSettings(size=3_000)
    tokens = {"pad_token": "[PAD]", "start_token": "[S]", "end_token": "[S]", "separator": "[NEWLINE]"}
    config = TextConfig(text_truncate=LONGEST, label_truncate=LONGEST, **tokens)  # type: ignore[arg-type]
    return TextEncoder(learn_pieces(texts, count_characters(texts, settings), settings), config)


# ---- steps


def step_rows(sizes: dict[str, tuple[int, int, int]], *, tokens: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each encoder, packed and padded: tokens a second of its fastest step, and `share`."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = masked_batch(tokens).to(device)
    text_tokens = int(batch.contexts.mask.sum())
    rows = []
    for name, (layers, dim, heads) in sizes.items():
        model = make_model(layers, dim, heads).to(device).train()
        peers = {"packed": stepping(model, batch, packs=True), "padded": stepping(model, batch, packs=False)}
        rates, best = [matmul_throughput(device, clock=_clock())], dict.fromkeys(peers, float("inf"))
        for _ in range(repeats + 1):  # the first warms up
            for peer, step in peers.items():
                best[peer] = min(best[peer], step())
        rates.append(matmul_throughput(device, clock=_clock()))
        floor = step_flops(model, batch) / max(rates)
        rows += [
            {
                "case": f"{name} {peer}",
                "tokens_per_second": text_tokens / seconds,
                "floor_tokens_per_second": text_tokens / floor,
                "share": floor / seconds,
            }
            for peer, seconds in best.items()
        ]
    return rows


def fairseq_rows(sizes: dict[str, tuple[int, int, int]], *, tokens: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each encoder: tokens a second of our median step and of fairseq's, and their ratio."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = masked_batch(tokens).to(device)
    text_tokens = int(batch.contexts.mask.sum())
    rows = []
    for name, (layers, dim, heads) in sizes.items():
        theirs = fairseq_stepping(
            batch, layers=layers, dim=dim, heads=heads, vocabulary_size=VOCABULARY, longest=LONGEST, clock=_clock()
        )
        peers = {
            "ours": stepping(make_model(layers, dim, heads).to(device).train(), batch, packs=True),
            "fairseq": theirs,
        }
        ms = interleaved_ms(peers, repeats=repeats, clock=_clock())
        rates = {f"{peer}_tokens_per_second": text_tokens / value * 1e3 for peer, value in ms.items()}
        rows.append({"case": name, **rates, "vs_fairseq": ms["fairseq"] / ms["ours"]})
    return rows


def make_model(layers: int, dim: int, heads: int) -> PretrainingModel:
    config = scratch_config(
        vocabulary_size=VOCABULARY,
        dim=dim,
        n_layers=layers,
        n_heads=heads,
        ffn_dim=4 * dim,
        n_positions=LONGEST,
        attention_dropout=0.1,
    )
    return PretrainingModel(build_backbone(config))


def masked_batch(tokens: int) -> PairBatch:
    """A masked-word batch of synthetic conversations of similar length, as in a run."""
    with tempfile.TemporaryDirectory() as name:
        write_corpus(Path(name), size=3_000_000)
        files = [str(file) for file in Path(name).glob("*.jsonl")]
        with open(files[0], encoding="utf-8") as file:
            text = text_encoder([turn for line, _ in zip(file, range(500), strict=False) for turn in _turns(line)])
        inputs = PairInputs(text, longest=LONGEST, masking=masking_of(text, 0.15))
        batches: Iterator[PairBatch] = PairBatches(Corpus(files), inputs, tokens=tokens)()
        return next(batch for batch in batches if batch.targets is not None)


def _turns(line: str) -> list[str]:
    turns: list[str] = json.loads(line)["turns"]
    return turns


def stepping(model: PretrainingModel, batch: PairBatch, *, packs: bool) -> Callable[[], float]:
    """A function that makes one step and returns its seconds."""
    objective, optimizer = PretrainingObjective(model), torch.optim.Adam(model.parameters(), 2e-4, betas=(0.9, 0.98))
    clock = _clock()

    def step() -> float:
        model.encoder._packs = packs
        synchronize()
        start = clock()
        optimizer.zero_grad()
        outcome = objective(batch)
        assert outcome is not None
        outcome.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        synchronize()
        return clock() - start

    return step


def _clock() -> Callable[[], float]:
    """Processor seconds of this process; on a GPU wall-clock seconds, after synchronizing."""
    return time.perf_counter if torch.cuda.is_available() else time.process_time


if __name__ == "__main__":
    main()
