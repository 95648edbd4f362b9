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
from polyencoder.data.readers import DataFile, OnBad, iter_records
from polyencoder.data.seeded_random import SeededRandom
from polyencoder.data.ubuntu import CONTEXT, join_ubuntu_turn, parse_ubuntu_turns
from polyencoder.errors import InputError

WRONG = "Distractor_"


class UbuntuTeacher(SelectionTeacher):
    """Each turn of the context is a line, its utterances joined by spaces. Training rows labelled 0 are dropped.

    Training: every turn of a row labelled 1 is a label, with those before it as its context (the data augmentation of
    Section 5.1 of the paper's first version). `-t selection:ubuntu:plain` trains only on the right answers.
    """

    num_negatives = 15  # Section 5.1 of the paper

    def files(self, split: str) -> list[str]:
        return [str(find(self.opt, "Ubuntu", [f"{split}.csv"], build=build))]

    def open_source(self, split: str) -> Source[Episode]:
        self._augments = self.augments(split)
        return super().open_source(split)

    def read(self, file: str | DataFile, bad: OnBad) -> Iterator[Episode]:
        for where, row in iter_records(file, bad=bad):
            try:
                turns = parse_ubuntu_turns(row, where)
                if turns and (len(turns) < 2 or not turns[-1]):
                    raise InputError(f"{where}: its {'context' if len(turns) < 2 else 'response'} is empty")
            except InputError as error:
                bad(error)
                continue
            if turns is None:
                continue
            if self._augments:
                yield from ([Example(turns[:n], turns[n])] for n in range(1, len(turns)))
                continue
            wrong = [join_ubuntu_turn(text) for name, text in row.items() if name.startswith(WRONG)]
            # in the file the right one always comes first
            candidates = SeededRandom(row[CONTEXT]).shuffle_buffered([turns[-1], *wrong]) if wrong else None
            yield [Example(turns[:-1], turns[-1], candidates)]
