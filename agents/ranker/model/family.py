"""Converts ParlAI's options to the library's configuration; errors for options that contradict a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import parlai.utils.logging as logging
from parlai.agents.ranker.args import add_encoder_args
from parlai.agents.ranker.flags import (
    OF_MODELS,
    RANKER_FIELDS,
    CheckpointSource,
    LoadedModel,
    check_encoder,
    check_flags,
    check_new_vocabulary,
    check_origin,
    check_ranker,
    check_supported,
    select_explicit_flags,
)
from parlai.agents.ranker.options import select_chosen
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser

from polyencoder.checkpoint import holds_ranker
from polyencoder.config import PROMPTS, Architecture, RankerConfig, TextConfig
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.importing import is_parlai_model, read_parlai_text, read_ranker_config
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.build import lay_out
from polyencoder.modeling.encoder_config import build_scratch_config, get_backbone_config, set_dropout
from polyencoder.modeling.families import get_family
from polyencoder.modeling.loading import load_pretrained, load_tokenizer
from polyencoder.modeling.sentence_encoder import read_config_fields, read_prompts
from polyencoder.modeling.transfer import build_residual_error, check_layout, select_inherited_fields
from polyencoder.text.encoder import AnyTokenizer, TextEncoder
from polyencoder.text.vocabulary import (
    TRAINED_SPECIAL_TOKENS,
    choose_separator,
    get_turn_separator,
    separate_turns,
    train_tokenizer,
)

Fields = Mapping[str, Any]
"""Fields of `TextConfig` that belong to a tokenizer or model, not to options."""

# Keys of a BERT configuration and the corresponding options
_OF_A_BERT = {
    "hidden_size": "embedding_size",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "ffn_size",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}

# Fields of TextConfig and the corresponding options
PERSON_TOKENS = {"person_tokens": "person_tokens", "person_tokens_after_newline": "add_p1_after_newln"}

MODEL_NAMES: dict[str, str] = {
    "bi": "biencoder",
    "poly": "polyencoder",
    "cross": "crossencoder",
    "late": "lateencoder",
    "convert": "convert",
}


class ModelFamily:
    """The parts of an agent that depend on its model: flags, vocabulary, configuration.

    This base class is for rankers around a backbone, pre-trained or new. Its methods raise ConfigError, or
    CheckpointError if a loaded model contradicts the flags.
    """

    trained_fields: Fields = TRAINED_SPECIAL_TOKENS
    """The fields of `TextConfig` of a tokenizer that was trained on the task."""

    def add_args(self, parser: ParlaiParser, architecture: Architecture, partial_opt: Opt | None) -> None:
        """Adds the flags of such agents."""
        add_encoder_args(parser, architecture, partial_opt)

    def check_flags(self, opt: Opt, architecture: Architecture) -> None:
        """Checks that all flags are supported, before anything is built."""
        check_flags(opt, architecture)

    def check_origin(self, opt: Opt, architecture: Architecture, origin: CheckpointSource | None) -> None:
        """Checks that no flag contradicts the source of model and vocabulary, before the dictionary is built."""
        check_family(architecture, origin)
        check_origin(opt, origin)

    # ---- the vocabulary, and how it lays out texts

    def load_named_tokenizer(self, opt: Opt) -> tuple[AnyTokenizer, Fields] | None:
        """Loads the tokenizer that a flag names (here `--backbone`); None if it is to be trained."""
        if not (backbone := opt.get("backbone")):
            return None
        if holds_ranker(backbone):
            raise ConfigError(f"--backbone {backbone}: is a ranker; to start from it give --init-model {backbone}")
        tokenizer, special = load_tokenizer(backbone)
        return tokenizer, special | read_prompts(backbone, explicit=select_explicit_flags(opt))

    def check_new_vocabulary(self, opt: Opt) -> None:
        """Checks the flags of the model and of a vocabulary that is to be trained, before it is."""
        check_supported(opt)
        check_new_vocabulary(opt)

    def train_tokenizer(self, texts: Iterable[str], opt: Opt) -> AnyTokenizer:
        """Trains a tokenizer on texts: byte-level BPE of `--dict-maxtokens` tokens."""
        size = opt.get("dict_maxtokens", -1)
        return train_tokenizer(
            texts, vocabulary_size=size if size > 0 else 30_000, lower_case=opt.get("dict_lower", True)
        )

    def get_stored_fields(self, config: TextConfig) -> Fields:
        """The fields that a model keeps regardless of the options."""
        names = (*TRAINED_SPECIAL_TOKENS, "truncation", "surround", "empty_token", *PERSON_TOKENS, *PROMPTS)
        return {name: getattr(config, name) for name in names}

    def build_text_config(self, opt: Opt, tokenizer: AnyTokenizer, fields: Fields, *, is_new: bool) -> TextConfig:
        """The text layout of the options; `is_new`: without a model."""
        special, explicit = dict(fields), select_explicit_flags(opt)
        if opt.get("dict_endtoken") and opt.get("dict_endtoken") == opt.get("dict_starttoken"):
            special["end_token"] = special["start_token"]  # the paper's [S] on both sides
        delimiter, separator = explicit.get("delimiter"), explicit.get("turn_separator")
        if delimiter and separator:
            raise ConfigError("--delimiter and --turn-separator both set the separator of turns: give one")
        words: Any = tokenizer
        if separator or is_new:  # a loaded model has its own
            special = separate_turns(words, special, separator or opt.get("turn_separator") or choose_separator(words))
        if delimiter and words.encode(delimiter, add_special_tokens=False).ids:
            special = {**special, "separator": delimiter}
        return build_text_config(opt, special)

    # ---- the model

    def configure(
        self, opt: Opt, architecture: Architecture, text: TextEncoder, start: LoadedModel | None
    ) -> tuple[RankerConfig, Backbone | None]:
        """Configures the loaded or new model, and updates the options; with the pre-trained `--backbone`, if any."""
        options = select_chosen(opt)  # an encoder keeps its own dropout unless the command says otherwise
        dropout = {name: options.get(name) for name in ("dropout", "attention_dropout")}
        fields = {name: opt[dest] for name, dest in RANKER_FIELDS.items() if opt.get(dest) is not None}
        is_measured = fields.get("output_scaling") == "auto"
        if is_measured:
            fields["output_scaling"] = 1.0  # until it is measured
        residual = fields.pop("residual", None)
        if residual and start is None:
            raise build_residual_error("this one starts from none (--init-model)")
        pretrained, inherited = None, {}
        if start is not None:
            origin = str(start.origin)
            check_architecture(architecture, start)
            if not start.origin.is_finetune:
                check_ranker(opt, start.config, origin=origin)
            explicit = {name: value for name, value in fields.items() if RANKER_FIELDS[name] in options}
            inherited = select_inherited_fields(start.config, architecture, explicit=explicit, residual=residual)
            fields = {name: value for name, value in fields.items() if name in explicit or name not in inherited}
            backbone = set_dropout(start.config.backbone, **dropout)
            check_encoder(opt, backbone, origin=origin)
        elif opt.get("backbone"):
            pretrained = load_pretrained(opt["backbone"], **dropout)
            if pretrained.resize(len(text)) and get_fine_tuned_part(opt) != "all":
                logging.warning(
                    "the embeddings of added tokens are not trained: set --type-optimization all to train them"
                )
            backbone = get_backbone_config(pretrained.model)
            measured = {"normalize": False} if is_measured else {}  # vectors of length 1 have no scale to measure
            inherited = read_config_fields(opt["backbone"], architecture, explicit=measured | fields)
            check_encoder(opt, backbone, origin=f"--backbone {opt['backbone']}")
        else:
            backbone = build_scratch_backbone(opt, vocabulary_size=len(text), pad_id=text.pad_id)
        if start is not None and not start.origin.is_finetune:
            if start.config.foreign_dim is not None:
                raise ConfigError(
                    "this model has no encoder of candidates, which an agent needs: search its index with `polyencoder "
                    "search` or `polyencoder serve`"
                )
            config = dataclasses.replace(start.config, backbone=backbone, text=text.config)
        else:  # default lengths are fitted, not an error
            encoder = None if pretrained is None else opt["backbone"]
            lay_out(text, inherited, backbone, architecture, explicit=find_explicit_lengths(opt), encoder=encoder)
            config = RankerConfig(
                architecture=architecture, backbone=backbone, text=text.config, **{**inherited, **fields}
            )
            config = get_family(architecture).model.completed(config, text)
        check_layout(config)
        self.describe_in_opt(opt, config)
        return config, pretrained

    def describe_in_opt(self, opt: Opt, config: RankerConfig) -> None:
        """Updates the options to the model's actual values, for the saved `.opt` file."""
        for name, dest in RANKER_FIELDS.items():
            if dest in opt:
                opt[dest] = getattr(config, name)
        opt["turn_separator"] = get_turn_separator(config.text)
        opt.update({name: getattr(config.text, name) for name in PROMPTS if name in opt})
        opt.update({name: getattr(config.text, field) for field, name in PERSON_TOKENS.items() if name in opt})
        opt.update({name: getattr(config.text, name) for name in LENGTHS})
        for key, dest in _OF_A_BERT.items():
            if dest in opt and key in config.backbone:
                opt[dest] = config.backbone[key]


