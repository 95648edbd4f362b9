"""`TrainingConfig`: the hyperparameters of a training run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from pydantic import BeforeValidator, Field

from polyencoder.config import FineTuned
from polyencoder.errors import ConfigError
from polyencoder.modeling.families import FAMILIES, Family
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.fields import Hidden, Numbers, Pair, split_commas
from polyencoder.settings.metadata import Needs, Parlai, Without
from polyencoder.validation import AtLeastZero, Count, NotNegative, Positive, Share

OptimizerName = Literal["adamw", "adam", "adamax", "sgd", "adadelta"]
ScheduleName = Literal["plateau", "linear", "cosine", "invsqrt", "constant"]
PrecisionName = Literal["float32", "bfloat16", "float16"]
DistillationKind = Literal["kl", "margin-mse"]
ObjectiveName = Literal["softmax", "bce", "mse", "ranknet", "listnet", "lambdaloss"]
TrackerName = Literal["tensorboard", "wandb"]
POINTWISE = ("bce", "mse")
"""Objectives that compare a candidate with its label alone, not with other candidates."""


@dataclass(frozen=True)
class Families:
    """Architectures that satisfy a condition, for `Needs`."""

    holds: Callable[[Family], bool]

    def __iter__(self) -> Iterator[str]:
        return (name for name, family in FAMILIES.items() if self.holds(family))


@dataclass(frozen=True)
class UpperLimit:
    """Numbers below a limit, for `Needs`."""

    limit: float

    def __contains__(self, value: object) -> bool:
        return value is None or (isinstance(value, int | float) and value < self.limit)  # None: a default

    def __iter__(self) -> Iterator[str]:
        return iter([f"below {self.limit:g}"])


AROUND_BACKBONE = Needs("architecture", Families(lambda family: family.has_backbone))
TWO_TOWERS = Needs("architecture", Families(lambda family: family.has_backbone and family.can.has_vectors))

_LABELS_COUNT = Needs("distillation_weight", UpperLimit(1))

NEW_PARTS = 100.0
"""The default learning rate of new parts, as a multiple of the encoder's."""
LARGEST_NEW_RATE = 0.05
"""The limit of that default: at such a rate Adam replaces a code within a few updates."""


@settings(panel="Training", in_parlai=True)
class OptimizerConfig(Settings):
    """The optimizer and its hyperparameters; the defaults are the paper's for BERT's weights (Section 5.1)."""

    name: Annotated[OptimizerName, Parameter(name="--optimizer"), Parlai(theirs=True)] = "adamw"
    """The optimizer (convert: adadelta)."""
    learning_rate: Annotated[Positive, Parlai("learningrate", theirs=True)] = 5e-5
    """Peak learning rate, after the warm-up (convert: 1, with --init 0.1)."""
    new_learning_rate: Annotated[
        Positive | None, Needs("architecture", Families(lambda family: family.can.has_new_parts))
    ] = None
    """Peak learning rate of a ranker's new parts, such as a poly-encoder's codes, which have no weight decay (default:
    100 times the learning rate, at most 0.05; with sgd and adadelta, and with --init, which has no new parts, the
    same)."""
    weight_decay: Annotated[NotNegative, Parlai(theirs=True)] = 0.01
    """Weight decay of matrices; biases and layer norms have none (convert: 1e-05)."""
    betas: Annotated[Pair, Parlai(theirs=True), Needs("optimizer", ("adam", "adamw", "adamax"))] = (0.9, 0.999)
    """Betas of adamw, adam and adamax, comma-separated."""
    embedding_clip: NotNegative = 0.0
    """Maximum gradient norm of each embedding table by itself, before --clip; 0 for no limit (convert: 1). Weight decay
    then applies only to the rows that a batch looked up."""
    eps: Annotated[float, Hidden, Parlai(None)] = 1e-8
    momentum: Annotated[float, Hidden, Parlai("momentum", theirs=True)] = 0.0
    """Momentum of sgd."""
    nesterov: Annotated[bool, Hidden, Parlai("nesterov", theirs=True)] = False
    """Whether the momentum is Nesterov's."""
    rho: Annotated[float, Hidden, Parlai(None)] = 0.9
    """Rho of adadelta: how slowly its running averages forget."""

    @property
    def rate_of_new_parts(self) -> float:
        """Peak learning rate of a ranker's new parts.

        An update of Adam and its kin moves a number by about the learning rate, whatever its gradient: an encoder's
        rate is too small for numbers that start at random. SGD and ADADELTA move it by its gradient.
        """
        if self.new_learning_rate is not None:
            return self.new_learning_rate
        if self.name in ("sgd", "adadelta"):
            return self.learning_rate
        return max(self.learning_rate, min(NEW_PARTS * self.learning_rate, LARGEST_NEW_RATE))


