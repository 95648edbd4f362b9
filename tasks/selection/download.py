"""Finds official files under `--datapath`, plain or compressed, or downloads them with ParlAI's own `build`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from parlai.core.opt import Opt

from polyencoder.errors import InputError
from polyencoder.storage.files import move_files


def find(opt: Opt, folder: str, names: Sequence[str], *, build: Callable[[Opt], Any] | None = None) -> Path:
    """The first of these files that exists in `folder` under `--datapath`, plain or as `.gz`.

    If none exists, `build` downloads them to a temporary folder, from which complete files are moved: ParlAI itself
    leaves files with a wrong checksum and partial archives in the data folder.

    Raises:
        InputError: no file exists, and they could not be downloaded.
    """
    root = Path(opt["datapath"]) / folder
    paths = [root / f"{name}{end}" for name in names for end in ("", ".gz")]
    if path := next((path for path in paths if path.is_file()), None):
        return path
    missing = f"{root}: has none of {', '.join(names)} (plain or .gz)"
    if build is None:
        raise InputError(f"{missing}; give --datapath a folder with {folder}/ in it")
    try:
        _download(opt, folder, build)
    except Exception as error:  # no network, a full disk, a damaged download, ...
        cause = " ".join(str(error).split())
        raise InputError(
            f"{missing}, and ParlAI's download failed ({cause}); give --datapath a folder with {folder}/ in it"
        ) from error
    if path := next((path for path in paths if path.is_file()), None):
        return path
    raise InputError(f"{missing}, also after ParlAI's download")


def _download(opt: Opt, folder: str, build: Callable[[Opt], Any]) -> None:
    root = Path(opt["datapath"])
    root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=root, prefix=f".{folder}-") as temporary:
        build(Opt(opt, datapath=temporary))
        move_files(Path(temporary, folder), root / folder, last=".built")  # ParlAI's mark of a complete folder
