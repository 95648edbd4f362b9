"""Says what a file or folder is that holds no model: errors name what is there, not only what is missing."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

_MAGIC = (
    (b"GGUF", "a model of llama.cpp (GGUF): take the encoder that it was converted from"),
    (b"PAR1", "a Parquet file, which holds data: give it where data or candidates are read"),
    (b"SQLite format 3", "an SQLite database: an index is given by its folder, where an index is asked for"),
    *(
        (magic, "a compressed file: unpack it, and give the result")
        for magic in (b"\x1f\x8b", b"\xfd7zXZ", b"(\xb5/\xfd")
    ),
)
_DATA = (".json", ".jsonl", ".csv", ".tsv", ".txt", ".parquet", ".arrow", ".yaml", ".yml", ".md")
_NO_CONFIG = "weights without their config.json: copy it from the same model"
# patterns in a folder -> what it is, the first that fits
_FOLDERS = (
    ("index.sqlite", "an index of candidates: give it where an index is asked for, beside a model"),
    ("unfinished.sqlite", "an index whose build was interrupted: `polyencoder index` finishes it"),
    ("onnx.json", "ONNX graphs of a ranker: load it with the backend onnx"),
    ("adapter_config.json", "adapters of PEFT, which belong to another model"),
    ("*.gguf", "a model of llama.cpp (GGUF): take the encoder that it was converted from"),
    ("training/checkpoint.pt", "the folder of a run that has no model yet: the same `polyencoder train` resumes it"),
    ("checkpoint-*/config.json", "the folder of a trainer: give one of the checkpoints in it, such as {first}"),
    ("*/config.json", "no model, but a folder in it may be one: {first}"),
    *((name, _NO_CONFIG) for name in ("model.safetensors*", "pytorch_model.bin*")),
    ("**/*.onnx", "ONNX graphs of another program, without torch's weights"),
    *((name, "a model without torch's weights") for name in ("openvino_model.xml", "*.pb", "*.h5", "*.msgpack")),
    *((name, "a data set, not a model") for name in ("dataset_info.json", "*.arrow", "*.parquet", "*.jsonl", "*.csv")),
    ("config.json", "a configuration alone, without weights"),
)


def describe_file(path: str | os.PathLike[str]) -> str | None:
    """The kind of a file or folder, and what to do with it; None if it looks like nothing known."""
    location = Path(path)
    try:
        return (
            _explain_folder(location) if location.is_dir() else _explain_file(location) if location.is_file() else None
        )
    except Exception:  # of a damaged archive, whose reader raises anything
        return None


def _explain_folder(folder: Path) -> str | None:
    for pattern, what in _FOLDERS:
        if first := next(iter(sorted(folder.glob(pattern))), None):
            return what.format(first=first.parent.name)
    names = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")]
    return f"a folder of other files, such as {min(names)}" if names else "an empty folder"


def _explain_file(file: Path) -> str | None:
    with file.open("rb") as opened:
        head = opened.read(64)
    if description := next((what for magic, what in _MAGIC if head.startswith(magic)), None):
        return description
    if file.suffix == ".safetensors" or (head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 30):
        return "weights alone: give the folder that they are in, with its config.json"
    if file.suffix == ".onnx":
        return "one ONNX graph: give the folder that it is in, with the backend onnx"
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            is_torch = any(name.endswith(("data.pkl", "constants.pkl")) for name in archive.namelist())
        return None if is_torch else "a zip archive: unpack it, and give the folder in it"
    if head[257:262] == b"ustar" or file.suffix == ".tar":
        return "a tar archive: unpack it, and give the folder or file in it"
    return "a file of text or data, not a model" if file.suffix in _DATA else None
