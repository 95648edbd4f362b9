"""Imports a ranker trained with ParlAI from its files `X`, `X.opt`, `X.dict` and `X.dict.codecs`.

Only transformer/ranker, /biencoder, /polyencoder and /crossencoder are read; `polyencoder.checkpoint` reads
the files of our own agents, which have the same layout. Nothing is unpickled that could run code.
"""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from polyencoder.checkpoint import load_folder, load_weights, read_folder_config, read_model_file, read_states
from polyencoder.config import Architecture, RankerConfig, TextConfig
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.importing.names import WORDS, add_unknown_rows
from polyencoder.importing.options import read_options
from polyencoder.importing.parlai_dictionary import count_parlai_tokens, read_parlai_dictionary
from polyencoder.importing.parlai_weights import convert_parlai, explain_batch_dependence
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.build import build_model
from polyencoder.text import TextEncoder

# `transformer/polyencoder`, `parlai.agents.transformer.polyencoder:PolyencoderAgent`, ...; ours are plain `polyencoder`
_MODEL_NAME = re.compile(r"(?:^|[/.])transformer[/.](biencoder|polyencoder|crossencoder|ranker)(?::\w+)?$")
_ARCHITECTURES: dict[str, Architecture] = {
    "biencoder": "bi",
    "polyencoder": "poly",
    "crossencoder": "cross",
    "ranker": "bi",  # without start and end tokens
}
_POSITIONS = 1024  # ParlAI's default


def is_parlai_model(model_file: str | os.PathLike[str]) -> bool:
    """Whether this is a ranker of ParlAI's own agents, by the `.opt` file beside it. CheckpointError: not JSON."""
    path = _get_opt_file(model_file)
    return path.is_file() and _get_architecture(read_options(path)) is not None


def import_parlai(model_file: str | os.PathLike[str]) -> tuple[RankerModel, TextEncoder]:
    """Imports a ranker trained with ParlAI, with the same tokens and scores.

    Raises:
        CheckpointError: if a file is missing or damaged, or if the model is not one of ParlAI's rankers.
        ConfigError: its dictionary, or its `split_lines`, cannot be reproduced exactly.
    """
    config, states = read_parlai_model(model_file)
    tokenizer, _ = read_parlai_text(model_file)
    opt = read_options(_get_opt_file(model_file))
    as_turns = opt.get("delimiter", "\n") == "\n" and not opt.get("person_tokens") and config.text.history_size < 0
    if opt.get("split_lines") and not (as_turns and opt.get("dict_tokenizer", "re") in ("bpe", "re", "split")):
        raise ConfigError(
            f"{os.fspath(model_file)}: split_lines, with which each line is a turn, is not supported with a "
            "history_size, person_tokens, a delimiter that is no line end, or tokens that have line ends in them"
        )
    model = build_model(config)
    load_weights(model, states["model"], origin=os.fspath(model_file))
    return model.eval(), TextEncoder(tokenizer, config.text)


def read_ranker_config(model_file: str | os.PathLike[str]) -> RankerConfig:
    """The configuration that `read_ranker_file` returns, without reading the weights of a folder.

    A file of ours that has not changed since is not read again.
    """
    if Path(model_file).is_dir():
        return read_folder_config(model_file)
    if is_parlai_model(model_file):
        return read_parlai_model(model_file)[0]
    try:
        file = os.stat(model_file)
    except OSError:
        return read_model_file(model_file)[0]  # says what is wrong
    return _read_config(os.path.abspath(model_file), (file.st_ino, file.st_size, file.st_mtime_ns))


@lru_cache(maxsize=8)
def _read_config(model_file: str, version: tuple[int, ...]) -> RankerConfig:
    return read_model_file(model_file)[0]


