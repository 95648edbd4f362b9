"""Fixed candidates: one list for every example, read from a file, encoded once for each state of the model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import parlai.utils.logging as logging
import torch
from parlai.core.opt import Opt
from parlai.utils.distributed import is_primary_worker
from torch import Tensor

from polyencoder.errors import CheckpointError, InputError, PolyencoderError
from polyencoder.index import Candidate, FolderIndex, build_index
from polyencoder.index.build import SHARD_SIZE, candidates_digest
from polyencoder.index.folder import remove_index
from polyencoder.ranker import Ranker


def read_candidates(path: str) -> list[str]:
    """The different lines of a candidates file, in its order."""
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


def candidate_index_path(opt: Opt, candidates_path: str) -> str | None:
    """Where the candidates' index is kept: what `--fixed-candidate-vecs` names, else a folder beside the model."""
    setting = opt.get("fixed_candidate_vecs") or "reuse"
    if setting not in ("reuse", "replace"):
        return setting
    model_file = opt.get("model_file")
    if not model_file or candidates_path.startswith(model_file):
        return model_file and f"{candidates_path}.index"
    return f"{model_file}.{os.path.basename(candidates_path)}.index"


class FixedCandidates:
    """The candidates of `--candidates fixed`, with their vectors.

    The vectors are kept on disk, in an index of the library's, which knows the model, the tokenizer and the candidates
    that it was made of, and is mapped into memory. One of another model or of other candidates is made anew.
    """

    def __init__(self, texts: list[str], *, folder: str | None, reuse: bool) -> None:
        self.texts = texts
        self.place = {text: i for i, text in enumerate(texts)}
        self._folder = folder
        self._reuse = reuse
        self._vectors: list[Tensor] | None = None

    def clear(self) -> None:
        """Forget the vectors: the model has changed. The index, of the model as it was, is not touched."""
        self._vectors = None

    def vectors(
        self, ranker: Callable[[], Ranker], *, encode: Callable[[list[str]], Tensor], on_disk: bool
    ) -> list[Tensor]:
        """Vectors of all candidates, in pieces [n, dim]: remembered, else of the index, else made by `encode`.

        `ranker` gives the agent's model; `on_disk` says whether that is one whose vectors are worth keeping.
        """
        if self._vectors is None:
            index = self._index(ranker(), self._folder) if self._folder and on_disk else None
            if index is None:
                self._vectors = [encode(self.texts)]
            else:
                like = next(ranker().model.parameters())
                self._vectors = [chunk.to(like) for _, chunk in index.vectors.chunks(SHARD_SIZE)]
        return self._vectors

    def _index(self, ranker: Ranker, folder: str) -> FolderIndex | None:
        """The index on disk, made if need be. Of many processes the first makes it, and others may find none."""
        if self._reuse:
            try:
                return self._there(ranker, folder)
            except PolyencoderError as error:
                if os.path.exists(folder):
                    logging.info(f"made anew: {error}")
        if not is_primary_worker():
            return None
        remove_index(folder)
        with torch.autocast(ranker.device.type, enabled=False):  # --bf16 is of the scoring; the index serves others too
            build_index(folder, self._records(), ranker)
        logging.info(f"{len(self.texts)} fixed candidates encoded into the index {folder}")
        return self._there(ranker, folder)

    def _there(self, ranker: Ranker, folder: str) -> FolderIndex:
        """The index of the folder. An error if there is none, or another model or other candidates made it."""
        index = FolderIndex.open(folder, ranker)
        if index.meta.candidates != candidates_digest(self._records()):
            raise CheckpointError(f"{folder}: an index of other candidates")
        return index

    def _records(self) -> Iterator[Candidate]:
        return (Candidate(None, text) for text in self.texts)
