"""`TrainingConfig`: the hyperparameters of a training run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from pydantic import BeforeValidator, Field

from polyencoder.config import FineTuned
from polyencoder.errors import ConfigError
from polyencoder.modeling.families import FAMILIES, Family
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.fields import Count, Hidden, Needs, NotNegative, Pair, Positive, Share

__all__ = [
    "DistillationConfig",
    "DistillationKind",
    "HardNegatives",
    "OptimizerConfig",
    "OptimizerName",
    "PrecisionName",
    "ScheduleConfig",
    "ScheduleName",
    "TrainingConfig",
    "parse_ranks",
]

OptimizerName = Literal["adamw", "adam", "adamax", "sgd", "adadelta"]
ScheduleName = Literal["plateau", "linear", "cosine", "invsqrt", "constant"]
PrecisionName = Literal["float32", "bfloat16", "float16"]
DistillationKind = Literal["kl", "margin-mse"]


@dataclass(frozen=True)
class Families:
    """The names of the architectures that a condition holds for, in `Needs`."""

    holds: Callable[[Family], bool]

    def __iter__(self) -> Iterator[str]:
        return (name for name, own in FAMILIES.items() if self.holds(own))


AROUND_BACKBONE = Needs("architecture", Families(lambda own: own.has_backbone))

AtLeastZero = Annotated[int, Field(ge=0)]


@settings(panel="Training")
class OptimizerConfig(Settings):
    """Which optimizer, and its numbers: the defaults are the paper's for BERT's weights (Section 5.1)."""

    name: Annotated[OptimizerName, Parameter(name="--optimizer")] = "adamw"
    """The optimizer (convert: adadelta)."""
    learning_rate: Positive = 5e-5
    """Peak learning rate, after the warm-up (convert: 1, with --init 0.1)."""
    weight_decay: NotNegative = 0.01
    """Weight decay of matrices; biases and layer norms have none (convert: 1e-05)."""
    betas: Annotated[Pair, Needs("optimizer", ("adam", "adamw", "adamax"))] = (0.9, 0.999)
    """Betas of adamw, adam and adamax, comma-separated."""
    embedding_clip: NotNegative = 0.0
    """Maximum gradient norm of the embeddings alone, 0 for no limit (convert: 1)."""
    eps: Annotated[float, Hidden] = 1e-8
    momentum: Annotated[float, Hidden] = 0.0
    """Of sgd."""
    rho: Annotated[float, Hidden] = 0.9
    """Of adadelta: how slowly its running averages forget."""

    def __post_init__(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(
                f"betas are {self.betas[0]},{self.betas[1]}; both must be at least 0 and below 1", argument="betas"
            )


@settings(panel="Training")
class ScheduleConfig(Settings):
    """How the learning rate changes.

    "plateau", the paper's (Section 5.1), multiplies it by `decay` whenever `patience` + 1 validations in a row have not
    lowered the loss; "linear" and "cosine" take it to `final_learning_rate` at the run's end; "invsqrt" divides it by
    the root of the updates; "constant" keeps it.
    """

    name: Annotated[ScheduleName | None, Parameter(name="--schedule")] = None
    """linear, cosine, plateau, invsqrt or constant (default: linear where the end of the run is known, else constant;
    convert: cosine)."""
    warmup_updates: AtLeastZero | None = None
    """Updates of linear warm-up (default: 100, or a tenth of a shorter run; convert: 0)."""
    final_learning_rate: Annotated[NotNegative, Needs("schedule", ("linear", "cosine", None))] = 0.0
    """Last learning rate of linear and cosine (convert: 1e-3, with --init 1e-4)."""
    decay: Annotated[float, Hidden, Field(gt=0, le=1)] = 0.4
    patience: Annotated[AtLeastZero, Hidden] = 0
    warmup_share: Annotated[float, Hidden] = 0.1
    """Of the run, where `warmup_updates` are not given."""
    longest_warmup: Annotated[int | None, Hidden] = 100
    """Updates; None for no limit."""
    warmup_start: Annotated[float, Hidden] = 1e-4
    """The factor at the beginning of a warm-up."""
    gamma: Annotated[int | None, Hidden] = None
    """Updates after which "invsqrt" has divided the rate by the root of 2; None for those of the warm-up."""

    def check_peak(self, learning_rate: float) -> None:
        """Raise ConfigError unless the last learning rate is at most the peak."""
        if self.final_learning_rate > learning_rate:
            raise ConfigError(
                f"the final learning rate is {self.final_learning_rate / learning_rate:.4g} times the peak; it must be "
                "from 0 up to the peak",
                argument="final_learning_rate",
            )


@settings(panel="Distillation and hard negatives")
class DistillationConfig(Settings):
    """From whom a run learns besides the labels, and how; see `polyencoder.training.distillation.Distillation`."""

    teacher: str | None = None
    """Also learn this ranker's scores, usually a cross-encoder's: folder, model file or hub id."""
    weight: Annotated[float, Parameter(name="--distillation-weight"), Needs("teacher"), Field(ge=0, le=1)] = 0.5
    """Weight of the teacher's loss, 0 to 1."""
    kind: Annotated[DistillationKind, Parameter(name="--distillation-loss"), Needs("teacher")] = "kl"
    """kl or margin-mse."""
    temperature: Annotated[
        Positive,
        Parameter(name="--distillation-temperature"),
        Needs("teacher"),
        Needs("distillation_loss", ("kl",)),
    ] = 1.0
    """Temperature of kl."""
    candidates: Annotated[AtLeastZero, Parameter(name="--distillation-candidates"), Needs("teacher")] = 0
    """How many candidates of each example the teacher scores; 0 for all."""
    scores: Annotated[str | os.PathLike[str] | None, Hidden] = None
    """The file that keeps what the teacher said; None to remember it in memory."""

    def __post_init__(self) -> None:
        if self.candidates == 1:
            raise ConfigError(
                "distillation asks about 1 candidates; give 0, for all, or at least 2",
                argument="distillation_candidates",
            )

    @property
    def has_teacher(self) -> bool:
        """Whether there is a teacher whose scores count."""
        return self.teacher is not None and self.weight > 0


