"""Prints the size of a ConveRT as one JSON object: `python -m benchmarks.reproduce.sizes [--extra-contexts 10]`.

`embeddings`, `blocks` and `rest`: millions of parameters; `float32_mb`: the first two in 32 bits, as in the paper's
Table 2; `quantized_mb`: the file of the whole model, embeddings in 8 bits, all else in 16.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from polyencoder.modeling.build import build_model
from polyencoder.modeling.convert import ConvertConfig
from polyencoder.modeling.convert.config import convert_ranker, convert_text
from polyencoder.ranker import Ranker
from polyencoder.storage.names import WEIGHTS
from polyencoder.text import TextEncoder
from polyencoder.text.subwords.learning import SubwordSettings, count_words, learn_subwords

ROWS = 31_476 + 1_000  # of the embedding table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extra-contexts", type=int, default=0, help="10: the multi-context model")
    print(json.dumps(measure_sizes(parser.parse_args(arguments).extra_contexts)))


def measure_sizes(extra_contexts: int) -> dict[str, float]:
    """Sizes of the paper's single-context model, or of one with `extra_contexts` earlier turns."""
    layout = convert_text(extra_contexts=extra_contexts)
    config = ConvertConfig(vocab_size=ROWS, multi_context=extra_contexts > 0)
    model = build_model(convert_ranker(config, layout)).eval()
    counts = {"embeddings": 0, "blocks": 0, "rest": 0}
    for name, parameter in model.named_parameters():
        counts[_get_part(name)] += parameter.numel()
    words = count_words(["any words will do , nothing is read ."] * 2)
    tokenizer = learn_subwords(words, SubwordSettings(min_count=2))
    model.quantize()
    with tempfile.TemporaryDirectory() as folder:
        Ranker(model, TextEncoder(tokenizer, layout), device="cpu").save_pretrained(folder)
        quantized = (Path(folder) / WEIGHTS).stat().st_size
    millions = {part: count / 1e6 for part, count in counts.items()}
    float32 = 4 * (millions["embeddings"] + millions["blocks"])
    return {**millions, "float32_mb": float32, "quantized_mb": quantized / 1e6}


def _get_part(name: str) -> str:
    return "blocks" if "blocks." in name else "embeddings" if "embeddings.words" in name else "rest"


if __name__ == "__main__":
    main()
