"""ParlAI's training and evaluation in several processes, on CPUs too.

    torchrun --nproc-per-node 2 -m parlai.agents.ranker.launch train_model -m polyencoder ...

`parlai multiprocessing_train` needs GPUs: it joins processes with NCCL, and what they tell each other travels through
CUDA's memory. Here it is ParlAI's own training loop and evaluation, in a group of any kind and on any number of hosts.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import parlai.scripts.eval_model as evaluation
import parlai.utils.logging as logging
import torch
import torch.distributed as dist
from parlai.agents.ranker.console import explain_errors, show_errors_in_one_line
from parlai.agents.ranker.options import check_option_files
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.script import ParlaiScript
from parlai.scripts.build_dict import build_dict
from parlai.scripts.eval_model import EvalModel
from parlai.scripts.train_model import TrainLoop, TrainModel, set_seed
from parlai.utils.distributed import get_rank, override_print

from polyencoder.errors import ConfigError
from polyencoder.training.distributed import gather_objects
from polyencoder.training.process_group import TIMEOUT, Place
from polyencoder.training.process_group import process_group as joined

__all__ = ["main"]

OF_THE_HOST = {"datapath", "dict_file", "gpu", "loglevel", "model_file", "parlai_home"}
"""Flags that may be others on another host."""


def _first(value: Any) -> Any:
    """The first process's value, in all of them."""
    return gather_objects(value)[0]


def _in_any_group(function: Callable[..., Any], **others: Any) -> Any:
    """A function of ParlAI's, to which `all_gather_list` and `sync_object` are ours.

    Its own put everything on a GPU. ParlAI's modules stay as they are: only what this function sees is other.
    """
    assert isinstance(function, FunctionType)
    seen = {**function.__globals__, "all_gather_list": gather_objects, "sync_object": _first, **others}
    return FunctionType(function.__code__, seen, function.__name__, function.__defaults__, function.__closure__)


class GroupTrainLoop(TrainLoop):
    """ParlAI's training loop in a group of any kind."""

    train_steps = _in_any_group(TrainLoop.train_steps)
    _get_time = _in_any_group(TrainLoop._get_time)
    _sync_metrics = _in_any_group(TrainLoop._sync_metrics)


class GroupTraining(TrainModel):
    """`train_model`: what a process does once it is one of the group."""

    def run(self) -> Any:
        self.train_loop = GroupTrainLoop(self.opt)
        # the weights are the first process's; what is drawn from now on is each one's own
        if self.opt["seed"] is None:
            torch.manual_seed(torch.initial_seed() + get_rank())
        else:
            set_seed(self.opt["seed"] + get_rank())
        return self.train_loop.train()


class GroupEvaluation(EvalModel):
    """`eval_model`: each process evaluates its share, all report the whole."""

    def run(self) -> Any:
        evaluate_task = _in_any_group(evaluation._eval_single_world)
        return _in_any_group(evaluation.eval_model, _eval_single_world=evaluate_task)(self.opt)


SCRIPTS: dict[str, type[ParlaiScript]] = {
    **dict.fromkeys(("train_model", "tm", "train"), GroupTraining),
    **dict.fromkeys(("eval_model", "em", "eval"), GroupEvaluation),
}


def launch(arguments: Sequence[str]) -> Any:
    """Run one of ParlAI's commands as one of the processes that torchrun started; gives what the command gives.

    Raises:
        ConfigError: torchrun did not start this process, the command is another one, or the processes do not fit.
    """
    command = arguments[0] if arguments else "no command"
    if command not in SCRIPTS:
        raise ConfigError(f"{command}: the launcher runs train_model and eval_model")
    place, script = Place.from_environment(), SCRIPTS[command]
    with _print_suppressed(place.rank != 0):
        parser = script.setup_args()
        explain_errors(parser)
        check_option_files(vars(parser.parse_known_args(list(arguments[1:]), nohelp=True)[0]))
        add_group_arguments(parser)
        opt: Opt = parser.parse_args(list(arguments[1:]))
        logging.set_log_level(opt.get("loglevel", "info").upper())
        if script is GroupTraining and place.rank == 0:
            _build_dictionary(opt)  # the others wait for the group
        with process_group(opt, place) as ours:
            return script(ours).run()


def add_group_arguments(parser: ParlaiParser) -> None:
    """The launcher's own flags."""
    parser.add_argument_group("Several processes").add_argument(
        "--group-timeout",
        type=float,
        default=TIMEOUT,
        help="Seconds that a process of the group waits for another one, which may be busy or out of reach, before it "
        "ends with an error.",
    )


@contextmanager
def process_group(opt: Opt, place: Place) -> Iterator[Opt]:
    """Join the others; gives the options for this process. Raises as the library's `process_group` does."""
    given = {name: value for name, value in opt.get("override", {}).items() if name not in OF_THE_HOST}
    with joined(place, given, timeout=opt["group_timeout"], on_cpu=bool(opt.get("no_cuda"))) as device:
        logging.info(f"{place.count} processes, {dist.get_backend()}")
        gpu = place.local_rank if device.type == "cuda" else -1
        override = {**opt.get("override", {}), "gpu": gpu}  # not the one that a model file remembers
        yield Opt({**opt, "gpu": gpu, "rank": place.rank, "override": override})


@contextmanager
def _print_suppressed(suppress: bool) -> Iterator[None]:
    """ParlAI's `override_print`, which after an error would stay."""
    printing = builtins.print
    try:
        with override_print(suppress=suppress):
            yield
    finally:
        builtins.print = printing


def _build_dictionary(opt: Opt) -> None:
    """ParlAI does not learn a vocabulary in a group, of which each process reads a part of the task."""
    dict_file = opt.get("dict_file") or (f"{opt['model_file']}.dict" if opt.get("model_file") else None)
    if dict_file:
        build_dict(Opt({**opt, "dict_file": dict_file}), skip_if_built=True)


def main(arguments: Sequence[str] | None = None) -> None:
    show_errors_in_one_line()
    launch(sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    main()
