"""Checks option files before ParlAI reads them, since its reader unpickles files that are not JSON.

Called when ParlAI adds the flags of an agent or teacher of this package: with such an `-m` or `-t` that is before the
files are read. With `--model-file` alone ParlAI has to read the file to find the agent:
docs/checkpoints.md says what to do then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parlai.core.build_data import modelzoo_path
from parlai.core.opt import Opt

from polyencoder.errors import ConfigError
from polyencoder.importing.options import check_options, find_model_option_files, iter_named_modules, read_options

_PRESETS = Path("~/.parlai/opt_presets")  # where ParlAI looks for the names of --init-opt, after the current folder


def check_option_files(opt: Opt | dict[str, Any] | None) -> None:
    """Checks that option files are JSON, and name no code that `opt` does not: else CheckpointError or ConfigError."""
    opt = opt or {}
    named_options = {name: opt[name] for name in ("model", "task", "evaltask") if opt.get(name)}
    named = [module for _, _, module in iter_named_modules(named_options)]
    for name in ("init_opt", "final_extra_opt"):
        for path in _find_presets(opt.get(name)):
            check_options(path, named=named)
    extra = opt.get("final_extra_opt")
    if extra and not any("datatype" in read_options(path) for path in _find_presets(extra)):
        raise ConfigError(
            f"--final-extra-opt {extra}: there is no such file with a datatype in it, which the evaluation after "
            'training reads: give one, such as {"datatype": "valid"}'
        )
    for name in ("model_file", "init_model"):
        for path in find_model_option_files(_find_on_disk(opt, opt[name])) if opt.get(name) else ():
            check_options(path, named=named)


def select_explicit_flags(opt: Opt) -> dict[str, Any]:
    """The options of the command line, and of an `--init-opt` that ParlAI did not write beside a model."""
    explicit = select_chosen(opt)
    saved: dict[str, Any] = {}
    for path in _find_presets(explicit.get("init_opt")):  # a model's options name its training's preset
        options = read_options(path)
        saved |= options if "starttime" in options else {}
    return {name: value for name, value in explicit.items() if name not in saved or saved[name] != value}


def select_chosen(opt: Opt) -> dict[str, Any]:
    """The given flags, and all options of an `--init-opt`, which beside a model are those of its training."""
    return {name: value for name, value in (opt.get("override") or {}).items() if value is not None}


def _find_on_disk(opt: Opt | dict[str, Any], name: str) -> str:
    """The path of a model file; ParlAI's rankers of the zoo are downloaded here, where errors are one line."""
    if not opt.get("datapath"):
        return name
    if name.startswith(("zoo:pretrained_transformers/", "models:pretrained_transformers/")):
        from parlai.zoo.polyencoder.models import prepare_parlai_models

        prepare_parlai_models(opt["datapath"])
    return str(modelzoo_path(opt["datapath"], name))


def _find_presets(names: str | None) -> Iterator[Path]:
    for name in (names or "").split(","):
        preset = _PRESETS.expanduser() / f"{name}.opt"
        if path := next((path for path in (Path(name), preset) if name and os.path.exists(path)), None):
            yield path
