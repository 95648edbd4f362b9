"""`PretrainingSettings`: the settings of `polyencoder pretrain`."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from cyclopts import Parameter
from pydantic import Field

from polyencoder.config import NextName, Reduction
from polyencoder.errors import ConfigError
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.fields import Files
from polyencoder.settings.metadata import Needs, Without
from polyencoder.settings.training import (
    OptimizerConfig,
    OptimizerName,
    PrecisionName,
    ScheduleConfig,
    ScheduleName,
    TrackerSettings,
    TrainingConfig,
)
from polyencoder.validation import AtLeastZero, Count, NotNegative, Positive, Share

WARMUP_SHARE = 0.06  # of the steps
_NEW = Without("backbone")


@settings(panel="Data")
class CorpusSettings(Settings):
    """The corpus, and the folder of the encoder."""

    corpus: Annotated[tuple[str, ...], Parameter(name="CORPUS", negative=""), Field(min_length=1)] = field(
        kw_only=False
    )
    """FILE or GLOB: JSON lines with turns, context and response, sentences, or text; text files with one article per
    line, its sentences separated by tabs, or one sentence per line; Ubuntu's CSV, DSTC7's JSON. Plain, .gz, .bz2, .xz
    or .zst."""
    out: Annotated[str, Field(min_length=1)]
    """The folder to write the encoder and its card to. A run that was killed resumes from it."""
    valid: Files | None = None
    """FILE or GLOB, comma-separated: text to evaluate on, instead of a share of the corpus."""
    held_out: Annotated[Share, Without("valid")] = 0.01
    """Share of the documents that is held out for evaluation."""
    held_out_examples: Count = 1_000
    """Maximum number of examples to evaluate on."""
    shuffle_buffer: Count = 20_000
    """How many examples are buffered for shuffling."""
    skip_bad_examples: bool = False
    """Skip and count records that cannot be used, instead of stopping at them."""


@settings(panel="Model")
class EncoderSettings(Settings):
    """The encoder: a new one over a vocabulary, or one that is trained further."""

    vocabulary: str | None = None
    """The vocabulary of a new encoder: the folder that `polyencoder vocab --type bpe` wrote, or the paper's own,
    vocab.json and merges.txt."""
    backbone: str | None = None
    """Continue with this encoder and its own tokenizer instead: folder or hub id."""
    n_layers: Annotated[Count, _NEW] = 12
    """Layers of a new encoder."""
    embedding_size: Annotated[Count, _NEW] = 768
    """Dimensions of a new encoder."""
    n_heads: Annotated[Count, _NEW] = 12
    """Attention heads of a new encoder."""
    ffn_size: Annotated[Count, _NEW] = 3_072
    """Dimensions of a new encoder's feed-forward layers."""
    n_positions: Annotated[int, Field(ge=8)] | None = None
    """Maximum tokens of a sequence, a context with its response (default: 512, or the backbone's if fewer)."""
    text_truncate: Annotated[int, Field(ge=3)] | None = None
    """Maximum tokens of a context; its latest turns are kept (default: as many as fit)."""
    history_size: int = 20
    """Maximum turns of a context."""
    dropout: Share = 0.1
    """Dropout of embeddings and layers."""
    attention_dropout: Share = 0.1
    """Dropout of attention weights."""


@settings(panel="Training")
class ObjectiveSettings(Settings):
    """The objectives and how they are optimized. The defaults are the paper's (Section 4.1).

    The paper does not state two of them: the warm-up, here 6% of the expected steps; and `clip`, here that of XLM, with
    which the paper trained.
    """

    mask_probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the words that are masked."""
    next: NextName = "yes-no"
    """yes-no: whether a response follows, as in the paper; contrastive: which one of the batch does."""
    reduction: Annotated[Reduction | None, Needs("next", ("contrastive",))] = None
    """How contrastive pools outputs into a vector (default: a sentence encoder's own, else first)."""
    tokens_per_batch: Count = 32_000
    """Tokens per batch and process, including padding."""
    max_steps: Count | None = None
    """Maximum number of updates."""
    max_seconds: Positive | None = None
    """Maximum training time in seconds."""
    learning_rate: Positive = 2e-4
    """Peak learning rate, after the warm-up."""
    optimizer: OptimizerName = "adam"
    """The optimizer."""
    beta1: Annotated[Share, Needs("optimizer", ("adam", "adamw", "adamax"))] = 0.9
    """First beta of adamw, adam and adamax."""
    beta2: Annotated[Share, Needs("optimizer", ("adam", "adamw", "adamax"))] = 0.98
    """Second beta of adamw, adam and adamax."""
    weight_decay: NotNegative = 0.0
    """Weight decay of matrices."""
    schedule: ScheduleName = "invsqrt"
    """How the learning rate changes."""
    warmup_steps: AtLeastZero | None = None
    """Updates of linear warm-up (default: 6% of the run)."""
    precision: PrecisionName = "float32"
    """float32, bfloat16 or, on a GPU, float16."""
    bf16: bool = False
    """Short for the precision bfloat16: compute in it where that is safe (autocast); the weights stay in float32."""
    accumulate: Count = 1
    """Batches per update (gradient accumulation)."""
    clip: NotNegative = 5.0
    """Maximum gradient norm, 0 for no limit."""
    max_nonfinite: Count = 5
    """End the run with an error after this many updates in a row whose loss or gradients are nan or infinite. Such
    updates are skipped and counted."""
    seed: int = 0
    """Random seed; equal seeds give equal runs."""

    @property
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
                name=self.optimizer,
                learning_rate=self.learning_rate,
                weight_decay=self.weight_decay,
                betas=(self.beta1, self.beta2),
            ),
            schedule=ScheduleConfig(
                name=self.schedule, warmup_updates=warmup, warmup_share=WARMUP_SHARE, longest_warmup=None
            ),
            precision="bfloat16" if self.bf16 else self.precision,
            fine_tuned="all",
            accumulate=self.accumulate,
            clip=self.clip,
            max_nonfinite=self.max_nonfinite,
            seed=self.seed,
        )


@settings(panel="Evaluation and checkpoints")
class PretrainingEvaluation(Settings):
    """Evaluation, checkpoints and device."""

    evaluate_every: Count = 1_000
    """Updates between evaluations; the encoder is written after each."""
    save_every_seconds: Positive = 600.0
    """Write a checkpoint this often."""
    device: str | None = None
    """For example cpu or cuda:1 (default: CUDA if available)."""


@settings()
class PretrainingSettings(Settings):
    """The settings of a pre-training run."""

    data: CorpusSettings = field(kw_only=False)
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    evaluation: PretrainingEvaluation = field(default_factory=PretrainingEvaluation)
    trackers: TrackerSettings = field(default_factory=TrackerSettings)

    def __post_init__(self) -> None:
        if bool(self.encoder.vocabulary) == bool(self.encoder.backbone):
            raise ConfigError(
                "give one of vocabulary, which `polyencoder vocab` trains, for a new encoder, and backbone, "
                "an encoder to train further",
                argument="vocabulary",
            )
        if self.objective.bf16 and self.objective.precision == "float16":
            raise ConfigError("bf16 and precision 'float16' contradict each other: give one of them", argument="bf16")
        if self.objective.max_steps is None and self.objective.max_seconds is None:
            raise ConfigError("a run without an end: give max_steps or max_seconds", argument="max_steps")
