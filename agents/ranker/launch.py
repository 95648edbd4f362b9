"""ParlAI's training and evaluation in several processes, on CPUs too.

    torchrun --nproc-per-node 2 -m parlai.agents.ranker.launch train_model -m polyencoder ...

`parlai multiprocessing_train` needs GPUs: it uses NCCL, and exchanges metrics in CUDA memory. This launcher works with
any backend, on any number of hosts.
"""

from __future__ import annotations

import builtins
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import parlai.utils.logging as logging
import torch
import torch.distributed as dist
from parlai.agents.ranker.console import explain_errors
from parlai.agents.ranker.dialogue.fixed import task_candidates
from parlai.agents.ranker.options import check_option_files
from parlai.core.agents import Agent, create_agent
from parlai.core.metrics import Metric, aggregate_named_reports, aggregate_unnamed_reports
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.script import ParlaiScript
from parlai.core.worlds import World, create_task
from parlai.scripts.build_dict import build_dict
from parlai.scripts.eval_model import EvalModel, _save_eval_stats, get_n_parleys, get_task_world_logs, prepare_tb_logger
from parlai.scripts.train_model import TrainLoop, TrainModel, set_seed
from parlai.utils.distributed import get_rank, is_primary_worker, override_print
from parlai.utils.misc import nice_report
from parlai.utils.world_logging import WorldLogger

from polyencoder.errors import ConfigError
from polyencoder.training.distributed import gather_objects
from polyencoder.training.process_group import TIMEOUT, Place
from polyencoder.training.process_group import process_group as joined

OF_THE_HOST = {"datapath", "dict_file", "gpu", "loglevel", "model_file", "parlai_home"}
"""Flags that may differ between hosts."""


def _first(value: Any) -> Any:
    """Broadcasts the first process's value."""
    return gather_objects(value)[0]


class GroupTrainLoop(TrainLoop):
    """ParlAI's training loop, with metrics exchanged in the process group instead of CUDA memory."""

    def _sync_metrics(self, metrics: dict[str, Metric]) -> dict[str, Metric]:
        merged: dict[str, Metric] = aggregate_unnamed_reports(gather_objects(metrics))
        return merged

    def _get_time(self, world: World) -> tuple[float, float, float, float]:
        self._total_epochs = self._preempted_epochs + sum(gather_objects(world.get_total_epochs()))
        self._total_exs = round(self._total_epochs * world.num_examples())
        clocks = (self.train_time, self.log_time, self.validate_time, self.save_time)
        return tuple(_first([clock.time() for clock in clocks]))

    def train_steps(self) -> Iterator[dict[str, Metric]]:
        """Trains until the run ends, yields each logged report, then loads the best model."""
        world = self.world
        with world:
            while True:
                world.parley()
                self.parleys += 1
                self._train_steps = self.parleys // self.update_freq
                self._last_log_steps += 1 / self.update_freq
                trained, logged, validated, saved = self._get_time(world)
                is_last_epoch = self._total_epochs >= self.max_num_epochs
                is_over = trained > self.max_train_time or self._train_steps >= self.max_train_steps
                is_due = logged > self.log_every_n_secs or self._last_log_steps >= self.log_every_n_steps
                if is_last_epoch or (is_due and not is_over):
                    yield self.log()
                if is_last_epoch or is_over:
                    break
                if self._is_validation_due(validated):
                    if self._last_log_steps:
                        yield self.log()
                    world.reset_metrics()
                    has_ended = self.validate()
                    self.log_time.reset()
                    self.last_valid_epoch, self._last_valid_steps = self._total_epochs, self._train_steps
                    if has_ended:
                        break
                    world.reset_metrics()
                if saved > self.save_every_n_secs and self.opt.get("model_file"):
                    self.save_model(".checkpoint")
                    self.save_time.reset()
        if not _first(self.saved):
            self.save_model()
        gather_objects(None)  # the first process has written it
        if self.opt.get("model_file"):
            del world, self.world, self.agent, self.valid_worlds  # make room
            self.agent = create_agent(self.opt)

    def _is_validation_due(self, seconds: float) -> bool:
        return bool(
            seconds > self.val_every_n_secs
            or self._total_epochs - self.last_valid_epoch >= self.val_every_n_epochs
            or self._train_steps - self._last_valid_steps >= self.val_every_n_steps
        )


