"""The folder beside a model file that `--backbone` takes: encoder, tokenizer, heads, and a card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parlai.agents.pretrain_ranker.flags import FOLLOWED, OF_THE_ENCODER, OF_THE_OBJECTIVE
from parlai.agents.ranker.flags import given_flags
from parlai.core.opt import Opt

from polyencoder.errors import CheckpointError
from polyencoder.export.folder import README
from polyencoder.pretraining.card import encoder_card
from polyencoder.pretraining.start import Pretrained
from polyencoder.storage.files import explaining, write_text

__all__ = ["encoder_folder", "write_encoder"]

_OF_THE_LOOP = {"batchsize", "dynamic_batching", "max_train_steps", "max_train_time", "num_epochs"}
_NOT_SHOWN = {"vocabulary", "backbone", "gpu", "no_cuda", "dict_file", "dict_class"}  # paths and machines


def encoder_folder(model_file: str) -> str:
    """`X` -> `X.encoder`."""
    return f"{model_file}.encoder"


def write_encoder(
    pretrained: Pretrained, opt: Opt, report: Mapping[str, float], *, model_file: str, updates: int, tokens: int
) -> None:
    """Write the encoder of a model file to its folder, with a card of what it has learnt and what validation found.

    Raises:
        CheckpointError: it cannot be written.
    """
    folder, given = encoder_folder(model_file), given_flags(opt)
    shown: set[str] = (FOLLOWED | {*OF_THE_ENCODER, *OF_THE_OBJECTIVE} | _OF_THE_LOOP) - _NOT_SHOWN
    flags: dict[str, Any] = {name: given[name] for name in sorted(given) if name in shown}
    began = opt.get("init_model") if given.get("init_model") else opt.get("backbone")
    card = encoder_card(
        pretrained,
        folder,
        {"perplexity": report["ppl"], **report} if "ppl" in report else {},
        backbone=began,
        corpus=opt["task"].split(","),
        flags=flags,
        seed=opt.get("seed"),
        updates=updates,
        tokens=tokens,
    )
    pretrained.save(folder)
    with explaining(Path(folder), CheckpointError):
        write_text(Path(folder) / README, card)
