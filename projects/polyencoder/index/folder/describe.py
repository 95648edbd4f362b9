"""A summary of an index folder, in lines."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from polyencoder.index.folder.database import Database
from polyencoder.index.meta import IndexMeta


def described_folder(folder: Path) -> list[str]:
    """A summary of an index, in lines; neither its model nor FAISS is needed. Errors as in `FolderIndex.open`."""
    with closing(Database(folder)) as database, database.snapshot() as catalogue:
        meta = IndexMeta.parsed(catalogue.description(), folder)
        dead = len(catalogue.dead_rows())
        files, words = catalogue.files(), catalogue.words is not None
    vectors = f"{meta.rows:,} of {meta.dim} numbers, {meta.dtype}" + (f", {dead:,} removed" if dead else "")
    lines = meta.summary(folder, entries=meta.entries, vectors=vectors)
    if (tokens := meta.tokens) is not None:
        size = sum(file.bytes for file in files if file.name.endswith((".tokens.npy", ".offsets.npy")))
        lines.append(f"tokens: of {tokens.dim} numbers, {tokens.dtype}; {size / max(1, meta.rows):,.0f} bytes per text")
    if words:
        lines.append("words: of all texts, for hybrid searches")
    if (faiss := meta.faiss) is None:
        return [*lines, "search: everything is scored (no FAISS index)"]
    lines.append(f"search: {faiss}")
    if (tuned := faiss.tuned) is None:
        return [*lines, "recall: not measured (`polyencoder update` measures it)"]
    wanted = "wanted" if tuned.reached else "wanted, and not reached"
    since = "" if tuned.rows == meta.rows else f"; measured with {tuned.rows:,} vectors"
    return [*lines, f"recall: {tuned.recall:g} {wanted}; {tuned}{since}"]
