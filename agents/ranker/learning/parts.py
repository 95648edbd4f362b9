"""From ParlAI's options to the library's `Trainer` and its parts: objective, updates, callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import parlai.utils.logging as logging
from parlai.agents.ranker.learning.loop import LoopRun
from parlai.agents.ranker.learning.updates import ParlaiUpdates, Report
from parlai.core.opt import Opt
from parlai.core.torch_ranker_agent import TorchRankerAgent
from parlai.utils.distributed import is_primary_worker

from polyencoder.errors import ConfigError
from polyencoder.modeling import ConveRT, RankerModel
from polyencoder.ranker import Ranker
from polyencoder.text import TextEncoder
from polyencoder.training.callbacks import (
    Callback,
    LearningCurve,
    MeasuredScaling,
    MinedNegatives,
    ProgressLine,
    Record,
)
from polyencoder.training.config import SHARED_CANDIDATES
from polyencoder.training.distillation import Distillation
from polyencoder.training.hard_negatives import HardNegatives, parse_ranks
from polyencoder.training.objective import HOPELESS, CrossEntropy, Loss, Ranking
from polyencoder.training.progress import Goal
from polyencoder.training.score_cache import ScoreCache
from polyencoder.training.teacher import Teacher
from polyencoder.training.trainer import Trainer

__all__ = ["build_trainer", "check_options", "goal_of", "objective", "open_teacher"]

NOT_SHOWN = ("override", "load_from_checkpoint")  # options with which ParlAI's scripts tell each other things


def check_options(opt: Opt) -> None:
    """Raise ConfigError for options of training that cannot be."""
    for flag, what in (("grad_cache", "contexts, or 0 to turn it off"), ("pair_tokens", "tokens, or 0 for no limit")):
        if opt.get(flag, 0) < 0:
            raise ConfigError(f"--{flag.replace('_', '-')} {opt[flag]}: give a number of {what}")
    if opt.get("fp16") and opt.get("embedding_clip"):
        raise ConfigError(
            f"--fp16 true and --embedding-clip {opt['embedding_clip']}: ParlAI's fp16 optimizers clip all gradients "
            "together; use --bf16 true"
        )
    weight, temperature = opt.get("distillation_weight", 0.5), opt.get("distillation_temperature", 1.0)
    if not 0 <= weight <= 1:
        raise ConfigError(f"--distillation-weight {weight}: must be from 0, the labels alone, to 1, the teacher alone")
    if not temperature > 0:
        raise ConfigError(f"--distillation-temperature {temperature}: must be above 0")
    if (n := opt.get("distillation_candidates", 0)) < 0 or n == 1:
        raise ConfigError(f"--distillation-candidates {n}: must be at least 2, or 0 for all")
    if opt.get("teacher_scores") and not opt.get("teacher_model"):
        raise ConfigError(f"--teacher-scores {opt['teacher_scores']}: whose? Give --teacher-model as well")
    hard_negatives(opt)


def hard_negatives(opt: Opt) -> HardNegatives | None:
    """What `--hard-negatives` and its kin ask for, if anything. Raises ConfigError for what cannot be."""
    count = opt.get("hard_negatives") or 0
    if count == 0:
        return None
    if count < 0:
        raise ConfigError(f"--hard-negatives {count}: must be 0, for none, or more")
    if opt["candidates"] != "batch":
        raise ConfigError(
            f"--hard-negatives {count} are added to --candidates batch, not {opt['candidates']}: for inline candidates "
            "`polyencoder mine` writes a file with hard negatives"
        )
    if opt["hard_negatives_every"] < 1:
        raise ConfigError(f"--hard-negatives-every {opt['hard_negatives_every']}: must be at least 1")
    first, last = parse_ranks(opt["hard_negative_ranks"])
    return HardNegatives(count, first, last, opt["hard_negative_margin"])


def open_teacher(opt: Opt, model: RankerModel) -> Teacher | None:
    """The ranker of `--teacher-model`, on the model's device, with the memory of its scores."""
    if not opt.get("teacher_model") or opt["distillation_weight"] <= 0:
        return None
    model_file = opt.get("model_file")
    path = opt.get("teacher_scores") or (f"{model_file}.teacher.sqlite" if model_file else None)
    ranker = Ranker.from_pretrained(opt["teacher_model"], device=next(model.parameters()).device)
    return Teacher(ranker, ScoreCache(path), bf16=bool(opt.get("bf16")))


