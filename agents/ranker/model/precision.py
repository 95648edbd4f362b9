"""The precision of ParlAI's `--bf16` and `--fp16`."""

from __future__ import annotations

import parlai.utils.logging as logging
import torch
from parlai.core.opt import Opt

from polyencoder.errors import ConfigError
from polyencoder.modeling.bf16 import why_bf16_gains_nothing
from polyencoder.settings.training import PrecisionName
from polyencoder.training.precision import Precision


def precision_of(opt: Opt, *, use_cuda: bool) -> Precision:
    """The precision of `--bf16` or, on a GPU, `--fp16`."""
    name: PrecisionName = "bfloat16" if opt.get("bf16") else "float32"
    if opt.get("fp16") and use_cuda:
        name = "float16"
    return Precision(name, torch.device("cuda" if use_cuda else "cpu"))


def check_precision(opt: Opt, *, use_cuda: bool) -> None:
    """Warns about a precision that this machine does not support; a model trained with it still runs."""
    if opt.get("fp16") and opt.get("bf16"):
        raise ConfigError("--fp16 true and --bf16 true exclude each other: choose one")
    if opt.get("fp16") and not use_cuda:
        logging.warning("--fp16 true needs a GPU: computing in float32. On a CPU --bf16 true may be faster")
    if opt.get("bf16") and (reason := why_bf16_gains_nothing("cuda" if use_cuda else "cpu")):
        logging.warning(f"--bf16 true gains nothing here: {reason}")
