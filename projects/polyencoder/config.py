"""The configuration that travels with the weights: frozen, serialised as JSON, unknown keys are errors."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from polyencoder.checks import check_fields
from polyencoder.errors import ConfigError

FORMAT_VERSION = 1

Architecture = Literal["bi", "poly", "cross", "convert"]
Reduction = Literal["first", "mean", "max", "mean_first", "mean_except_first"]
ContextVectors = Literal["codes", "n_first", "n_last", "first_n_last"]
Attention = Literal["basic", "sqrt", "multihead"]
Truncation = Literal["turns", "tokens", "recent_first"]


# Of a field that came later: as long as it has its default, fingerprints are those of before there was such a field.
LATER = {"later": True}


def identity(config: TextConfig | RankerConfig) -> dict[str, Any]:
    """What fingerprints are made of: the fields and their values, without later ones that have their default."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    for f in dataclasses.fields(config):
        if f.metadata.get("later") and values[f.name] == f.default:
            del values[f.name]
    return {name: identity(value) if isinstance(value, TextConfig) else value for name, value in values.items()}


def _check_choice(name: str, value: str, choices: Any) -> None:
    if not isinstance(value, str) or value not in get_args(choices):
        raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(get_args(choices))}", argument=name)


@dataclass(frozen=True)
class TextConfig:
    """How turns of text become the tokens of a context or a candidate.

    Lengths are in tokens. A candidate is `start words end`; a context is `start turn separator turn ... end`, of which
    the persona lines and the latest turns are kept, and both lengths include the start and end tokens. With the
    truncation `tokens`, that of models which ParlAI trained, a context is cut anywhere: its last `text_truncate` tokens
    are kept, and stand between start and end; of a candidate the first `label_truncate` tokens are kept,
    start included, whether the end token is among them or not.

    With `recent_first`, ConveRT's, a context is the last utterance, of which the first `text_truncate` tokens are kept;
    and where `history_size` is more than 1, behind the separator, the utterances before it, as one text that begins
    with the most recent of them and ends with the persona lines, of which again the first `text_truncate` tokens are
    kept. Neither it nor a candidate is surrounded.
    """

    text_truncate: int = 360
    label_truncate: int = 72
    history_size: int = 20
    """The most utterances of a context, each line of a turn one; -1 keeps all of them. Persona lines (`your persona:
    ...`) do not count, and stay, as far as they fit beside the last utterance, which has at least half of the tokens if
    it needs them. With the truncation `tokens` turns are counted, whatever they are, as ParlAI does."""
    pad_token: str = "[PAD]"
    start_token: str = "[CLS]"
    end_token: str = "[SEP]"
    separator: str = "[SEP]"
    """The token, or the text that gives the tokens, between two turns; empty for nothing."""
    truncation: Truncation = "turns"
    surround: bool = field(default=True, metadata=LATER)
    """Whether start and end stand around contexts and candidates; not with those of ParlAI's transformer/ranker."""
    empty_token: str | None = field(default=None, metadata=LATER)
    """The token of a text that has none by itself; None for no token at all."""
    number_turns: bool = field(default=False, metadata=LATER)
    """With `recent_first`: whether each earlier utterance has its number before it, `0: ` the most recent, as ConveRT's
    model for DSTC7 has them."""

    person_tokens: bool = field(default=False, metadata=LATER)
    """Whether `__p1__` stands before what the other says, `__p2__` before the model's own turns, as ParlAI's
    person tokens: before a turn, its persona lines included."""
    person_tokens_after_newline: bool = field(default=False, metadata=LATER)
    """Whether the person token stands before the last line of a turn instead (ParlAI's `add_p1_after_newln`)."""

    @property
    def longest_context(self) -> int:
        """The most tokens of a context, start and end included."""
        if self.truncation == "recent_first":
            return self.text_truncate if self.history_size == 1 else 2 * self.text_truncate + 1
        return self.text_truncate + (2 if self.truncation == "tokens" and self.surround else 0)

    def __post_init__(self) -> None:
        _check_choice("truncation", self.truncation, Truncation)
        check_fields(self)
        for name in ("text_truncate", "label_truncate"):
            if getattr(self, name) < 3:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; it must be at least 3: start, one token, end",
                    argument=name,
                )
        if not self.surround and self.truncation == "turns":
            raise ConfigError("surround is false, which the truncation `turns` does not know")
        if self.surround and self.truncation == "recent_first":
            raise ConfigError("surround is true, which the truncation `recent_first` does not know")
        if self.history_size == 0 or self.history_size < -1:
            raise ConfigError(
                f"history_size is {self.history_size}; it must be -1 (all) or at least 1", argument="history_size"
            )


