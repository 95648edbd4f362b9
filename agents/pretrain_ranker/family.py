"""From ParlAI's options to the encoder that is pre-trained, in the configuration of a cross-encoder around it."""

from __future__ import annotations

import dataclasses
from typing import Any

from parlai.agents.pretrain_ranker.args import add_pretraining_args
from parlai.agents.pretrain_ranker.flags import OF_THE_ENCODER, check_flags, check_start
from parlai.agents.ranker.architecture import check_family
from parlai.agents.ranker.family import CheckpointSource, LoadedModel
from parlai.agents.ranker.flags import check_encoder, check_origin, given_flags
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser

from polyencoder.config import Architecture, RankerConfig, TextConfig
from polyencoder.errors import CheckpointError
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.encoder_config import backbone_config, max_length, scratch_config, with_dropout
from polyencoder.modeling.loading import load_pretrained
from polyencoder.pretraining.inputs import CONTEXT_SHARE
from polyencoder.pretraining.start import POSITIONS, longest_sequence, text_vectors
from polyencoder.text import TextEncoder

__all__ = ["PretrainingFamily"]


class PretrainingFamily:
    """A new encoder of the flags' sizes, that of `--backbone`, or that of the model that is loaded.

    A model file holds what `-m crossencoder` reads too, a cross-encoder with the head for next utterances; and beside
    it the head for masked words.
    """

    def add_args(self, parser: ParlaiParser, partial_opt: Opt | None) -> None:
        add_pretraining_args(parser, partial_opt)

    def check_flags(self, opt: Opt, architecture: Architecture) -> None:
        check_flags(opt)

    def check_origin(self, opt: Opt, architecture: Architecture, origin: CheckpointSource | None) -> None:
        check_family(architecture, origin)
        for source in ("vocabulary", "backbone"):
            check_origin(opt, origin, source=source, learning=())

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
            backbone = _new_encoder(opt, vocabulary_size=len(text), pad_id=text.pad_id)
        if origin:
            check_encoder(opt, backbone, origin=origin, names=OF_THE_ENCODER)
        longest = longest_sequence(opt.get("n_positions"), max_length(backbone), origin=origin)
        opt["n_positions"] = longest
        opt["text_truncate"] = text.config.text_truncate
        if opt["next"] != "contrastive":
            vectors = {}
        return RankerConfig(architecture, backbone, _of_a_cross_encoder(text.config, longest), **vectors), pretrained


def _new_encoder(opt: Opt, *, vocabulary_size: int, pad_id: int) -> dict[str, Any]:
    return scratch_config(
        vocabulary_size=vocabulary_size,
        dim=opt["embedding_size"],
        n_layers=opt["n_layers"],
        n_heads=opt["n_heads"],
        ffn_dim=opt["ffn_size"],
        n_positions=opt.get("n_positions") or POSITIONS,
        dropout=opt["dropout"],
        attention_dropout=opt["attention_dropout"],
        pad_id=pad_id,
    )


def _of_a_cross_encoder(text: TextConfig, longest: int) -> TextConfig:
    """Lengths of which any context and any candidate fit into a sequence together."""
    response = longest // CONTEXT_SHARE
    return dataclasses.replace(text, text_truncate=longest - response, label_truncate=response)
