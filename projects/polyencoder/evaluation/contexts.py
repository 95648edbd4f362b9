"""Evaluates a multi-context ConveRT on parts of the context, to see what each part contributes."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, get_args

from polyencoder.checks import check_choice
from polyencoder.config import ContextVector
from polyencoder.encoding.protocol import Context, TextRanker
from polyencoder.encoding.scorer import Scorer
from polyencoder.errors import ConfigError
from polyencoder.text import TextEncoder


def choose_context_vector(model: Any, vector: str) -> None:
    """Selects the `ContextVector` of a model. Raises ConfigError as `use_contexts` does."""
    multi_context = _find_multi_context(model)
    check_choice("context_vector", vector, get_args(ContextVector))
    multi_context.context_vector = vector


def reads_earlier_turns(ranker: TextRanker, context: Context) -> bool:
    """Whether a multi-context ConveRT reads earlier turns here; else `extra` ranks nothing. ConfigError for others."""
    _find_multi_context(ranker.model)
    return not set(ranker.text.separator_ids).isdisjoint(ranker.text.tokenize_context(context))


def _find_multi_context(model: Any) -> Any:
    if model.context_vector is None:
        raise ConfigError("only a multi-context convert model has contexts to choose from")
    return model


def use_contexts(ranker: TextRanker, *, extra_contexts: int | None = None, vector: str | None = None) -> Scorer:
    """A ranker that reads `extra_contexts` turns before the last one, or scores by another `ContextVector`.

    None keeps the ranker's own. The model is shared: the vector selected last applies.

    Raises:
        ConfigError: it is another kind of ranker, or there is no such vector or number.
    """
    model, text = _find_multi_context(ranker.model), ranker.text
    if vector is not None:
        choose_context_vector(model, vector)
    if extra_contexts is not None:
        text = TextEncoder(text.tokenizer, replace(text.config, history_size=1 + extra_contexts))
    encoder = copy.copy(ranker.encoder)
    encoder.text = text
    return Scorer(encoder)
