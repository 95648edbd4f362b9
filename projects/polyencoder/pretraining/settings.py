"""`PretrainingSettings`: the settings of a pre-training, as the flags of `polyencoder pretrain` have them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, get_args

from polyencoder.config import Reduction
from polyencoder.errors import ConfigError
from polyencoder.pretraining.heads import NextName
from polyencoder.training.config import TrainingConfig
from polyencoder.training.optimizer import OptimizerConfig, OptimizerName
from polyencoder.training.precision import PrecisionName
from polyencoder.training.schedule import ScheduleConfig, ScheduleName
from polyencoder.training.values import ABOVE_0, AT_LEAST_0, AT_LEAST_1, SHARE, check_limits, check_types

__all__ = ["WARMUP", "WARMUP_SHARE", "PretrainingSettings"]

WARMUP_SHARE, WARMUP = 0.06, 1_000  # of the steps; where their number is not known, as in ParlAI's loop, steps

LIMITS = {
    **dict.fromkeys(("held_out_examples", "shuffle_buffer", "evaluate_every", "save_every_seconds"), ABOVE_0),
    **dict.fromkeys(("tokens_per_batch", "max_steps", "max_seconds", "learning_rate"), ABOVE_0),
    **dict.fromkeys(("n_layers", "embedding_size", "n_heads", "ffn_size", "accumulate", "max_nonfinite"), AT_LEAST_1),
    **dict.fromkeys(("warmup_steps", "weight_decay", "clip"), AT_LEAST_0),
    **dict.fromkeys(("held_out", "dropout", "attention_dropout", "beta1", "beta2"), SHARE),
}


@dataclass(frozen=True)
class PretrainingSettings:
    """Everything that a pre-training is made of, flat. The defaults are the paper's (Section 4.1).

    What the paper does not state: the warm-up, 6% of the steps, or of those that are expected in the time; `clip`,
    which is XLM's, with which the paper trained.
    """

    corpus: tuple[str, ...] = ()
    out: str = ""
    valid: str | None = None
    held_out: float = 0.01
    held_out_examples: int = 1_000
    shuffle_buffer: int = 20_000
    skip_bad_examples: bool = False
    vocabulary: str | None = None
    backbone: str | None = None
    n_layers: int | None = None
    """Of a new encoder, as all to `ffn_size`: 12 layers, 768 numbers, 12 heads, 3,072 numbers."""
    embedding_size: int | None = None
    n_heads: int | None = None
    ffn_size: int | None = None
    n_positions: int | None = None
    """512, or a backbone's."""
    text_truncate: int | None = None
    history_size: int = 20
    dropout: float = 0.1
    attention_dropout: float = 0.1
    mask_probability: float = 0.15
    next: NextName = "yes-no"
    """Whether a response follows, the paper's; or, beyond it, "contrastive": which of the batch's responses does."""
    reduction: Reduction | None = None
    """How outputs become the vector of a text, where it is contrastive: "first"; a sentence encoder has its own, and
    mostly the cosine."""
    tokens_per_batch: int = 32_000
    max_steps: int | None = None
    max_seconds: float | None = None
    learning_rate: float = 2e-4
    optimizer: OptimizerName = "adam"
    beta1: float = 0.9
    beta2: float = 0.98
    weight_decay: float = 0.0
    schedule: ScheduleName = "invsqrt"
    warmup_steps: int | None = None
    precision: PrecisionName = "float32"
    bf16: bool = False
    """The same as the precision "bfloat16"."""
    accumulate: int = 1
    clip: float = 5.0
    max_nonfinite: int = 5
    evaluate_every: int = 1_000
    save_every_seconds: float = 600.0
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        check_types(self, but=("corpus",))
        check_limits(self, LIMITS)
        if not self.corpus or not self.out:
            raise ConfigError(
                "a pre-training needs a corpus and a folder for the encoder (out)",
                argument="out" if self.corpus else "corpus",
            )
        if bool(self.vocabulary) == bool(self.backbone):
            raise ConfigError(
                "give one of vocabulary, which `polyencoder vocab` learns, for a new encoder, and backbone, "
                "an encoder that goes on",
                argument="vocabulary",
            )
        if self.next not in get_args(NextName):
            raise ConfigError(
                f"next is {self.next!r}; it must be one of {', '.join(get_args(NextName))}", argument="next"
            )
        if self.reduction is not None and self.next == "yes-no":
            raise ConfigError(
                "reduction is of vectors, which next yes-no has none of: leave it out", argument="reduction"
            )
        if self.reduction is not None and self.reduction not in get_args(Reduction):
            known = ", ".join(get_args(Reduction))
            raise ConfigError(f"reduction is {self.reduction!r}; it must be one of {known}", argument="reduction")
        for name in ("n_layers", "embedding_size", "n_heads", "ffn_size"):
            if self.backbone and getattr(self, name) is not None:
                raise ConfigError(f"{name} is that of the backbone {self.backbone}: leave it out", argument=name)
        if self.max_steps is None and self.max_seconds is None:
            raise ConfigError("a run without an end: give max_steps or max_seconds", argument="max_steps")
        if self.bf16 and self.precision == "float16":
            raise ConfigError("bf16 and precision 'float16' contradict each other: give one of them", argument="bf16")
        if self.n_positions is not None and self.n_positions < 8:
            raise ConfigError(f"n_positions is {self.n_positions}; it must be at least 8", argument="n_positions")
        self.training()  # raises ConfigError for what cannot be

    @property
    def sizes(self) -> dict[str, Any]:
        """Of a new encoder, as the arguments of `scratch_config`."""
        return {
            "n_layers": self.n_layers or 12,
            "dim": self.embedding_size or 768,
            "n_heads": self.n_heads or 12,
            "ffn_dim": self.ffn_size or 3_072,
        }

    def given(self) -> dict[str, Any]:
        """Those that have another value than their default."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    def training(self) -> TrainingConfig:
        """The trainer's part of the settings."""
        warmup = self.warmup_steps
        if warmup is None and self.max_seconds is None and self.max_steps is not None:
            warmup = max(1, round(WARMUP_SHARE * self.max_steps))
        return TrainingConfig(
            epochs=None,
            max_updates=self.max_steps,
            max_seconds=self.max_seconds,
            candidates="inline",  # none are drawn from the batch
            optimizer=OptimizerConfig(
                self.optimizer, self.learning_rate, self.weight_decay, betas=(self.beta1, self.beta2)
            ),
            schedule=ScheduleConfig(self.schedule, warmup, warmup_share=WARMUP_SHARE, longest_warmup=None),
            precision="bfloat16" if self.bf16 else self.precision,
            fine_tuned="all",
            accumulate=self.accumulate,
            clip=self.clip or None,
            max_nonfinite=self.max_nonfinite,
            seed=self.seed,
        )
