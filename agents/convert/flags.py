"""The flags of `-m convert`: those of `polyencoder train`, with the paper's defaults, and their checks."""

from __future__ import annotations

from typing import Any

from parlai.agents.ranker import flags
from parlai.agents.ranker.args import add_ranker_args, set_training_defaults
from parlai.agents.ranker.dialogue.choice import is_training_script
from parlai.agents.ranker.settings import get_option_names
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.torch_ranker_agent import TorchRankerAgent

from polyencoder.config import RankerConfig
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.modeling.convert import CONTEXT_VECTORS, ConvertConfig
from polyencoder.modeling.convert.config import format_sizes
from polyencoder.modeling.families import CONVERT_SIZES, get_family
from polyencoder.settings.train import TrainSettings

OF_TRAINING = ("batchsize", "max_train_steps")  # only in ParlAI's training scripts

LEARNING = ("dict_maxtokens", "dict_minfreq")
"""Flags for training a new vocabulary on the task."""

_TEXTS = "turns before the last one are one text of ConveRT's, most recent first"
_SUBWORDS = "ConveRT's subwords are those of --vocabulary, or trained on the task"
_FP16 = (
    "the paper's training in 16 bits with float32 copies of weights is --quantization-aware true; --bf16 true computes "
    "in 16 bits, also on CPUs"
)
_AS_OTHERS = (
    *("history_reversed", "history_add_global_end_token", "rank_candidates", "force_fp16_tokens"),
    *("interactive_candidates", "eval_candidates"),
)
_OF_OTHER_DICTIONARIES = (
    *("dict_initpath", "dict_language", "dict_max_ngram_size", "bpe_debug", "bpe_vocab", "bpe_merge"),
    *("bpe_add_prefix_space", "bpe_dropout"),
)

UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    **{name: flags.UNSUPPORTED[name] for name in _AS_OTHERS},
    **{name: (flags.UNSUPPORTED[name][0], _SUBWORDS) for name in _OF_OTHER_DICTIONARIES},
    "dict_tokenizer": ((None,), _SUBWORDS),
    "dict_lower": ((True,), _SUBWORDS),
    "special_tok_lst": ((None,), _SUBWORDS),
    "person_tokens": ((False,), _SUBWORDS),
    "history_size": ((None,), "--extra-contexts says how many turns before the last one are read"),
    "delimiter": ((None,), _TEXTS),
    "fp16": ((False,), _FP16),
    "embedding_type": (("random",), "a ConveRT trains its own embeddings"),
    "embedding_projection": (("random",), "a ConveRT trains its own embeddings"),
}
"""The values that mean "not used", and why others are not supported."""


def add_args(parser: ParlaiParser, partial_opt: Opt | None = None) -> None:
    """Adds the flags, with the defaults of a new model or, with `--init-model`, of fine-tuning."""
    TorchRankerAgent.add_cmdline_args(parser, partial_opt=partial_opt)
    add_ranker_args(parser, "convert", without=["backbone"])
    parser.add_argument_group("ConveRT").add_argument(
        "--context-vector",
        choices=CONTEXT_VECTORS,
        help="Multi-context models: rank with the combined (default), immediate or extra vector.",
    )
    names = get_option_names(TrainSettings)
    preset = get_family("convert").get_preset(fine_tuning=bool((partial_opt or {}).get("init_model")))
    defaults = {names[name]: value for name, value in preset.items()}
    set_training_defaults(parser, partial_opt, **{name: defaults.pop(name) for name in OF_TRAINING if name in defaults})
    parser.set_defaults(**defaults)


def check_flags(opt: Opt) -> None:
    """Raises ConfigError for a flag that ConveRT does not support, before anything is built."""
    flags.check_unread(opt)
    flags.check_unsupported(flags.select_explicit_flags(opt), UNSUPPORTED)
    if opt.get("context_vector") and is_training_script(opt):
        raise ConfigError(f"--context-vector {opt['context_vector']}: is for evaluation; leave it out in training")


def read_sizes(config: RankerConfig, *, origin: str) -> ConvertConfig:
    """The sizes of the model from `origin`. CheckpointError if it is not a ConveRT."""
    if config.convert is None:
        raise CheckpointError(f"{origin}: holds no ConveRT's sizes (`convert`); give another model, or train it again")
    return config.convert


def check_start(opt: Opt, start: flags.LoadedModel) -> None:
    """Raises CheckpointError for flags that contradict the loaded model."""
    explicit, sizes = flags.select_explicit_flags(opt), read_sizes(start.config, origin=str(start.origin))
    stored = format_sizes(sizes, CONVERT_SIZES)  # also with --init-model
    if not start.origin.is_finetune:  # fine-tuning may change these
        stored["number_turns"] = start.config.text.number_turns
        stored |= {"quantization_aware": sizes.quantized, "quantization_update": sizes.quantization_update}
    if not sizes.multi_context:
        stored["extra_contexts"] = 0
    flags.check_stored(explicit, stored, origin=str(start.origin))
