"""Opens a run's data and rehearses its evaluations before training, not after hours of it as ParlAI does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any

from parlai.agents.ranker.dialogue.examples import Examples, choose_label
from parlai.agents.ranker.dialogue.ranking import convert_metrics
from parlai.agents.ranker.dialogue.sources import Source
from parlai.agents.ranker.model.optimization import needs_length, read_goal
from parlai.core.agents import Agent
from parlai.core.message import Message
from parlai.core.metrics import Metrics
from parlai.core.opt import Opt
from parlai.core.torch_agent import Batch
from parlai.core.worlds import World, create_task
from parlai.utils.distributed import num_workers

from polyencoder.errors import ConfigError, InputError, PolyencoderError, get_first_line, suggest_similar
from polyencoder.evaluation import of_example
from polyencoder.training.callbacks.evaluation import LOWER_IS_BETTER
from polyencoder.training.randomness import get_random_state, restore_random_state

REHEARSED = 1000  # examples of each task
OF_EVERY_AGENT = ("lr", "total_train_updates", "gpu_mem", "exps", "ups", "tpb", "tps", "ctpb", "ctps", "ltpb", "ltps")
"""Metrics that ParlAI adds to the reports of training agents."""


class Rehearsal(Agent):
    """Stands in for a ranker in a rehearsed evaluation: finds unusable candidates and the names of metrics."""

    def __init__(self, opt: Opt, source: Source) -> None:
        super().__init__(opt)
        self._source, self._examples = source, Examples(opt, Metrics())

    def act(self) -> Message:
        """Replies with the label, and the metrics of a ranker that ranks it first."""
        obs, reply = Message(self.observation), Message({"id": "rehearsal", "episode_done": False})
        label = choose_label(obs, Random(0), among=self._source.among)
        obs.force_set("label_choice", label)
        if label is None or not self._examples.is_usable(obs, self._source):
            return reply
        batch = Batch(labels=[label], candidates=[self._source.get_required_candidates(obs)], right=None)
        n = self._source.build_pool(batch).count_candidates(1)[0] if self._source.has_n else None
        metrics = convert_metrics(of_example(1, 0.0, n, hits_at=self._source.hits_at))
        reply.update({"text": label, "text_candidates": [label], "metrics": metrics})
        return reply


def check_evaluation_data(opt: Opt, *, source: Source | None) -> None:
    """Opens the validation and test data like the training loop, and rehearses a ranker's evaluation of them.

    InputError if data is missing or unreadable, or one of the first examples has unusable candidates; ConfigError if
    validations will lack the metric.
    """
    for fold in ("valid", "test"):
        with _opened(opt, fold, Agent(opt) if source is None else Rehearsal(opt, source)) as world:
            if source is None:
                continue
            for subworld in getattr(world, "worlds", [world]):  # of several tasks each
                for _ in range(REHEARSED):
                    subworld.parley()
                    if subworld.epoch_done():
                        break
            report = world.report()
            if fold == "valid" and report.get("exs"):  # of several processes one may have no example
                check_metric(opt, {**report, **dict.fromkeys(OF_EVERY_AGENT)})


def check_metric(opt: Opt, report: Mapping[str, Any]) -> None:
    """Raises ConfigError if a validation lacks `--validation-metric`, or ParlAI would keep the highest of a loss."""
    name = opt.get("validation_metric") or "accuracy"
    if name not in report:
        metrics, hint = ", ".join(sorted(report)), suggest_similar(name, report, listed=False)
        raise ConfigError(f"--validation-metric {name}: validations report no such metric; there are {metrics}{hint}")
    is_lower_better = name.rpartition("/")[2] in LOWER_IS_BETTER and name != "loss"  # which ParlAI knows
    if is_lower_better and opt.get("validation_metric_mode") != "min":
        raise ConfigError(f"--validation-metric {name}: a lower one is better: give --validation-metric-mode min")


def compute_planned_updates(opt: Opt) -> int | None:
    """The number of updates of a run, by `--max-train-steps` and `--num-epochs`; None if unknown.

    Opens the training data to count its examples, if the schedule needs that. An epoch's number of updates is unknown
    with batches of varying size (`--dynamic-batching`), or if the task does not know its size.
    """
    epoch = None
    if (opt.get("num_epochs") or -1) > 0 and needs_length(opt) and not opt.get("dynamic_batching"):
        with _opened(opt, "train", Agent(opt)) as world:
            epoch = world.num_examples()
    return read_goal(opt, epoch=epoch).compute_total_updates(
        batch=max(1, opt.get("batchsize") or 1) * num_workers(), accumulate=max(1, opt.get("update_freq") or 1)
    )


@contextmanager
def _opened(opt: Opt, fold: str, agent: Agent) -> Iterator[World]:
    """Opens a part of the task for this agent; afterwards restores the state of all random generators."""
    task = opt["task"] if fold == "train" or not opt.get("evaltask") else opt["evaltask"]
    datatype = f"{fold}:stream" if "stream" in opt["datatype"] else fold
    alone = {"batchsize": 1, "dynamic_batching": None, "num_workers": 0, "model_file": None}
    before, generator = get_random_state(Random()), Random()
    world = None
    try:
        world = create_task(Opt({**opt, **alone, "task": task, "datatype": datatype}), agent)
        yield world
    except PolyencoderError:
        raise
    except Exception as error:  # a task's own code raises anything
        raise InputError(
            f"-t {task}: its data for {fold} cannot be opened: {type(error).__name__}: {get_first_line(error)}. "
            "Training needs it and was not started"
        ) from error
    finally:
        if world is not None:
            world.shutdown()
        restore_random_state(before, generator)
