"""Index folders: a SQLite database, and memory-mapped files of vectors beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyencoder.lazy import lazy_names

if TYPE_CHECKING:
    from polyencoder.index.folder.index import FolderIndex, described_folder, remove_index

__all__ = [
    "FolderIndex",
    "described_folder",
    "remove_index",
]

_MODULES = {
    **dict.fromkeys(("FolderIndex", "described_folder", "remove_index"), "index"),
}
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
