"""`-t selection:ubuntu`: the Ubuntu Dialogue Corpus v2 as CSV files, ten candidates for the next turn.

Official files, under `--datapath`/Ubuntu: `train.csv` (`Context,Utterance,Label`, half of the rows with a wrong
utterance) and `valid.csv`, `test.csv` (`Context,Ground Truth Utterance,Distractor_0,...,Distractor_8`). `__eou__` ends
an utterance, `__eot__` a turn.
"""

from __future__ import annotations

from collections.abc import Iterator

from parlai.tasks.selection.download import find
from parlai.tasks.selection.teacher import CHOICES, SelectionTeacher
from parlai.tasks.ubuntu.build import build

from polyencoder.data.dice import Dice
from polyencoder.data.epochs import Episode
from polyencoder.errors import InputError
from polyencoder.reading import DataFile, OnBad, records

__all__ = ["UbuntuTeacher"]

CONTEXT, RIGHT, WRONG = "Context", "Ground Truth Utterance", "Distractor_"
UTTERANCE, LABEL = "Utterance", "Label"


class UbuntuTeacher(SelectionTeacher):
    """Each turn of the context a line, its utterances joined by a space. Training rows labelled 0 are left out."""

    def files(self, split: str) -> list[str]:
        return [str(find(self.opt, "Ubuntu", [f"{split}.csv"], build=build))]

    def read(self, file: str | DataFile, bad: OnBad) -> Iterator[Episode]:
        for where, row in records(file, bad=bad):
            try:
                if LABEL in row:
                    if float(row[LABEL]) < 0.5:
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
            message = {"text": "\n".join(_turns(context)), "labels": [_turn(right)]}
            if not message["text"] or not message["labels"][0]:
                bad(InputError(f"{where}: its {'response' if message['text'] else 'context'} is empty"))
                continue
            if wrong:
                # in the file the right one is always the first
                message[CHOICES] = Dice(context).shuffled([message["labels"][0], *map(_turn, wrong)])
            yield [message]


def _turns(text: str) -> list[str]:
    """Blanks are left as they are, which takes half the time of `_turn`."""
    if "\n" in text:  # in a quoted cell; it must not look like the end of a turn
        text = " ".join(text.split())
    text = text.replace(" __eou__ ", " ").replace("__eou__", " ")
    return [turn for part in text.split("__eot__") if (turn := part.strip())]


def _turn(text: str) -> str:
    return " ".join(text.replace("__eou__", " ").replace("__eot__", " ").split())
