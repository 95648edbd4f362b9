"""Where a new model's tokenizer comes from, a flag or the texts of the task, and how it lays out texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from parlai.agents.ranker.architecture import PERSON_TOKENS, text_config
from parlai.agents.ranker.flags import given_flags
from parlai.core.opt import Opt

from polyencoder.config import TextConfig
from polyencoder.errors import ConfigError
from polyencoder.modeling.loading import load_tokenizer
from polyencoder.text import AnyTokenizer, own_separator, separate_turns, train_tokenizer
from polyencoder.text.vocabulary import LEARNT_SPECIAL_TOKENS

__all__ = ["BytePairs", "Fields", "Vocabulary"]

Fields = Mapping[str, Any]
"""The fields of `TextConfig` that belong to a tokenizer or a model, not to options."""


class Vocabulary(Protocol):
    """One kind of tokenizer."""

    learnt: Fields
    """Of a tokenizer that was learnt."""

    def named(self, opt: Opt) -> tuple[AnyTokenizer, Fields] | None:
        """The one that a flag names."""
        ...

    def learn(self, texts: Iterable[str], opt: Opt) -> AnyTokenizer:
        """One from texts."""
        ...

    def fields(self, config: TextConfig) -> Fields:
        """Those of a model that is there."""
        ...

    def text_config(self, opt: Opt, tokenizer: AnyTokenizer, fields: Fields, *, is_new: bool) -> TextConfig:
        """How text becomes tokens, as the options say; `is_new`: there is no model yet that says how."""
        ...


class BytePairs:
    """That of a pre-trained `--backbone`, else byte-level BPE of `--dict-maxtokens`."""

    learnt: Fields = LEARNT_SPECIAL_TOKENS

    def named(self, opt: Opt) -> tuple[AnyTokenizer, Fields] | None:
        return load_tokenizer(opt["backbone"]) if opt.get("backbone") else None

    def learn(self, texts: Iterable[str], opt: Opt) -> AnyTokenizer:
        size = opt.get("dict_maxtokens", -1)
        return train_tokenizer(
            texts, vocabulary_size=size if size > 0 else 30_000, lower_case=opt.get("dict_lower", True)
        )

    def fields(self, config: TextConfig) -> Fields:
        names = (*LEARNT_SPECIAL_TOKENS, "truncation", "surround", "empty_token", *PERSON_TOKENS)
        return {name: getattr(config, name) for name in names}

    def text_config(self, opt: Opt, tokenizer: Any, fields: Fields, *, is_new: bool) -> TextConfig:
        special, given = dict(fields), given_flags(opt)
        if opt.get("dict_endtoken") and opt.get("dict_endtoken") == opt.get("dict_starttoken"):
            special["end_token"] = special["start_token"]  # the paper's [S] on both sides
        delimiter, separator = given.get("delimiter"), given.get("turn_separator")
        if delimiter and separator:
            raise ConfigError("--delimiter and --turn-separator both say what stands between two turns: give one")
        if separator or is_new:  # a model has its own
            how = separator or opt.get("turn_separator") or own_separator(tokenizer)
            special = separate_turns(tokenizer, special, how)
        if delimiter and tokenizer.encode(delimiter, add_special_tokens=False).ids:
            special = {**special, "separator": delimiter}
        return text_config(opt, special)
