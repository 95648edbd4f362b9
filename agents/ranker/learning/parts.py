"""From ParlAI's options to the parts of the library's `Trainer`: loss, objective, callbacks."""

from __future__ import annotations

from collections.abc import Callable

from parlai.core.opt import Opt

from polyencoder.errors import ConfigError
from polyencoder.modeling import RankerModel
from polyencoder.ranker import Ranker
from polyencoder.text import TextEncoder
from polyencoder.training.callbacks import Callback
from polyencoder.training.callbacks.hard_negatives import MinedNegatives
from polyencoder.training.callbacks.scaling import MeasuredScaling
from polyencoder.training.config import SHARED_CANDIDATES
from polyencoder.training.distillation import Distillation
from polyencoder.training.hard_negatives import HardNegatives, parse_ranks
from polyencoder.training.objective import HOPELESS, Loss, Ranking
from polyencoder.training.score_cache import ScoreCache
from polyencoder.training.teacher import Teacher

__all__ = ["callbacks", "check_options", "objective", "open_teacher"]


def check_options(opt: Opt) -> None:
    """Raise ConfigError for options of training that cannot be."""
    for flag, what in (("grad_cache", "contexts, or 0 to turn it off"), ("pair_tokens", "tokens, or 0 for no limit")):
        if opt.get(flag, 0) < 0:
            raise ConfigError(f"--{flag.replace('_', '-')} {opt[flag]}: give a number of {what}")
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
    loss: Loss | None = None
    if teacher is not None:
        loss = Distillation(
            teacher,
            weight=opt["distillation_weight"],
            kind=opt["distillation_loss"],
            temperature=opt["distillation_temperature"],
            candidates=opt["distillation_candidates"],
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


def callbacks(opt: Opt, ranker: Ranker, *, scaled: Callable[[float], None] | None) -> list[Callback]:
    """What happens beside the steps; `scaled` is told an output scaling that is to be measured, if one is."""
    parts: list[Callback] = []
    if (wanted := hard_negatives(opt)) is not None:
        parts.append(MinedNegatives(ranker, wanted, every=opt["hard_negatives_every"], index=ranker.index))
    if scaled is not None:
        parts.append(MeasuredScaling(scaled))
    return parts