def parse_ranks(text: Any) -> Any:
    """`10-100` -> (10, 100), `100` -> (1, 100); what is no text stays as it is. Raises ConfigError."""
    if isinstance(text, (list, tuple)) and len(text) == 1:
        text = text[0]
    if not isinstance(text, str):
        return text
    first, _, last = text.rpartition("-")
    try:
        return int(first or 1), int(last)
    except ValueError:
        raise ConfigError(
            f"ranks {text!r}: give the first and the last, as in 10-100", argument="hard_negative_ranks"
        ) from None


Ranks = Annotated[tuple[int, int], BeforeValidator(parse_ranks), Parameter(n_tokens=1, show_default="1-100")]
"""The first and the last of some ranks, in a text such as 10-100."""


@settings(panel="Distillation and hard negatives")
class HardNegatives(Settings):
    """Which wrong candidates are taken: the best `count` that pass; none where it is 0."""

    count: Annotated[int, Parameter(name="--hard-negatives")] = 0
    """How many mined wrong responses per example to add to the batch."""
    every: Annotated[Count, Parameter(name="--hard-negatives-every"), Needs("hard_negatives")] = 500
    """Updates between encoding anew the responses that negatives are mined among."""
    ranks: Annotated[Ranks, Parameter(name="--hard-negative-ranks"), Needs("hard_negatives")] = (1, 100)
    """Ranks among the wrong responses, best first, to draw negatives from, such as 10-100."""
    margin: Annotated[
        NotNegative | None,
        Parameter(name="--hard-negative-margin"),
        Needs("hard_negatives"),
    ] = None
    """Leave out negatives that score above the response's score minus this."""

    def __post_init__(self) -> None:
        first, last = self.ranks
        if self.count < 0:
            raise ConfigError(
                f"hard negatives: their number is {self.count}; it must be at least 1", argument="hard_negatives"
            )
        if not 1 <= first <= last:
            raise ConfigError(
                f"hard negatives: the ranks are {first}-{last}; give the first and the last, as in 10-100",
                argument="hard_negative_ranks",
            )
        if last - first + 1 < self.count:
            raise ConfigError(
                f"hard negatives: {self.count} are wanted, but the ranks {first}-{last} are fewer",
                argument="hard_negative_ranks",
            )


