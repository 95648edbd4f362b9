"""`TrainingConfig`: the hyperparameters of a training run, frozen; a checkpoint keeps them."""

from __future__ import annotations

from dataclasses import dataclass, field

from polyencoder.errors import ConfigError
from polyencoder.modeling import FINE_TUNED
from polyencoder.training.distillation import DistillationConfig
from polyencoder.training.hard_negatives import HardNegatives
from polyencoder.training.optimizer import OptimizerConfig
from polyencoder.training.precision import PrecisionName
from polyencoder.training.schedule import ScheduleConfig
from polyencoder.training.values import ABOVE_0, AT_LEAST_1, SHARE, check_limits

__all__ = ["TrainingConfig"]

LIMITS = {
    **dict.fromkeys(("epochs", "max_updates", "max_seconds", "clip", "loss_scale"), ABOVE_0),
    **dict.fromkeys(("batch_size", "accumulate", "max_nonfinite", "hard_negatives_every"), AT_LEAST_1),
    "label_smoothing": SHARE,
}
SHARED_CANDIDATES = ("batch", "batch-all-cands")  # which serve every example of a batch


@dataclass(frozen=True)
class TrainingConfig:
    """How a ranker is trained. A run ends at whichever of `epochs`, `max_updates` and `max_seconds` comes first."""

    epochs: float | None = 3.0
    max_updates: int | None = None
    max_seconds: float | None = None
    batch_size: int = 32
    """Examples of one process; with candidates "batch" their labels are each other's negatives."""
    candidates: str = "batch"
    """"batch", "inline" or "batch-all-cands"; see `polyencoder.data.collator.Collator`."""
    gather_negatives: bool = True
    """With several processes: the candidates of all of them are candidates of every example."""
    label_smoothing: float = 0.0
    """The probability that the wrong candidates share."""
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    """The teacher whose scores are a target besides the labels, if any."""
    hard_negatives: HardNegatives | None = None
    """Which mined negatives join the candidates "batch"."""
    hard_negatives_every: int = 500
    """Updates between two indexes to mine in."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    precision: PrecisionName = "float32"
    loss_scale: float | None = None
    """What the loss is multiplied by, and gradients are divided by again; see `Precision`."""
    fine_tuned: str = "all_encoder_layers"
    """Layer freezing: what of the encoder is trained; a row of Table 3 (`polyencoder.modeling.freeze`)."""
    accumulate: int = 1
    """Of how many batches an update takes the mean gradient."""
    clip: float | None = 1.0
    """The largest norm of an update's gradients; None for no limit."""
    grad_cache: int = 0
    """Gradient caching: the memory, in contexts of the longest length, whatever the batch size; 0: off."""
    pair_tokens: int = 0
    """The same for a cross-encoder: the memory in tokens; 0: off."""
    max_nonfinite: int = 5
    """So many updates in a row whose loss or gradients are not finite end the run with an error."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs is None and self.max_updates is None and self.max_seconds is None:
            raise ConfigError("a run without an end: give epochs, max_updates or max_seconds")
        check_limits(self, LIMITS)
        for name in ("grad_cache", "pair_tokens"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; it must be 0, for no limit, or more", argument=name
                )
        if self.hard_negatives is not None and self.candidates != "batch":
            raise ConfigError(
                f"hard_negatives join the candidates 'batch', not {self.candidates!r}; for inline ones "
                "`polyencoder mine` writes a file",
                argument="hard_negatives",
            )
        if self.fine_tuned not in FINE_TUNED:
            raise ConfigError(
                f"fine_tuned is {self.fine_tuned!r}; it must be one of {', '.join(FINE_TUNED)}", argument="fine_tuned"
            )
        if self.candidates == "batch" and self.batch_size == 1:
            raise ConfigError(
                "with candidates 'batch' the labels of a batch are each other's negatives, so batch_size must be at "
                "least 2: one candidate leaves nothing to learn",
                argument="batch_size",
            )