LENGTHS = ("text_truncate", "label_truncate", "history_size")


def find_explicit_lengths(opt: Opt) -> set[str]:
    """The `LENGTHS` given on the command line."""
    explicit = select_explicit_flags(opt)
    truncated = {"text_truncate", "label_truncate"} if (explicit.get("truncate") or 0) > 0 else set()
    return {name for name in LENGTHS if name in explicit} | truncated


def get_length(opt: Opt, name: str, otherwise: int) -> int:
    """The value of `--text-truncate` or `--label-truncate`, or of `--truncate`; `otherwise` if not given, or -1."""
    explicit = select_explicit_flags(opt)
    value = explicit["truncate"] if explicit.get("truncate") and name not in explicit else opt.get(name)
    return value if value and value > 0 else otherwise


def build_text_config(opt: Opt, special: dict[str, Any]) -> TextConfig:
    """Builds the text layout of the options and the tokenizer's special tokens."""
    explicit = select_explicit_flags(opt)
    persons = {
        field: bool(explicit.get(name, special.get(field, opt.get(name)))) for field, name in PERSON_TOKENS.items()
    }
    persons["person_tokens_after_newline"] &= persons["person_tokens"]
    fields = {
        "text_truncate": get_length(opt, "text_truncate", 360),
        "label_truncate": get_length(opt, "label_truncate", 72),
        "history_size": opt.get("history_size", -1),
    }
    prompts = {
        name: value for name, value in select_chosen(opt).items() if name in PROMPTS and (value or name in explicit)
    }
    return TextConfig(**(fields | special | persons | prompts))


