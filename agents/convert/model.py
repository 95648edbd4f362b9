"""ConveRT's `ModelFamily`: configuration and subword vocabulary from ParlAI's options."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from parlai.agents.convert.flags import LEARNING, add_args, check_flags, check_start, read_sizes
from parlai.agents.ranker.dictionary import RankerDictionary
from parlai.agents.ranker.flags import CheckpointSource, LoadedModel, check_new_vocabulary, check_origin
from parlai.agents.ranker.model.family import Fields, ModelFamily, check_family, get_length
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser

from polyencoder.config import Architecture, RankerConfig, TextConfig
from polyencoder.errors import ConfigError
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.convert import ConvertConfig
from polyencoder.modeling.convert.config import convert_ranker, convert_text, format_sizes, parse_sizes
from polyencoder.modeling.families import CONVERT_SIZES
from polyencoder.text.encoder import AnyTokenizer, TextEncoder, read_subwords
from polyencoder.text.subwords.learning import SubwordSettings, count_words, learn_subwords, learn_subwords_to_size
from polyencoder.text.subwords.tokenizer import SubwordTokenizer

SIZE = 31_476  # Section 2.1 of the paper
LEAST_COUNT = 2  # of a subword, if the number of subwords is given


class ConvertFamily(ModelFamily):
    """A ConveRT and its subwords, from `--vocabulary` or the task. A model keeps its text layout."""

    trained_fields: Fields = dataclasses.asdict(convert_text())

    def add_args(self, parser: ParlaiParser, architecture: Architecture, partial_opt: Opt | None) -> None:
        add_args(parser, partial_opt)

    def check_flags(self, opt: Opt, architecture: Architecture) -> None:
        check_flags(opt)

    def check_origin(self, opt: Opt, architecture: Architecture, origin: CheckpointSource | None) -> None:
        check_family(architecture, origin)
        check_origin(opt, origin, source="vocabulary", learning=LEARNING)

    def load_named_tokenizer(self, opt: Opt) -> tuple[AnyTokenizer, Fields] | None:
        return (read_subwords(opt["vocabulary"]), self.trained_fields) if opt.get("vocabulary") else None

    def check_new_vocabulary(self, opt: Opt) -> None:
        check_flags(opt)
        check_new_vocabulary(opt, learning=LEARNING)

    def train_tokenizer(self, texts: Iterable[str], opt: Opt) -> AnyTokenizer:
        """Trains subwords: those that occur `--dict-minfreq` times if given, else about `--dict-maxtokens`."""
        words = count_words(text.rstrip("\n") for text in texts)
        if (min_count := opt.get("dict_minfreq") or 0) > 0:
            return learn_subwords(words, SubwordSettings(min_count=min_count))
        size = opt.get("dict_maxtokens") or -1
        tokenizer, _ = learn_subwords_to_size(words, size if size > 0 else SIZE, least_count=LEAST_COUNT)
        return tokenizer

    def get_stored_fields(self, config: TextConfig) -> Fields:
        return dataclasses.asdict(config)

    def build_text_config(self, opt: Opt, tokenizer: AnyTokenizer, fields: Fields, *, is_new: bool) -> TextConfig:
        if not isinstance(tokenizer, SubwordTokenizer):
            raise ConfigError(
                "the tokenizer is not ConveRT's subwords: its dictionary or model belongs to another agent"
            )
        changes: dict[str, Any] = {
            name: get_length(opt, name, fields[name]) for name in ("text_truncate", "label_truncate")
        }
        if (extra := opt.get("extra_contexts")) is not None:
            changes["history_size"] = 1 + extra
        if (numbered := opt.get("number_turns")) is not None:
            changes["number_turns"] = numbered
        return TextConfig(**{**fields, **changes})

    def configure(
        self, opt: Opt, architecture: Architecture, text: TextEncoder, start: LoadedModel | None
    ) -> tuple[RankerConfig, Backbone | None]:
        dropout = {} if opt.get("dropout") is None else {"dropout": opt["dropout"]}
        if start is None:
            if opt.get("number_turns") and text.config.history_size == 1:
                raise ConfigError("--number-turns true: needs --extra-contexts; leave it out")
            multi_context, size = text.config.history_size != 1, text.tokenizer.get_vocab_size(False)
            explicit = parse_sizes({name: opt[name] for name in CONVERT_SIZES if opt.get(name) is not None})
            sizes = ConvertConfig(
                vocab_size=size, multi_context=multi_context, **explicit, **_get_quantization(opt), **dropout
            )
            config = convert_ranker(sizes, text.config)
        else:
            check_start(opt, start)
            sizes = dataclasses.replace(read_sizes(start.config, origin=str(start.origin)), **dropout)
            config = dataclasses.replace(start.config, convert=sizes, text=text.config)
        self.describe_in_opt(opt, config)
        return config, None

    def describe_in_opt(self, opt: Opt, config: RankerConfig) -> None:
        sizes, text = read_sizes(config, origin="the model"), config.text
        opt.update(format_sizes(sizes, (*CONVERT_SIZES, "dropout")))
        opt["quantization_aware"] = sizes.quantized
        opt["quantization_update"] = sizes.quantization_update if sizes.quantized else None
        opt["history_size"], opt["extra_contexts"] = text.history_size, text.history_size - 1
        opt["number_turns"] = text.number_turns
        opt["text_truncate"], opt["label_truncate"] = text.text_truncate, text.label_truncate


class ConvertDictionary(RankerDictionary):
    """The dictionary of `-m convert`."""

    family = ConvertFamily()


def _get_quantization(opt: Opt) -> dict[str, Any]:
    if not opt.get("quantization_aware"):
        if opt.get("quantization_update") is not None:
            raise ConfigError("--quantization-update needs --quantization-aware true: give that, too")
        return {}
    update = {} if opt.get("quantization_update") is None else {"quantization_update": opt["quantization_update"]}
    return {"quantized": True, **update}
