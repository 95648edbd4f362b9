"""A whole model of ParlAI's: the files `X`, `X.opt`, `X.dict` and `X.dict.codecs` as one of our rankers.

Only transformer/biencoder, /polyencoder and /crossencoder are read; our own agents' files, of the same layout, are not
meant here (`polyencoder.checkpoint` reads them). Nothing is unpickled that could run code.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from polyencoder.checkpoint import load_weights, read_model_file, read_states
from polyencoder.config import Architecture, RankerConfig, TextConfig
from polyencoder.errors import CheckpointError
from polyencoder.importing.options import read_options
from polyencoder.importing.parlai_dictionary import count_parlai_tokens, read_parlai_dictionary
from polyencoder.importing.parlai_weights import WORD_EMBEDDINGS, convert_parlai
from polyencoder.models import RankerModel, build_model
from polyencoder.text import TextEncoder

# `transformer/polyencoder`, `parlai.agents.transformer.polyencoder:PolyencoderAgent`, ...; ours are plain `polyencoder`
_MODEL_NAME = re.compile(r"(?:^|[/.])transformer[/.](bi|poly|cross)encoder(?::\w+)?$")
_ARCHITECTURES: dict[str, Architecture] = {"bi": "bi", "poly": "poly", "cross": "cross"}
_POSITIONS = 1024  # ParlAI's number of them when no option says another


def is_parlai_model(model_file: str | os.PathLike[str]) -> bool:
    """Whether this is a bi-, poly- or cross-encoder of ParlAI's own agents, by the `.opt` file beside it.

    Raises CheckpointError if that is something else than JSON.
    """
    path = _opt_file(model_file)
    return path.is_file() and _architecture(read_options(path)) is not None


def import_parlai(model_file: str | os.PathLike[str]) -> tuple[RankerModel, TextEncoder]:
    """Read a model that ParlAI trained. Texts get the tokens and the scores that they get there.

    Raises:
        CheckpointError: if a file is missing or damaged, or if the model is none of ParlAI's three rankers.
        ConfigError: if it has a dictionary that cannot be followed exactly.
    """
    config, states = read_parlai_model(model_file)
    tokenizer, _ = parlai_text(model_file)
    model = build_model(config)
    load_weights(model, states["model"], origin=os.fspath(model_file))
    return model.eval(), TextEncoder(tokenizer, config.text)


def read_ranker_file(model_file: str | os.PathLike[str]) -> tuple[RankerConfig, dict[str, Any]]:
    """The configuration and the states of a model file, ours or ParlAI's."""
    return read_parlai_model(model_file) if is_parlai_model(model_file) else read_model_file(model_file)


def read_parlai_model(model_file: str | os.PathLike[str]) -> tuple[RankerConfig, dict[str, Any]]:
    """The configuration and `{"model": weights}` of a model that ParlAI trained, under our names.

    The optimizer's state is left behind: its parameters are other ones than ours.
    """
    origin = os.fspath(model_file)
    opt = read_options(_opt_file(model_file))
    architecture = _architecture(opt)
    if architecture is None:
        raise CheckpointError(
            f"{origin}: a {opt.get('model')!r} by its .opt file; ParlAI's transformer/biencoder, "
            "transformer/polyencoder and transformer/crossencoder can be read"
        )
    tokenizer, text = parlai_text(model_file)
    state = read_states(model_file)["model"]
    config, weights = convert_parlai(state, opt, architecture=architecture, text=text, origin=origin)
    rows, known = config.backbone["vocab_size"], count_parlai_tokens(f"{origin}.dict", opt)
    if rows != known:
        raise CheckpointError(f"{origin}: has embeddings of {rows} tokens, but {origin}.dict has {known} tokens")
    unknown = tokenizer.token_to_id(tokenizer.model.unk_token)
    size = tokenizer.get_vocab_size()
    for name in weights:
        if name.endswith(WORD_EMBEDDINGS):
            more = weights[name][unknown].expand(size - rows, -1)  # pieces that ParlAI takes for the unknown token
            weights[name] = torch.cat([weights[name], more])
    return dataclasses.replace(config, backbone=config.backbone | {"vocab_size": size}), {"model": weights}


def parlai_text(model_file: str | os.PathLike[str]) -> tuple[Tokenizer, TextConfig]:
    """How a model that ParlAI trained makes tokens of text.

    Lengths are ParlAI's, save that nothing may be longer than the positions of its encoder: where ParlAI would stop
    with an error a text is cut.
    """
    opt = read_options(_opt_file(model_file))
    tokenizer, fields = read_parlai_dictionary(f"{os.fspath(model_file)}.dict", opt)
    lengths = [opt.get(name) or 0 for name in ("truncate", "text_truncate", "label_truncate")]
    positions = opt.get("n_positions") or max(0, *lengths) or _POSITIONS

    def length(name: str) -> int:
        value = opt.get(name) or opt.get("truncate") or -1
        return int(value) if value > 0 else positions

    is_cross = _architecture(opt) == "cross"
    label = min(length("label_truncate"), positions // 2 if is_cross else positions)
    text = min(length("text_truncate"), positions - 2 - (label if is_cross else 0))
    return tokenizer, TextConfig(
        text_truncate=text, label_truncate=label, history_size=opt.get("history_size", -1), **fields
    )


def _opt_file(model_file: str | os.PathLike[str]) -> Path:
    return Path(f"{os.fspath(model_file)}.opt")


def _architecture(opt: Mapping[str, Any]) -> Architecture | None:
    match = _MODEL_NAME.search(str(opt.get("model")))
    return _ARCHITECTURES[match[1]] if match else None
