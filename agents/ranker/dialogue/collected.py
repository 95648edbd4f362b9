"""The candidates of a task, collected beside the model, with a record of the data that they were collected from."""

from __future__ import annotations

import glob
import json
import os
import re
import sys
from collections.abc import Iterator
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
    path, record = Path(f"{model_file}.cands-{name}.ndjson"), Path(f"{model_file}.candidates-{name}.json")
    if num_workers() > 1:
        return str(path)
    options = {name: opt.get(name) for name in ("task", *_list_task_options(opt))}
    files = _get_states(options)
    current = [json.dumps(part, default=str) for part in (options, files)]
    recorded = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    # without files, the model was moved or the data removed
    is_current = recorded == current if files else recorded[:1] in ([], current[:1])
    if path.exists() and is_current and opt.get("fixed_candidate_vecs") != "replace":
        return str(path)
    logging.warning(f"collecting the candidates of {task}{' anew' * path.exists()} in {path}")
    check_writable(path, argument="model_file", overwrite=True)
    labels = dict.fromkeys(label for label in iter_training_labels(opt) if label.strip())
    write_text(path, "".join(json.dumps({"text": label}) + "\n" for label in labels))
    write_text(record, "\n".join(current) + "\n")
    return str(path)


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


def _list_task_options(opt: Opt) -> list[str]:
    """The names of the options that the task's teachers have."""
    parser, hook = ParlaiParser(add_parlai_args=False), sys.excepthook
    checked = dict.fromkeys(("init_opt", "final_extra_opt", "model_file", "init_model"))  # the command checks these
    try:
        parser.add_task_args(opt["task"], Opt({**opt, **checked}))
    finally:
        sys.excepthook = hook  # which names the flags of the command's own parser
    return sorted({action.dest for action in parser._actions})


def _get_states(options: dict[str, Any]) -> dict[str, list[int]]:
    """Sizes and times of the files of training data that options name: by patterns, a folder, or ParlAI's prefixes."""
    values = [str(value) for name, value in options.items() if value and name.endswith(("file", "folder", "path"))]
    folders = [f"{glob.escape(value)}{end}" for value in values for end in ("", "/train.*", "_train*")]
    patterns = [*folders, *(part.strip() for value in values for part in value.split(","))]
    files = sorted({file for pattern in patterns for file in glob.glob(pattern, recursive=True)})
    return {file: [(stat := os.stat(file)).st_size, stat.st_mtime_ns] for file in files if os.path.isfile(file)}
