"""Measures candidates encoded per second: ours beside sentence-transformers' `encode`, same weights, one process.

Both get the same texts in the same order, cut at the same length, in fp32, each with its own way of making batches;
sentence-transformers with batches of its default size and of ours. The vectors are compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers.utils import logging

from benchmarks.common import get_two_towers, import_peer, measure_interleaved_ms
from polyencoder.encoding.encode import encode_candidates
from polyencoder.ranker import Ranker
from polyencoder.text import TextEncoder

BATCH_SIZES = (32, 256)  # sentence-transformers' default, and ours


def measure(ranker: Ranker, texts: Sequence[str], *, repeats: int) -> list[dict[str, Any]]:
    """A row for ours and one for each way of sentence-transformers', with candidates per second."""
    model = get_two_towers(ranker)
    with tempfile.TemporaryDirectory() as folder:
        ranker.save_pretrained(folder)
        theirs = load_sentence_transformer(folder)

    def encode(batch_size: int) -> Tensor:
        vectors: Tensor = theirs.encode_document(
            list(texts), batch_size=batch_size, convert_to_tensor=True, show_progress_bar=False
        )
        return vectors

    def encode_ours() -> Tensor:
        text = TextEncoder(ranker.text.tokenizer, ranker.text.config)  # which remembers no tokens yet
        return encode_candidates(model, text, texts)

    torch.testing.assert_close(normalize(encode(BATCH_SIZES[0])), normalize(encode_ours()), rtol=0, atol=1e-4)
    peers: dict[str, Callable[[], Tensor]] = {"polyencoder": encode_ours}
    peers |= {f"sentence-transformers, batches of {size}": partial(encode, size) for size in BATCH_SIZES}
    times = measure_interleaved_ms(peers, repeats=repeats)
    return [
        {
            "case": "encoding",
            "encoder": name,
            "candidates": len(texts),
            "candidates_per_second": 1e3 * len(texts) / ms,
            "ours_vs_this": ms / times["polyencoder"],
        }
        for name, ms in times.items()
    ]


def load_sentence_transformer(folder: str | Path) -> Any:
    """A ranker's folder as sentence-transformers reads it: its `encode_document` gives the vectors of candidates."""
    logging.set_verbosity_error()  # that a pooling layer is missing, which no reduction reads
    model = import_peer("sentence_transformers").SentenceTransformer(str(folder), device="cpu")
    model.tokenizer.truncation_side = "right"  # as ours cuts candidates; of one tower it is the side of contexts
    return model
