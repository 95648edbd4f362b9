"""Index folders: a SQLite database, and files of vectors beside it that are mapped into memory."""

from __future__ import annotations

from polyencoder.index.folder.index import FolderIndex, described_folder, remove_index

__all__ = ["FolderIndex", "described_folder", "remove_index"]
