"""The pre-training `ModelFamily`: encoder and tokenizer from ParlAI's options."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from parlai.agents.pretrain_ranker.flags import OF_THE_ENCODER, add_args, check_flags, check_start, encoder_settings
from parlai.agents.ranker.dictionary import RankerDictionary
from parlai.agents.ranker.flags import check_encoder, check_origin, given_flags
from parlai.agents.ranker.model.family import LENGTHS, Fields, ModelFamily, check_family, length
from parlai.agents.ranker.model.source import CheckpointSource, LoadedModel
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from tokenizers import Tokenizer

from polyencoder.config import PROMPTS, Architecture, RankerConfig, TextConfig
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.encoder_config import backbone_config, max_length, with_dropout
from polyencoder.modeling.loading import load_pretrained
from polyencoder.pretraining.inputs import CONTEXT_SHARE
from polyencoder.pretraining.start import (
    POSITIONS,
    add_mask,
    longest_sequence,
    new_encoder_config,
    starting_tokenizer,
    text_vectors,
)
from polyencoder.text import AnyTokenizer, TextEncoder


class PretrainingFamily(ModelFamily):
    """A new encoder of the flags' sizes, that of `--backbone`, or that of the loaded model.

    A model file holds a cross-encoder with the head for next utterances, which `-m crossencoder` can load, and the head
    for masked words.
    """

    def add_args(self, parser: ParlaiParser, architecture: Architecture, partial_opt: Opt | None) -> None:
        add_args(parser, partial_opt)

    def check_flags(self, opt: Opt, architecture: Architecture) -> None:
        check_flags(opt)

    def check_origin(self, opt: Opt, architecture: Architecture, origin: CheckpointSource | None) -> None:
        check_family(architecture, origin)
        for source in ("vocabulary", "backbone"):
            check_origin(opt, origin, source=source, learning=())

    def named_tokenizer(self, opt: Opt) -> tuple[AnyTokenizer, Fields] | None:
        vocabulary, backbone = opt.get("vocabulary"), opt.get("backbone")
        if not (vocabulary or backbone):
            raise ConfigError(
                "no encoder to pre-train: give --vocabulary, the folder from `polyencoder vocab --type bpe`, for a "
                "new encoder, or --backbone, an encoder to train further"
            )
        return starting_tokenizer(vocabulary=vocabulary, backbone=backbone)

    def train_tokenizer(self, texts: Iterable[str], opt: Opt) -> AnyTokenizer:
        raise ConfigError("pre-training needs --vocabulary, which `polyencoder vocab` trains")

    def text_config(self, opt: Opt, tokenizer: AnyTokenizer, fields: Fields, *, is_new: bool) -> TextConfig:
        """The text layout, without prompts; contexts may fill a sequence, less the response of each example."""
        if not isinstance(tokenizer, Tokenizer):
            raise ConfigError("the tokenizer is ConveRT's subwords: its dictionary or model belongs to another agent")
        add_mask(tokenizer)  # an --init-model's tokenizer may lack it
        longest = opt.get("n_positions") or POSITIONS
        return TextConfig(
            **{name: value for name, value in fields.items() if name not in (*PROMPTS, *LENGTHS)},
            text_truncate=min(length(opt, "text_truncate", longest), longest),
            label_truncate=longest,
            history_size=opt.get("history_size", -1),
        )

    def configure(
        self, opt: Opt, architecture: Architecture, text: TextEncoder, start: LoadedModel | None
    ) -> tuple[RankerConfig, Backbone | None]:
        dropout = {name: opt[name] for name in ("dropout", "attention_dropout")}
        pretrained, origin = None, None
        vectors = text_vectors(given_flags(opt).get("reduction_type"), opt.get("backbone") if start is None else None)
        if start is not None:
            origin = str(start.origin)
            if start.config.architecture != architecture and not start.origin.is_finetune:
                raise CheckpointError(f"{origin} holds a ranker: pre-train its encoder further with --init-model")
            check_start(opt, start)
            given = {name: given_flags(opt).get(name) for name in dropout}
            backbone = with_dropout(start.config.backbone, **given)
            vectors = {"reduction": start.config.reduction, "normalize": start.config.normalize, **vectors}
        elif opt.get("backbone"):
            origin = f"--backbone {opt['backbone']}"
            pretrained = load_pretrained(opt["backbone"], **dropout)
            pretrained.resize(len(text))
            backbone = backbone_config(pretrained.model)
        else:
            backbone = new_encoder_config(encoder_settings(opt), vocabulary=len(text), pad_id=text.pad_id)
        if origin:
            check_encoder(opt, backbone, origin=origin, names=OF_THE_ENCODER)
        longest = longest_sequence(opt.get("n_positions"), max_length(backbone), origin=origin)
        opt["n_positions"] = longest
        opt["text_truncate"] = text.config.text_truncate
        if opt["next"] != "contrastive":
            vectors = {}
        response = longest // CONTEXT_SHARE  # so that any context fits into a sequence with any candidate
        both = dataclasses.replace(text.config, text_truncate=longest - response, label_truncate=response)
        return RankerConfig(architecture=architecture, backbone=backbone, text=both, **vectors), pretrained


class PretrainingDictionary(RankerDictionary):
    """The dictionary of `-m pretrain_ranker`."""

    family = PretrainingFamily()