@settings(panel="Training", in_parlai=True)
class ScheduleConfig(Settings):
    """The learning-rate schedule.

    "plateau", the paper's (Section 5.1), multiplies it by `decay` whenever `patience` + 1 validations in a row have not
    lowered the loss; "linear" and "cosine" take it to `final_learning_rate` at the run's end; "invsqrt" divides it by
    the root of the updates; "constant" keeps it.
    """

    name: Annotated[ScheduleName | None, Parameter(name="--schedule"), Parlai("lr_scheduler", theirs=True)] = None
    """linear, cosine, plateau, invsqrt or constant (default: linear where the end of the run is known, else constant;
    convert: cosine)."""
    warmup_updates: Annotated[AtLeastZero | None, Parlai(theirs=True)] = None
    """Updates of linear warm-up (default: 100, or a tenth of a shorter run, none below ten updates; convert: 0)."""
    final_learning_rate: Annotated[NotNegative, Needs("schedule", ("linear", "cosine", None))] = 0.0
    """The learning rate after the run's last update with --schedule linear or cosine (convert: 1e-3, with --init
    1e-4)."""
    decay: Annotated[float, Hidden, Field(gt=0, le=1), Parlai("lr_scheduler_decay", theirs=True)] = 0.4
    patience: Annotated[AtLeastZero, Hidden, Parlai("lr_scheduler_patience", theirs=True)] = 0
    warmup_share: Annotated[float, Hidden, Parlai(None)] = 0.1
    """Share of the run, where `warmup_updates` are not given."""
    longest_warmup: Annotated[int | None, Hidden, Parlai(None)] = 100
    """Updates; None for no limit."""
    warmup_start: Annotated[float, Hidden, Parlai("warmup_rate", theirs=True)] = 1e-4
    """The factor at the beginning of a warm-up."""
    gamma: Annotated[int | None, Hidden, Parlai("invsqrt_lr_decay_gamma", theirs=True)] = None
    """Updates after which "invsqrt" has divided the rate by the root of 2; None for those of the warm-up."""

    def check_peak(self, learning_rate: float) -> None:
        """Raises ConfigError if the final learning rate exceeds the peak."""
        if self.final_learning_rate > learning_rate:
            raise ConfigError(
                f"the final learning rate is {self.final_learning_rate / learning_rate:.4g} times the peak; it must be "
                "from 0 up to the peak",
                argument="final_learning_rate",
            )


