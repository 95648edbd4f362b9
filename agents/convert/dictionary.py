"""ParlAI's dictionary over ConveRT's subwords: of `--vocabulary`, or learnt from the task."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from parlai.agents.ranker.architecture import length
from parlai.agents.ranker.dictionary import RankerDictionary
from parlai.agents.ranker.vocabulary import Fields
from parlai.core.opt import Opt

from polyencoder.config import TextConfig
from polyencoder.errors import ConfigError
from polyencoder.modeling.convert.config import convert_text
from polyencoder.text import AnyTokenizer, read_subwords
from polyencoder.text.subwords import (
    SubwordSettings,
    SubwordTokenizer,
    count_words,
    learn_subwords,
    learn_subwords_of_size,
)

__all__ = ["ConvertDictionary", "Subwords"]

SIZE = 31_476  # Section 2.1 of the paper
LEAST_COUNT = 2  # of a subword, where the number of subwords is what is asked for


class Subwords:
    """ConveRT's vocabulary, and the layout of its texts: all of it is the model's, where there is one."""

    learnt: Fields = dataclasses.asdict(convert_text())

    def named(self, opt: Opt) -> tuple[AnyTokenizer, Fields] | None:
        return (read_subwords(opt["vocabulary"]), self.learnt) if opt.get("vocabulary") else None

    def learn(self, texts: Iterable[str], opt: Opt) -> AnyTokenizer:
        """Those that occur `--dict-minfreq` times if it is given, else about `--dict-maxtokens`."""
        words = count_words(text.rstrip("\n") for text in texts)
        if (least := opt.get("dict_minfreq") or 0) > 0:
            return learn_subwords(words, SubwordSettings(min_count=least))
        size = opt.get("dict_maxtokens") or -1
        tokenizer, _ = learn_subwords_of_size(words, size if size > 0 else SIZE, least_count=LEAST_COUNT)
        return tokenizer

    def fields(self, config: TextConfig) -> Fields:
        return dataclasses.asdict(config)

    def text_config(self, opt: Opt, tokenizer: AnyTokenizer, fields: Fields, *, is_new: bool) -> TextConfig:
        if not isinstance(tokenizer, SubwordTokenizer):
            raise ConfigError(
                "the tokenizer is none of ConveRT's subwords: its dictionary or model is that of another agent"
            )
        given: dict[str, Any] = {name: length(opt, name, fields[name]) for name in ("text_truncate", "label_truncate")}
        if (extra := opt.get("extra_contexts")) is not None:
            given["history_size"] = 1 + extra
        if (numbered := opt.get("number_turns")) is not None:
            given["number_turns"] = numbered
        return TextConfig(**{**fields, **given})


class ConvertDictionary(RankerDictionary):
    """The dictionary of `-m convert`."""

    vocabulary = Subwords()
