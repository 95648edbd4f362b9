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
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from benchmarks.common import get_two_towers, import_peer, measure_interleaved_ms
from polyencoder.encoding.encode import encode_candidates
from polyencoder.ranker import Ranker
from polyencoder.text import TextEncoder

BATCH_SIZES = (32, 256)  # sentence-transformers' default, and ours
POOLING = {"first": "cls", "mean": "mean", "max": "max"}  # our reductions that it has


def measure(ranker: Ranker, texts: Sequence[str], *, repeats: int) -> list[dict[str, Any]]:
    """A row for ours and one for each way of sentence-transformers', with candidates per second."""
    model = get_two_towers(ranker)
    with tempfile.TemporaryDirectory() as folder:
        theirs = load_sentence_transformer(ranker, Path(folder))

    def encode(batch_size: int) -> Tensor:
        vectors: Tensor = theirs.encode(
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


def load_sentence_transformer(ranker: Ranker, folder: Path) -> Any:
    """The ranker's candidate tower, tokenizer and reduction as sentence-transformers loads them."""
    package = import_peer("sentence_transformers")
    modules = import_peer("sentence_transformers.sentence_transformer.modules")
    logging.set_verbosity_error()  # that a pooling layer is not there, which no reduction reads
    logging.disable_progress_bar()
    model, text = get_two_towers(ranker), ranker.text.config
    model.candidate_tower.model.save_pretrained(folder)
    tokenizer = Tokenizer.from_str(ranker.text.tokenizer.to_str())
    tokenizer.post_processor = TemplateProcessing(
        single=f"{text.start_token} $A {text.end_token}",
        special_tokens=[(text.start_token, ranker.text.start_id), (text.end_token, ranker.text.end_id)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=text.pad_token, cls_token=text.start_token, sep_token=text.end_token
    ).save_pretrained(folder)
    transformer = modules.Transformer(str(folder), max_seq_length=text.label_truncate)
    pooling = modules.Pooling(model.dim, pooling_mode=POOLING[model.config.reduction])
    return package.SentenceTransformer(modules=[transformer, pooling], device="cpu").eval()
