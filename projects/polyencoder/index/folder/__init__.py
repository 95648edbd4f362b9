"""Index folders: a SQLite database, and memory-mapped files of vectors beside it."""

from __future__ import annotations

from polyencoder.index.folder.index import FolderIndex, described_folder, remove_index

__all__ = ["FolderIndex", "described_folder", "remove_index"]
