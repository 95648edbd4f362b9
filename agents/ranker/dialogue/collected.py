"""The candidates of a task, collected beside the model, with a record of the data that they were collected from."""

from __future__ import annotations

import glob
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import parlai.utils.logging as logging
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.teachers import create_task_agent_from_taskname
from parlai.utils.distributed import num_workers

from polyencoder.errors import InputError
from polyencoder.storage.files import check_writable, write_text


def collect_task_candidates(opt: Opt) -> str:
    """The file with all candidates of the task, beside the model; in a group of processes the launcher writes it.

    They are collected anew if the task's options or files differ from the recorded ones.
    """
    model_file, task = opt.get("model_file"), opt.get("task")
    if not model_file or task in (None, "", "interactive", "self_chat"):
        raise InputError("fixed candidates need a file: give --fixed-candidates-path")
    name = re.sub(r"[^\w.,=-]", "_", task)
    path, record = f"{model_file}.cands-{name}.cands", Path(f"{model_file}.candidates-{name}.json")
    replaces = opt.get("fixed_candidate_vecs", "reuse") != "reuse"
    if num_workers() > 1:
        return path
    if os.path.exists(path) and not replaces:
        if (change := _find_change(opt, path, record)) is None:
            return path
        logging.warning(f"{path}: is of other data ({change}); collecting the candidates of {task} anew")
    else:
        logging.warning(f"collecting the candidates of {task} in {path}")
    check_writable(path, argument="model_file", overwrite=True)
    write_text(path, "".join(f"{label}\n" for label in dict.fromkeys(iter_training_labels(opt))))
    options = {name: opt[name] for name in ("task", *_list_task_options(opt)) if name in opt}
    collected = {"options": options, "files": _get_states(options)}
    write_text(record, json.dumps(collected, indent=2, default=str) + "\n")
    return path


def iter_training_labels(opt: Opt) -> Iterator[str]:
    """The labels of a task's training examples, in order, whatever part of the task a command reads."""
    # one reader, which looks for no candidates
    overrides = {"datatype": "train:ordered:stream", "batchsize": 1, "num_workers": 0, "candidates": "batch"}
    # of several tasks, ParlAI makes one teacher
    teacher = create_task_agent_from_taskname(Opt({**opt, **overrides, "image_mode": "no_image_model"}))[0]
    try:
        while not teacher.epoch_done():
            yield from teacher.act().get("labels") or ()
    finally:
        teacher.shutdown()


def _find_change(opt: Opt, path: str, record: Path) -> str | None:
    """How the task's data differs from what a list was collected from; None if it does not, or it is unknown."""
    try:
        recorded = json.loads(record.read_text(encoding="utf-8"))
        options, files = dict(recorded["options"]), dict(recorded["files"])
    except (OSError, ValueError, TypeError, KeyError):
        logging.info(f"{path}: has no record of its data; --fixed-candidate-vecs replace collects the candidates anew")
        return None
    current = json.loads(json.dumps({name: opt.get(name) for name in options}, default=str))
    if changed := [name for name in options if options[name] != current[name]]:
        return ", ".join(f"{name} was {options[name]}" for name in changed)
    present = _get_states(current)
    if not present:  # the model was moved, or the data removed
        return None
    differing = [file for file in sorted({*present, *files}) if present.get(file) != files.get(file)]
    return f"{differing[0]} has changed" if differing else None


def _list_task_options(opt: Opt) -> list[str]:
    """The names of the options that the task's teachers have."""
    parser, hook = ParlaiParser(add_parlai_args=False), sys.excepthook
    checked = dict.fromkeys(("init_opt", "final_extra_opt", "model_file", "init_model"))  # by the command
    try:
        parser.add_task_args(opt["task"], Opt({**opt, **checked}))
    finally:
        sys.excepthook = hook  # which names the flags of the command's own parser
    return sorted({action.dest for action in parser._actions})


def _get_states(options: dict[str, Any]) -> dict[str, list[int]]:
    """Sizes and times of the files of training data that options name: by patterns, a folder, or ParlAI's prefixes."""
    values = [str(value) for name, value in options.items() if value and name.endswith(("file", "folder", "path"))]
    files = sorted({file for value in values for file in _iter_matches(value) if os.path.isfile(file)})
    return {file: [(stat := os.stat(file)).st_size, stat.st_mtime_ns] for file in files}


def _iter_matches(value: str) -> Iterable[str]:
    if os.path.isfile(value):
        return [value]
    if os.path.isdir(value):
        return glob.glob(f"{glob.escape(value)}/train.*")
    patterns = [*map(str.strip, value.split(",")), f"{glob.escape(value)}_train*"]
    return (file for pattern in patterns for file in glob.glob(pattern, recursive=True))