@settings(panel="Distillation and hard negatives", in_parlai=True)
class DistillationConfig(Settings):
    """The teacher of a run, and how its scores are used; see `polyencoder.training.distillation.Distillation`."""

    teacher: Annotated[
        str | None, Parameter(allow_repeating=False, allow_leading_hyphen=False), Parlai("teacher_model")
    ] = None
    """Also learn the scores of this ranker, usually a cross-encoder: folder, model file or hub id."""
    weight: Annotated[float, Parameter(name="--distillation-weight"), Needs("teacher"), Field(gt=0, le=1)] = 0.5
    """Weight of the teacher's loss, above 0 and up to 1; the labels' loss has the rest."""
    kind: Annotated[DistillationKind, Parameter(name="--distillation-loss"), Needs("teacher")] = "kl"
    """kl: the Kullback-Leibler divergence between the two softmaxes over the candidates. margin-mse: the mean squared
    difference of the margins between the label and the other candidates."""
    temperature: Annotated[
        Positive,
        Parameter(name="--distillation-temperature"),
        Needs("teacher"),
        Needs("distillation_loss", ("kl",)),
    ] = 1.0
    """Divides both models' scores in --distillation-loss kl; higher values emphasize the lower scores."""
    candidates: Annotated[AtLeastZero, Parameter(name="--distillation-candidates"), Needs("teacher")] = 0
    """How many candidates of each example the teacher scores: the label and those that the student ranks highest. 0 for
    all, which with --candidates batch is the square of the batch size."""
    scores: Annotated[str | None, Parameter(name="--teacher-scores"), Needs("teacher")] = None
    """The file in which the teacher's scores are cached, so that no pair of texts is scored twice: other seeds and
    students may share it (default: the run's own)."""

    def __post_init__(self) -> None:
        if self.teacher == "":
            raise ConfigError("teacher is empty; give a folder, model file or hub id", argument="teacher")
        if self.candidates == 1:
            raise ConfigError(
                "distillation asks about 1 candidates; give 0, for all, or at least 2",
                argument="distillation_candidates",
            )

    @property
    def has_teacher(self) -> bool:
        """Whether a teacher's scores are used."""
        return self.teacher is not None


def parse_ranks(text: Any) -> Any:
    """`10-100` -> (10, 100), `100` -> (1, 100), also in a list of one; others unchanged. ConfigError for no ranks."""
    if isinstance(text, (list, tuple)) and len(text) == 1:
        text = text[0]
    if isinstance(text, int):  # of a YAML file
        text = str(text)
    if not isinstance(text, str):
        return text
    if (match := re.fullmatch(r"(?:(\d+)-)?(\d+)", text.strip(), re.ASCII)) is None:
        raise ConfigError(f"ranks {text!r}: give the first and the last, as in 10-100", argument="hard_negative_ranks")
    return int(match[1] or 1), int(match[2])


Similarity = Annotated[float, Field(ge=-1, lt=1)]
"""A cosine."""
Ranks = Annotated[tuple[int, int], BeforeValidator(parse_ranks), Parameter(n_tokens=1, show_default="1-100")]
"""The first and the last of some ranks, in a text such as 10-100."""


@settings(panel="Distillation and hard negatives", in_parlai=True)
class HardNegatives(Settings):
    """Which hard negatives are mined: the best `count` that pass; 0 turns mining off."""

    count: Annotated[AtLeastZero, Parameter(name="--hard-negatives")] = 0
    """How many hard negatives to add for each example, wrong responses that the model ranks high: with --candidates
    batch to the whole batch, with inline to the example. A cross-encoder's are those that its start ranks high."""
    every: Annotated[Count, Parameter(name="--hard-negatives-every"), Needs("hard_negatives")] = 500
    """Updates between encoding anew the responses that negatives are mined among. The number of examples divided by the
    batch size means once per epoch."""
    ranks: Annotated[Ranks, Parameter(name="--hard-negative-ranks"), Needs("hard_negatives")] = (1, 100)
    """Ranks among the wrong responses, best first, to draw negatives from, such as 10-100: the very best are often
    right."""
    max_similarity: Annotated[
        Similarity | None,
        Parameter(name="--max-positive-similarity"),
        Needs("hard_negatives"),
    ] = None
    """Leave out near-duplicates of right responses: negatives whose vectors have a cosine above this, such as 0.95,
    with theirs. Encodes the negatives of each batch."""

    def __post_init__(self) -> None:
        first, last = self.ranks
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

    def why_unused(self, updates: float) -> str | None:
        """Why a run of this many updates mines no hard negatives; None if it does, or need not."""
        if not self.count or updates > self.every:
            return None
        return (
            f"no hard negatives are mined: responses are first encoded after {self.every} updates "
            f"(hard_negatives_every), and the run has {updates}; give a smaller number, or train longer"
        )


