"""The description of an index: what its vectors are, and which model made them.

It is a row of the database, written anew by each change. `meta.json` has the same text, for people; nothing reads it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from polyencoder.checks import check_fields, checked_count
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.index.vectors import VectorDtype, check_dtype
from polyencoder.modeling import RankerModel
from polyencoder.ranker.encoding import candidate_fingerprint
from polyencoder.ranker.protocol import TextRanker

FORMAT_VERSION = 3


class Fingerprints(NamedTuple):
    """Digests of what decides the vector of a candidate. Computing them reads all weights: half a second for BERT."""

    model: str
    """Of the candidate tower, the reduction and the tokenizer: equal means equal vectors."""
    tokenizer: str

    @classmethod
    def of(cls, ranker: TextRanker) -> Fingerprints:
        return cls(candidate_fingerprint(separable(ranker), ranker.text), ranker.text.fingerprint())


@dataclass(frozen=True)
class IndexMeta:
    """The description of an index."""

    architecture: str
    dim: int
    dtype: VectorDtype
    fingerprints: Fingerprints
    model_name: str
    """Where the model was loaded from, for messages; empty if it is not known."""
    shard_size: int
    """The most rows of a file of vectors."""
    build: str
    """16 random hex digits: indexes that were built at different times differ, whatever is in them."""
    rows: int = 0
    """Different texts, removed ones too."""
    entries: int = 0
    candidates: str | None = None
    """A digest of the candidates it was built from; None once it was changed."""
    version: int = 0
    """Counts the changes."""
    faiss: str | None = None
    """What the names of the FAISS index's files begin with; None if there is no such index."""
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        values = dataclasses.asdict(self)
        fingerprints = values.pop("fingerprints")
        values |= {"model_fingerprint": fingerprints[0], "tokenizer_fingerprint": fingerprints[1]}
        return json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def parsed(cls, text: str, folder: Path) -> IndexMeta:
        """The description in a text. Raises CheckpointError if it is damaged or of another version."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{folder}: damaged, its description is no JSON ({error}); build it again") from None
        if not isinstance(values, dict) or "format_version" not in values:
            raise CheckpointError(f"{folder}: damaged, its description has no `format_version`; build it again")
        if (version := values["format_version"]) != FORMAT_VERSION:
            raise CheckpointError(
                f"{folder}: format version {version!r}, but this version of polyencoder reads {FORMAT_VERSION}; "
                "install the version that wrote it, or build the index again"
            )
        try:
            fingerprints = Fingerprints(values.pop("model_fingerprint"), values.pop("tokenizer_fingerprint"))
            meta = cls(fingerprints=fingerprints, **values)
            check_fields(meta)
            check_dtype(meta.dtype)
            for count in ("dim", "shard_size"):
                checked_count(count, getattr(meta, count))
            for count in ("rows", "entries", "version"):
                checked_count(count, getattr(meta, count), least=0)
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise CheckpointError(
                f"{folder}: damaged, a key of its description is missing, unknown or wrong ({error}); build it again"
            ) from None
        return meta

    def check_model(self, fingerprints: Fingerprints, *, folder: Path) -> None:
        """Raise CheckpointError unless the index was made by the model with these fingerprints."""
        if fingerprints == self.fingerprints:
            return
        ours, theirs = (one.model.removesuffix("-int8") for one in (fingerprints, self.fingerprints))
        if ours == theirs and fingerprints.tokenizer == self.fingerprints.tokenizer:  # of int8 graphs and their model
            maker = "int8 graphs" if self.fingerprints.model != theirs else "the float32 model"
            raise CheckpointError(
                f"{folder}: made by {maker}, and vectors of another precision are others: load the model with the "
                "backend that made it, or make an index of this one, by `Ranker.index` or `polyencoder index`"
            )
        other = "tokenizer" if fingerprints.tokenizer != self.fingerprints.tokenizer else "weights or reduction"
        maker = self.model_name or f"a {self.architecture}-encoder"
        raise CheckpointError(
            f"{folder}: made by another model, {maker} (fingerprint {self.fingerprints.model}); this one has another "
            f"{other} (fingerprint {fingerprints.model}): load that model, or make an index of this one, by "
            "`Ranker.index` or `polyencoder index`"
        )


def separable(ranker: TextRanker) -> RankerModel:
    """The model of a ranker that can fill an index. Raises InputError for a cross-encoder."""
    if not ranker.model.has_vectors:
        raise InputError(f"a {ranker.model.title} has no vectors of candidates; an index needs a bi- or poly-encoder")
    return ranker.model
