"""What an index folder is, for people: without its model, and without FAISS."""

from __future__ import annotations

import os
from pathlib import Path

from polyencoder.index.faiss.file import FaissFile
from polyencoder.index.folder.database import Database
from polyencoder.index.meta import IndexMeta
from polyencoder.index.milvus import MILVUS, described_milvus

__all__ = ["described"]


def described(path: str | os.PathLike[str]) -> list[str]:
    """What an index is, in lines: its model, vectors, FAISS index and the recall that was measured.

    Raises:
        CheckpointError: there is no finished index, or it is damaged.
    """
    if str(path).startswith(MILVUS):
        return described_milvus(str(path))
    folder = Path(path)
    with Database(folder).snapshot() as catalogue:
        meta = IndexMeta.parsed(catalogue.description(), folder)
        dead = len(catalogue.dead_rows())
    lines = [
        f"{folder}: {meta.entries:,} candidates",
        f"model: {meta.model_name or 'not known'} ({meta.architecture}-encoder, fingerprint {meta.fingerprints.model})",
        f"vectors: {meta.rows:,} of {meta.dim} numbers, {meta.dtype}" + (f", {dead:,} removed" if dead else ""),
    ]
    if meta.faiss is None:
        return [*lines, "search: everything is scored (no FAISS index)"]
    faiss = FaissFile.read(folder, name=meta.faiss)
    parameters = ", ".join(f"{name}={value}" for name, value in faiss.parameters.items())
    lines.append(f"search: FAISS {faiss.kind} ({parameters}), of {faiss.rows:,} vectors")
    if (tuned := faiss.tuned) is None:
        return [*lines, "recall: not measured (`polyencoder update` measures it)"]
    wanted = "wanted" if tuned.reached else "wanted, and not reached"
    since = "" if tuned.rows == meta.rows else f"; measured when there were {tuned.rows:,} vectors"
    return [*lines, f"recall: {tuned.recall:g} {wanted}; {tuned}{since}"]
