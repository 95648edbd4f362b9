"""What the tests of the agents' tables of flags share: the flags of a command, and what an unsupported one says."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from typing import Any

import pytest
from parlai.agents.ranker.settings import get_option_names
from parlai.scripts.train_model import TrainModel

from polyencoder.errors import ConfigError
from polyencoder.index.options import SearchOptions
from polyencoder.serving.config import ServerConfig
from polyencoder.settings.evaluate import EvaluateSettings
from polyencoder.settings.train import TrainSettings

_OTHERWISE = {"bpe_dropout": 0.1, "bpe_merge": "merges.txt", "bpe_vocab": "vocab.json", "candidates": "batch"}
_OTHERWISE |= {"cap_num_predictions": 3, "delimiter": ";", "dict_initpath": "other.dict", "dict_language": "french"}
_OTHERWISE |= {"dict_lower": False, "dict_max_ngram_size": 2, "dict_maxexs": 2, "dict_maxtokens": 2}
_OTHERWISE |= {"dict_minfreq": 5, "dict_textfields": "text", "dict_tokenizer": "bpe"}
_OTHERWISE |= {"embedding_projection": "random-force", "embedding_type": "glove", "embeddings_scale": True}
_OTHERWISE |= {"encode_candidate_vecs_batchsize": 3, "eval_candidates": "vocab", "fixed_candidate_vecs": "replace"}
_OTHERWISE |= {"fixed_candidates_path": "file", "history_add_global_end_token": "end", "history_size": 3}
_OTHERWISE |= {"inference": "topk", "interactive_candidates": "vocab", "label_truncate": 20}
_OTHERWISE |= {"learn_positional_embeddings": False, "memory_attention": "dot", "n_decoder_layers": 2}
_OTHERWISE |= {"n_segments": 3, "rank_candidates": False, "rank_top_k": 3, "relu_dropout": 0.1}
_OTHERWISE |= {"share_word_embeddings": True, "special_tok_lst": "a,b", "topk": 3, "variant": "aiayn"}
"""Values of flags that mean that they are used, where that is not true."""

_FOLLOWED = """
    learn_embeddings dropout attention_dropout optimizer learningrate gradient_clip adam_eps adafactor_eps momentum
    nesterov nus betas weight_decay lr_scheduler lr_scheduler_patience lr_scheduler_decay invsqrt_lr_decay_gamma
    warmup_updates warmup_rate update_freq train_predict

    truncate text_truncate label_truncate history_size person_tokens split_lines use_reply add_p1_after_newln delimiter
    special_tok_lst

    candidates fixed_candidates_path fixed_candidate_vecs encode_candidate_vecs encode_candidate_vecs_batchsize
    ignore_bad_candidates repeat_blocking_heuristic cap_num_predictions rank_top_k inference topk return_cand_scores
    interactive_mode

    gpu no_cuda fp16 fp16_impl data_parallel

    dict_file dict_class dict_textfields dict_maxexs dict_include_valid dict_include_test dict_nulltoken
    dict_starttoken dict_endtoken dict_unktoken
"""
FOLLOWED = frozenset(_FOLLOWED.split())
"""ParlAI's flags that our agents follow, whatever is loaded, unless an agent's table says otherwise."""

OURS = frozenset(
    option
    for cls in (TrainSettings, EvaluateSettings, ServerConfig, SearchOptions)
    for option in get_option_names(cls).values()
) | {"index", "add_label_to_fixed_cands", "context_vector"}
"""Options of the library's settings, and those that only our agents have."""


def flags_of(**options: Any) -> dict[str, argparse.Action]:
    """The flags of `parlai train_model` with these options, by their names."""
    parser = TrainModel.setup_args()
    parser.add_extra_args(parser._kwargs_to_str_args(**options))
    return {action.dest: action for action in parser._actions}


def assert_in_one_part(model: str, parts: Collection[Collection[str]], *, others: Collection[str] = ()) -> None:
    """Each flag of an agent is in at most one part of its table; a flag in none is followed, or in `others`.

    What ParlAI's command has with no agent is its own; but for the dictionary, which it has for an agent.
    """
    scripts = {name for name in flags_of() if not name.startswith(("dict_", "bpe_"))}
    ours = set(flags_of(model=model)) - scripts - set(others)
    counts = {name: sum(name in part for part in parts) for name in ours}
    wrong = {name: count for name, count in counts.items() if count > 1}
    assert not wrong, f"in so many parts: {wrong}"
    assert not (unknown := {name for name in ours if not counts[name]} - FOLLOWED - OURS), unknown


def message_of(error: pytest.ExceptionInfo[Exception]) -> str:
    """The message of an error, which has one line."""
    (line,) = str(error.value).splitlines()
    return line


def assert_not_supported(name: str, make: Callable[..., Any], **options: Any) -> None:
    """Making an agent with this flag raises an error of one line that names the flag and says what to do."""
    value = _OTHERWISE.get(name, True)
    with pytest.raises(ConfigError) as error:
        make(**options, **{name: value})
    line = message_of(error)
    assert line.startswith(f"--{name.replace('_', '-')} {value} is not supported: "), line
    assert line.rpartition("; ")[2].startswith(("use ", "leave it out")), line
