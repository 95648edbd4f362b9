"""Builds the library's `Trainer` from ParlAI's options: configuration, callbacks, and ParlAI's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import parlai.utils.logging as logging
import torch
from parlai.agents.ranker.dialogue.examples import WITHOUT_NEGATIVES
from parlai.agents.ranker.model.loop import TrainLoopState, is_trained
from parlai.agents.ranker.model.optimization import read_goal, update_settings
from parlai.agents.ranker.settings import read_settings
from parlai.core.metrics import AverageMetric, GlobalAverageMetric, GlobalTimerMetric, SumMetric
from parlai.core.opt import Opt
from parlai.core.torch_ranker_agent import TorchRankerAgent
from parlai.utils.distributed import is_primary_worker

from polyencoder.errors import ConfigError
from polyencoder.evaluation import pool_ranks
from polyencoder.settings.training import TrainingConfig
from polyencoder.training.callbacks import Callback, LearningCurve, MeasuredScaling, ProgressLine, Record, Run
from polyencoder.training.objective import Outcome
from polyencoder.training.trainer import Trainer

NOT_SHOWN = ("override", "load_from_checkpoint")  # internal options of ParlAI's scripts


def build_training_config(opt: Opt) -> TrainingConfig:
    """The configuration of updates and objective; the loop is ParlAI's. ConfigError: invalid training options."""
    if opt.get("index"):  # an index is for searches; the model may have been trained with hard negatives
        opt = Opt({**opt, "hard_negatives": 0})
    values = read_settings(opt, TrainingConfig)
    values.pop("final_learning_rate", None)  # read by some schedules
    if is_trained(opt):  # a model's option file may have others
        values |= update_settings(opt)
    if opt.get("fp16") and not (opt.get("bf16") or opt.get("no_cuda")) and torch.cuda.is_available():
        values["precision"] = "float16"
    objective = values.get("objective", "softmax")
    if objective != "softmax":
        values.pop("label_smoothing", None)  # a convert model's default; `check_read` refuses a given one
    if objective == "listnet" and opt["candidates"] == "fixed":
        raise ConfigError(
            "--objective listnet has no meaning with --candidates fixed: the softmax of many labels of 0 is almost "
            "flat; give --candidates inline, or another objective"
        )
    if values.get("hard_negatives") and opt["candidates"] == "fixed":
        raise ConfigError("--hard-negatives join --candidates batch or inline, not fixed: leave them out")
    # fixed candidates, too, are inline: not shared by the batch
    values["candidates"] = opt["candidates"] if opt["candidates"] in ("batch", "batch-all-cands") else "inline"
    if "teacher" in values and opt.get("model_file"):
        values.setdefault("teacher_scores", f"{opt['model_file']}.teacher.sqlite")
    return TrainingConfig.of(values)


def build_trainer(
    agent: TorchRankerAgent, config: TrainingConfig, *, run: TrainLoopState, restored: Mapping[str, Any] | None
) -> Trainer:
    """Builds and starts an agent's trainer for ParlAI's loop, and resumes a `restored` state."""
    callbacks: list[Callback] = [Report(agent)]
    if agent.output_scaling_pending:
        callbacks.append(MeasuredScaling(agent.handle_measured_scaling))
    if run.is_in_loop and is_primary_worker():
        callbacks += _build_watchers(agent.opt)
    trainer = Trainer(agent.build_ranker(), config, callbacks=callbacks, updates=agent.updates)
    trainer.goal = read_goal(agent.opt, epoch=None)
    if restored is not None:
        trainer.load_run_state(restored)
    if run.is_in_loop and (updates := run.planned_updates) and is_primary_worker():
        too_short = agent.ranker.explain_too_short((updates - agent.updates.count) * config.accumulate)
        reasons = [too_short, config.hard_negatives.why_unused(updates)]
        if (warmup := config.schedule.warmup_updates or 0) >= updates:
            reasons.append(f"--warmup-updates {warmup}: the run of {updates} updates ends before the peak of the rate")
        for reason in filter(None, reasons):
            logging.warning(reason)
    if run.is_in_loop:
        trainer.start()
    return trainer


def _build_watchers(opt: Opt) -> list[Callback]:
    """Callbacks of the first process in ParlAI's loop: progress line, curve, record."""
    parts: list[Callback] = []
    if ProgressLine.has_terminal():
        parts.append(ProgressLine(handlers=[logging.logger.streamHandler]))
    if path := opt.get("model_file"):
        name = "/".join(Path(path).parts[-2:])
        parts.append(LearningCurve(f"{path}.png", title=f"{name}: {opt['model']} on {opt['task']}"))
        parts.append(Record(f"{path}.run.json", {name: value for name, value in opt.items() if name not in NOT_SHOWN}))
    return parts


class Report(Callback):
    """Adds the results of batches and updates to the agent's metrics."""

    def __init__(self, agent: TorchRankerAgent) -> None:
        self._agent, self._metrics, self._updates = agent, agent.global_metrics, agent.updates
        self._skipped = self._left_out = 0

    def on_start(self, run: Run) -> None:
        self._skipped, self._left_out = run.skipped_examples, self._updates.left_out

    def after_step(self, run: Run, outcome: Outcome | None) -> None:
        if left_out := run.skipped_examples - self._skipped:
            self._skipped += left_out
            self._metrics.add(WITHOUT_NEGATIVES, SumMetric(left_out))
        self._note_update()
        if outcome is None or not len(outcome) or not outcome.losses.isfinite().all():
            return
        for name, (value, count) in outcome.sums.items():
            self._metrics.add(name, AverageMetric(value, count) if count else SumMetric(value))
        rank = pool_ranks(outcome.scores, outcome.pool)
        n = len(rank)
        self._metrics.add("mean_loss", AverageMetric(float(outcome.losses.sum()), n))
        self._metrics.add("train_accuracy", AverageMetric(int((rank == 1).sum()), n))
        self._metrics.add("rank", AverageMetric(int(rank.sum()), n))
        self._metrics.add("mrr", AverageMetric(float((1 / rank).sum()), n))

    def _note_update(self) -> None:
        updates, clip = self._updates, self._agent.opt.get("gradient_clip", -1)
        if updates.count == self._agent._number_training_updates:
            return
        self._agent._number_training_updates = updates.count
        if updates.left_out > self._left_out:
            self._left_out = updates.left_out
            self._metrics.add("nonfinite_updates", SumMetric(1))
            return
        self._metrics.add("gnorm", GlobalAverageMetric(updates.norm))
        if clip > 0:
            self._metrics.add("clip", GlobalAverageMetric(float(updates.norm > clip)))
        if is_primary_worker():  # all processes step together
            self._metrics.add("ups", GlobalTimerMetric(1))