class GroupTraining(TrainModel):
    """ParlAI's `train_model` within the process group."""

    def run(self) -> Any:
        self.train_loop = GroupTrainLoop(self.opt)
        # weights are the first process's; random numbers differ from now on
        if self.opt["seed"] is None:
            torch.manual_seed(torch.initial_seed() + get_rank())
        else:
            set_seed(self.opt["seed"] + get_rank())
        return self.train_loop.train()


class GroupEvaluation(EvalModel):
    """ParlAI's `eval_model`: each process evaluates its share; the report covers all of them."""

    def run(self) -> dict[str, Metric]:
        opt = self.opt
        if "train" in opt["datatype"] and "evalmode" not in opt["datatype"]:
            raise ConfigError(f"-dt {opt['datatype']}: this would train; evaluate training data as train:evalmode")
        random.seed(42)  # as in ParlAI: a task draws the same each time
        agent = create_agent(opt, requireModelExists=True)
        reports = {task: self._evaluated(Opt({**opt, "task": task}), agent) for task in opt["task"].split(",")}
        report: dict[str, Metric] = aggregate_named_reports(reports, micro_average=opt.get("aggregate_micro", False))
        board, split = prepare_tb_logger(opt)
        if board is not None:
            board.log_metrics(split, get_n_parleys(opt), report)
            board.flush()
        if is_primary_worker():
            sys.stdout.write(f"{nice_report(report)}\n")
            _save_eval_stats(opt, report)
        return report

    def _evaluated(self, opt: Opt, agent: Agent) -> dict[str, Metric]:
        """Evaluates one task; the report covers all processes."""
        world, limit, seen = create_task(opt, agent), opt["num_examples"], 0
        logger = WorldLogger(opt) if opt["world_logs"] else None
        while not world.epoch_done() and (limit <= 0 or seen < limit):
            seen += opt.get("batchsize", 1)
            world.parley()
            if logger is not None:
                logger.log(world)
            if opt["display_examples"] and is_primary_worker():
                sys.stdout.write(f"{world.display()}\n~~\n")
        if logger is not None:
            logger.reset()
            path = Path(get_task_world_logs(opt["task"], opt["world_logs"], "," in self.opt["task"]))
            name = f"{path.stem}_{get_rank()}{path.suffix}"
            logger.write(str(path.with_name(name)), world, file_format=opt["save_format"])
        report: dict[str, Metric] = aggregate_unnamed_reports(gather_objects(world.report()))
        logging.report(f"Report for {opt['task']}:\n{nice_report(report)}")
        world.reset()
        return report


SCRIPTS: dict[str, type[ParlaiScript]] = {
    **dict.fromkeys(("train_model", "tm", "train"), GroupTraining),
    **dict.fromkeys(("eval_model", "em", "eval"), GroupEvaluation),
}


def launch(arguments: Sequence[str]) -> Any:
    """Runs a ParlAI command as one of torchrun's processes; returns its result.

    Raises:
        ConfigError: the process was not started by torchrun, the command is unknown, or settings differ.
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
        if place.rank == 0:  # in a group each process reads a part of the task; the others wait for this one
            dict_file = opt.get("dict_file") or (f"{opt['model_file']}.dict" if opt.get("model_file") else None)
            if script is GroupTraining and dict_file:
                build_dict(Opt({**opt, "dict_file": dict_file}), skip_if_built=True)
            if "fixed" in (opt.get("candidates"), opt.get("eval_candidates")) and not opt.get("fixed_candidates_path"):
                task_candidates(opt)
        with process_group(opt, place) as ours:
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
def process_group(opt: Opt, place: Place) -> Iterator[Opt]:
    """Joins the process group; yields the options for this process. Raises as the library's `process_group`."""
    given = {name: value for name, value in opt.get("override", {}).items() if name not in OF_THE_HOST}
    with joined(place, given, timeout=opt["group_timeout"], on_cpu=bool(opt.get("no_cuda"))) as device:
        logging.info(f"{place.count} processes, {dist.get_backend()}")
        gpu = place.local_rank if device.type == "cuda" else -1
        override = {**opt.get("override", {}), "gpu": gpu}  # not the model file's
        yield Opt({**opt, "gpu": gpu, "rank": place.rank, "override": override})


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
