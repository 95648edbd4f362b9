"""How each flag of a ranker with a backbone behaves when a model is loaded: applied, must match, or rejected.

No flag is silently ignored: an error explains why it cannot be applied.

- `RANKER_FIELDS`, `TEXT_FIELDS`: must match a `--model-file`; applied to a new model;
- `OF_THE_ENCODER`, `OF_THE_VOCABULARY`: must also match the encoder and tokenizer of `--init-model` or `--backbone`;
- `UNSUPPORTED`: ParlAI's flags that these rankers reject;
- all other flags are always applied. `check_origin`, `check_special_tokens` and `check_flags` have further rules for
  `backbone`, `data_parallel` and the dictionary's options.

A flag may repeat the stored value, so that the same command resumes a run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import parlai.utils.logging as logging
from parlai.agents.ranker.options import select_explicit_flags as select_explicit_flags
from parlai.agents.ranker.settings import RANKER_FIELDS, format_flag
from parlai.core.opt import Opt
from tokenizers import Tokenizer

from polyencoder.config import PROMPTS, Architecture, RankerConfig
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.importing.bpe import END_OF_WORD
from polyencoder.importing.options import read_options
from polyencoder.modeling.encoder_config import get_max_length
from polyencoder.modeling.families import get_family
from polyencoder.text.encoder import AnyTokenizer, read_tokenizer
from polyencoder.text.vocabulary import SMALLEST_VOCABULARY, get_turn_separator


@dataclass(frozen=True)
class CheckpointSource:
    """The source of loaded weights: the file of `--init-model` for fine-tuning, else of `--model-file`."""

    path: str
    is_finetune: bool

    def __str__(self) -> str:
        return f"{'--init-model' if self.is_finetune else '--model-file'} {self.path}"


@dataclass(frozen=True)
class LoadedModel:
    """The loaded model, and its source."""

    config: RankerConfig
    origin: CheckpointSource


# Fields of TextConfig that must match a loaded model; lengths may change
TEXT_FIELDS = ("turn_separator", *PROMPTS)

# Flags of a new encoder's sizes, and their keys in Hugging Face configurations
OF_THE_ENCODER = {
    "embedding_size": ("hidden_size", "dim"),
    "n_layers": ("num_hidden_layers", "n_layers"),
    "n_encoder_layers": ("num_hidden_layers", "n_layers"),
    "n_heads": ("num_attention_heads", "n_heads"),
    "ffn_size": ("intermediate_size", "hidden_dim"),
    "n_positions": ("max_position_embeddings",),
    "activation": ("hidden_act", "activation", "hidden_activation"),
}

# Flags for training a new vocabulary on the task
OF_THE_VOCABULARY = ("dict_tokenizer", "dict_lower", "dict_maxtokens")
TRAINED_TOKENIZERS = ("bpe", "bytelevelbpe", "slow_bytelevel_bpe")  # ParlAI's names of tokenizers that are trained here

TOPK = 5
"""ParlAI's default of `--topk`."""

_MERGES = "the tokenizer is trained on the task, or that of the --backbone or the model"
_TRANSFORMER = "the encoder is a BERT (ParlAI's xlm variant)"
_GROUP = "start several processes with torchrun -m parlai.agents.ranker.launch"

