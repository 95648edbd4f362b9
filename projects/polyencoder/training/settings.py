"""`RunSettings`: the settings of a whole run, as the flags and YAML files of `polyencoder train` have them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from polyencoder.config import Architecture, ContextVectors
from polyencoder.errors import ConfigError
from polyencoder.modeling.families import CONVERT_SIZES, family
from polyencoder.storage.checkpoint import stored_architecture
from polyencoder.text import TurnSeparator
from polyencoder.training.config import TrainingConfig
from polyencoder.training.distillation import DistillationConfig, Kind
from polyencoder.training.folder import TEACHER_SCORES
from polyencoder.training.hard_negatives import HardNegatives, parse_ranks
from polyencoder.training.optimizer import OptimizerConfig, OptimizerName
from polyencoder.training.precision import PrecisionName
from polyencoder.training.schedule import ScheduleConfig, ScheduleName
from polyencoder.training.values import (
    ABOVE_0,
    AT_LEAST_0,
    AT_LEAST_1,
    SHARE,
    check_limits,
    check_types,
    checked_values,
)

__all__ = ["RunSettings"]

_PRESET: Any = None  # until it is known what learns: see `modeling.families`

# What only a ranker around a backbone knows
NOT_OF_CONVERT = (
    *("n_codes", "context_vectors", "reduction", "reduction_outputs", "normalize", "output_scaling", "share_encoders"),
    *("turn_separator", "fine_tuned", "compile"),
)

# What a ranker that is trained on keeps
OF_A_NEW_RANKER = (
    *("n_codes", "context_vectors", "reduction", "reduction_outputs", "normalize", "share_encoders", "turn_separator"),
)

EPOCHS = 3.0
LIMITS = {
    **dict.fromkeys(("shuffle_buffer", "epochs", "max_updates", "max_seconds", "batch_size", "learning_rate"), ABOVE_0),
    **dict.fromkeys(("evaluations", "patience", "quantization_update", "output_scaling"), ABOVE_0),
    **dict.fromkeys(("n_codes", "num_negatives", "text_truncate", "label_truncate", "hidden_size"), AT_LEAST_1),
    "reduction_outputs": AT_LEAST_1,
    **dict.fromkeys(("intermediate_size", "attention_heads", "reduction_heads", "accumulate"), AT_LEAST_1),
    **dict.fromkeys(("hard_negatives_every", "max_nonfinite"), AT_LEAST_1),
    **dict.fromkeys(("extra_contexts", "scale_batches", "final_learning_rate", "weight_decay"), AT_LEAST_0),
    **dict.fromkeys(("warmup_updates", "clip", "embedding_clip", "save_every_seconds"), AT_LEAST_0),
    **dict.fromkeys(("dropout", "label_smoothing"), SHARE),
}
_OF_A_TEACHER = tuple(f"distillation_{name}" for name in ("weight", "loss", "temperature", "candidates"))
_OF_MINING = ("hard_negatives_every", "hard_negative_ranks", "hard_negative_margin")


@dataclass(frozen=True)
class RunSettings:
    """Everything that a run is made of, flat, as flags and a YAML file have it.

    One of `backbone`, a pre-trained encoder or a ranker whose encoder a new one starts from, `init`, a ranker to go on
    training, and for a ConveRT `vocabulary`. None stands for what suits the model: of a backbone that is a ranker or a
    sentence encoder its own pooling and scaling, else the paper's.
    """

    train: str = ""
    out: str = ""
    valid: str | None = None
    backbone: str | None = None
    init: str | None = None
    vocabulary: str | None = None
    architecture: Architecture = _PRESET
    """"poly", or that of `init`."""
    context: str = "context"
    response: str = "response"
    column_candidates: str = "candidates"
    streaming: bool = False
    """Whether the training data is read as it is needed, instead of into memory."""
    shuffle_buffer: int = 4096
    """Of a stream: how many pairs are held to mix them."""
    skip_bad_examples: bool = False
    """Whether records that cannot be used are left out and counted, instead of ending the run."""
    n_codes: int | None = None
    context_vectors: ContextVectors | None = None
    """Of a poly-encoder: learnt codes, the first or the last outputs (Appendix C)."""
    reduction: str | None = None
    reduction_outputs: int | None = None
    """Of the reduction mean_first: how many outputs are averaged (Table 7)."""
    normalize: bool | None = None
    output_scaling: float | Literal["auto"] | None = None
    """"auto" measures it on the first batch (Section 5.3 of the paper)."""
    share_encoders: bool | None = None
    text_truncate: int | None = None
    label_truncate: int | None = None
    history_size: int | None = None
    turn_separator: TurnSeparator | None = None
    """Between two turns; None for that of the encoder's pre-training."""
    extra_contexts: int | None = None
    """Of a ConveRT: how many turns before the last one are read."""
    number_turns: bool | None = None
    """Of a ConveRT: whether each of these has its number before it."""
    hidden_size: int | None = None
    """Of a new ConveRT, as all to `scale_batches`; see `ConvertConfig`."""
    intermediate_size: int | None = None
    attention_limits: str | None = None
    """Numbers with commas."""
    attention_heads: int | None = None
    relative_bias: bool | None = None
    reduction_heads: int | None = None
    head_sizes: str | None = None
    """Numbers with commas."""
    skips: bool | None = None
    scale_batches: int | None = None
    dropout: float | None = None
    """Of a ConveRT; a backbone has its own."""
    quantization_aware: bool | None = None
    """Whether a ConveRT learns for 8 and 16 bits; one of `init` that did so goes on with it."""
    quantization_update: int | None = None
    """After how many batches the range of its embeddings follows them."""
    candidates: Literal["batch", "inline", "batch-all-cands"] | None = None
    """Where a training example's candidates come from: "batch", or for a cross-encoder "inline"."""
    num_negatives: int = 19
    """Candidates that are drawn from the training responses for an example that has none, where it needs some."""
    epochs: float | None = None
    """3, unless `max_updates` is given."""
    max_updates: int | None = None
    max_seconds: float | None = None
    batch_size: int | None = None
    learning_rate: float = _PRESET
    final_learning_rate: float | None = None
    """At the end of the schedules linear and cosine."""
    optimizer: OptimizerName = _PRESET
    betas: str | None = None
    """Of adam, adamw and adamax: two numbers with a comma."""
    weight_decay: float = _PRESET
    schedule: ScheduleName = _PRESET
    label_smoothing: float | None = None
    warmup_updates: int | None = None
    precision: PrecisionName | None = None
    """"float32"; of a quantized ConveRT on a GPU "float16"."""
    bf16: bool = False
    """The same as the precision "bfloat16"."""
    compile: bool = False
    """Whether torch.compile compiles the encoders."""
    fine_tuned: str = "all_encoder_layers"
    accumulate: int = 1
    clip: float = _PRESET
    embedding_clip: float | None = None
    grad_cache: int = 0
    pair_tokens: int = 0
    gather_negatives: bool = True
    evaluations: float = 2.0
    """Evaluations in an epoch."""
    patience: int | None = 4
    """Evaluations in a row without a better one that end the run."""
    teacher: str | None = None
    distillation_weight: float = 0.5
    distillation_loss: Kind = "kl"
    distillation_temperature: float = 1.0
    distillation_candidates: int = 0
    hard_negatives: int = 0
    hard_negatives_every: int = 500
    hard_negative_ranks: str = "1-100"
    hard_negative_margin: float | None = None
    max_nonfinite: int = 5
    save_every_seconds: float | None = None
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        check_types(self)
        check_limits(self, LIMITS)
        if not self.train or not self.out:
            raise ConfigError(
                "a run needs its training data (train) and a folder for the model (out)",
                argument="out" if self.train else "train",
            )
        if self.architecture is None:
            own = stored_architecture(self.init) if self.init else None
            object.__setattr__(self, "architecture", own or "poly")
        self._check_start()
        if self.epochs is None and self.max_updates is None:
            object.__setattr__(self, "epochs", EPOCHS)
        for name, value in family(self.architecture).preset(fine_tuning=bool(self.init)).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        for name in OF_A_NEW_RANKER:
            if self.init and getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} is that of {self.init}, the ranker that is trained on: leave it out", argument=name
                )
        if self.streaming and not self.valid:
            raise ConfigError(
                "of data that is streamed nothing can be held out: give validation data (valid)", argument="valid"
            )
        if self.bf16 and self.precision not in (None, "bfloat16"):
            raise ConfigError(
                f"bf16 and precision {self.precision!r} contradict each other: give one of them", argument="bf16"
            )
        if self.hard_negatives and self.architecture == "cross":
            raise ConfigError(
                "hard_negatives are mined in an index, which a cross-encoder has none of", argument="hard_negatives"
            )
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}; it must have 64 bits at most", argument="seed")
        self.training()  # raises ConfigError for what cannot be

    def _check_start(self) -> None:
        """Raise ConfigError unless it is clear what the run starts from."""
        if self.architecture == "convert":
            if self.backbone or bool(self.vocabulary) == bool(self.init):
                raise ConfigError(
                    "a convert model starts from a vocabulary, which `polyencoder vocab` learns, or from init, a "
                    "convert model that goes on training: give one of them",
                    argument="vocabulary",
                )
            if self.history_size is not None:
                raise ConfigError(
                    "of a convert model give extra_contexts in the place of history_size", argument="history_size"
                )
        elif bool(self.backbone) == bool(self.init) or self.vocabulary:
            raise ConfigError(
                "give either backbone ENCODER (a new model) or init RANKER (to continue one)",
                argument="backbone",
            )
        for name in NOT_OF_CONVERT:
            given = getattr(self, name)
            if self.architecture == "convert" and given not in (None, False, RunSettings.fine_tuned):
                raise ConfigError(
                    f"{name} is {given!r}, which a convert model does not know: leave it out", argument=name
                )
        own = (*CONVERT_SIZES, "extra_contexts", "number_turns", "dropout", "quantization_aware", "quantization_update")
        for name in own:
            if getattr(self, name) is None:
                continue
            if self.architecture != "convert":
                raise ConfigError(f"{name} is of a convert model; this one is {self.architecture}", argument=name)
            if self.init and name in CONVERT_SIZES:
                raise ConfigError(
                    f"{name} is that of {self.init}, the ranker that is trained on: leave it out", argument=name
                )

    def given(self) -> set[str]:
        """The names of those that are neither their defaults nor what suits the architecture."""
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        usual |= {"architecture": self.architecture, **family(self.architecture).preset(fine_tuning=bool(self.init))}
        if self.max_updates is None:
            usual["epochs"] = EPOCHS
        return {name for name, value in vars(self).items() if value != usual[name]}

    def unread(self) -> list[str]:
        """The settings that were given, in vain: nothing of this run reads them. Why, a line for each."""
        bare = {field.name: field.default for field in dataclasses.fields(self)}
        given = {name for name, value in vars(self).items() if value != bare[name]}
        reasons = {
            **dict.fromkeys(
                ("n_codes", "context_vectors"),
                self.architecture != "poly" and f"of a poly-encoder; this model is {self.architecture}",
            ),
            "reduction_outputs": self.reduction not in (None, "mean_first") and "of the reduction mean_first",
            "betas": not self.optimizer.startswith("adam") and f"of adam and its kin, not of {self.optimizer}",
            "final_learning_rate": "final_learning_rate" in self.given()  # not that of the preset
            and self.schedule not in ("linear", "cosine")
            and f"of the schedules linear and cosine, not of {self.schedule}",
            "shuffle_buffer": not self.streaming and "of data that is streamed",
            "share_encoders": self.architecture == "cross" and "of two towers; a cross-encoder has one",
            "grad_cache": self.architecture == "cross" and "of bi- and poly-encoders; a cross-encoder has pair_tokens",
            "pair_tokens": self.architecture != "cross" and "of a cross-encoder; other models have grad_cache",
            "number_turns": not (self.extra_contexts or self.init) and "of extra_contexts, and there are none",
            "quantization_update": not (self.quantization_aware or self.init) and "of what is quantization_aware",
            **dict.fromkeys(_OF_A_TEACHER, not self.teacher and "of distillation, and there is no teacher"),
            "distillation_temperature": (not self.teacher and "of distillation, and there is no teacher")
            or (self.distillation_loss != "kl" and f"of the loss kl, not of {self.distillation_loss}"),
            **dict.fromkeys(_OF_MINING, not self.hard_negatives and "of hard negatives, and there are none"),
        }
        return [f"{name} has no use here: it is {why}" for name, why in reasons.items() if name in given and why]

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, origin: str) -> RunSettings:
        """The settings that a mapping names; errors as in `checked`."""
        return cls(**cls.checked(values, origin=origin))

    @classmethod
    def checked(cls, values: Mapping[str, Any], *, origin: str | None) -> dict[str, Any]:
        """These settings, by names that are known and with values of their types.

        Args:
            values: such as a YAML file holds; of a number that YAML takes for a text, `5e-5`, the text.
            origin: where they come from, for messages; None for arguments.

        Raises:
            ConfigError: a name is unknown, or a value is none for it.
        """
        return checked_values(cls, values, origin=origin)

    @property
    def source(self) -> str:
        return self.candidates or ("inline" if self.architecture == "cross" else "batch")

    def _mined(self) -> HardNegatives | None:
        if not self.hard_negatives:
            return None
        return HardNegatives(self.hard_negatives, *parse_ranks(self.hard_negative_ranks), self.hard_negative_margin)

    def training(self) -> TrainingConfig:
        """The trainer's part of the settings."""
        return TrainingConfig(
            epochs=self.epochs,
            max_updates=self.max_updates,
            max_seconds=self.max_seconds,
            batch_size=self.batch_size or (8 if self.architecture == "cross" else 32),
            candidates=self.source,
            gather_negatives=self.gather_negatives,
            label_smoothing=self.label_smoothing or 0.0,
            distillation=DistillationConfig(
                self.teacher,
                Path(self.out) / TEACHER_SCORES,
                self.distillation_weight,
                self.distillation_loss,
                self.distillation_temperature,
                self.distillation_candidates,
            ),
            hard_negatives=self._mined(),
            hard_negatives_every=self.hard_negatives_every,
            optimizer=OptimizerConfig(
                self.optimizer,
                self.learning_rate,
                self.weight_decay,
                embedding_clip=self.embedding_clip or None,
                betas=OptimizerConfig.betas if self.betas is None else _betas(self.betas),
            ),
            schedule=ScheduleConfig(
                self.schedule, self.warmup_updates, final=(self.final_learning_rate or 0) / self.learning_rate
            ),
            precision="bfloat16" if self.bf16 else self.precision or "float32",
            fine_tuned=self.fine_tuned,
            accumulate=self.accumulate,
            clip=self.clip or None,
            grad_cache=self.grad_cache,
            pair_tokens=self.pair_tokens,
            max_nonfinite=self.max_nonfinite,
            seed=self.seed,
        )


def _betas(text: str) -> tuple[float, float]:
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"betas are {text!r:.60}; give two numbers, as in 0.9,0.999", argument="betas") from None
    if not (0 <= first < 1 and 0 <= second < 1):
        raise ConfigError(f"betas are {text}; both must be at least 0 and below 1", argument="betas")
    return first, second
