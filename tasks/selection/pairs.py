"""`-t selection:jsonl`: one's own pairs, without writing a task: JSON lines, CSV, TSV, Parquet, Hugging Face datasets.

A record is `{"context": ["...", "..."] or "...", "response": "...", "candidates": [...]}`; the candidates may be
missing, and the names of the columns be others. `--selection-file GLOB` names the files for whichever `-dt`,
`--selection-folder FOLDER` one that holds `train.*`, `valid.*` and `test.*`, `--selection-hf NAME:SPLIT` a dataset of
the hub or a folder that `datasets` reads, one record at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.tasks.selection.teacher import CHOICES, SelectionTeacher

from polyencoder.data.episodes import Counts
from polyencoder.data.epochs import Episode
from polyencoder.errors import ConfigError, InputError, first_line
from polyencoder.extras import require
from polyencoder.reading import DataFile, OnBad, expand, records

__all__ = ["JsonlTeacher", "add_file_argument"]

HUB = "hf:"  # what a "file" begins with that is a dataset


def add_file_argument(parser: ParlaiParser) -> None:
    """Adds `--selection-file`."""
    group = parser.add_argument_group("Selection tasks from files")
    group.add_argument(
        "--selection-file",
        type=str,
        default=None,
        help="The files to read, whichever -dt: names or patterns such as 'data/*.jsonl.gz', separated by commas.",
    )


class JsonlTeacher(SelectionTeacher):
    """Pairs of a context and a response, each one an episode."""

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        super().add_cmdline_args(parser, partial_opt)
        add_file_argument(parser)
        group = parser.add_argument_group("Selection tasks from one's own data")
        group.add_argument(
            "--selection-folder",
            type=str,
            default=None,
            help="A folder with train.*, valid.* and test.* (.jsonl, .csv, .tsv or .parquet, .gz behind it or not).",
        )
        group.add_argument(
            "--selection-hf",
            type=str,
            default=None,
            help="A Hugging Face dataset and its split, NAME:SPLIT or NAME@CONFIG:SPLIT, read as a stream.",
        )
        for name, what in COLUMNS.items():
            group.add_argument(f"--selection-{name}", type=str, default=name, help=f"The column with the {what}.")
        return parser

    def files(self, split: str) -> list[str]:
        file, folder, hub = (self.opt.get(f"selection_{name}") for name in ("file", "folder", "hf"))
        if sum(map(bool, (file, folder, hub))) != 1:
            raise ConfigError(
                f"-t {self.opt['task']}: give one of --selection-file, --selection-folder and --selection-hf"
            )
        if hub:
            return [f"{HUB}{hub}"]
        if file:
            return expand(file)
        found = sorted(str(path) for path in Path(folder).glob(f"{split}.*"))
        if not found:
            raise InputError(
                f"{folder}: has no {split}.jsonl, {split}.csv, ...; --selection-folder needs one for each -dt"
            )
        return found

    def read(self, file: str | DataFile, bad: OnBad) -> Iterator[Episode]:
        hub = str(file).startswith(HUB)
        rows = _hub_rows(str(file).removeprefix(HUB)) if hub else records(file, bad=bad)
        context, response, candidates = (self.opt.get(f"selection_{name}", name) for name in COLUMNS)
        for where, record in rows:
            try:
                message: dict[str, Any] = {"text": _context(record[context]), "labels": [_text(record[response])]}
                options = _options(record.get(candidates))
            except KeyError as error:
                bad(
                    InputError(
                        f"{where}: has no {error}; it has {', '.join(map(repr, record)) or 'nothing'}. Name its "
                        "columns with --selection-context and --selection-response"
                    )
                )
                continue
            except TypeError as error:
                bad(InputError(f"{where}: {error}"))
                continue
            if options:
                if message["labels"][0] not in options:
                    bad(InputError(f"{where}: its response is not among its {len(options)} candidates"))
                    continue
                message[CHOICES] = options
            yield [message]

    def estimate(self, files: Sequence[str]) -> Counts:
        if not files[0].startswith(HUB):
            return super().estimate(files)
        _, split, dataset = _hub(files[0].removeprefix(HUB))
        known = (dataset.info.splits or {}).get(split)
        rows = known.num_examples if known else sum(1 for _ in dataset)
        return Counts(rows, rows)


COLUMNS = {"context": "context: a text or a list of turns", "response": "response", "candidates": "candidates: a list"}


def _hub(name: str) -> tuple[str, str, Any]:
    """(name, split, dataset) of `NAME:SPLIT` or `NAME@CONFIG:SPLIT`."""
    path, _, split = name.rpartition(":")
    if not path:
        raise ConfigError(f"--selection-hf {name}: give NAME:SPLIT, such as squad:train")
    path, _, config = path.partition("@")
    load_dataset = require("datasets", extra="data").load_dataset
    try:
        return path, split, load_dataset(path, config or None, split=split, streaming=True)
    except Exception as error:  # whatever the network, the hub or the files do
        raise InputError(f"--selection-hf {name}: cannot be read ({first_line(error)})") from error


def _hub_rows(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, row in enumerate(_hub(name)[2], start=1):
        yield f"{name}, row {number}", row


def _context(value: Any) -> str:
    if isinstance(value, str):
        lines = [value]
    elif isinstance(value, list) and all(isinstance(turn, str) for turn in value):
        lines = value
    else:
        raise TypeError(f"the context is neither a text nor a list of texts, but {type(value).__name__}")
    if not "".join(lines).strip():
        raise TypeError("the context is empty")
    return "\n".join(line.strip() for line in lines if line.strip())


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TypeError(f"the response is {'empty' if isinstance(value, str) else type(value).__name__}, not a text")
    return value.strip()


def _options(value: Any) -> list[str]:
    if value is None or value == "":
        return []
    if isinstance(value, str):  # one cell of a CSV file
        value = value.split("|")
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise TypeError("the candidates are not a list of texts (in CSV: joined by |)")
    return [text.strip() for text in value]