def read_ranker_file(model_file: str | os.PathLike[str]) -> tuple[RankerConfig, dict[str, Any]]:
    """The configuration and the states of a model file, ours or ParlAI's; only the weights of a model folder."""
    if Path(model_file).is_dir():
        model, _ = load_folder(model_file)
        model.prepare_for_training()  # model files hold the trained weights
        return model.config, {"model": model.state_dict()}
    return read_parlai_model(model_file) if is_parlai_model(model_file) else read_model_file(model_file)


def read_parlai_model(model_file: str | os.PathLike[str]) -> tuple[RankerConfig, dict[str, Any]]:
    """The configuration and `{"model": weights}` of a model that ParlAI trained, under our names.

    The optimizer's state is dropped: its parameters differ from ours.
    """
    origin = os.fspath(model_file)
    opt = read_options(_get_opt_file(model_file))
    architecture = _get_architecture(opt)
    if architecture is None:
        raise CheckpointError(
            f"{origin}: a {opt.get('model')!r} by its .opt file; ParlAI's transformer/ranker, transformer/biencoder, "
            "transformer/polyencoder and transformer/crossencoder can be read"
        )
    tokenizer, text = read_parlai_text(model_file)
    state = read_states(model_file)["model"]
    config, weights = convert_parlai(state, opt, architecture=architecture, text=text, origin=origin)
    for difference in explain_batch_dependence(opt, architecture):
        warnings.warn(f"{origin}: {difference}; scores here are those without them", stacklevel=2)
    rows, num_tokens = config.backbone["vocab_size"], count_parlai_tokens(f"{origin}.dict", opt)
    if rows != num_tokens:
        raise CheckpointError(f"{origin}: has embeddings of {rows} tokens, but {origin}.dict has {num_tokens} tokens")
    size = tokenizer.get_vocab_size()
    if size > rows:  # pieces that ParlAI maps to the unknown token
        unknown = int(tokenizer.token_to_id(tokenizer.model.unk_token) or 0)
        for name in [name for name in weights if name.endswith(WORDS)]:
            weights[name] = add_unknown_rows(weights[name], unknown=unknown, size=size)
    return dataclasses.replace(config, backbone=config.backbone | {"vocab_size": size}), {"model": weights}


def read_parlai_text(model_file: str | os.PathLike[str]) -> tuple[Tokenizer, TextConfig]:
    """The text layout of a model that ParlAI trained.

    Lengths are ParlAI's, but texts longer than the positions of its encoder are truncated, where ParlAI would stop with
    an error.
    """
    opt = read_options(_get_opt_file(model_file))
    tokenizer, fields = read_parlai_dictionary(f"{os.fspath(model_file)}.dict", opt)
    lengths = [opt.get(name) or 0 for name in ("truncate", "text_truncate", "label_truncate")]
    positions = opt.get("n_positions") or max(0, *lengths) or _POSITIONS

    def get_length(name: str) -> int:
        value = opt.get(name) or opt.get("truncate") or -1
        return int(value) if value > 0 else positions

    surround = _get_kind(opt) != "ranker"
    label = min(get_length("label_truncate"), positions)
    text = min(get_length("text_truncate"), positions - (2 if surround else 0))
    persons = bool(opt.get("person_tokens"))
    return tokenizer, TextConfig(
        text_truncate=text,
        label_truncate=label,
        history_size=opt.get("history_size", -1),
        surround=surround,
        person_tokens=persons,
        person_tokens_after_newline=persons and bool(opt.get("add_p1_after_newln")),
        **fields,
    )


def _get_opt_file(model_file: str | os.PathLike[str]) -> Path:
    return Path(f"{os.fspath(model_file)}.opt")


def _get_architecture(opt: Mapping[str, Any]) -> Architecture | None:
    return _ARCHITECTURES.get(_get_kind(opt))


def _get_kind(opt: Mapping[str, Any]) -> str:
    """The kind of ranker, `biencoder`, `ranker`, ...; empty if it is not one of ParlAI's."""
    match = _MODEL_NAME.search(str(opt.get("model")))
    return match[1] if match else ""
