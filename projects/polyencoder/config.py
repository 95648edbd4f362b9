"""The configuration that travels with the weights: frozen, serialised as JSON, unknown keys are errors."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import field
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from polyencoder.errors import ConfigError
from polyencoder.validation import AtLeastZero, Count, Positive, Share, Whole, from_json_values, validated

FORMAT_VERSION: Final = 1

Backend = Literal["torch", "onnx", "onnx-int8"]
"""The runtime of the transformers: torch, or onnxruntime with exported graphs (see `polyencoder.export.onnx`)."""
WeightDtype = Literal["float32", "float16", "bfloat16"]
"""The dtype of weights in a model folder. A loaded model always computes in float32.

A quantized ConveRT stores embeddings in 8 bits and other weights in float16, also for float32, the default.
"""
ContextVector = Literal["combined", "immediate", "extra"]
"""The context vector that a multi-context ConveRT ranks by."""
Architecture = str
"""A name in `modeling.families.FAMILIES`."""
VectorKind = Literal["pooled", "context", "candidate"]
"""A text's vector for other tasks, as a context, as a candidate."""
FineTuned = Literal["top_layer", "top4_layers", "all_encoder_layers", "all"]
"""Layer freezing: ParlAI's `type_optimization`, the rows of Table 3; only the last trains embeddings."""
TurnSeparator = Literal["sep", "newline", "none"]
"""The separator between two turns of a context: the tokenizer's, a newline token, or nothing."""
NextName = Literal["yes-no", "contrastive"]
"""How pre-training predicts next utterances."""
Reduction = Literal["first", "mean", "max", "mean_first", "mean_except_first", "weighted_mean", "last"]
ContextVectors = Literal["codes", "n_first", "n_last", "first_n_last", "turns"]
Attention = Literal["basic", "sqrt", "multihead"]
Activation = Literal["gelu", "relu"]
DenseActivation = Literal["identity", "tanh", "relu", "gelu", "silu", "sigmoid"]
Truncation = Literal["turns", "tokens", "recent_first"]
TruncationSide = Literal["left", "right"]
PairStart = bool | Literal["end", "same_segment"]
"""The beginning of a candidate behind a context: nothing (false and "same_segment"), its start token (true), or another
end token ("end"). With "end" and "same_segment" it is in the segment of the context."""

Length = Annotated[int, Field(ge=3, lt=10**18)]
"""Tokens: start, at least one other, end."""
Sizes = Annotated[tuple[Count, ...], Field(min_length=1, max_length=1_000)]

PROMPTS = ("context_prompt", "candidate_prompt")
"""The fields of a `TextConfig` that are prompts."""

CONTEXT_FIELDS = {
    *("text_truncate", "truncation_side", "history_size", "separator", "context_prompt"),
    *("number_turns", "person_tokens", "person_tokens_after_newline"),
}
"""The fields of a `TextConfig` that change no candidate."""


@validated
class TextConfig:
    """The layout of a context's or candidate's tokens.

    Lengths are in tokens and include start and end. A candidate is `start words end`; a context is `start turn
    separator turn ... end`, with the persona lines and the latest turns. With the truncation `tokens`, for models
    trained by ParlAI, a context is cut anywhere: start, its last `text_truncate` tokens, end; and a candidate is cut to
    its first `label_truncate` tokens, start and perhaps end included.

    With `recent_first`, ConveRT's, a context is the first `text_truncate` tokens of the last utterance. If
    `history_size` is above 1, the separator follows, and the first `text_truncate` tokens of the earlier utterances as
    one text, from the most recent to the oldest, with the persona lines last. Start and end are not added.
    """

    text_truncate: Length = 360
    label_truncate: Length = 72
    history_size: Literal[-1] | Count = 20
    """The maximum utterances of a context, where each line of a turn is one; -1 for all. Persona lines (`your persona:
    ...`) do not count, and are kept if they fit beside the last utterance, which gets at least half of the tokens if it
    needs them. With the truncation `tokens`, turns of any kind are counted, as in ParlAI."""
    pad_token: str = "[PAD]"
    start_token: str = "[CLS]"
    end_token: str = "[SEP]"
    separator: str = "[SEP]"
    """The token, or a text of several tokens, between two turns; empty for nothing."""
    truncation: Truncation = "turns"
    truncation_side: TruncationSide = "left"
    """Which side of the last turn is lost if it alone is too long, with the truncation `turns`: its beginning, as in
    the paper, or its end, as in sentence-transformers."""
    surround: bool = True
    """Whether contexts and candidates have start and end tokens; those of ParlAI's transformer/ranker and of static
    encoders do not."""
    empty_token: str | None = None
    """The token for a text without tokens; None for no token."""
    number_turns: bool = False
    """With `recent_first`: whether each earlier utterance is preceded by its number, `0: ` for the most recent, as in
    ConveRT's model for DSTC7."""

    person_tokens: bool = False
    """Whether `__p1__` precedes the partner's turns and `__p2__` the model's own, as ParlAI's
    person tokens: before a turn, its persona lines included."""
    person_tokens_after_newline: bool = False
    """Whether `__p1__` precedes the last line of a turn instead (ParlAI's `add_p1_after_newln`)."""

    context_prompt: str = ""
    """The prompt before a context, for an encoder that was trained with prompts, such as E5's `query: `."""
    candidate_prompt: str = ""
    """The prompt before a candidate, such as E5's `passage: `."""
    candidate_rows: bool = False
    """Whether a candidate's only token is its row in a table of vectors (`RankerConfig.foreign_dim`)."""

    @property
    def longest_context(self) -> int:
        """The maximum tokens of a context, start and end included."""
        if self.truncation == "recent_first":
            return self.text_truncate if self.history_size == 1 else 2 * self.text_truncate + 1
        return self.text_truncate + (2 if self.truncation == "tokens" and self.surround else 0)

    def __post_init__(self) -> None:
        if self.surround and self.truncation == "recent_first":
            raise ConfigError("surround is true; the truncation `recent_first` does not support it")
        for name in PROMPTS:
            if getattr(self, name) and self.truncation != "turns":
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r:.60}, but a ConveRT, or a model that ParlAI trained, has no "
                    "prompts: leave it out",
                    argument=name,
                )


