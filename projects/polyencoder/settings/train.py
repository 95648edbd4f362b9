"""`TrainSettings`: the settings of `polyencoder train` and `train_ranker`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from pydantic import Field

from polyencoder.config import Architecture, Attention, ContextVectors, Reduction, TurnSeparator
from polyencoder.data.layouts import Columns
from polyencoder.errors import ConfigError
from polyencoder.modeling.families import get_family
from polyencoder.settings.base import Settings, get_flat_values, settings
from polyencoder.settings.fields import Files, Numbers, get_leaves
from polyencoder.settings.metadata import Needs, Parlai, Without
from polyencoder.settings.training import AROUND_BACKBONE, TWO_TOWERS, Families, TrackerSettings, TrainingConfig
from polyencoder.validation import Count, Positive, Share

_POLY = Needs("architecture", Families(lambda family: family.can.has_vectors and not family.can.has_one_vector))
_CROSS = Needs("architecture", Families(lambda family: family.has_backbone and not family.can.has_vectors))
_LATE = Needs("architecture", Families(lambda family: family.can.has_vectors and family.can.reads_pairs))
_CONVERT = Needs("architecture", Families(lambda family: not family.has_backbone))
_NEW = Without("init")

OF_ANY = ("text_truncate", "label_truncate", "epochs")
"""The settings that a preset sets for a cross-encoder, too, whose batches are of another kind."""
PresetName = Literal["fast", "balanced", "accurate"]

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "fast": {"architecture": "bi", "text_truncate": 64, "label_truncate": 32, "batch_size": 64, "epochs": 1.0},
        "balanced": {
            "architecture": "bi",
            "text_truncate": 128,
            "label_truncate": 48,
            "batch_size": 64,
            "epochs": 2.0,
        },
        "accurate": {"architecture": "late", "text_truncate": 256, "batch_size": 64, "grad_cache": 32},
    }
)
"""The settings of each preset, by flat name; those of `accurate` that are missing are the usual ones."""


@settings(panel="Data")
class DataSettings(Settings):
    """Training and validation data, and the folder of the model."""

    train: Files
    """FILE or GLOB, comma-separated, or hf:NAME:SPLIT. JSON lines, CSV, TSV or Parquet."""
    valid: Files | None = None
    """Evaluation data, in the same form (default: a tenth of the training data is held out)."""
    out: str
    """The folder to write the model and its card to. A run that was killed resumes from it."""
    columns: Columns = field(default_factory=Columns)
    streaming: bool = False
    """Read the training data on demand instead of loading it into memory; needs --valid."""
    shuffle_buffer: Annotated[Count, Needs("streaming")] = 4096
    """How many pairs of a stream are buffered for shuffling."""
    skip_bad_examples: bool = False
    """Skip and count records that cannot be used, instead of stopping at them."""
    num_negatives: Count = 19
    """How many candidates to sample from the training responses for an example that has none. With --candidates batch
    for evaluations alone (default: as many as there are, up to 19)."""
    candidates_of: Annotated[str | None, Needs("freeze_candidates")] = None
    """An index (a folder, milvus:... or postgres://...) that the trained model shall search unchanged. An index folder
    with a --fingerprint may be of another encoder, which is not needed: candidates are its texts alone. Other vectors
    than those of this model are an error before training."""

    def __post_init__(self) -> None:
        if not self.train or not self.out:
            raise ConfigError(
                "a run needs its training data (train) and a folder for the model (out)",
                argument="out" if self.train else "train",
            )
        if self.streaming and not self.valid:
            raise ConfigError("streamed data cannot be split: give validation data (valid)", argument="valid")


@settings(panel="Model", in_parlai=True)
class ModelSettings(Settings):
    """The initial weights of a run, and the architecture around a backbone.

    One of `backbone`, `init`, and for a ConveRT `vocabulary`. None means the default: pooling and scaling of a
    backbone that is a ranker or a sentence encoder, else the paper's.
    """

    backbone: str | None = None
    """A pre-trained encoder (BERT, RoBERTa, MiniLM, ModernBERT, ...), a trained reranker for a cross-encoder, or a
    ranker whose encoder a new one starts from: folder or hub id."""
    init: Annotated[str | None, Parlai("init_model", theirs=True)] = None
    """A trained ranker to train further instead: folder, model file or hub id."""
    architecture: Annotated[Architecture, Parlai("model", theirs=True)] = "bi"
    """The kind of ranker (default: bi, or as --init)."""
    n_codes: Annotated[Count | None, _POLY, _NEW, Parlai("poly_n_codes")] = None
    """m, the number of context vectors of a poly-encoder (default: 64). One that starts from another poly-encoder keeps
    its context vectors, their number and attention, where no flag says otherwise; with another kind of them
    (--context-vectors) their number is the default again."""
    context_vectors: Annotated[ContextVectors | None, _POLY, _NEW, Parlai("polyencoder_type")] = None
    """The context vectors (default: codes): trained codes that attend over all outputs, the first or the last m
    outputs, the last m and the first (Appendix C of the paper), or, which is not the paper's, a sum of the
    bi-encoder's vector, the mean output of a turn and that of the latest turn, for each of the latest m turns."""
    poly_attention: Annotated[Attention | None, _POLY, _NEW, Parlai("poly_attention_type")] = None
    """Attention of a candidate over the context vectors (default: basic): dot product, dot product divided by
    sqrt(dimension), or multi-head attention (--poly-attention-heads), with which searches score every candidate."""
    poly_attention_heads: Annotated[
        Count | None, Needs("poly_attention", ("multihead",)), _POLY, _NEW, Parlai("poly_attention_num_heads")
    ] = None
    """Heads of --poly-attention multihead (default: 4)."""
    codes_attention: Annotated[
        Attention | None, Needs("context_vectors", ("codes", None)), _POLY, _NEW, Parlai("codes_attention_type")
    ] = None
    """Attention of the trained codes over the encoder's outputs (default: basic)."""
    codes_attention_heads: Annotated[
        Count | None, Needs("codes_attention", ("multihead",)), _POLY, _NEW, Parlai("codes_attention_num_heads")
    ] = None
    """Heads of --codes-attention multihead (default: 4)."""
    residual: Annotated[bool | None, _CROSS, _NEW, Parlai()] = None
    """Add a cross-encoder's score, at first 0, to that of the ranker that it starts from, which the model keeps, frozen
    (default: on if it starts from a bi-, poly- or late-interaction encoder)."""
    token_dim: Annotated[Count | None, _LATE, _NEW, Parlai()] = None
    """Dimensions in which a late-interaction encoder compares tokens (default: the backbone's, without a map)."""
    reduction: Annotated[Reduction | None, AROUND_BACKBONE, _NEW, Parlai("reduction_type")] = None
    """How the encoder's outputs are pooled into one vector: the first, the mean or maximum of all, the mean of the
    first --reduction-outputs, the mean of all but the first (Table 7 of the paper), the mean weighted by position, or
    the last (default: as --init, as a sentence encoder as --backbone, with its cosine and scaling, else first)."""
    reduction_outputs: Annotated[Count | None, Needs("reduction", ("mean_first",)), AROUND_BACKBONE, _NEW] = None
    """With --reduction mean_first: how many outputs are averaged (Table 7 of the paper; default: 64)."""
    normalize: Annotated[bool | None, TWO_TOWERS, _NEW, Parlai("normalize_sent_emb", theirs=True)] = None
    """Normalize vectors to length 1 and compare them by cosine (default: only for sentence encoders)."""
    output_scaling: Annotated[Positive | Literal["auto"] | None, AROUND_BACKBONE] = None
    """Factor of the encoder's vectors (default: 4.47 for sentence encoders, else 1). auto: measured on the first batch
    so that their standard deviation is BERT's, for weights pre-trained without weight decay (Section 5.3 of the paper),
    whose large outputs saturate the attention of a poly-encoder."""
    share_encoders: Annotated[bool | None, TWO_TOWERS, _NEW, Parlai(theirs=True)] = None
    """Use one tower for contexts and candidates."""
    text_truncate: Annotated[Count | None, Parlai(theirs=True)] = None
    """Maximum tokens of a context; its latest turns are kept (default: 360, or as --init)."""
    label_truncate: Annotated[Count | None, Parlai(theirs=True)] = None
    """Maximum tokens of a candidate (default: 72, or as --init)."""
    history_size: Annotated[int | None, AROUND_BACKBONE, Parlai(theirs=True)] = None
    """Maximum utterances of a context, -1 for all (default: 20, or as --init)."""
    turn_separator: Annotated[TurnSeparator | None, AROUND_BACKBONE, _NEW] = None
    """The separator of the turns of a context: the tokenizer's separator, such as [SEP]; a newline token, as in the
    papers, which is added to the vocabulary; or nothing (default: newline if the encoder was pre-trained with such a
    token, else sep)."""
    context_prompt: Annotated[str | None, AROUND_BACKBONE, Parlai()] = None
    """The prompt before each context, such as "query: ", for encoders that were trained with prompts; never truncated
    away (default: as --init, or the encoder's own, from config_sentence_transformers.json; "" for none)."""
    candidate_prompt: Annotated[str | None, AROUND_BACKBONE, Parlai()] = None
    """The prompt before each candidate, such as "passage: " (default: as --context-prompt)."""
    compile: Annotated[bool, AROUND_BACKBONE] = False
    """Compile the encoders with torch.compile; the first steps take longer. Needs torch 2.7, a C++ compiler, on a GPU
    triton."""


@settings(panel="ConveRT", in_parlai=True)
class ConvertSettings(Settings):
    """The shape of a ConveRT, and how it is trained."""

    vocabulary: Annotated[str | None, _CONVERT, _NEW] = None
    """The vocabulary of a new model: the folder or file that `polyencoder vocab` wrote."""
    extra_contexts: Annotated[int | None, Field(ge=0), _CONVERT] = None
    """How many turns before the last one are read, most recent first, together with the persona (default: 0, a
    single-context model; the paper: 10). A multi-context model can be evaluated with fewer."""
    number_turns: Annotated[bool | None, _CONVERT, Needs("extra_contexts", or_with="init")] = None
    """Put its number before each of these turns, as the paper's model for DSTC7 does."""
    hidden_size: Annotated[Count | None, _CONVERT, _NEW] = None
    """Dimensions of embeddings and blocks (default: 512)."""
    intermediate_size: Annotated[Count | None, _CONVERT, _NEW] = None
    """Dimensions of the blocks' feed-forward layers (default: 2048)."""
    attention_limits: Annotated[Numbers | None, _CONVERT, _NEW] = None
    """How many tokens away each block attends, comma-separated (default: 3,5,48,48,48,48)."""
    attention_heads: Annotated[Count | None, _CONVERT, _NEW] = None
    """Attention heads of the blocks (default: 1)."""
    relative_bias: Annotated[bool | None, _CONVERT, _NEW] = None
    """Train an attention bias for each relative position (default: on)."""
    reduction_heads: Annotated[Count | None, _CONVERT, _NEW] = None
    """Attention heads of the reduction (default: 2)."""
    head_sizes: Annotated[Numbers | None, _CONVERT, _NEW] = None
    """Hidden layers of feed-forward 2, comma-separated (default: 1024,1024,1024)."""
    skips: Annotated[bool | None, _CONVERT, _NEW] = None
    """Skip connections in feed-forward 2 (default: on)."""
    scale_batches: Annotated[int | None, Field(ge=0), _CONVERT, _NEW] = None
    """Batches over which the scale of the cosine rises (default: 10000)."""
    dropout: Annotated[Share | None, _CONVERT] = None
    """Dropout of embeddings and attention (default: 0, with --init 0.2)."""
    quantization_aware: Annotated[bool | None, _CONVERT] = None
    """Train for embeddings in 8 bits and other weights in 16, as the model is then stored."""
    quantization_update: Annotated[Count | None, _CONVERT, Needs("quantization_aware", or_with="init")] = None
    """Batches between updates of the range of the 8-bit embeddings (default: 100)."""


NEW_RANKER_FIELDS = tuple(name for name, leaf in get_leaves(ModelSettings).items() if leaf.get_metadata(Without))
"""The settings that a ranker around a backbone keeps when it is trained further."""


@settings(panel="Evaluation and checkpoints")
class EvaluationSettings(Settings):
    """Evaluation, checkpoints and device."""

    evaluations: Positive = 2.0
    """Evaluations per epoch."""
    patience: Count | None = 4
    """End the run after this many evaluations in a row without improvement."""
    save_every_seconds: Annotated[float, Field(ge=0)] = 600.0
    """Also write a checkpoint this often between evaluations."""
    device: str | None = None
    """For example cpu or cuda:1 (default: CUDA if available)."""


@settings()
class TrainSettings(Settings):
    """The settings of a training run."""

    data: DataSettings
    model: ModelSettings = field(default_factory=ModelSettings)
    convert: ConvertSettings = field(default_factory=ConvertSettings)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    trackers: TrackerSettings = field(default_factory=TrackerSettings)
    preset: Annotated[PresetName | None, AROUND_BACKBONE, _NEW] = None
    """Settings to start with: fast, balanced or accurate. Flags and --config take precedence; the log says what it
    sets."""
    config: Annotated[str | None, Parameter(alias="-c")] = None
    """A YAML file of these settings, by the names of their flags; flags take precedence."""

    @classmethod
    def presets(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The defaults of the architecture, or else of `init`'s architecture, and the preset's settings."""
        init = values.get("init")
        preset = PRESETS.get(str(values.get("preset")), {})
        architecture = values.get("architecture")
        if init and not architecture:
            from polyencoder.checkpoint import read_architecture

            architecture = read_architecture(init)
        architecture = architecture or preset.get("architecture", ModelSettings.architecture)
        spec = get_family(architecture)
        usual = {"architecture": architecture, **spec.get_preset(fine_tuning=bool(init))}
        if not spec.can.has_vectors:
            usual |= {"batch_size": 8, "candidates": "inline"}
        if values.get("objective", "softmax") != "softmax":
            usual |= {"label_smoothing": 0.0}
        fitting = preset if spec.can.has_vectors else {name: preset[name] for name in preset if name in OF_ANY}
        usual |= {**fitting, "architecture": architecture}
        if init and "learning_rate" in {**usual, **values}:  # a trained ranker has no new parts
            usual["new_learning_rate"] = {**usual, **values}["learning_rate"]
        return {**usual, **TrainingConfig.presets({**usual, **values})}

    @property
    def preset_values(self) -> dict[str, Any]:
        """The preset's settings that took effect, as no explicit ones override them."""
        values = get_flat_values(self)
        preset_values = PRESETS.get(str(self.preset), {})
        return {
            name: values[name]
            for name in preset_values
            if name not in self.explicit and values[name] == preset_values[name]
        }

    def __post_init__(self) -> None:
        model, vocabulary = self.model, self.convert.vocabulary
        if not get_family(model.architecture).has_backbone:
            if model.backbone or bool(vocabulary) == bool(model.init):
                raise ConfigError(
                    "a convert model starts from a vocabulary, which `polyencoder vocab` trains, or from init, a "
                    "convert model to train further: give one of them",
                    argument="vocabulary",
                )
        elif bool(model.backbone) == bool(model.init):
            raise ConfigError(
                "give either backbone ENCODER (a new model) or init RANKER (to continue one)", argument="backbone"
            )
        if self.training.freeze_candidates and model.output_scaling == "auto":
            raise ConfigError(
                "output_scaling auto changes the vectors of candidates, which freeze_candidates keeps: give a number",
                argument="output_scaling",
            )