@dataclass(frozen=True)
class RankerConfig:
    """Everything that is needed to build a ranker around its weights.

    `backbone` is the Hugging Face configuration of the encoder as a plain dictionary; for "convert" that of
    `polyencoder.modeling.convert.ConvertConfig`.
    Sources: reductions, Section 4.2 and Table 7 of Humeau et al. (ICLR 2020); context vectors, Section 4.4 and
    Appendix C; output scaling, ParlAI's `output_scaling`.
    """

    architecture: Architecture
    backbone: dict[str, Any]
    text: TextConfig = field(default_factory=TextConfig)
    share_encoders: bool = False
    reduction: Reduction = "first"
    reduction_outputs: int = 64
    """M of the reduction `mean_first`: the average of the first M outputs."""
    output_scaling: float = 1.0
    normalize: bool = False
    """Whether vectors have length 1 before `output_scaling`: logits are then its square times a cosine."""
    context_vectors: ContextVectors = "codes"
    n_codes: int = 64
    codes_attention: Attention = "basic"
    poly_attention: Attention = "basic"
    codes_attention_heads: int = field(default=4, metadata=LATER)
    poly_attention_heads: int = field(default=4, metadata=LATER)
    """Heads of the attention `multihead`: of the codes over the outputs, of a candidate over the codes."""
    candidate_mlp: bool = field(default=False, metadata=LATER)
    """Whether a perceptron with one hidden layer stands behind the candidates' encoder, as ParlAI's `share_encoders`
    puts one there."""
    candidate_map: bool = field(default=False, metadata=LATER)
    """Whether a linear map stands behind candidates' vectors, as `polyencoder map` learns one."""
    pair_start: bool = False
    """Cross-encoder: whether the candidate keeps its start token behind the context (ParlAI does, BERT does not)."""
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        _check_choice("architecture", self.architecture, Architecture)
        _check_choice("reduction", self.reduction, Reduction)
        _check_choice("context_vectors", self.context_vectors, ContextVectors)
        _check_choice("codes_attention", self.codes_attention, Attention)
        _check_choice("poly_attention", self.poly_attention, Attention)
        check_fields(self)
        if self.poly_attention == "multihead" and self.architecture != "poly":
            raise ConfigError(
                f"poly_attention is 'multihead', which a ranker of the architecture {self.architecture} does not have",
                argument="poly_attention",
            )
        if self.candidate_map and self.architecture == "cross":
            raise ConfigError("candidate_map is true, but a cross-encoder has no vectors of candidates")
        if not self.output_scaling > 0:
            raise ConfigError(f"output_scaling is {self.output_scaling}; it must be above 0", argument="output_scaling")
        for name in ("n_codes", "reduction_outputs", "codes_attention_heads", "poly_attention_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1", argument=name)
        if not isinstance(self.backbone.get("model_type"), str):
            raise ConfigError("the backbone configuration has no `model_type`: it is not a Hugging Face configuration")

    def to_json(self) -> str:
        """The configuration as indented JSON text, keys in the order of the fields."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, *, origin: str) -> RankerConfig:
        """Read what `to_json` wrote. `origin` names the file in error messages."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{origin}: not valid JSON ({error})") from None
        if not isinstance(values, dict) or "architecture" not in values:
            raise ConfigError(f"{origin}: not the configuration of a ranker (no `architecture` in it)")
        version = values.get("format_version")
        if version != FORMAT_VERSION:
            raise ConfigError(
                f"{origin}: format version {version!r}, but this version of polyencoder reads {FORMAT_VERSION}; "
                "install the version that wrote it"
            )
        values["text"] = _from_dict(TextConfig, values.get("text", {}), origin=f"{origin}, `text`")
        return _from_dict(cls, values, origin=origin)


def _from_dict(cls: type, values: Any, *, origin: str) -> Any:
    if not isinstance(values, dict):
        raise ConfigError(f"{origin}: is {values!r}; it must be an object with the keys of a {cls.__name__}")
    known = {f.name for f in dataclasses.fields(cls)}
    if unknown := sorted(set(values) - known):
        raise ConfigError(f"{origin}: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")
    try:
        return cls(**values)
    except (TypeError, ConfigError) as error:
        raise ConfigError(f"{origin}: {error}") from None
