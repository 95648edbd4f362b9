"""`meta.json`: what the vectors of an index are, and which model made them.

The same text is `unfinished.json` while an index is built: renaming it is what finishes the index.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from polyencoder.encoding import candidate_fingerprint
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.files import write_text
from polyencoder.index.vectors import VectorDtype, check_dtype
from polyencoder.models import CrossEncoder, SeparableRanker
from polyencoder.protocol import TextRanker

META, UNFINISHED = "meta.json", "unfinished.json"
FORMAT_VERSION = 1


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
    """The contents of `meta.json`."""

    architecture: str
    dim: int
    dtype: VectorDtype
    fingerprints: Fingerprints
    model_name: str
    """Where the model was loaded from, for messages; empty if it is not known."""
    shard_size: int
    """The most rows of a file of vectors."""
    rows: int
    """Different texts when the index was built; the catalogue knows how many there are by now."""
    candidates: str | None
    """A digest of the candidates it was built from; None once it was changed."""
    format_version: int = FORMAT_VERSION

    def write(self, folder: Path, name: str = META) -> None:
        values = dataclasses.asdict(self)
        fingerprints = values.pop("fingerprints")
        values |= {"model_fingerprint": fingerprints[0], "tokenizer_fingerprint": fingerprints[1]}
        write_text(folder / name, json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, folder: Path, name: str = META) -> IndexMeta:
        """Raises CheckpointError if there is none, or it is damaged or of another version."""
        path = folder / name
        try:
            values = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise CheckpointError(_missing(folder)) from None
        except ValueError as error:
            raise CheckpointError(f"{path}: damaged, not valid JSON ({error}); build the index again") from None
        if not isinstance(values, dict) or "format_version" not in values:
            raise CheckpointError(f"{path}: not the description of an index (no `format_version` in it)")
        if values["format_version"] != FORMAT_VERSION:
            raise CheckpointError(
                f"{path}: format version {values['format_version']!r}, but this version of polyencoder reads "
                f"{FORMAT_VERSION}; install the version that wrote it, or build the index again"
            )
        try:
            fingerprints = Fingerprints(values.pop("model_fingerprint"), values.pop("tokenizer_fingerprint"))
            meta = cls(fingerprints=fingerprints, **values)
            check_dtype(meta.dtype)
        except (KeyError, TypeError, ConfigError) as error:
            raise CheckpointError(f"{path}: damaged, a key is missing, unknown or wrong ({error})") from None
        return meta

    def check_model(self, fingerprints: Fingerprints, *, folder: Path) -> None:
        """Raise CheckpointError unless the index was made by the model with these fingerprints."""
        if fingerprints == self.fingerprints:
            return
        other = "tokenizer" if fingerprints.tokenizer != self.fingerprints.tokenizer else "weights or reduction"
        maker = self.model_name or f"a {self.architecture}-encoder"
        raise CheckpointError(
            f"{folder}: made by another model, {maker} (fingerprint {self.fingerprints.model}); this one has another "
            f"{other} (fingerprint {fingerprints.model}): load that model, or make an index of this one by "
            "`polyencoder index --model MODEL --candidates FILE --out FOLDER`"
        )


def separable(ranker: TextRanker) -> SeparableRanker:
    """The model of a ranker that can fill an index. Raises InputError for a cross-encoder."""
    if isinstance(ranker.model, CrossEncoder):
        raise InputError("a cross-encoder has no vectors of candidates; an index needs a bi- or poly-encoder")
    return ranker.model


def _missing(folder: Path) -> str:
    if (folder / UNFINISHED).is_file():
        return f"{folder}: this index is not finished; run the command that began it again, it goes on from there"
    return (
        f"{folder}: no index (no {META} in it); make one by `polyencoder index --model M --candidates F --out FOLDER`"
    )
