"""`-t selection:convai2`: Persona-Chat as the ConvAI2 competition gave it, in ParlAI's text format.

Each line is `number text` or `number text<tab>label<tab><tab>candidate|candidate|...`; number 1 begins an episode, and
lines without a tab are the persona, which goes before the first message. Official files, under `--datapath`/ConvAI2:
`{train,valid}_{self,both,none}_{original,revised}[_no_cands].txt`, plain or `.gz`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parlai.tasks.convai2.build import build
from parlai.tasks.selection.download import find
from parlai.tasks.selection.teacher import CHOICES, SelectionTeacher
from parlai.utils.misc import warn_once

from polyencoder.data.epochs import Episode
from polyencoder.data.readers import DataFile, OnBad, lines
from polyencoder.errors import ConfigError, InputError

__all__ = ["Convai2Teacher"]

VARIANTS = {
    f"{persona}{'' if text == 'original' else '_' + text}": f"{persona}_{text}"
    for persona in ("self", "both", "none")
    for text in ("original", "revised")
}
DEFAULT = "self"


class Convai2Teacher(SelectionTeacher):
    """Persona and history in the context; 20 candidates where the file has them, else sampled when they are wanted.

    `-t selection:convai2` is `self_original`; `selection:convai2:both`, `:none`, `:self_revised`, ... are the others.
    """

    def files(self, split: str) -> list[str]:
        if split == "test":
            warn_once("ConvAI2's test set is hidden: the validation set stands in for it.")
            split = "valid"
        return [str(self._find(split))]

    def read(self, file: str | DataFile, bad: OnBad) -> Iterator[Episode]:
        episode: Episode = []
        for begins, message in _messages(file, bad):
            if begins and episode:
                yield episode
                episode = []
            episode.append(message)
        if episode:
            yield episode

    def _find(self, split: str) -> Path:
        """The file of a split: with candidates if it is there, else without."""
        parts = self.opt["task"].split(":")[2:]
        variant = parts[0].removesuffix("_original") if parts else DEFAULT
        if variant not in VARIANTS:
            raise ConfigError(f"-t selection:convai2:{variant}: unknown variant; use one of {', '.join(VARIANTS)}")
        names = [f"{split}_{VARIANTS[variant]}{cands}.txt" for cands in ("", "_no_cands")]
        return find(self.opt, "ConvAI2", names, build=build)


def _messages(path: str | DataFile, bad: OnBad) -> Iterator[tuple[bool, dict[str, Any]]]:
    """(whether an episode begins, message) of a file. Persona lines that no utterance follows are left out."""
    persona: list[str] = []
    begins = True
    for line_number, line in lines(path, bad=bad):
        number, _, rest = line.rstrip(" ").partition(" ")
        if not number.isdigit() or not rest:
            bad(InputError(f"{path}, line {line_number}: not `number text`, but {line[:60]!r}"))
            continue
        if number == "1":
            persona, begins = [], True
        text, *fields = rest.split("\t")
        if not fields:
            persona.append(rest)
            continue
        if not fields[0]:
            bad(InputError(f"{path}, line {line_number}: has no label behind its first tab"))
            continue
        message: dict[str, Any] = {"text": "\n".join([*persona, text]), "labels": [fields[0]]}
        if len(fields) > 2 and fields[2]:
            if fields[0] not in fields[2].split("|"):
                bad(InputError(f"{path}, line {line_number}: the label {fields[0][:60]!r} is not among its candidates"))
                continue
            message[CHOICES] = fields[2]
        yield begins, message
        persona, begins = [], False