@validated
class ConvertConfig:
    """Sections 2.1 and 2.2 of the paper, whose numbers are the defaults; in brackets its ablations' (Table 4).

    vocab_size: the ids that have embeddings, unknown characters' included. hidden_size: of these, and of the blocks.
    attention_limits: of each block, how many positions apart two tokens may be that see each other. attention_heads (8)
    of attention_size each. relative_bias (False). intermediate_size: of feed-forward 1. positions: rows of the position
    tables, added modulo. reduction_heads (1) of reduction_size each. head_sizes: hidden layers of feed-forward 2.
    output_size: of the final vectors. skips (False): in feed-forward 2, around its layers and over all of them.
    multi_context: whether earlier turns are read. dropout: after embeddings and attention. scale_batches: over which
    the scale of cosines rises from 1 to the square root of `output_size`. quantized: whether embeddings are kept in 8
    bits, other weights in 16. quantization_update: after how many batches the range of these 8 bits follows the
    embeddings, while a quantized model learns.
    """

    vocab_size: Count
    hidden_size: Count = 512
    attention_limits: Annotated[tuple[AtLeastZero, ...], Field(max_length=1_000)] = (3, 5, 48, 48, 48, 48)
    attention_heads: Count = 1
    attention_size: Count = 64
    relative_bias: bool = True
    intermediate_size: Count = 2_048
    positions: Sizes = (47, 11)
    reduction_heads: Count = 2
    reduction_size: Count = 64
    head_sizes: Sizes = (1_024, 1_024, 1_024)
    output_size: Count = 512
    skips: bool = True
    activation: Activation = "gelu"
    multi_context: bool = False
    dropout: Share = 0.0
    scale_batches: AtLeastZero = 10_000
    quantized: bool = False
    quantization_update: Count = 100

    @property
    def separator_id(self) -> int:
        """The id between the last utterance and earlier ones, after padding's; neither has an embedding."""
        return self.vocab_size + 1


@validated
class DenseConfig:
    """A `Dense` module of a sentence encoder: activation(linear layer), from the vectors before it to `size`."""

    size: Count
    activation: DenseActivation = "identity"
    bias: bool = True
    norm_eps: float | None = field(default=None, repr=False)  # not in fingerprints of candidates, which have none
    """The epsilon of a layer normalization behind the activation, as in the head of ModernBERT; None without one."""


TurnEnd = Whole | tuple[Whole, ...] | None
"""The id, or ids, of the tokens that end a turn of a context; None where nothing does."""