@settings(panel="Training")
class TrainingConfig(Settings):
    """How a ranker is trained. A run ends at whichever of `epochs`, `max_updates` and `max_seconds` comes first."""

    candidates: Literal["batch", "inline", "batch-all-cands"] = "batch"
    """batch: the responses of the batch; inline: each example's own, or sampled ones (cross); batch-all-cands: the
    candidates of all examples of the batch."""
    epochs: Positive | None = 3.0
    """Passes over the training data (none counted if --max-updates is given)."""
    max_updates: Annotated[int, Field(gt=0)] | None = None
    """Maximum number of updates (convert with --init: 60000)."""
    max_seconds: Positive | None = None
    """Maximum training time in seconds."""
    batch_size: Count = 32
    """Examples per batch and process (cross: 8; convert: 512, with --init 256)."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    label_smoothing: Share = 0.0
    """Probability mass shared by the wrong candidates (convert: 0.2)."""
    precision: PrecisionName = "float32"
    """float32, bfloat16 or, on a GPU, float16 (quantized convert on a GPU: float16)."""
    bf16: bool = False
    """Short for --precision bfloat16."""
    fine_tuned: Annotated[FineTuned, Needs("architecture", Families(lambda own: own.has_backbone))] = (
        "all_encoder_layers"
    )
    """Which layers learn: a row of Table 3."""
    accumulate: Count = 1
    """Batches per update (gradient accumulation)."""
    clip: NotNegative = 1.0
    """Maximum gradient norm, 0 for no limit (convert: 0)."""
    grad_cache: Annotated[AtLeastZero, Needs("architecture", Families(lambda own: own.model.has_vectors))] = 0
    """Gradient caching: use the memory of this many contexts for a batch of any size; 0 turns it off."""
    pair_tokens: Annotated[AtLeastZero, Needs("architecture", Families(lambda own: not own.model.has_vectors))] = 0
    """The same for a cross-encoder, as a number of tokens; 0 turns it off."""
    gather_negatives: bool = True
    """With several processes: rank each example among the candidates of all of them."""
    max_nonfinite: Count = 5
    """End the run with an error after this many non-finite updates in a row."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    """Random seed; equal seeds give equal runs."""
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    hard_negatives: HardNegatives = field(default_factory=HardNegatives)
    loss_scale: Annotated[Positive | None, Hidden] = None
    """What the loss is multiplied by, and gradients are divided by again; see `Precision`."""

    @classmethod
    def presets(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        updates = {"epochs": None} if given.get("max_updates") is not None else {}
        return updates | ({"precision": "bfloat16"} if given.get("bf16") in (True, "true") else {})

    def __post_init__(self) -> None:
        if self.epochs is None and self.max_updates is None and self.max_seconds is None:
            raise ConfigError("a run without an end: give epochs, max_updates or max_seconds")
        if self.hard_negatives.count and self.candidates != "batch":
            raise ConfigError(
                f"hard_negatives join the candidates 'batch', not {self.candidates!r}; for inline ones "
                "`polyencoder mine` writes a file",
                argument="hard_negatives",
            )
        if self.candidates == "batch" and self.batch_size == 1:
            raise ConfigError(
                "with candidates 'batch' the labels of a batch are each other's negatives, so batch_size must be at "
                "least 2: one candidate leaves nothing to learn",
                argument="batch_size",
            )
        if self.bf16 and self.precision != "bfloat16":
            raise ConfigError(
                f"bf16 and precision {self.precision!r} contradict each other: give one of them", argument="bf16"
            )
        self.schedule.check_peak(self.optimizer.learning_rate)
