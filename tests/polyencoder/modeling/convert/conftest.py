from __future__ import annotations

import pytest
import torch

from polyencoder.modeling.build import build_model
from polyencoder.modeling.convert import ConvertConfig
from polyencoder.modeling.convert.config import convert_ranker, convert_text
from polyencoder.text.tokens import pad

TEXTS = [[1, 2, 3, 4, 5, 6, 7], [8], [9, 10, 11], [39] * 60, [0]]
TINY = {
    "vocab_size": 40,
    "hidden_size": 12,
    "attention_limits": (1, 3),
    "attention_size": 4,
    "intermediate_size": 20,
    "positions": (5, 3),
    "reduction_size": 4,
    "head_sizes": (16, 16),
    "output_size": 10,
}


def batch(texts=TEXTS):
    return pad(texts, pad_id=40)


@pytest.fixture
def make_convert():
    """(seed=0, extra_contexts=0, **ConvertConfig's fields) -> a tiny ConveRT in evaluation mode."""

    def make(*, seed: int = 0, extra_contexts: int = 0, **fields):
        config = ConvertConfig(**{**TINY, **fields})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = build_model(convert_ranker(config, convert_text(extra_contexts=extra_contexts))).eval()
            for name, parameter in model.named_parameters():  # so that no part has no effect
                if parameter.dim() == 1:
                    torch.nn.init.normal_(parameter, mean=float("norm.weight" in name), std=0.3)
        return model

    return make
