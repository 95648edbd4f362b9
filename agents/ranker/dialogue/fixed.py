"""Candidates' vectors for the current model: a cache for recent batches, an index for fixed candidates."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import parlai.utils.logging as logging
import torch
from parlai.core.opt import Opt
from parlai.utils.distributed import is_primary_worker
from torch import Tensor

from polyencoder.errors import CheckpointError, InputError, PolyencoderError
from polyencoder.index import Candidate, FolderIndex, build_index
from polyencoder.index.folder import remove_index
from polyencoder.index.folder.build import SHARD_SIZE, candidates_digest
from polyencoder.ranker.ranker import Ranker
from polyencoder.scoring.rows import Chunk
from polyencoder.text import TokenBatch
from polyencoder.text.memory import TextMemory

__all__ = ["FixedCandidates", "IndexPlace", "VectorCache", "index_place", "read_candidates"]


def read_candidates(path: str) -> list[str]:
    """The distinct lines of a candidates file, in order."""
    flag = "--fixed-candidates-path"
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise InputError(f"{flag} {path}: no such file; give a text file with one candidate a line") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{flag} {path}: cannot be read as UTF-8 text ({error})") from None
    texts = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not texts:
        raise InputError(f"{flag} {path}: is empty; give a text file with one candidate a line")
    return texts


@dataclass(frozen=True)
class IndexPlace:
    """The folder of the fixed candidates' index."""

    folder: str
    is_named: bool
    """Whether `--fixed-candidate-vecs` names a user's folder, which is never overwritten."""
    reuse: bool = True


def index_place(opt: Opt, candidates_path: str) -> IndexPlace | None:
    """The folder of `--fixed-candidate-vecs`, else one beside the model; None without either."""
    setting, model_file = opt.get("fixed_candidate_vecs") or "reuse", opt.get("model_file")
    if setting not in ("reuse", "replace"):
        return IndexPlace(setting, is_named=True)
    if not model_file:
        return None
    folder = f"{model_file}.{os.path.basename(candidates_path)}.index"
    return IndexPlace(folder, is_named=False, reuse=setting == "reuse")


class FixedCandidates:
    """The candidates of `--candidates fixed`, with their vectors.

    The vectors are stored on disk, in a memory-mapped index of the library, which records its model, tokenizer and
    candidates. Beside the model, an index of another model or of other candidates is rebuilt; in a folder named by the
    user, it is an error.
    """

    def __init__(self, texts: list[str], *, place: IndexPlace | None) -> None:
        self.texts = texts
        self.place = {text: i for i, text in enumerate(texts)}
        self._index_place = place
        self._vectors: list[Tensor] | None = None
        self._scorer: Callable[[TokenBatch], Tensor] | None = None

    def clear(self) -> None:
        """Drops the vectors after the model has changed; the index on disk is unchanged."""
        self._vectors = self._scorer = None

    def scorer(self, ranker: Ranker) -> Callable[[TokenBatch], Tensor]:
        """A cached function that scores contexts with all candidates, for a model that reads pairs."""
        if self._scorer is None:
            tokens = ranker.text.candidates(self.texts).to(ranker.device)
            self._scorer = ranker.model.scorer(tokens, max_bytes=CAPACITY)
        return self._scorer

    def vectors(self, ranker: Ranker, *, encode: Callable[[list[str]], Tensor], on_disk: bool) -> list[Tensor]:
        """Vectors of all candidates, in pieces [n, dim]: cached, else from the index, else made by `encode`.

        `on_disk`: whether to store them.
        """
        if self._vectors is None:
            index = self._index(ranker, self._index_place) if self._index_place and on_disk else None
            if index is None:
                self._vectors = [encode(self.texts)]
            else:
                like = next(ranker.model.parameters())
                self._vectors = [_numbers(chunk).to(like) for chunk in index.vectors.chunks(SHARD_SIZE)]
        return self._vectors

    def _index(self, ranker: Ranker, place: IndexPlace) -> FolderIndex | None:
        """The index on disk, built if necessary; None in a process that waits for another to build it, or if it
        cannot be written."""
        folder = place.folder
        if place.reuse:
            try:
                return self._existing(ranker, folder)
            except PolyencoderError as error:
                if place.is_named and is_primary_worker() and _has_content(folder):
                    raise InputError(
                        f"--fixed-candidate-vecs {folder}: is not an index of these candidates by this model "
                        f"({error}); nothing in it was changed. Name the folder of such an index, or one that does not "
                        "exist yet"
                    ) from error
                if os.path.exists(folder):
                    logging.info(f"rebuilding: {error}")
        if not is_primary_worker():
            return None
        try:
            if not place.is_named:
                remove_index(folder)
            with torch.autocast(ranker.device.type, enabled=False):  # without --bf16, which is only for scoring
                build_index(folder, self._records(), ranker)
        except (OSError, InputError) as error:
            if place.is_named or not isinstance(error.__cause__ or error, OSError | sqlite3.Error):
                raise
            logging.warning(f"the vectors of the fixed candidates are only kept in memory: {error}")
            return None
        logging.info(f"{len(self.texts)} fixed candidates encoded into the index {folder}")
        return self._existing(ranker, folder)

    def _existing(self, ranker: Ranker, folder: str) -> FolderIndex:
        """The index in the folder. CheckpointError if missing, or of another model or other candidates."""
        index = FolderIndex.open(folder, ranker)
        if index.meta.candidates != candidates_digest(self._records()):
            raise CheckpointError(f"{folder}: an index of other candidates")
        return index

    def _records(self) -> Iterator[Candidate]:
        return (Candidate(None, text) for text in self.texts)


def _numbers(chunk: Chunk) -> Tensor:
    """Converts a stored chunk, perhaps in 8 bits, to float32."""
    return chunk.rows if chunk.scales is None else chunk.rows * chunk.scales.unsqueeze(1)


def _has_content(path: str) -> bool:
    return os.path.exists(path) and not (os.path.isdir(path) and not os.listdir(path))


Encode = Callable[[Sequence[str]], Tensor]

CAPACITY = 512 << 20  # bytes of vectors and texts: some 200,000 candidates at 384 dimensions
OF_A_TENSOR = 700  # overhead of a tensor, in bytes


class VectorCache:
    """Vectors of the candidates of recent evaluation batches, so that a repeated candidate is encoded once."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Clears the cache after the model has changed."""
        self._memory: TextMemory[Tensor] = TextMemory(_size, limit=CAPACITY)

    def get(self, texts: Sequence[str], encode: Encode) -> Tensor:
        """Vectors [len(texts), dim] of distinct texts; unknown ones are encoded."""
        known = {text: self._memory.get(text) for text in texts}
        missing = [text for text, vector in known.items() if vector is None]
        if len(missing) == len(texts):
            vectors = encode(texts)
            self._memory.update({text: vector.clone() for text, vector in zip(texts, vectors, strict=True)})
            return vectors
        if missing:
            new = {text: vector.clone() for text, vector in zip(missing, encode(missing), strict=True)}
            self._memory.update(new)
            known |= new
        return torch.stack([vector for vector in known.values() if vector is not None])


def _size(vector: Tensor) -> int:
    return vector.numel() * vector.element_size() + OF_A_TENSOR
