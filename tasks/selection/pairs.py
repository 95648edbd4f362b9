"""`-t selection:jsonl`: your own pairs, without writing a task: JSON lines, CSV, TSV, Parquet, Hugging Face datasets.

A record is `{"context": ["...", "..."] or "...", "response": "...", "candidates": [...]}`; candidates are optional,
and columns may have other names. Of several right responses (`responses`, or candidates with `labels`) all are labels.
`--selection-file GLOB` names the files for every `-dt`, `--selection-folder FOLDER` a folder with `train.*`, `valid.*`
and `test.*`, `--selection-hf NAME:SPLIT` a dataset of the hub, or a folder that `datasets` can read; it is streamed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.tasks.selection.epochs import Episode
from parlai.tasks.selection.teacher import SelectionTeacher

from polyencoder.data.epochs import Counts
from polyencoder.data.layouts import Columns
from polyencoder.data.pairs import HUB, estimate_pair_counts, read_pairs
from polyencoder.data.readers import DataFile, OnBad, detect_format, expand
from polyencoder.errors import ConfigError, InputError


def add_file_argument(parser: ParlaiParser) -> None:
    """Adds `--selection-file`."""
    group = parser.add_argument_group("Selection tasks from files")
    group.add_argument(
        "--selection-file",
        type=str,
        default=None,
        help="The files to read for every -dt: names or patterns such as 'data/*.jsonl.gz', separated by commas.",
    )


class JsonlTeacher(SelectionTeacher):
    """(context, response) pairs, each an episode."""

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        super().add_cmdline_args(parser, partial_opt)
        add_file_argument(parser)
        group = parser.add_argument_group("Selection tasks on your own data")
        group.add_argument(
            "--selection-folder",
            type=str,
            default=None,
            help="A folder with train.*, valid.* and test.* (.jsonl, .csv, .tsv or .parquet, plain or .gz).",
        )
        group.add_argument(
            "--selection-hf",
            type=str,
            default=None,
            help="A Hugging Face dataset and split, NAME:SPLIT or NAME@CONFIG:SPLIT, read as a stream.",
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
        # ParlAI's own teachers put files such as train.jsonl.lengths beside their data
        paths = sorted(str(path) for path in Path(folder).glob(f"{split}.*") if detect_format(path) != "txt")
        if not paths:
            raise InputError(
                f"--selection-folder {folder}: has no {split}.jsonl, {split}.csv, ...; it needs one for "
                "each part of the data"
            )
        return paths

    def read(self, file: str | DataFile, bad: OnBad) -> Iterator[Episode]:
        return ([pair] for pair in read_pairs(file, columns=self._columns, bad=bad))

    def estimate(self, files: Sequence[str]) -> Counts:
        return estimate_pair_counts(files, columns=self._columns)

    @property
    def _columns(self) -> Columns:
        names = {name: self.opt.get(f"selection_{name}", name) for name in COLUMNS}
        return Columns(**names)


COLUMNS = {
    "context": "context: a text or a list of turns",
    "response": "response",
    "candidates": "candidates: a list",
    "responses": "right responses, several in place of one: a list",
    "labels": "candidates' labels, numbers in place of a response: a list; above 0 is right",
}
