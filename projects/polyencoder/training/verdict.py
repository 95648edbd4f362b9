"""Warns about a run that did not improve its model, with likely reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polyencoder.evaluation.names import shown_name
from polyencoder.training.trainer import Trainer

FEW_UPDATES = 100
HIGHER_LOSS = 1.02  # relative to before training
FEW_DIFFERENT = 0.1  # share of distinct responses


def why_no_better(
    trainer: Trainer,
    *,
    before: Mapping[str, float],
    best: Mapping[str, float],
    metric: str = "hits@1",
    of_another: bool,
    responses: Iterable[str],
) -> str | None:
    """A warning if the best evaluation of a run is no better than before training; None if it is.

    Args:
        trainer: of the run, at its end.
        before, best: metrics on the same examples.
        metric: the one that must have improved.
        of_another: whether `before` is of a bi-encoder of the backbone, since the model started partly random.
        responses: of the training data.
    """
    if best[metric] > before[metric]:
        return None
    loss = None if of_another else before["loss"]  # another model's loss does not compare
    reasons = _reasons(trainer, before=loss, after=best["loss"], responses=list(responses))
    than = "a bi-encoder of the backbone" if of_another else "before"
    difference = f"{shown_name(metric, best)} {best[metric] - before[metric]:+.3f}"
    return f"the trained model is no better than {than}: {difference}. {'; '.join(reasons)}"


def _reasons(trainer: Trainer, *, before: float | None, after: float, responses: list[str]) -> list[str]:
    updates, config, found = trainer.updates.count, trainer.config, []
    if updates < FEW_UPDATES:
        found.append(f"{updates} updates are few: give more epochs, or more data")
    if before is not None and after > HIGHER_LOSS * before:
        found.append(
            f"the validation loss rose from {before:.3g} to {after:.3g}: try a lower learning_rate than "
            f"{config.optimizer.learning_rate:g}"
        )
    if trainer.skipped:
        share = trainer.skipped / max(1, trainer.progress.batches)
        found.append(f"{share:.0%} of the batches had a single candidate: give a larger batch_size, or other data")
    if responses and (different := len(set(responses))) < FEW_DIFFERENT * len(responses):
        found.append(f"only {different:,} of the {len(responses):,} training responses are distinct")
    return found or ["data that is more like the validation data, another learning_rate or more epochs may help"]
