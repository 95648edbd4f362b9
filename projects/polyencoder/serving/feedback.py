"""Ratings of replies, as JSON lines that `polyencoder train` reads."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import filelock

from polyencoder.data.pairs import Columns, pair_of
from polyencoder.errors import ConfigError, PolyencoderError, first_line

__all__ = ["Feedback"]


class Feedback:
    """A file of good replies, each with its context and the other candidates, and beside it one of those that are not.

    Args:
        path: of the good ones, `{"context", "response", "candidates"}`; `PATH.rejected.jsonl` has
            `{"context", "rejected"}`. Lines are appended whole, by all workers.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._good = path
        self._lock = filelock.FileLock(path.with_name(f".{path.name}.lock"))  # all workers write to it
        self._rejected = path.with_name(f"{path.name}.rejected.jsonl")
        try:
            self._append(self._good, b"")
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be written ({first_line(error)}); give another file", argument="feedback"
            ) from None

    def write(self, turns: Sequence[str], response: str, *, candidates: Sequence[str], good: bool) -> None:
        """Keep the rating of a reply, in a line that training and evaluation read.

        Raises:
            InputError: they would refuse it.
            PolyencoderError: the disk is full.
        """
        texts = list(dict.fromkeys(text.strip() for text in (response, *candidates)))
        record: dict[str, Any] = {"context": list(turns), "response": texts[0]}
        if good and len(texts) > 1:  # one candidate alone leaves nothing to choose
            record["candidates"] = texts
        pair_of(record, Columns(), where="feedback")
        if not good:
            record["rejected"] = record.pop("response")
        line = json.dumps(record, ensure_ascii=False) + "\n"
        try:
            self._append(self._good if good else self._rejected, line.encode())
        except OSError as error:
            raise PolyencoderError(f"feedback cannot be written ({first_line(error)})") from None

    def _append(self, path: Path, data: bytes) -> None:
        with self._lock, open(path, "ab", buffering=0) as file:  # closing writes nothing more
            end = file.tell()
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                os.truncate(path, end)  # half of a line would spoil the next one too
                raise
