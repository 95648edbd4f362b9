"""ParlAI's training and evaluation in several processes, on CPUs too.

    torchrun --nproc-per-node 2 -m parlai.agents.ranker.launch train_model -m polyencoder ...

`parlai multiprocessing_train` needs GPUs: it uses NCCL, and exchanges metrics in CUDA memory. This launcher works with
any backend, on any number of hosts.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import parlai.utils.logging as logging
import torch
import torch.distributed as dist
from parlai.agents.ranker.console import explain_errors
from parlai.agents.ranker.dialogue.collected import collect_task_candidates
from parlai.agents.ranker.options import check_option_files
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.script import ParlaiScript
from parlai.scripts import eval_model
from parlai.scripts.build_dict import build_dict
from parlai.scripts.eval_model import EvalModel
from parlai.scripts.train_model import TrainLoop, TrainModel, set_seed
from parlai.utils.distributed import get_rank, is_primary_worker, override_print

from polyencoder.errors import ConfigError
from polyencoder.training.distributed import gather_objects
from polyencoder.training.process_group import TIMEOUT, Ranks
from polyencoder.training.process_group import process_group as joined

OF_THE_HOST = {"datapath", "dict_file", "gpu", "loglevel", "model_file", "parlai_home"}
"""Flags that may differ between hosts."""


def _patch_exchange(function: Any, **replacements: Any) -> Any:
    """A copy of a function of ParlAI's that exchanges objects in any process group, and calls `replacements`."""
    ours = {"all_gather_list": gather_objects, "sync_object": lambda value: gather_objects(value)[0], **replacements}
    return FunctionType(function.__code__, {**function.__globals__, **ours}, function.__name__, function.__defaults__)


class GroupLoop(TrainLoop):
    """ParlAI's training loop, for any process group."""

    train_steps = _patch_exchange(TrainLoop.train_steps)
    _sync_metrics = _patch_exchange(TrainLoop._sync_metrics)
    _get_time = _patch_exchange(TrainLoop._get_time)


evaluate = _patch_exchange(eval_model.eval_model, _eval_single_world=_patch_exchange(eval_model._eval_single_world))


class GroupTraining(TrainModel):
    """ParlAI's `train_model`; weights are the first process's, and random numbers differ from then on."""

    def run(self) -> Any:
        self.train_loop = GroupLoop(self.opt)
        if self.opt["seed"] is None:
            torch.manual_seed(torch.initial_seed() + get_rank())
        else:
            set_seed(self.opt["seed"] + get_rank())
        return self.train_loop.train()


class GroupEvaluation(EvalModel):
    """ParlAI's `eval_model`: each process evaluates its share; the report, which the first one writes, covers all."""

    def run(self) -> Any:
        if "train" in (datatype := self.opt["datatype"]) and "evalmode" not in datatype:
            raise ConfigError(f"-dt {datatype}: this would train; evaluate training data as train:evalmode")
        if not is_primary_worker():
            self.opt["report_filename"] = ""
        return evaluate(self.opt)


SCRIPTS: dict[str, type[ParlaiScript]] = {
    **dict.fromkeys(("train_model", "tm", "train"), GroupTraining),
    **dict.fromkeys(("eval_model", "em", "eval"), GroupEvaluation),
}


def launch(arguments: Sequence[str]) -> Any:
    """Runs a ParlAI command as one of torchrun's processes. ConfigError: another command, or settings that differ."""
    command = arguments[0] if arguments else "no command"
    if command not in SCRIPTS:
        raise ConfigError(f"{command}: the launcher runs train_model and eval_model")
    ranks, script = Ranks.from_environment(), SCRIPTS[command]
    with _print_suppressed(ranks.rank != 0):
        parser = script.setup_args()
        explain_errors(parser)
        check_option_files(vars(parser.parse_known_args(list(arguments[1:]), nohelp=True)[0]))
        add_group_arguments(parser)
        opt: Opt = parser.parse_args(list(arguments[1:]))
        logging.set_log_level(opt.get("loglevel", "info").upper())
        if ranks.rank == 0:  # in a group each process reads a part of the task; the others wait for this one
            dict_file = opt.get("dict_file") or (f"{opt['model_file']}.dict" if opt.get("model_file") else None)
            if script is GroupTraining and dict_file:
                build_dict(Opt({**opt, "dict_file": dict_file}), skip_if_built=True)
            if "fixed" in (opt.get("candidates"), opt.get("eval_candidates")) and not opt.get("fixed_candidates_path"):
                collect_task_candidates(opt)
        with process_group(opt, ranks) as ours:
            return script(ours).run()


def add_group_arguments(parser: ParlaiParser) -> None:
    """Adds the launcher's own flags."""
    parser.add_argument_group("Several processes").add_argument(
        "--group-timeout",
        type=float,
        default=TIMEOUT,
        help="Seconds that a process of the group waits for another one, which may be busy or out of reach, before it "
        "ends with an error.",
    )


@contextmanager
def process_group(opt: Opt, ranks: Ranks) -> Iterator[Opt]:
    """Joins the process group; yields the options for this process. Raises as the library's `process_group`."""
    settings = {name: value for name, value in opt.get("override", {}).items() if name not in OF_THE_HOST}
    with joined(ranks, settings, timeout=opt["group_timeout"], on_cpu=bool(opt.get("no_cuda"))) as device:
        logging.info(f"{ranks.count} processes, {dist.get_backend()}")
        gpu = ranks.local_rank if device.type == "cuda" else -1
        override = {**opt.get("override", {}), "gpu": gpu}  # not the model file's
        yield Opt({**opt, "gpu": gpu, "rank": ranks.rank, "override": override})


@contextmanager
def _print_suppressed(suppress: bool) -> Iterator[None]:
    """ParlAI's `override_print`, undone after an error too."""
    printing = builtins.print
    try:
        with override_print(suppress=suppress):
            yield
    finally:
        builtins.print = printing


def main(arguments: Sequence[str] | None = None) -> None:
    explain_errors()
    launch(sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    main()