@settings(panel="Evaluation and checkpoints")
class TrackerSettings(Settings):
    """The experiment trackers of a run."""

    report_to: Annotated[
        tuple[TrackerName, ...],
        BeforeValidator(split_commas),
        Parameter(consume_multiple=1, negative="", allow_leading_hyphen=False),
    ] = ()
    """Experiment trackers to report to, several with spaces or commas: tensorboard, wandb (offline unless WANDB_MODE is
    set). Each needs the extra of its name; files are written to the run's folder."""


@settings(panel="Training", in_parlai=True)
class LoraConfig(Settings):
    """Adapters that are trained in the place of an encoder's weights; see `polyencoder.modeling.lora`."""

    rank: Annotated[Count | None, Parameter(name="--lora"), AROUND_BACKBONE, Without("fine_tuned")] = None
    """Train adapters of this rank beside the encoder's frozen linear layers (LoRA, Hu et al., 2022), and all that a
    ranker adds to its encoder. The saved model has them merged."""
    alpha: Annotated[Positive | None, Parameter(name="--lora-alpha"), AROUND_BACKBONE, Needs("lora")] = None
    """Scale of the adapters times their rank (default: twice the rank)."""
    targets: Annotated[str | None, Parameter(name="--lora-targets"), AROUND_BACKBONE, Needs("lora")] = None
    """Names of the linear layers to adapt, comma-separated, such as query,value (default: all of the encoder)."""
    dropout: Annotated[Share, Parameter(name="--lora-dropout"), AROUND_BACKBONE, Needs("lora")] = 0.0
    """Dropout of the adapters' inputs."""

    @property
    def scale(self) -> float | None:
        """The factor of a product of the matrices, alpha / rank; None without adapters."""
        return None if self.rank is None else 2.0 if self.alpha is None else self.alpha / self.rank

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `TrainableModel.add_adapters`."""
        targets = [name.strip() for name in (self.targets or "").split(",") if name.strip()]
        return {"rank": self.rank, "alpha": self.alpha, "dropout": self.dropout, "targets": targets}


@settings(panel="Training", in_parlai=True)
class TrainingConfig(Settings):
    """Training hyperparameters. A run ends at whichever of `epochs`, `max_updates` and `max_seconds` comes first."""

    candidates: Annotated[Literal["batch", "inline", "batch-all-cands"], Parlai(theirs=True)] = "batch"
    """batch: the responses of the batch; inline: each example's own, or sampled ones (cross); batch-all-cands: the
    candidates of all examples of the batch."""
    epochs: Annotated[Positive | None, Parlai("num_epochs", theirs=True)] = 3.0
    """Passes over the training data (none counted if --max-updates is given)."""
    max_updates: Annotated[Annotated[int, Field(gt=0)] | None, Parlai("max_train_steps", theirs=True)] = None
    """Maximum number of updates (convert with --init: 60000)."""
    max_seconds: Annotated[Positive | None, Parlai("max_train_time", theirs=True)] = None
    """Maximum training time in seconds."""
    batch_size: Annotated[Count, Parlai("batchsize", theirs=True)] = 32
    """Examples per batch and process (cross: 8; convert: 512, with --init 256)."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    objective: Annotated[ObjectiveName, _LABELS_COUNT] = "softmax"
    """The target of scores. softmax: the right candidates above the others; bce: labels as probabilities,
    each candidate by itself; mse: labels as scores; ranknet: the order of each pair of labels; listnet: the softmax of
    the labels of each example's own candidates; lambdaloss: the order of pairs, by what it is worth in nDCG."""
    label_smoothing: Annotated[Share, Needs("objective", ("softmax",)), _LABELS_COUNT] = 0.0
    """The probability mass shared by an example's wrong candidates; the right one has the rest (convert: 0.2)."""
    matryoshka: Annotated[Numbers | None, Needs("architecture", Families(lambda family: family.can.shortens))] = None
    """Also train these numbers of first dimensions of the vectors, comma-separated, such as 192,96 (Matryoshka
    representation learning): with `polyencoder export --vector-dim` the model then gives shorter vectors."""
    precision: Annotated[PrecisionName, Parlai(None)] = "float32"
    """float32, bfloat16 or, on a GPU, float16 (quantized convert on a GPU: float16)."""
    bf16: bool = False
    """Short for the precision bfloat16: compute in it where that is safe (autocast); the weights stay in float32.
    Faster on GPUs, and on CPUs with bfloat16 instructions."""
    fine_tuned: Annotated[FineTuned, AROUND_BACKBONE, Parlai("type_optimization")] = "all_encoder_layers"
    """Which layers of the encoder are trained (Table 3 of the poly-encoder paper); embeddings are only with all."""
    freeze_candidates: Annotated[bool, TWO_TOWERS] = False
    """Keep the vectors of candidates: train the side of contexts alone, so that an index made before training stays
    valid."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    accumulate: Annotated[Count, Parlai("update_freq", theirs=True)] = 1
    """Batches per update (gradient accumulation)."""
    clip: Annotated[NotNegative, Parlai("gradient_clip", theirs=True)] = 1.0
    """Maximum gradient norm, 0 for no limit (convert: 0)."""
    grad_cache: Annotated[AtLeastZero, Needs("architecture", Families(lambda family: family.can.has_vectors))] = 0
    """Gradient caching: train with the memory of this many contexts, whatever the batch size; 0 turns it off. A batch
    goes through the encoder in pieces, twice; gradients are the same, at the cost of one more forward pass."""
    pair_tokens: Annotated[AtLeastZero, Needs("architecture", Families(lambda family: not family.can.has_vectors))] = 0
    """Train a cross-encoder with the memory of this many tokens, however many pairs of context and candidate a batch
    has; 0 turns it off. Pairs of similar length go through the encoder together, twice; gradients are the same, at the
    cost of one more forward pass."""
    gather_negatives: Annotated[bool, Needs("candidates", ("batch", "batch-all-cands"))] = True
    """With several processes and --candidates batch or batch-all-cands: rank each example among the candidates of all
    processes, as one process with all of the examples would."""
    max_nonfinite: Count = 5
    """End the run with an error after this many updates in a row whose loss or gradients are nan or infinite. Such
    updates are skipped and counted."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), Parlai(None)] = 0
    """Random seed; equal seeds give equal runs."""
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    hard_negatives: HardNegatives = field(default_factory=HardNegatives)
    loss_scale: Annotated[Positive | None, Hidden, Parlai(None)] = None
    """A fixed loss scale; gradients are unscaled before the update. See `Precision`."""

    @classmethod
    def presets(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        updates = {"epochs": None} if values.get("max_updates") is not None else {}
        return updates | ({"precision": "bfloat16"} if values.get("bf16") in (True, "true") else {})

    def __post_init__(self) -> None:
        if self.epochs is None and self.max_updates is None and self.max_seconds is None:
            raise ConfigError("a run without an end: give epochs, max_updates or max_seconds")
        if self.hard_negatives.count and self.candidates == "batch-all-cands":
            raise ConfigError(
                f"hard_negatives join the candidates 'batch' or 'inline', not {self.candidates!r}",
                argument="hard_negatives",
            )
        if self.objective == "listnet" and self.candidates != "inline":
            raise ConfigError(
                f"objective listnet has no meaning with candidates {self.candidates!r}: the softmax of many labels of "
                "0 is almost flat; give candidates inline, or another objective",
                argument="objective",
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
