"""The names of an index folder's files. Only what is called so is ever removed."""

from __future__ import annotations

import re
from pathlib import Path

from polyencoder.errors import InputError

__all__ = ["DATABASE", "LOCK", "META", "UNFINISHED", "check_no_links", "check_only_ours", "is_ours"]

DATABASE = "index.sqlite"
UNFINISHED = "unfinished.sqlite"
"""The database while the index is built; renaming it finishes the build."""
META = "meta.json"
LOCK = ".lock"

_FINAL = (
    r"(index|unfinished)\.sqlite|meta\.json|vectors-\d{12}-[0-9a-f]{16}(\.scales)?\.npy"
    r"|faiss-[0-9a-f]{16}(\.json|-(flat|hnsw|ivf-flat|ivf-pq)\.index)"
)
_TEMPORARY = rf"\.({_FINAL}|model)\.[a-z0-9_]{{8}}\.part"
_OURS = re.compile(rf"({_FINAL}|{_TEMPORARY})|((index|unfinished)\.sqlite|{_TEMPORARY})-(wal|shm)|\.lock")


def is_ours(name: str) -> bool:
    """Whether a file of an index can be called so."""
    return _OURS.fullmatch(name) is not None


def check_only_ours(folder: Path) -> list[Path]:
    """The files of a folder. Raises InputError, with the name of the first, if one is not of an index."""
    paths = sorted(folder.iterdir())
    if strange := [path.name for path in paths if not is_ours(path.name)]:
        raise InputError(
            f"{folder}: has {strange[0]} in it, which belongs to no index of this version; give another folder, or "
            "take it out"
        )
    return paths


def check_no_links(folder: Path) -> None:
    """Raise InputError if a file of an index is a symbolic link: who writes to it would change a file elsewhere."""
    if links := [path.name for path in sorted(folder.iterdir()) if is_ours(path.name) and path.is_symlink()]:
        raise InputError(
            f"{folder}: {links[0]} is a symbolic link, and a change would be written to where it leads; change a copy "
            "that has the files themselves (cp -rL)"
        )