def objective(opt: Opt, model: RankerModel, text: TextEncoder, teacher: Teacher | None) -> Ranking:
    """What the options say is minimised."""
    loss: Loss = CrossEntropy(opt.get("label_smoothing") or 0.0)
    if teacher is not None:
        loss = Distillation(
            teacher,
            weight=opt["distillation_weight"],
            kind=opt["distillation_loss"],
            temperature=opt["distillation_temperature"],
            candidates=opt["distillation_candidates"],
            labels=loss,
        )
    return Ranking(
        model,
        text,
        loss=loss,
        gather_negatives=bool(opt.get("gather_negatives")) and opt["candidates"] in SHARED_CANDIDATES,
        grad_cache=opt.get("grad_cache", 0),
        pair_tokens=opt.get("pair_tokens", 0),
        hopeless_after=None if opt.get("hard_negatives") else HOPELESS,
    )


def build_trainer(
    agent: TorchRankerAgent, teacher: Teacher | None, *, run: LoopRun, restored: Mapping[str, Any] | None
) -> Trainer:
    """The trainer that an agent holds, of a run that goes on where it was if there is something to restore."""
    opt, model, text = agent.opt, agent.ranker, agent.dict.text
    ranker = Ranker(model, text, device=next(model.parameters()).device)
    minimised, updates = objective(opt, model, text, teacher), ParlaiUpdates(agent)
    callbacks: list[Callback] = [Report(agent, minimised, updates)]
    if (wanted := hard_negatives(opt)) is not None:
        callbacks.append(MinedNegatives(ranker, wanted, every=opt["hard_negatives_every"], index=ranker.index))
    if agent.scaling_is_to_be_measured:
        callbacks.append(MeasuredScaling(agent.scaling_was_measured))
    if run.is_in_loop and is_primary_worker():
        callbacks += _watched(opt)
    trainer = Trainer(ranker, callbacks=callbacks, objective=minimised, updates=updates)
    trainer.goal = goal_of(opt, epoch=None)
    if run.is_in_loop and run.planned_updates and isinstance(model, ConveRT):
        to_come = run.planned_updates - trainer.updates.count
        if is_primary_worker() and (reason := model.scale.why_low(to_come * max(1, opt.get("update_freq") or 1))):
            logging.warning(reason)
    if restored is not None:
        trainer.load_run_state(_upgraded(restored))
    if run.is_in_loop:
        trainer.start()
    return trainer


def _watched(opt: Opt) -> list[Callback]:
    """What the first process of ParlAI's loop shows and leaves behind: a progress line, a curve, a record."""
    parts: list[Callback] = []
    if ProgressLine.is_wanted():
        parts.append(ProgressLine(handlers=[logging.logger.streamHandler]))
    if path := opt.get("model_file"):
        name = "/".join(Path(path).parts[-2:])
        parts.append(LearningCurve(f"{path}.png", title=f"{name}: {opt['model']} on {opt['task']}"))
        parts.append(Record(f"{path}.run.json", {name: value for name, value in opt.items() if name not in NOT_SHOWN}))
    return parts


def goal_of(opt: Opt, *, epoch: int | None) -> Goal:
    """When ParlAI's training loop ends, by the options; `epoch` is the number of examples in one, if it is known."""

    def limit(name: str) -> Any:
        return value if (value := opt.get(name) or -1) > 0 else None

    epochs = limit("num_epochs")
    examples = epochs * epoch if epochs and epoch else None
    return Goal(examples, limit("max_train_steps"), limit("max_train_time"))


def _upgraded(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of a run that an earlier version wrote, as it is now."""
    if "callbacks" in state:
        return state
    callbacks = {}
    if "curve" in state:
        callbacks["curve"] = {"points": state["curve"], "every": 1, "batches": []}
    progress = {"examples": state.get("examples", 0), "seconds": state.get("seconds", 0.0)}
    return {"updates": state["accumulated"], "progress": progress, "stopped": None, "callbacks": callbacks}
