"""The description of an index: its vectors, and the model that made them.

In a folder it is a row of the database, replaced by each change. `meta.json` is a copy for people that is never read.
In Milvus, `Maker` is a property of the collection.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from polyencoder.config import Attention
from polyencoder.encoding.fingerprint import compute_candidate_fingerprint
from polyencoder.encoding.protocol import TextRanker
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.index.documents import Split
from polyencoder.index.faiss.file import FaissFile
from polyencoder.index.token_rows import StoredTokens
from polyencoder.index.vectors import VectorDtype
from polyencoder.storage.files import parse_versioned
from polyencoder.validation import AtLeastZero, Count, from_json_values, validated

if TYPE_CHECKING:
    from polyencoder.modeling.base import RankerModel

M = TypeVar("M", bound="Maker")


class Fingerprints(NamedTuple):
    """Digests of everything that determines a candidate's vector. Computing them reads all weights: 0.5 s for BERT."""

    model: str
    """The digest of the candidate tower, the reduction and the tokenizer: equal means equal vectors."""
    tokenizer: str = ""
    """Empty if only the encoder's name is known."""

    @classmethod
    def of(cls, ranker: TextRanker | Fingerprints) -> Fingerprints:
        """The fingerprints of a ranker; fingerprints are returned unchanged."""
        if isinstance(ranker, Fingerprints):
            return ranker
        model, text = get_separable_model(ranker), ranker.text
        tokenizer = "" if model.has_foreign_candidates else text.compute_fingerprint(contexts=False)
        return cls(compute_candidate_fingerprint(model, text), tokenizer)

    def fits(self, other: Fingerprints) -> bool:
        """Whether they belong to one model; an unknown tokenizer fits any."""
        return self.model == other.model and (
            self.tokenizer == other.tokenizer or not (self.tokenizer and other.tokenizer)
        )

    def check_model(self, ranker: TextRanker | Fingerprints | None, *, where: object, maker: str = "") -> None:
        """Raises CheckpointError unless they are this ranker's; None passes. `maker` is the name of their model."""
        if ranker is None or (fingerprints := Fingerprints.of(ranker)).fits(self):
            return
        remedy = "make an index of this one, by `Ranker.index` or `polyencoder index`"
        (ours, _, _), (theirs, is_int8, _) = (prints.model.partition("-int8") for prints in (fingerprints, self))
        if ours == theirs and fingerprints.model != self.model:  # of int8 graphs and their model
            graphs = "int8 graphs" if is_int8 else "the float32 model"
            raise CheckpointError(
                f"{where}: made by {graphs}, and its vectors have another precision or quantization: load the model "
                f"with the backend that made it, or {remedy}"
            )
        other = "tokenizer" if fingerprints.tokenizer != self.tokenizer else "weights or reduction"
        if not (fingerprints.tokenizer and self.tokenizer):
            other = "weights, reduction or tokenizer"
        raise CheckpointError(
            f"{where}: made by another model{maker} (fingerprint {self.model}); this one has another "
            f"{other} (fingerprint {fingerprints.model}): load that model, or {remedy}",
            public="the index was made by another model than this server's",
        )


@validated
class Maker:
    """The model that made an index, stored by every engine beside the vectors."""

    FORMAT_VERSION: ClassVar[int] = 3

    architecture: str
    """Empty if unknown."""
    dim: Count
    fingerprints: Fingerprints
    model_name: str
    """Where the model was loaded from, for messages; empty if unknown."""
    attention: Attention = "basic"
    """The model's `poly_attention`; "basic" if unknown."""
    split: Split | None = None
    """How texts are split into passages; None: not at all."""

    @classmethod
    def from_ranker(
        cls: type[M], ranker: TextRanker | Fingerprints, *, model_name: str, dim: int | None = None, **fields: Any
    ) -> M:
        """Describes a ranker, or an encoder by fingerprints, with vectors [dim]. InputError for a cross-encoder."""
        if isinstance(ranker, Fingerprints):
            fields |= {"architecture": "", "dim": dim}
        else:
            config = get_separable_model(ranker).config
            fields |= {"architecture": config.architecture, "dim": ranker.model.dim, "attention": config.poly_attention}
        return cls(fingerprints=Fingerprints.of(ranker), model_name=model_name, **fields)

    def to_json(self) -> str:
        values = dataclasses.asdict(self)
        model, tokenizer = values.pop("fingerprints")
        values |= {"model_fingerprint": model, "tokenizer_fingerprint": tokenizer}
        values["format_version"] = self.FORMAT_VERSION
        return json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls: type[M], text: str, where: object) -> M:
        """Parses the JSON of the index at `where`. Raises CheckpointError if it is damaged or of another version."""

        def make(values: dict[str, Any]) -> M:
            fingerprints = values.pop("model_fingerprint"), values.pop("tokenizer_fingerprint")
            return from_json_values(cls, {**values, "fingerprints": fingerprints})

        remedy = "remove the index, and build it again by `polyencoder index`"
        return parse_versioned(
            text, make, version=cls.FORMAT_VERSION, origin=f"{where}, its description", remedy=remedy
        )

    @property
    def _kind(self) -> str:
        return f"{self.architecture}-encoder" if self.architecture else "foreign encoder"

    def check_model(self, ranker: TextRanker | Fingerprints | None, *, where: object) -> None:
        """Raises CheckpointError unless this model, or the one with these fingerprints, made the index; None: any."""
        self.fingerprints.check_model(ranker, where=where, maker=f", {self.model_name or f'a {self._kind}'}")

    def check_split(self, split: Split | None, *, where: object) -> None:
        """Raises ConfigError if texts shall be split, and this index does not split them so."""
        if split is not None and split != self.split:
            how = "whole texts" if self.split is None else f"passages of {self.split.tokens} tokens"
            raise ConfigError(f"{where}: exists, with {how}; give another index", argument="split")

    def summarize(self, where: object, *, entries: int, vectors: str) -> list[str]:
        """The first lines of every engine's summary."""
        model = f"{self.model_name or 'not known'} ({self._kind}, fingerprint {self.fingerprints.model})"
        lines = [f"{where}: {entries:,} candidates", f"model: {model}", f"vectors: {vectors}"]
        if (split := self.split) is not None:
            lines.append(f"split: passages of {split.tokens} tokens, overlap {split.overlap}")
        return lines


@validated
class IndexMeta(Maker):
    """The description of an index folder."""

    FORMAT_VERSION = 7

    dtype: VectorDtype
    shard_size: Count
    """The maximum number of rows of a file of vectors."""
    build: str
    """16 random hex digits, different for each build."""
    rows: AtLeastZero = 0
    """Different texts, including removed ones."""
    entries: AtLeastZero = 0
    candidates: str | None = None
    """A digest of the candidates it was built from; None after a change."""
    version: AtLeastZero = 0
    """Counts the changes."""
    faiss: FaissFile | None = None
    """The FAISS index, if any."""
    tokens: StoredTokens | None = None
    """The token vectors beside the vectors, if any."""


def get_separable_model(ranker: TextRanker) -> RankerModel:
    """The model of a ranker whose vectors can be indexed. Raises InputError for a cross-encoder."""
    if not ranker.model.has_vectors:
        raise InputError(f"a {ranker.model.title} has no vectors of candidates; an index needs a bi- or poly-encoder")
    return ranker.model
