"""`-t selection:convai2`: Persona-Chat as the ConvAI2 competition gave it, in ParlAI's text format.

Each line is `number text` or `number text<tab>label<tab><tab>candidate|candidate|...`; number 1 begins an episode, and
lines without a tab are the persona, which goes before the first message. Official files, under `--datapath`/ConvAI2:
`{train,valid}_{self,both,none}_{original,revised}[_no_cands].txt`, plain or `.gz`.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.tasks.convai2.build import build
from parlai.tasks.selection.negatives import add_negatives_args
from parlai.tasks.selection.teacher import CHOICES, SelectionTeacher
from parlai.utils.data import DatatypeHelper
from parlai.utils.misc import warn_once

from polyencoder.errors import ConfigError, InputError

__all__ = ["Convai2Teacher"]

VARIANTS = {
    f"{persona}{'' if text == 'original' else '_' + text}": f"{persona}_{text}"
    for persona in ("self", "both", "none")
    for text in ("original", "revised")
}
DEFAULT = "self"


class Example(NamedTuple):
    text: str
    label: str
    candidates: str  # as in the file, joined by "|"; "" where there are none
    begins_episode: bool


class Convai2Teacher(SelectionTeacher):
    """Persona and history in the context; 20 candidates where the file has them, else sampled when they are wanted.

    `-t selection:convai2` is `self_original`; `selection:convai2:both`, `:none`, `:self_revised`, ... are the others.
    """

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        super().add_cmdline_args(parser, partial_opt)
        add_negatives_args(parser)
        return parser

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        opt = opt.copy()
        if shared is None:
            opt["datafile"] = str(_find(opt, DatatypeHelper.fold(opt["datatype"])))
        super().__init__(opt, shared)
        if shared is None and self.wants_candidates and not next(_examples(Path(opt["datafile"]))).candidates:
            path = _find(opt, "train")
            self.sample_from((example.label for example in _examples(path)), source=str(path))

    def setup_data(self, datafile: str) -> Iterator[tuple[dict[str, Any], bool]]:
        for example in _examples(Path(datafile)):
            message: dict[str, Any] = {"text": example.text, "labels": [example.label]}
            if example.candidates and self.gives_candidates:
                message[CHOICES] = example.candidates
            yield message, example.begins_episode


def _find(opt: Opt, split: str) -> Path:
    """The file of a split: with candidates if it is there, else without; downloaded when there is neither."""
    parts = opt["task"].split(":")[2:]
    variant = parts[0].removesuffix("_original") if parts else DEFAULT
    if variant not in VARIANTS:
        raise ConfigError(f"-t selection:convai2:{variant}: unknown variant; use one of {', '.join(VARIANTS)}")
    if split == "test":
        warn_once("ConvAI2's test set is hidden: the validation set stands in for it.")
        split = "valid"
    folder = Path(opt["datapath"]) / "ConvAI2"
    names = [f"{split}_{VARIANTS[variant]}{cands}.txt{end}" for cands in ("", "_no_cands") for end in ("", ".gz")]
    if not any((folder / name).is_file() for name in names):
        try:
            build(opt)
        except Exception as error:  # no network, a full disk, a damaged download: whatever it was, the file is missing
            cause = " ".join(str(error).split())
            raise InputError(
                f"{folder}: has none of {', '.join(names)}, and ParlAI's download failed ({cause}); "
                f"give --datapath a folder with ConvAI2/ in it"
            ) from error
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise InputError(f"{folder}: has none of {', '.join(names)}; give --datapath a folder with ConvAI2/ in it")


def _examples(path: Path) -> Iterator[Example]:
    """The examples of a file, in order. Persona lines that no utterance follows are left out."""
    opener = gzip.open if path.suffix == ".gz" else open
    persona: list[str] = []
    new_episode = True
    found = False
    with opener(path, "rt", encoding="utf-8") as file:
        try:
            for line_number, line in enumerate(file, start=1):
                number, _, rest = line.rstrip().partition(" ")
                if not number.isdigit() or not rest:
                    raise InputError(f"{path}, line {line_number}: not `number text`, but {line[:60]!r}")
                if number == "1":
                    persona, new_episode = [], True
                fields = rest.split("\t")
                if len(fields) == 1:
                    persona.append(rest)
                    continue
                if not fields[1]:
                    raise InputError(f"{path}, line {line_number}: has no label behind its first tab")
                candidates = fields[3] if len(fields) > 3 else ""
                yield Example("\n".join([*persona, fields[0]]), fields[1], candidates, new_episode)
                persona, new_episode, found = [], False, True
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise InputError(f"{path}: damaged or not UTF-8 text ({error})") from None
    if not found:
        raise InputError(f"{path}: has no example in it: no line is `number text<tab>label`")