@validated
class RankerConfig:
    """Everything that is needed to build a ranker around its weights.

    `backbone` is the Hugging Face configuration of the encoder as a plain dictionary; a ConveRT has `convert` instead.
    Sources: reductions, Section 4.2 and Table 7 of Humeau et al. (ICLR 2020); context vectors, Section 4.4 and
    Appendix C; output scaling, ParlAI's `output_scaling`.
    """

    architecture: Architecture
    backbone: dict[str, Any] = field(default_factory=dict)
    text: TextConfig = field(default_factory=TextConfig)
    share_encoders: bool = False
    reduction: Reduction = "first"
    reduction_outputs: Count = 64
    """M of the reduction `mean_first`: the average of the first M outputs."""
    prompt_tokens: tuple[AtLeastZero, AtLeastZero] | None = None
    """How many tokens at the start of contexts and of candidates, their prompts, pooling leaves out: for a sentence
    encoder with `include_prompt: false`. None to pool prompts, too."""
    dense: tuple[DenseConfig, ...] = ()
    """A sentence encoder's linear layers behind the pooling; of a cross-encoder the hidden layer of a trained
    reranker."""
    output_scaling: Positive = 1.0
    normalize: bool = False
    """Whether vectors have length 1 before `output_scaling`: logits are then its square times a cosine."""
    vector_dim: Count | None = None
    """How many of their first dimensions vectors keep, before they are normalized; None for all. For models trained
    with `matryoshka` (Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022)."""
    context_vectors: ContextVectors = "codes"
    n_codes: Count = 64
    codes_attention: Attention = "basic"
    poly_attention: Attention = "basic"
    codes_attention_heads: Count = 4
    poly_attention_heads: Count = 4
    """Heads of the attention `multihead`: of the codes over the outputs, of a candidate over the codes."""
    candidate_mlp: bool = False
    """Whether a perceptron with one hidden layer follows the candidates' encoder, as ParlAI's `share_encoders`
    puts one there."""
    foreign_dim: Whole | None = None
    """The dimension of candidates' vectors that another encoder computed and an index holds: the model has no encoder
    of candidates, and a linear map takes its contexts to this dimension. None for candidates that it encodes itself."""
    foreign_fingerprint: str | None = None
    """The fingerprint of these vectors."""
    token_dim: Count | None = None
    """Late-interaction encoder: dimensions of a linear map behind the outputs that are compared; None for no map."""
    turn_end: TurnEnd = None
    """Late-interaction encoder, context vectors `turns`: what ends a turn; None for one turn."""
    pair_start: PairStart = False
    """Cross-encoder: what the candidate begins with behind the context: nothing, as in BERT's pairs; its start token,
    as in ParlAI's; another end token, as in RoBERTa's; or nothing, in the context's segment, as by tokenizers that give
    no token types."""
    pair_truncate: Whole | None = None
    """Cross-encoder: the most tokens of a pair, to which candidates are cut; None for those of a longest context and a
    longest candidate."""
    base: RankerConfig | None = None
    """Residual cross-encoder: the ranker that it started from, whose score it adds to its own. Both read texts laid out
    as `text`, whatever the base's own is."""
    convert: ConvertConfig | None = None
    format_version: Literal[1] = FORMAT_VERSION

    def __post_init__(self) -> None:
        if len({self.foreign_dim is None, self.foreign_fingerprint is None, not self.text.candidate_rows}) > 1:
            raise ConfigError("foreign_dim, foreign_fingerprint and candidate_rows of the text belong together")
        if self.convert is not None and self.backbone:
            raise ConfigError("a configuration has either `backbone` or, for a convert model, `convert`, never both")
        if self.base is not None and self.base.base is not None:
            raise ConfigError("`base` adds to another score itself; it must be a ranker without `base`")
        if self.pair_truncate is not None and self.pair_truncate < self.text.longest_context + 3:
            raise ConfigError(
                f"contexts may have {self.text.longest_context} of the {self.pair_truncate} tokens of a pair, which "
                "leaves none for candidates: give a smaller text_truncate",
                argument="text_truncate",
            )
        if self.convert is None and not isinstance(self.backbone.get("model_type"), str):
            raise ConfigError("the backbone configuration has no `model_type`: it is not a Hugging Face configuration")

    @property
    def residual(self) -> bool:
        """Whether the score is another ranker's, the `base`, plus the model's own."""
        return self.base is not None

    @property
    def candidate_start(self) -> PairStart:
        """`pair_start` for `join_pair`: true, too, where a candidate has no start token, so that it keeps its first."""
        return self.pair_start or not self.text.surround

    def to_json(self) -> str:
        """The configuration as indented JSON text, keys in the order of the fields."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, *, origin: str) -> RankerConfig:
        """Reads what `to_json` wrote. `origin` names the file in error messages."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{origin}: not valid JSON ({error})") from None
        if not isinstance(values, dict) or "architecture" not in values:
            raise ConfigError(f"{origin}: not the configuration of a ranker (no `architecture` in it)")
        if (version := values.get("format_version")) != FORMAT_VERSION:
            raise ConfigError(
                f"{origin}: format version {version!r}, but this version of polyencoder reads {FORMAT_VERSION}; "
                "install the version that wrote it"
            )
        try:
            return from_json_values(cls, values)
        except ConfigError as error:
            raise ConfigError(f"{origin}: {error}") from None