# ParlAI's flags without a counterpart: the values that mean "not used", and why others are rejected, those of a model's
# option file too
OF_MODELS: dict[str, tuple[tuple[Any, ...], str]] = {
    "variant": (("xlm",), _TRANSFORMER),
    "embeddings_scale": ((False,), _TRANSFORMER),
    "learn_positional_embeddings": ((True,), _TRANSFORMER),
    "n_segments": ((0, 2), _TRANSFORMER),
    "relu_dropout": ((0.0,), _TRANSFORMER),
    "use_memories": ((False,), _TRANSFORMER),
    "wrap_memory_encoder": ((False,), _TRANSFORMER),
    "embedding_type": (("random",), _TRANSFORMER),
    "history_reversed": ((False,), "contexts keep their latest turns"),
    "history_add_global_end_token": ((None,), "a context ends with the tokenizer's own token"),
    "model_parallel": ((False,), _GROUP),
    "checkpoint_activations": ((False,), "use --grad-cache or, for a cross-encoder, --pair-tokens to save memory"),
}
# Of the command line alone: a model's option file may hold other, unused values
UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = OF_MODELS | {
    "memory_attention": (("sqrt",), _TRANSFORMER),
    "n_decoder_layers": ((-1,), _TRANSFORMER),
    "embedding_projection": (("random",), _TRANSFORMER),
    "share_word_embeddings": ((False,), "--share-encoders shares the whole encoder; without it nothing is shared"),
    "rank_candidates": ((True,), "a ranker ranks"),
    "force_fp16_tokens": ((False,), "vocabularies are not padded"),
    "interactive_candidates": (("fixed", "inline"), "words of a vocabulary are not replies"),
    "eval_candidates": (("batch", "inline", "fixed", "batch-all-cands"), "words of a vocabulary are not replies"),
    "dict_initpath": ((None,), _MERGES),
    "dict_language": (("english",), _MERGES),
    "dict_max_ngram_size": ((-1,), _MERGES),
    "dict_minfreq": ((0,), _MERGES),
    "bpe_debug": ((False,), _MERGES),
    "bpe_vocab": ((None,), _MERGES),
    "bpe_merge": ((None,), _MERGES),
    "bpe_add_prefix_space": ((None,), _MERGES),
    "bpe_dropout": ((None, 0.0), _MERGES),
}


def check_unsupported(values: Mapping[str, Any], unsupported: Mapping[str, tuple[tuple[Any, ...], str]]) -> None:
    """Raises ConfigError for a flag with a value that is not supported."""
    for name, (allowed, why) in unsupported.items():
        value = values.get(name, allowed[0])
        if value not in allowed:
            choices = " or ".join(str(v) for v in allowed if v is not None)
            remedy = f"use {choices}" if choices else "leave it out"
            raise ConfigError(f"{format_flag(name)} {value} is not supported: {why}; {remedy}")


def check_unread(opt: Opt) -> None:
    """Raises ConfigError for a flag of ParlAI's answers or evaluations that nothing reads."""
    explicit = select_explicit_flags(opt)
    if explicit.get("topk", TOPK) != TOPK and opt.get("inference") != "topk":
        raise ConfigError(
            f"--topk {explicit['topk']} is read only with --inference topk: give that too, or leave it out"
        )
    for name, unused in (("area_under_curve_digits", -1), ("area_under_curve_class", None)):
        if explicit.get(name, unused) != unused:
            raise ConfigError(
                f"{format_flag(name)} {explicit[name]}: is a measure of classifiers, not of rankers; leave it out"
            )


def check_supported(opt: Opt) -> None:
    """Raises ConfigError for a flag of ParlAI's that these rankers do not support, or nothing reads."""
    check_unread(opt)
    values = {name: opt[name] for name in OF_MODELS if name in opt} | select_explicit_flags(opt)
    if opt.get("share_encoders"):
        values.pop("share_word_embeddings", None)
    check_unsupported(values, UNSUPPORTED)


def check_flags(opt: Opt, architecture: Architecture) -> None:
    """Raises ConfigError for a flag that these rankers do not support, before anything is built."""
    check_supported(opt)
    explicit = select_explicit_flags(opt)
    can = get_family(architecture).can
    if can.reads_pairs and explicit.get("encode_candidate_vecs"):
        raise ConfigError(
            f"--encode-candidate-vecs true: the scores of a {can.title} are not those of candidates' vectors; leave "
            "it out"
        )
    part = explicit.get("type_optimization")
    if part and "learn_embeddings" in explicit and explicit["learn_embeddings"] != (part == "all"):
        raise ConfigError(f"--learn-embeddings {explicit['learn_embeddings']} contradicts --type-optimization {part}")
    if opt.get("lora") and explicit.get("learn_embeddings"):
        raise ConfigError("--learn-embeddings True contradicts --lora, which freezes the encoder: leave one out")
    if opt.get("data_parallel"):
        logging.warning(f"--data-parallel true: this process uses one device; for more, {_GROUP}")
        opt["data_parallel"] = False


