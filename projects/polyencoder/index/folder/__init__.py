"""Index folders: a SQLite database, and memory-mapped files of vectors beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyencoder.lazy import lazy_names

if TYPE_CHECKING:
    from polyencoder.index.folder.files import remove_index
    from polyencoder.index.folder.index import FolderIndex
    from polyencoder.index.folder.verify import described_folder

__all__ = ["FolderIndex", "described_folder", "remove_index"]

_MODULES = {
    "FolderIndex": "polyencoder.index.folder.index",
    "described_folder": "polyencoder.index.folder.verify",
    "remove_index": "polyencoder.index.folder.files",
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
