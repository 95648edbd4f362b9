"""`meta.json`: what the vectors of an index are, which model made them, and which files are the index's newest state.

The same text is `unfinished.json` while an index is built: renaming it is what finishes the index.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from polyencoder.checks import check_fields, checked_count
from polyencoder.encoding import candidate_fingerprint
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.files import onto_the_disk, replacing
from polyencoder.index.catalogue import CATALOGUE
from polyencoder.index.faiss_file import FAISS, has_faiss
from polyencoder.index.vectors import VectorDtype, check_dtype
from polyencoder.modeling import CrossEncoder, SeparableRanker
from polyencoder.protocol import TextRanker

META, UNFINISHED = "meta.json", "unfinished.json"
FORMAT_VERSION = 2
_WITHOUT_STATES = 1  # the format before: a change wrote into the files that were there


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
    """Different texts, removed ones too."""
    candidates: str | None
    """A digest of the candidates it was built from; None once it was changed."""
    generation: int = 0
    """Counts the files that changes have made: none has the name of an older one."""
    catalogue: str = CATALOGUE
    """The file of its texts and entries."""
    vectors: tuple[str, ...] | None = None
    """The files of vectors, in the order of their rows; None for those that the build has written."""
    faiss: str | None = None
    """What the names of the FAISS index's files begin with; None if there is no such index."""
    format_version: int = FORMAT_VERSION

    def write(self, folder: Path, name: str = META) -> None:
        values = dataclasses.asdict(self)
        fingerprints = values.pop("fingerprints")
        values |= {"model_fingerprint": fingerprints[0], "tokenizer_fingerprint": fingerprints[1]}
        text = json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        with replacing(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
            onto_the_disk(temporary)  # or it could be empty, and with it the index lost, when the power is

    @classmethod
    def read(cls, folder: Path, name: str = META) -> IndexMeta:
        """Raises CheckpointError if there is none, or it is damaged or of another version."""
        return cls.parsed(cls.text(folder, name), folder / name)

    @staticmethod
    def text(folder: Path, name: str = META) -> bytes:
        """What the file says, as bytes. Raises CheckpointError if there is none."""
        try:
            return (folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise CheckpointError(_missing(folder)) from None

    @classmethod
    def parsed(cls, text: bytes, path: Path) -> IndexMeta:
        """The description in the text of the file at `path`. Raises CheckpointError as `read` does."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: damaged, not valid JSON ({error}); build the index again") from None
        if not isinstance(values, dict) or "format_version" not in values:
            raise CheckpointError(f"{path}: not the description of an index (no `format_version` in it)")
        if (version := values.pop("format_version")) not in (FORMAT_VERSION, _WITHOUT_STATES):
            raise CheckpointError(
                f"{path}: format version {version!r}, but this version of polyencoder reads {_WITHOUT_STATES} and "
                f"{FORMAT_VERSION}; install the version that wrote it, or build the index again"
            )
        if version == _WITHOUT_STATES and has_faiss(path.parent):
            values["faiss"] = FAISS
        try:
            fingerprints = Fingerprints(values.pop("model_fingerprint"), values.pop("tokenizer_fingerprint"))
            if values.get("vectors") is not None:
                values["vectors"] = tuple(values["vectors"])
            meta = cls(fingerprints=fingerprints, **values)
            check_fields(meta)
            check_dtype(meta.dtype)
            for count in ("dim", "shard_size"):
                checked_count(count, getattr(meta, count))
            checked_count("rows", meta.rows, least=0)
            if strange := [name for name in meta.files if not is_file_name(name)]:
                raise ValueError(f"{strange[0]!r} is no name of a file")
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise CheckpointError(f"{path}: damaged, a key is missing, unknown or wrong ({error})") from None
        return meta

    @property
    def files(self) -> list[str]:
        """What it names."""
        return [self.catalogue, *(self.vectors or ()), *([self.faiss] if self.faiss else [])]

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


def is_file_name(name: object) -> bool:
    """Whether it names something in the folder itself: a description may come from anywhere."""
    return isinstance(name, str) and name not in ("", ".", "..") and Path(name).name == name


def separable(ranker: TextRanker) -> SeparableRanker:
    """The model of a ranker that can fill an index. Raises InputError for a cross-encoder."""
    if isinstance(ranker.model, CrossEncoder):
        raise InputError("a cross-encoder has no vectors of candidates; an index needs a bi- or poly-encoder")
    return ranker.model


def _missing(folder: Path) -> str:
    if (folder / UNFINISHED).is_file():
        return f"{folder}: this index is not finished; run the command that began it again, it goes on from there"
    return f"{folder}: no index (no {META} in it); make one by `Ranker.index` or `polyencoder index`"
