"""Checks option files before ParlAI reads them: its reader runs code in pickles.

Called from where ParlAI asks a class of ours for its flags: with `-m` or `-t` of ours on the command line that comes
before the files are read. With `--model-file` alone ParlAI has to read the file to know that the model is ours:
docs/checkpoints.md says what to do then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parlai.core.build_data import modelzoo_path
from parlai.core.opt import Opt

from polyencoder.importing.options import check_options, model_option_files, named_modules

_PRESETS = Path("~/.parlai/opt_presets")  # where ParlAI looks for the names of --init-opt, after the folder it is in


def check_option_files(opt: Opt | dict[str, Any] | None) -> None:
    """Make sure that the option files which these options name are JSON, and name no code that these do not.

    `opt` is what the command line says, as `add_cmdline_args` gets it.

    Raises:
        CheckpointError: one of them is something else than JSON, or names code outside ParlAI and this project.
    """
    opt = opt or {}
    given = {name: opt[name] for name in ("model", "task", "evaltask") if opt.get(name)}
    named = [module for _, _, module in named_modules(given)]
    for name in ("init_opt", "final_extra_opt"):
        for path in _presets(opt.get(name)):
            check_options(path, named=named)
    for name in ("model_file", "init_model"):
        for path in model_option_files(_on_disk(opt, opt[name])) if opt.get(name) else ():
            check_options(path, named=named)


def _on_disk(opt: Opt | dict[str, Any], name: str) -> str:
    """A model file, fetched if it is one of the zoo's: ParlAI would do that next."""
    return str(modelzoo_path(opt["datapath"], name)) if opt.get("datapath") else name


def _presets(names: str | None) -> Iterator[Path]:
    """The files, as ParlAI finds them, without those that are part of ParlAI."""
    for name in (names or "").split(","):
        own = _PRESETS.expanduser() / f"{name}.opt"
        if path := next((path for path in (Path(name), own) if name and os.path.exists(path)), None):
            yield path