def check_new_vocabulary(opt: Opt, *, learning: Collection[str] = OF_THE_VOCABULARY) -> None:
    """Raises ConfigError for a flag that a vocabulary trained on the task does not support, before it is trained."""
    _check_vocabulary(select_explicit_flags(opt), None, origin=None, learning=learning)


def check_existing_vocabulary(opt: Opt, tokenizer: AnyTokenizer, path: str) -> None:
    """Raises CheckpointError for a flag that contradicts the vocabulary at `path`, which is there already."""
    if not isinstance(tokenizer, Tokenizer):  # ConveRT's subwords
        return
    explicit = select_explicit_flags(opt)
    size = tokenizer.get_vocab_size(with_added_tokens=False)  # turns' separator may be added
    normalizer = tokenizer.normalizer
    is_lower = normalizer is not None and normalizer.normalize_str("A") == normalizer.normalize_str("a")
    remedy = "leave the flag out, or remove the file and the .dict beside it to train another"
    if explicit.get("dict_lower", is_lower) != is_lower:
        what = "ignores case" if is_lower else "has upper case"
        raise CheckpointError(f"--dict-lower {explicit['dict_lower']}: the vocabulary in {path} {what}: {remedy}")
    at_most = explicit.get("dict_maxtokens", 0)
    of_size = f"--dict-maxtokens {at_most}: the vocabulary in {path} has {size:,} tokens"
    if 0 < at_most < size > SMALLEST_VOCABULARY:
        raise CheckpointError(f"{of_size}: {remedy}")
    if at_most > size:  # perhaps as there were no more to learn
        logging.info(f"{of_size}, and is kept: remove the file and the .dict beside it to train another")


def check_origin(
    opt: Opt,
    origin: CheckpointSource | None,
    *,
    source: str = "backbone",
    learning: Collection[str] = OF_THE_VOCABULARY,
) -> None:
    """Raises CheckpointError for flags that contradict the source of the model and its vocabulary, `origin`."""
    explicit, named = select_explicit_flags(opt), opt.get(source)
    if origin is None:
        check_init_model(opt)
        _check_vocabulary(explicit, None, origin=f"{format_flag(source)} {named}" if named else None, learning=learning)
        return
    path = f"{origin.path}.opt"
    stored = read_options(path) if os.path.exists(path) else None
    if named and origin.is_finetune:
        raise CheckpointError(
            f"{format_flag(source)} {named} contradicts {origin}: both name the source of the encoder"
        )
    if source in explicit and stored is not None and explicit[source] != stored.get(source):
        raise _build_contradiction_error(source, explicit[source], str(origin), stored.get(source) or "none")
    _check_vocabulary(explicit, stored, origin=str(origin), learning=learning)
    _check_dictionary(explicit, origin.path, str(origin))


def check_init_model(opt: Opt) -> None:
    """Raises CheckpointError for an `--init-model` that does not exist, if no weights are loaded."""
    if opt.get("init_model"):
        raise CheckpointError(f"--init-model {opt['init_model']}: there is no such file")


def check_encoder(opt: Opt, backbone: dict[str, Any], *, origin: str) -> None:
    """Raises CheckpointError for a size that differs from the encoder's configuration `backbone`."""
    explicit = select_explicit_flags(opt)
    for name, keys in OF_THE_ENCODER.items():
        value = explicit.get(name)
        encoder_value = next((backbone[key] for key in keys if key in backbone), None)
        if name == "n_positions":  # some architectures have more rows than positions
            encoder_value = get_max_length(backbone)
        if value is not None and value != encoder_value and not (name == "n_encoder_layers" and value <= 0):
            raise _build_contradiction_error(name, value, origin, encoder_value)


