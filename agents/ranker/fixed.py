"""Fixed candidates: one list for every example, read from a file, encoded once for each state of the model."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import parlai.utils.logging as logging
import safetensors
import safetensors.torch
from parlai.core.opt import Opt
from parlai.utils.distributed import is_primary_worker
from safetensors import safe_open
from torch import Tensor

from polyencoder.errors import InputError
from polyencoder.files import fingerprint as digest
from polyencoder.files import replacing


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


def candidate_cache_path(opt: Opt, candidates_path: str) -> str | None:
    """Where the candidates' vectors are kept: what `--fixed-candidate-vecs` names, else a file beside the model."""
    setting = opt.get("fixed_candidate_vecs") or "reuse"
    if setting not in ("reuse", "replace"):
        return setting
    model_file = opt.get("model_file")
    if not model_file or candidates_path.startswith(model_file):
        return model_file and f"{candidates_path}.safetensors"
    return f"{model_file}.{os.path.basename(candidates_path)}.safetensors"


class FixedCandidates:
    """The candidates of `--candidates fixed`, with their vectors.

    The vectors are kept on disk, in a file that holds the fingerprint of what made them: model and tokenizer, which
    the caller's `fingerprint` stands for, and the candidates. A file with another fingerprint is made anew, whatever it
    is called.
    """

    def __init__(self, texts: list[str], *, cache: str | None, reuse: bool) -> None:
        self.texts = texts
        self.place = {text: i for i, text in enumerate(texts)}
        self._cache = cache
        self._reuse = reuse
        self._vectors: Tensor | None = None

    def clear(self) -> None:
        """Forget the vectors: the model has changed. The file, which belongs to the model as it was, is not touched."""
        self._vectors = None

    def vectors(
        self, *, encode: Callable[[list[str]], Tensor], fingerprint: Callable[[], str], on_disk: bool
    ) -> Tensor:
        """Vectors [n, dim] of all candidates: remembered, else from the file if it fits, else made by `encode`."""
        if self._vectors is None:
            expected = digest([fingerprint(), *self.texts]) if self._cache and on_disk else None
            found = self._read(expected) if expected and self._reuse else None
            self._vectors = encode(self.texts) if found is None else found
            if expected and found is None:
                self._write(self._vectors, expected)
        return self._vectors

    def _read(self, expected: str) -> Tensor | None:
        if not self._cache or not os.path.exists(self._cache):
            return None
        try:
            with safe_open(self._cache, framework="pt") as file:
                if (file.metadata() or {}).get("fingerprint") == expected:
                    logging.info(f"vectors of {len(self.texts)} fixed candidates read from {self._cache}")
                    return file.get_tensor("vectors")
        except (safetensors.SafetensorError, OSError) as error:
            logging.warning(f"{self._cache}: damaged, made anew ({error})")
            return None
        logging.info(f"{self._cache}: made by another model, tokenizer or candidates file; made anew")
        return None

    def _write(self, vectors: Tensor, expected: str) -> None:
        if self._cache and is_primary_worker():
            with replacing(self._cache) as temporary:
                safetensors.torch.save_file(
                    {"vectors": vectors.detach().cpu().contiguous()}, temporary, metadata={"fingerprint": expected}
                )
            logging.info(f"vectors of {len(self.texts)} fixed candidates written to {self._cache}")
