"""`-t selection:dstc7`: the sentence selection track of DSTC7 on Ubuntu dialogues, 100 options for the next utterance.

Official files, under `--datapath`/dstc7: `ubuntu_{train,dev,test}_subtask_1.json`, each a JSON array of dialogues, and
`ubuntu_responses_subtask_1.tsv` (`example-id<tab>candidate-id<tab>utterance`) with the answers of the test set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parlai.tasks.dstc7.build import build
from parlai.tasks.selection.download import find
from parlai.tasks.selection.epochs import Episode
from parlai.tasks.selection.teacher import SelectionTeacher

from polyencoder.data.epochs import Source
from polyencoder.data.example import Example
from polyencoder.data.readers import DataFile, OnBad, iter_json_array, iter_lines
from polyencoder.errors import InputError

FOLDER = "dstc7"
ANSWERS = "ubuntu_responses_subtask_1.tsv"


class Dstc7Teacher(SelectionTeacher):
    """Training: every utterance of a dialogue is a label, with those before it as its context (the data augmentation of
    Section 5.1 of the paper's first version). Evaluation: the right answer among the 100 options of the file.

    `-t selection:dstc7:plain` trains on the right answers alone, with their options.
    """

    num_negatives = 15  # Section 5.1 of the paper

    def files(self, split: str) -> list[str]:
        name = {"valid": "dev"}.get(split, split)
        return [str(find(self.opt, FOLDER, [f"ubuntu_{name}_subtask_1.json"], build=build))]

    def open_source(self, split: str) -> Source[Episode]:
        self._augments = self.augments(split)
        self._answers = self._read_answers() if split == "test" else {}
        return super().open_source(split)

    def read(self, file: str | DataFile, bad: OnBad) -> Iterator[Episode]:
        for where, record in iter_json_array(file, bad=bad):
            try:
                turns, replies, options = self._parse_dialogue(record)
                if not turns:
                    raise InputError(f"{where}: has no message before the answer")
                if options is not None and replies[-1] not in options:
                    raise InputError(
                        f"{where}: the right answer {replies[-1][:60]!r} is not among its {len(options)} options"
                    )
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                bad(InputError(f"{where}: not a dialogue of DSTC7's subtask 1 ({type(error).__name__}: {error})"))
            except InputError as error:
                bad(error)
            else:
                for number in range(1 if self._augments else len(turns), len(turns) + 1):
                    yield [Example(turns[:number], replies[number], options)]

    def _parse_dialogue(self, record: dict[str, Any]) -> tuple[list[str], list[str], list[str] | None]:
        """The turns, `participant 1: utterance`; the utterances alone, the right answer behind them; the options."""
        messages = [
            (message["speaker"].replace("_", " "), _get_utterance(message)) for message in record["messages-so-far"]
        ]
        replies = [*(utterance for _, utterance in messages), self._get_answer(record)]
        options = None if self._augments else [_get_utterance(option) for option in record["options-for-next"]]
        return [f"{speaker}: {utterance}" for speaker, utterance in messages], replies, options

    def _get_answer(self, record: dict[str, Any]) -> str:
        if self._answers and "options-for-correct-answers" not in record:
            return self._answers[str(record["example-id"])]
        return _get_utterance(record["options-for-correct-answers"][0])

    def _read_answers(self) -> dict[str, str]:
        """The test set's answers, by the id of their example."""
        path = find(self.opt, FOLDER, [ANSWERS], build=build)
        answers = {}
        for number, line in iter_lines(path, bad=self.bad):
            fields = line.split("\t")
            if len(fields) == 3:
                answers[fields[0]] = fields[2]
            elif line.strip():
                self.bad(InputError(f"{path}, line {number}: not `example-id<tab>candidate-id<tab>utterance`"))
        return answers


def _get_utterance(message: dict[str, Any]) -> str:
    text = message["utterance"]
    if not isinstance(text, str):
        raise TypeError(f"an utterance is {text!r:.60}, not a text")
    return text
