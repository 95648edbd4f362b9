"""Training that can be watched: a progress line, a record of how the model was made, a curve at the end."""

from __future__ import annotations

import time
from pathlib import Path
from shlex import quote
from statistics import fmean
from typing import Any

import parlai.utils.logging as logging
from parlai.agents.ranker.learning.curve import Curve
from parlai.agents.ranker.learning.progress import ProgressLine, Rate, goal_of, line
from parlai.agents.ranker.learning.record import write_record
from parlai.agents.ranker.learning.resume import ResumableAgent
from parlai.core.message import Message
from parlai.core.metrics import Metric, dict_report
from parlai.core.opt import Opt
from parlai.core.torch_agent import Batch, Output
from parlai.utils.distributed import is_primary_worker, num_workers

from polyencoder.data.epochs import EPOCH_EXAMPLES
from polyencoder.errors import ConfigError
from polyencoder.evaluation.names import current_name, main_measures, number_of_candidates, summary
from polyencoder.training.objective import Outcome
from polyencoder.training.progress import Progress

# what the line and the curve call the numbers that ParlAI's reports have
IN_TRAINING = {"mean_loss": "loss", "train_accuracy": "R@1", "lr": "learning rate"}
IN_VALIDATION = {"loss": "loss", "hits@1": "R@1"}


class WatchedAgent(ResumableAgent):
    """Shows and records how training goes, in ParlAI's training loop and its first process."""

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        self.curve = Curve()
        self._measures: dict[str, float] = {}  # of the best validation
        self._counts: list[float] = []  # mean candidates of each batch since the curve's last point
        self._before = Progress()
        self._examples = 0
        self._epoch: int | None = None
        self._started = time.monotonic()
        self._rate = Rate()
        self._line: ProgressLine | None = None
        super().__init__(opt, shared)
        self._is_watched = self._is_in_loop and is_primary_worker()
        if self._is_watched and opt.get("model_file"):
            self._write_record()
        if self._is_watched and ProgressLine.is_wanted():
            self._line = ProgressLine()

    # ---- what a resumed run knows of its first parts

    def training_state(self) -> dict[str, Any]:
        done = self._progress()
        own = {"curve": self.curve.points, "examples": done.examples, "seconds": done.seconds}
        own["measures"] = self._measures
        return {**super().training_state(), **own}

    def load(self, path: str) -> dict[str, Any]:
        states = super().load(path)
        if self._restored and "curve" in self._restored:
            self.curve = Curve(self._restored["curve"])
            self._measures = self._restored.get("measures") or {}  # not in earlier files
            self._before = Progress(examples=self._restored["examples"], seconds=self._restored["seconds"])
        return states

    # ---- while it trains

    def batch_act(self, observations: list[Message] | Batch) -> list[Message]:
        if self._line and self._epoch is None and isinstance(observations, list):
            self._epoch = next((obs[EPOCH_EXAMPLES] for obs in observations if EPOCH_EXAMPLES in obs), None)
        replies: list[Message] = super().batch_act(observations)
        return replies

    def train_step(self, batch: Batch) -> Output | None:
        output = super().train_step(batch)
        self._examples += batch.batchsize * num_workers()
        if self._line:
            self._rate.add(time.monotonic(), batch.batchsize * num_workers())
            if self._line.due():
                self._show(self._line)
        return output

    def record(self, outcome: Outcome) -> None:
        super().record(outcome)
        if self._is_watched:
            self._counts.append(fmean(outcome.pool.counts(len(outcome))))

    def report(self) -> dict[str, Metric]:
        """ParlAI asks for it when it logs: a point of the curve."""
        report: dict[str, Metric] = super().report()
        if self._is_watched and self.is_training:
            among = {"among": fmean(self._counts) if self._counts else None}
            self._counts.clear()
            self.curve.add("training", self._number_training_updates, _renamed(report, IN_TRAINING) | among)
        return report

    def receive_metrics(self, metrics_dict: dict[str, Any]) -> None:
        self._name_validation_metric(metrics_dict)
        super().receive_metrics(metrics_dict)
        measures = main_measures(dict_report(metrics_dict))
        if self._is_best:
            self._measures = measures
        if is_primary_worker():
            logging.info(f"validation after {self._number_training_updates:,} updates: {summary(measures)}")
        among = {"among": number_of_candidates(measures)}
        self.curve.add("validation", self._number_training_updates, _renamed(metrics_dict, IN_VALIDATION) | among)
        self._rate.pause()

    def _name_validation_metric(self, report: dict[str, Any]) -> None:
        """Give ParlAI's loop the metric that it looks for, also under the name that it once had (`R@1/20`)."""
        name = self.opt.get("validation_metric") or "accuracy"
        if name in report:
            return
        if (now := current_name(name)) not in report:
            there = ", ".join(sorted(report))
            raise ConfigError(f"--validation-metric {name}: validation gives no such number; there are {there}")
        report[name] = report[now]

    def shutdown(self) -> None:
        super().shutdown()
        if self._line:
            self._line.close()
        self._say_what_was_made()
        if self._is_watched and self.curve and self.opt.get("model_file"):
            self._draw()
            self._is_watched = False

    def _say_what_was_made(self) -> None:
        """After the evaluations that end ParlAI's loop. For them it has made its agent anew, of the best model."""
        made, given = self._restored, self.opt.get("override") or {}
        is_last = not self._is_in_loop and given.get("load_from_checkpoint") is False
        if not (made and is_last and is_primary_worker()):
            return
        self._restored = None  # each of the worlds that were evaluated ends its agents
        path, measures = self.opt["model_file"], summary(made.get("measures") or {})
        logging.success(f"{path}: the model after {self._resumed_at or 0:,} updates{measures and f', {measures}'}")
        logging.info(f"talk to it: parlai interactive -mf {quote(path)}")
        logging.info(f"use it without ParlAI: polyencoder export {quote(path)} FOLDER")

    # ---- how it is shown

    def _progress(self) -> Progress:
        seconds = self._before.seconds + time.monotonic() - self._started
        examples = self._before.examples + self._examples
        return Progress(examples=examples, updates=self._number_training_updates, seconds=seconds)

    def _show(self, shown: ProgressLine) -> None:
        goal, done, rate = goal_of(self.opt, epoch=self._epoch), self._progress(), self._rate.value()
        numbers = _renamed(super().report(), IN_TRAINING)
        known = {name: value for name, value in numbers.items() if value is not None}
        text = line(rate=rate, report=known, seconds_left=goal.seconds_left(done, rate=rate))
        shown.show(text, share=goal.share(done))

    def _write_record(self) -> None:
        path = f"{self.opt['model_file']}.run.json"
        try:
            write_record(path, self.opt, updates=self._number_training_updates)
        except OSError as error:
            logging.error(f"{path} could not be written: {error.strerror}")

    def _draw(self) -> None:
        path = f"{self.opt['model_file']}.png"
        name = "/".join(Path(self.opt["model_file"]).parts[-2:])
        try:
            self.curve.draw(path, title=f"{name}: {self.opt['model']} on {self.opt['task']}")
        except ConfigError as error:
            logging.info(f"no curve is drawn: {error}")
        except OSError as error:
            logging.error(f"{path} could not be written: {error.strerror}")


def _renamed(report: dict[str, Any], names: dict[str, str]) -> dict[str, float | None]:
    values = {new: report.get(name) for name, new in names.items()}
    return {name: value.value() if isinstance(value, Metric) else value for name, value in values.items()}
