"""`-t selection:ubuntu`: the Ubuntu Dialogue Corpus v2 as CSV files, ten candidates for the next turn.

Official files, under `--datapath`/Ubuntu: `train.csv` (`Context,Utterance,Label`, half of the rows with a wrong
utterance) and `valid.csv`, `test.csv` (`Context,Ground Truth Utterance,Distractor_0,...,Distractor_8`). `__eou__` ends
an utterance, `__eot__` a turn.
"""

from __future__ import annotations

from collections.abc import Iterator

from parlai.tasks.selection.download import find
from parlai.tasks.selection.epochs import Episode
from parlai.tasks.selection.teacher import SelectionTeacher
from parlai.tasks.ubuntu.build import build

from polyencoder.data.epochs import Source
from polyencoder.data.example import Example
from polyencoder.data.readers import DataFile, OnBad, records
from polyencoder.data.seeded_random import SeededRandom
from polyencoder.errors import ConfigError, InputError

__all__ = ["UbuntuTeacher"]

CONTEXT, RIGHT, WRONG = "Context", "Ground Truth Utterance", "Distractor_"
UTTERANCE, LABEL = "Utterance", "Label"


class UbuntuTeacher(SelectionTeacher):
    """Each turn of the context a line, its utterances joined by a space. Training rows labelled 0 are left out.

    Training: every turn of a right row is a label, with those before it as its context (the data augmentation of
    Section 5.1 of the paper's first version). `-t selection:ubuntu:plain` trains on the right answers alone.
    """

    num_negatives = 15  # Section 5.1 of the paper

    def files(self, split: str) -> list[str]:
        return [str(find(self.opt, "Ubuntu", [f"{split}.csv"], build=build))]

    def open_source(self, split: str) -> Source[Episode]:
        variant = self.opt["task"].split(":")[2:]
        if variant not in ([], ["plain"]):
            raise ConfigError(f"-t {self.opt['task']}: unknown variant; use selection:ubuntu or selection:ubuntu:plain")
        self._augments = split == "train" and not variant
        return super().open_source(split)

    def read(self, file: str | DataFile, bad: OnBad) -> Iterator[Episode]:
        for where, row in records(file, bad=bad):
            try:
                if LABEL in row:
                    if (value := float(row[LABEL])) not in (0, 1):
                        raise ValueError
                    if not value:
                        continue
                    right, wrong = row[UTTERANCE], []
                else:
                    right, wrong = row[RIGHT], [text for name, text in row.items() if name.startswith(WRONG)]
                context = row[CONTEXT]
            except KeyError as error:
                bad(InputError(f"{where}: has no column {error}; it has {', '.join(map(repr, row))}"))
                continue
            except ValueError:
                bad(InputError(f"{where}: the label is {row[LABEL]!r}, neither 0 nor 1"))
                continue
            turns, label = _turns(context), _turn(right)
            if not turns or not label:
                bad(InputError(f"{where}: its {'response' if turns else 'context'} is empty"))
                continue
            if self._augments:
                turns.append(label)
                yield from ([Example(turns[:n], turns[n])] for n in range(1, len(turns)))
                continue
            # in the file the right one is always the first
            candidates = SeededRandom(context).shuffled([label, *map(_turn, wrong)]) if wrong else None
            yield [Example(turns, label, candidates)]


def _turns(text: str) -> list[str]:
    """Blanks are left as they are, which takes half the time of `_turn`."""
    if "\n" in text:  # in a quoted cell; it must not look like the end of a turn
        text = " ".join(text.split())
    text = text.replace(" __eou__ ", " ").replace("__eou__", " ")
    return [turn for part in text.split("__eot__") if (turn := part.strip())]


def _turn(text: str) -> str:
    return " ".join(text.replace("__eou__", " ").replace("__eot__", " ").split())