def check_ranker(opt: Opt, stored: RankerConfig, *, origin: str) -> None:
    """Raises CheckpointError for a flag that contradicts the resumed model at `origin`."""
    explicit = select_explicit_flags(opt)
    if explicit.get("output_scaling") == "auto":
        del explicit["output_scaling"]  # measured when this file's training began
    values = {name: getattr(stored, field) for field, name in RANKER_FIELDS.items()}
    prompts = {name: getattr(stored.text, name) for name in PROMPTS}
    check_stored(explicit, {**values, **prompts, "turn_separator": get_turn_separator(stored.text)}, origin=origin)


def check_special_tokens(opt: Opt, tokens: Mapping[str, str]) -> None:
    """Raises ConfigError for special tokens other than the tokenizer's; the end token may be the start token."""
    explicit = select_explicit_flags(opt)
    for name, token in tokens.items():
        names = {token, token.removesuffix(END_OF_WORD)}
        if name == "dict_endtoken" and token == tokens["dict_starttoken"]:
            names.add("__start__")  # ParlAI's name for it
        if explicit.get(name, token) not in names:
            raise ConfigError(f"{format_flag(name)} {explicit[name]}: the tokenizer has {token} for it; leave it out")


def _check_vocabulary(
    explicit: Mapping[str, Any], stored: Mapping[str, Any] | None, *, origin: str | None, learning: Collection[str]
) -> None:
    for name in learning:
        if name not in explicit:
            continue
        if stored is not None and name in stored and explicit[name] != stored[name]:
            raise _build_contradiction_error(name, explicit[name], str(origin), stored[name])
        if origin and not origin.startswith(("--init-model", "--model-file")):
            raise CheckpointError(
                f"{format_flag(name)} {explicit[name]}: the tokenizer is that of {origin}; leave the flag out"
            )
        if origin is None and name == "dict_tokenizer" and explicit[name] not in TRAINED_TOKENIZERS:
            raise ConfigError(
                f"--dict-tokenizer {explicit[name]}: a vocabulary trained on a task is byte-level BPE; leave it out"
            )


def _check_dictionary(explicit: Mapping[str, Any], path: str, origin: str) -> None:
    """Raises CheckpointError for an existing `--dict-file` that is not the model's dictionary without added tokens."""
    named, stored = (f"{str(name).removesuffix('.dict')}.tokenizer.json" for name in (explicit.get("dict_file"), path))
    if not (os.path.exists(named) and os.path.exists(stored)) or os.path.samefile(named, stored):
        return
    apart = {"added_tokens": None, "post_processor": None}
    named_tokenizer, stored_tokenizer = (json.loads(read_tokenizer(file).to_str()) | apart for file in (named, stored))
    if named_tokenizer != stored_tokenizer:
        raise CheckpointError(
            f"--dict-file {explicit['dict_file']} contradicts {origin}, which has its own tokenizer: leave the flag out"
        )


def check_stored(explicit: Mapping[str, Any], stored: Mapping[str, Any], *, origin: str) -> None:
    """Raises CheckpointError for a flag that differs from what the model at `origin` keeps."""
    for name, value in stored.items():
        if explicit.get(name, value) != value:
            raise _build_contradiction_error(name, explicit[name], origin, value)


def _build_contradiction_error(name: str, value: Any, origin: str, stored: Any) -> CheckpointError:
    if origin.startswith("--backbone"):
        what, remedy = "whose encoder has", "leave the flag out"
    else:
        what, remedy = "which was trained with", "leave the flag out, or train another model file"
    return CheckpointError(f"{format_flag(name)} {value} contradicts {origin}, {what} {stored}: {remedy}")
