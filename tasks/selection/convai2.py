"""`-t selection:convai2`: the ConvAI2 version of Persona-Chat, in ParlAI's text format.

Each line is `number text` or `number text<tab>label<tab><tab>candidate|candidate|...`; number 1 begins an episode;
lines without a tab are the persona, which precedes the first message. Official files, under `--datapath`/ConvAI2:
`{train,valid}_{self,both,none}_{original,revised}[_no_cands].txt`, plain or `.gz`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from sys import intern

from parlai.tasks.convai2.build import build
from parlai.tasks.selection.download import find
from parlai.tasks.selection.epochs import Episode
from parlai.tasks.selection.teacher import SelectionTeacher
from parlai.utils.misc import warn_once

from polyencoder.data.example import Example
from polyencoder.data.readers import DataFile, OnBad, iter_lines
from polyencoder.errors import ConfigError, InputError

VARIANTS = {
    f"{persona}{'' if text == 'original' else '_' + text}": f"{persona}_{text}"
    for persona in ("self", "both", "none")
    for text in ("original", "revised")
}
DEFAULT, BOTH_SIDES = "self", "both_sides"
SILENCE = "__SILENCE__"
"""The text before a speaker's opening utterance in ConvAI2's files."""


class Convai2Teacher(SelectionTeacher):
    """Persona and history in the context; 20 candidates from the file, or sampled if the file has none.

    `-t selection:convai2` is `self_original`; `selection:convai2:both`, `:none`, `:self_revised`, ... are the others.
    `:both_sides` is `self_original` with every utterance of its training dialogues as a label, as in the paper.
    """

    def files(self, split: str) -> list[str]:
        if split == "test":
            warn_once("ConvAI2's test set is not public: the validation set is used instead.")
            split = "valid"
        return [str(self._find(split))]

    def read(self, file: str | DataFile, bad: OnBad) -> Iterator[Episode]:
        episodes = _iter_episodes(file, bad)
        return _iter_both_sides(episodes) if self._variant == BOTH_SIDES and self.training else episodes

    @property
    def _variant(self) -> str:
        parts = self.opt["task"].split(":")[2:]
        return parts[0].removesuffix("_original") if parts else DEFAULT

    def _find(self, split: str) -> Path:
        """The file of a split: with candidates if there is one, else without."""
        if self._variant not in (*VARIANTS, BOTH_SIDES):
            variants = ", ".join([*VARIANTS, BOTH_SIDES])
            raise ConfigError(f"-t selection:convai2:{self._variant}: unknown variant; use one of {variants}")
        variant = VARIANTS[DEFAULT if self._variant == BOTH_SIDES else self._variant]
        names = [f"{split}_{variant}{cands}.txt" for cands in ("", "_no_cands")]
        return find(self.opt, "ConvAI2", names, build=build)


def _iter_episodes(file: str | DataFile, bad: OnBad) -> Iterator[Episode]:
    episode: Episode = []
    for begins, example in _read_examples(file, bad):
        if begins and episode:
            yield episode
            episode = []
        episode.append(example)
    if episode:
        yield episode


def _iter_both_sides(episodes: Iterator[Episode]) -> Iterator[Episode]:
    """Yields each dialogue twice: with the second speaker's utterances as labels, then with the first speaker's.

    The official files contain both, one after the other. If a file has only the second speaker's episode, the first
    speaker's is derived from it: its labels are the other's texts, and it has no persona.
    """
    waiting: Episode | None = None
    for episode in episodes:
        opens = episode[0].turns[-1] == SILENCE
        if waiting is not None and not opens:
            yield _swap_sides(waiting)
        waiting = None if opens else episode
        yield episode
    if waiting is not None:
        yield _swap_sides(waiting)


def _swap_sides(episode: Episode) -> Episode:
    texts = [example.turns[-1] for example in episode]  # without the persona's lines
    heard = [SILENCE, *(example.label for example in episode)]
    return [Example([text], label) for text, label in zip(heard, texts, strict=False)]


def _read_examples(path: str | DataFile, bad: OnBad) -> Iterator[tuple[bool, Example]]:
    """Yields (whether an episode begins, example). Persona lines that no utterance follows are dropped."""
    persona: list[str] = []
    begins = True
    for line_number, line in iter_lines(path, bad=bad):
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
            bad(InputError(f"{path}, line {line_number}: has no label after its first tab"))
            continue
        label, candidates = fields[0], None
        if len(fields) > 2 and fields[2]:
            candidates = [*map(intern, fields[2].split("|"))]  # equal texts share memory
            if label not in candidates:
                bad(InputError(f"{path}, line {line_number}: the label {label[:60]!r} is not among its candidates"))
                continue
        yield begins, Example([*persona, text], label, candidates)
        persona, begins = [], False