def build_scratch_backbone(opt: Opt, *, vocabulary_size: int, pad_id: int) -> dict[str, Any]:
    """Configures a new encoder of ParlAI's size flags."""
    text = build_text_config(opt, {})
    n_layers = opt["n_encoder_layers"] if opt.get("n_encoder_layers", -1) > 0 else opt["n_layers"]
    return build_scratch_config(
        vocabulary_size=vocabulary_size,
        dim=opt["embedding_size"],
        n_layers=n_layers,
        n_heads=opt["n_heads"],
        ffn_dim=opt["ffn_size"],
        n_positions=opt.get("n_positions") or text.text_truncate + text.label_truncate,
        activation=opt["activation"],
        dropout=opt["dropout"],
        attention_dropout=opt["attention_dropout"],
        pad_id=pad_id,
    )


def check_family(architecture: Architecture, origin: CheckpointSource | None) -> None:
    """Raises CheckpointError if a ConveRT is loaded for a ranker around a backbone, or vice versa."""
    if origin is None or (is_parlai_model(origin.path) and get_family(architecture).has_backbone):
        return
    stored_architecture = read_ranker_config(origin.path).architecture
    stored, ours = MODEL_NAMES[stored_architecture], MODEL_NAMES[architecture]
    if stored != ours and not (get_family(stored_architecture).has_backbone and get_family(architecture).has_backbone):
        raise CheckpointError(
            f"{origin} holds a {stored}, not a {ours}, and neither can start from the other: use -m {stored}"
        )


def check_architecture(architecture: Architecture, start: LoadedModel) -> None:
    """Raises CheckpointError if the resumed model file holds another architecture."""
    stored, ours = MODEL_NAMES[start.config.architecture], MODEL_NAMES[architecture]
    if stored != ours and not start.origin.is_finetune:
        start_anew = f", or start a new model from its weights with --init-model {start.origin.path}"
        raise CheckpointError(f"{start.origin} holds a {stored}, not a {ours}: use -m {stored}{start_anew}")


def get_fine_tuned_part(opt: Opt) -> str:
    """The trained part of the encoders, by `--type-optimization`; default: all but pre-trained embeddings."""
    explicit = select_explicit_flags(opt)
    if "learn_embeddings" in explicit and "type_optimization" not in explicit and not opt.get("lora"):
        opt["type_optimization"] = "all" if explicit["learn_embeddings"] else "all_encoder_layers"
    if opt.get("type_optimization"):
        return str(opt["type_optimization"])
    learns = explicit.get("learn_embeddings", opt.get("learn_embeddings", True) and not opt.get("backbone"))
    return "all" if learns else "all_encoder_layers"


def describe_parlai_model(opt: Opt) -> None:
    """Updates the options of a `--model-file` that ParlAI trained to the model as imported."""
    _, text = read_parlai_text(opt["model_file"])
    overrides = opt.get("override") or {}
    lengths = {"text_truncate": text.text_truncate, "label_truncate": text.label_truncate}
    # importing makes an equivalent BERT of such a model, or fails
    ours = {name: allowed[-1] for name, (allowed, _) in OF_MODELS.items()} | {"data_parallel": False}
    opt.update(ours | {name: overrides.get(name) or overrides.get("truncate") or n for name, n in lengths.items()})
