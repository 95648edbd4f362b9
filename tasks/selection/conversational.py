"""`-t selection:reddit`, `-t selection:amazonqa`: PolyAI's conversational datasets as JSON lines.

Each line is `{"context": the last message, "context/0": the one before, "context/1": ..., "response": ...}`. PolyAI's
project creates them from the raw dumps; they cannot be downloaded. Files, under `--datapath`/reddit or /amazonqa:
`train-*.json`, `test-*.json`, plain or `.gz`, or those that `--selection-file` names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.tasks.selection.epochs import Episode
from parlai.tasks.selection.pairs import add_file_argument
from parlai.tasks.selection.teacher import SelectionTeacher

from polyencoder.data.example import Example
from polyencoder.data.pairs import read_pairs
from polyencoder.data.readers import DataFile, OnBad, expand
from polyencoder.errors import InputError

GROUP_SIZE = 100  # of the 1-of-100 evaluation


class ConversationalTeacher(SelectionTeacher):
    """Conversational datasets with PolyAI's 1-of-100 evaluation.

    The responses of 100 consecutive examples are the candidates of each of them; a last, smaller group is dropped.
    """

    folder: str
    max_turns: int

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        super().add_cmdline_args(parser, partial_opt)
        add_file_argument(parser)
        return parser

    def files(self, split: str) -> list[str]:
        if self.opt.get("selection_file"):
            return expand(self.opt["selection_file"])
        root = Path(self.opt["datapath"]) / self.folder
        names = [split, "test"] if split == "valid" else [split]
        for name in names:  # PolyAI's data has no validation files
            if paths := sorted(str(path) for path in root.glob(f"{name}-*.json*")):
                return paths
        raise InputError(
            f"{root}: has no {' or '.join(f'{name}-*.json' for name in names)}; make them with PolyAI's "
            f"conversational-datasets (JSON format), or name files with --selection-file 'GLOB'"
        )

    def read(self, file: str | DataFile, bad: OnBad) -> Iterator[Episode]:
        examples = self._read_examples(file, bad)
        if self.training:
            yield from ([example] for example in examples)
            return
        while len(group := list(islice(examples, GROUP_SIZE))) == GROUP_SIZE:
            responses = [example.label for example in group]
            yield from ([replace(example, candidates=responses)] for example in group)

    def _read_examples(self, file: str | DataFile, bad: OnBad) -> Iterator[Example]:
        for pair in read_pairs(file, bad=bad):
            yield Example([_join_lines(turn) for turn in pair.turns[-self.max_turns :]], _join_lines(pair.label))


class RedditTeacher(ConversationalTeacher):
    """A Reddit thread: the last message, up to ten before it (PolyAI's extra contexts), and the response."""

    folder, max_turns = "reddit", 11


class AmazonqaTeacher(ConversationalTeacher):
    """A question about a product, and its answer."""

    folder, max_turns = "amazonqa", 1


def _join_lines(text: str) -> str:
    """The message on one line, because line breaks separate messages."""
    return " ".join(text.split())
