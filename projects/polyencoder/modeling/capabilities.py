"""Capabilities of each architecture, and the configurations that it supports, without torch."""

from __future__ import annotations

from polyencoder.config import RankerConfig
from polyencoder.errors import ConfigError
from polyencoder.modeling.encoder_config import get_max_length

# Fields about the encoder of candidates, which a model with foreign candidates lacks
_CANDIDATE_FIELDS = ("share_encoders", "candidate_mlp")


class Capabilities:
    """Facts of an architecture, and checks of configurations that follow; the class of its models inherits them."""

    title: str
    """The architecture in messages and model cards: "bi-encoder"."""
    has_vectors: bool = True
    """Whether contexts and candidates are encoded separately, so that candidates can be indexed."""
    has_one_vector: bool = True
    """Whether a context has one vector, as a candidate has, so that they are text embeddings: `get_context_vectors`."""
    reads_pairs: bool = False
    """Whether `forward` compares the tokens of both texts. If the model also has vectors, they retrieve the candidates
    that `forward` reranks."""
    has_new_parts: bool = False
    """Whether it adds parts to its encoder, with a separate learning rate (`RankerModel.new_parameters`)."""
    shortens: bool = False
    """Whether the first dimensions of its vectors can be used alone (`RankerConfig.vector_dim`)."""

    @classmethod
    def check_config(cls, config: RankerConfig) -> None:
        """Raises ConfigError for a configuration that this architecture does not support.

        Texts must fit the backbone: context and candidate together, if they are read together.
        """
        if config.poly_attention == "multihead" and (cls.has_one_vector or not cls.has_vectors):
            raise ConfigError(
                f"poly_attention is 'multihead', which a {cls.title} does not have", argument="poly_attention"
            )
        if config.dense and cls.reads_pairs and cls.has_vectors:
            raise ConfigError(
                f"the encoder has Dense layers behind its pooling, which a {cls.title} does not have: give an encoder "
                "without them, or train a bi- or poly-encoder",
                argument="backbone",
            )
        if config.backbone.get("num_hidden_layers") == 0 and not cls.has_vectors:
            raise ConfigError(
                f"the encoder is a table of token embeddings, without the attention that a {cls.title} needs: train "
                "another architecture",
                argument="architecture",
            )
        if config.vector_dim is not None:
            cls.check_shortens(config)
        if config.foreign_dim is not None:
            contradicts = [name for name in _CANDIDATE_FIELDS if getattr(config, name)]
            if contradicts or not cls.shortens:  # of single vectors
                setting = contradicts[0] if contradicts else f"the architecture {config.architecture}"
                raise ConfigError(f"{setting} needs an encoder of candidates, but their vectors are another encoder's")
        limit = get_max_length(config.backbone)
        longest = cls.compute_longest_sequence(config)
        if limit is not None and longest > limit:
            raise ConfigError(
                f"the backbone takes at most {limit} tokens, but sequences may have {longest}; "
                "give a smaller text_truncate or label_truncate",
                argument="text_truncate",
            )
        if limit is not None and config.text.label_truncate > limit:
            raise ConfigError(
                f"the backbone takes at most {limit} tokens, but candidates may have {config.text.label_truncate}; "
                "give a smaller label_truncate",
                argument="label_truncate",
            )

    @classmethod
    def compute_longest_sequence(cls, config: RankerConfig) -> int:
        """The maximum tokens that the encoder reads at once: of a context, or of a pair if it reads both together."""
        if cls.has_vectors:
            return config.text.longest_context
        both = config.text.longest_context + config.text.label_truncate
        return both if config.pair_truncate is None else min(both, config.pair_truncate)

    @classmethod
    def check_shortens(cls, config: RankerConfig) -> None:
        """Raises ConfigError unless the first dimensions of a model's vectors can be used alone."""
        reason = f"a {cls.title} compares more than single vectors" if not cls.shortens else None
        if config.poly_attention == "multihead":
            reason = "its multi-head attention reads all dimensions"
        elif not cls.has_one_vector and config.context_vectors == "turns":
            reason = "its vectors of turns are sums of vectors of equal length"
        elif config.foreign_dim is not None:
            reason = "those of candidates are another encoder's"
        if reason is not None:
            raise ConfigError(f"vectors cannot be shortened to their first dimensions: {reason}", argument="vector_dim")


class BiCapabilities(Capabilities):
    title = "bi-encoder"
    shortens = True


class PolyCapabilities(Capabilities):
    title = "poly-encoder"
    has_new_parts = True
    shortens = True
    has_one_vector = False


class CrossCapabilities(Capabilities):
    title = "cross-encoder"
    has_vectors = False
    reads_pairs = True
    has_one_vector = False


class LateCapabilities(BiCapabilities):
    title = "late-interaction encoder"
    has_new_parts = True
    shortens = False
    reads_pairs = True


class ConvertCapabilities(Capabilities):
    title = "ConveRT"

    @classmethod
    def check_config(cls, config: RankerConfig) -> None:
        super().check_config(config)
        if config.convert is None:
            raise ConfigError("a convert model needs its sizes, `convert`, which this configuration does not have")
        if config.text.truncation != "recent_first":
            raise ConfigError(f"a convert model needs the truncation 'recent_first', not {config.text.truncation!r}")
        if not config.convert.multi_context and config.text.history_size != 1:
            raise ConfigError(
                "a single-context convert model reads the last turn alone: leave extra_contexts out (its history_size "
                "must be 1)",
                argument="extra_contexts",
            )
