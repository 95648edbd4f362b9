"""Measures ConveRT: file size, loading time, and sentences per second beside MiniLM and BERT-base's size.

    python -m benchmarks.convert --json

Models have the paper's size and random weights, which affect neither size nor speed. `single_mb` and `multi_mb` are
file sizes (MB = 10**6 bytes) of models in 8 and 16 bits, `load_seconds` is the time to load the first of them.

Sentences are the first `--sentences` of `--texts FILE`, one a line, or of the utterances of `selection:sample`; the
vocabulary is trained on all of them. Every peer encodes all sentences in one call, tokenizing included, on one core
(or `--threads`); the peers take turns in one process. In float32: ConveRT, also quantized; all-MiniLM-L6-v2 (6 layers
of 384) and an encoder of BERT-base's size (12 of 768, random weights), both encoded by this library (the peers of
`encode_vs_minilm` and `encode_vs_bert_base`) and by sentence-transformers (`..._sentence_transformers`: batches of 32,
padded, sorted by length). In int8: the ONNX graphs of the three. `share_of_product_rate` is the rate of the operations
that a torch model must compute, without padding, as a share of the rate of the same matrix products alone, in the same
run. The row `learning` is a training step of ConveRT with a batch of these sentences.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.agents import quiet_parlai
from benchmarks.common import (
    argument_parser,
    interleaved_ms,
    machine,
    minilm_folder,
    print_report,
    use_threads,
)
from benchmarks.rate import encoded
from benchmarks.search.encoding import sentence_transformer
from polyencoder import Ranker, RankerConfig
from polyencoder.data.collator import Collator
from polyencoder.data.example import Example
from polyencoder.export.onnx import export_onnx, quantize_int8
from polyencoder.modeling.build import build_model
from polyencoder.modeling.convert import ConveRT, ConvertConfig
from polyencoder.modeling.convert.config import convert_ranker, convert_text
from polyencoder.modeling.encoder_config import scratch_config
from polyencoder.packages import require
from polyencoder.settings.training import TrainingConfig
from polyencoder.storage.names import WEIGHTS
from polyencoder.text import TextEncoder
from polyencoder.text.subwords import SubwordSettings, count_words, learn_subwords
from polyencoder.training import Trainer

ROWS = 31_476 + 1_000  # rows of the embedding table
BERT_BASE: dict[str, Any] = {"dim": 768, "n_layers": 12, "n_heads": 12, "ffn_dim": 3072, "n_positions": 512}
SIZES: dict[str, Any] = {}  # sizes of ConveRT that are not the paper's
VOCABULARY_SENTENCES = 20_000  # at most, to train the vocabulary
LENGTH = 60  # tokens of a sentence, at most
OTHERS = ("minilm", "bert_base")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--texts", type=Path, help="a file of sentences, one a line")
    parser.add_argument("--sentences", type=int, default=512)
    parser.add_argument("--backbone", help="folder of the pre-trained encoder (default: all-MiniLM-L6-v2)")
    parser.add_argument("--repeats", type=int, default=5)
    flags = parser.parse_args(arguments)
    use_threads(flags.threads or 1)
    count, repeats = (48, 2) if flags.quick else (flags.sentences, flags.repeats)
    corpus = _texts(flags.texts)
    texts = corpus[:count]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes, convert, quantized = _converts(corpus[:VOCABULARY_SENTENCES], folder, repeats=repeats)
        rankers = {"convert": convert, "convert_quantized": quantized, **_others(flags.backbone, folder)}
        rows = _in_float32(rankers, folder, texts, repeats=repeats)
        rows += _in_int8({name: rankers[name] for name in ("convert", *OTHERS)}, folder, texts, repeats=repeats)
        rows.append(_training_step(convert, texts, repeats=repeats))
    speeds = {(row["what"], row["dtype"]): row["sentences_per_second"] for row in rows}
    ratios = {}
    for other in OTHERS:
        ratios[f"encode_vs_{other}"] = speeds["convert", "float32"] / speeds[other, "float32"]
        ratios[f"encode_vs_{other}_int8"] = speeds["convert", "int8"] / speeds[other, "int8"]
        peer = f"{other}_sentence_transformers"
        ratios[f"encode_vs_{peer}"] = speeds["convert", "float32"] / speeds[peer, "float32"]
    report = {
        "benchmark": "convert",
        "machine": machine() | {"onnxruntime": require("onnxruntime", extra="onnx").__version__},
        "settings": {
            "texts": "selection:sample" if flags.texts is None else flags.texts.name,
            "sentences": len(texts),
            "words": round(statistics.mean(len(text.split()) for text in texts), 1),
            "repeats": repeats,
        },
        "rows": rows,
        "summary": {**sizes, **ratios},
    }
    print_report(report, as_json=flags.json)


def _texts(file: Path | None) -> list[str]:
    """Distinct, non-empty sentences."""
    if file is not None:
        lines = file.read_text(encoding="utf-8").splitlines()
    else:
        quiet_parlai()
        from parlai.tasks.selection.sample import sample_dialogues

        turns = [turn for dialogue in sample_dialogues("train") for turn in dialogue.turns]
        lines = [text for turn in turns for text in (turn.text, turn.label.text)]
    return [text for text in dict.fromkeys(lines) if text.strip()]


def _converts(corpus: Sequence[str], folder: Path, *, repeats: int) -> tuple[dict[str, float], Ranker, Ranker]:
    """File sizes and loading time; a single-context model, and the same model quantized and loaded."""
    tokenizer = learn_subwords(count_words(corpus), SubwordSettings(min_count=2))
    kept = {}
    for name, extra in (("multi", 10), ("single", 0)):
        layout = convert_text(extra_contexts=extra)
        sizes = ConvertConfig(**{"vocab_size": ROWS, "multi_context": extra > 0} | SIZES)
        model = build_model(convert_ranker(sizes, layout)).eval()
        convert = Ranker(model, TextEncoder(tokenizer, layout), device="cpu")
        quantized = deepcopy(convert.model)
        assert isinstance(quantized, ConveRT)
        quantized.quantize()
        Ranker(quantized, convert.text, device="cpu").save_pretrained(folder / name)
        kept[f"{name}_mb"] = (folder / name / WEIGHTS).stat().st_size / 1e6
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        small = Ranker.from_pretrained(folder / "single", device="cpu")
        seconds.append(time.perf_counter() - start)
    return kept | {"load_seconds": statistics.median(seconds)}, convert, small


def _others(backbone: str | None, folder: Path) -> dict[str, Ranker]:
    """MiniLM, and an encoder of BERT-base's size with its tokenizer."""
    text = {"text_truncate": LENGTH, "label_truncate": LENGTH}
    minilm = Ranker.from_backbone(backbone or minilm_folder(), "bi", reduction="mean", device="cpu", text=text)
    sizes = scratch_config(vocabulary_size=len(minilm.text), pad_id=minilm.text.pad_id, **BERT_BASE)
    config = RankerConfig(architecture="bi", backbone=sizes, text=minilm.text.config, reduction="mean")
    return {"minilm": minilm, "bert_base": Ranker(build_model(config).eval(), minilm.text, device="cpu")}


def _in_float32(
    rankers: dict[str, Ranker], folder: Path, texts: Sequence[str], *, repeats: int
) -> list[dict[str, Any]]:
    works: dict[str, Callable[[], object]] = {
        name: partial(ranker.encode_candidates, texts) for name, ranker in rankers.items()
    }
    for name in OTHERS:
        peer = sentence_transformer(rankers[name], folder / name)
        works[f"{name}_sentence_transformers"] = partial(peer.encode, texts, show_progress_bar=False)
    rows = []
    for name, ms in interleaved_ms(works, repeats=repeats).items():
        row = {"what": name, "dtype": "float32", "sentences_per_second": len(texts) / ms * 1e3}
        if name in rankers:
            with encoded(rankers[name].model) as seen:
                works[name]()
            lengths = [length for _, lengths in seen.calls for length in lengths]
            row["tokens_per_sentence"] = statistics.mean(lengths)
            row["share_of_product_rate"] = seen.share(ms / 1e3, dtype=torch.float32)
        rows.append(row)
    return rows


def _in_int8(rankers: dict[str, Ranker], folder: Path, texts: Sequence[str], *, repeats: int) -> list[dict[str, Any]]:
    works: dict[str, Callable[[], object]] = {}
    for name, ranker in rankers.items():
        export_onnx(ranker, folder / f"{name}_int8")
        quantize_int8(folder / f"{name}_int8")
        graphs = Ranker.from_pretrained(folder / f"{name}_int8", backend="onnx-int8", device="cpu")
        works[name] = partial(graphs.encode_candidates, texts)
    return [
        {"what": name, "dtype": "int8", "sentences_per_second": len(texts) / ms * 1e3}
        for name, ms in interleaved_ms(works, repeats=repeats).items()
    ]


def _training_step(ranker: Ranker, texts: Sequence[str], *, repeats: int) -> dict[str, Any]:
    """Measure a training step: half of the sentences are the contexts of the other half."""
    half = len(texts) // 2
    examples = [Example([one], other) for one, other in zip(texts[:half], texts[half : 2 * half], strict=True)]
    batch = Collator(ranker.text, "batch")(examples)
    trainer = Trainer(ranker, TrainingConfig(max_updates=1_000, batch_size=half, fine_tuned="all"))
    with encoded(ranker.model) as seen:
        trainer.step(batch)
    seconds = interleaved_ms({"step": partial(trainer.step, batch)}, repeats=repeats)["step"] / 1e3
    return {
        "what": "learning",
        "dtype": "float32",
        "sentences_per_second": 2 * half / seconds,
        "share_of_product_rate": seen.share(seconds, dtype=torch.float32, training=True),
    }


if __name__ == "__main__":
    main()
