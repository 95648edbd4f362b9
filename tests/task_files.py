"""The tasks' official files in miniature: same formats, names and places, other content."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path

from parlai.core.build_data import mark_done

WORDS = [
    "ski",
    "dog",
    "cat",
    "tea",
    "sea",
    "hill",
    "moon",
    "rain",
    "song",
    "cake",
    "tree",
    "boat",
    "fish",
    "star",
    "road",
]


def make_datapath(root: Path) -> Path:
    """Write small files of every task below `root`, marked as ParlAI marks what it has downloaded."""
    for split, count in {"train": 16, "valid": 4}.items():
        write(root / f"ConvAI2/{split}_self_original.txt", "".join(map(_persona_chat, range(count))))
    mark_done(str(root / "ConvAI2"), "v5.0")
    for split in ("train", "dev", "test"):
        dialogues = [dialogue(number, answered=split != "test") for number in range(12)]
        write(root / f"dstc7/ubuntu_{split}_subtask_1.json", json.dumps(dialogues))
    answers = "".join(f"{number}\tid{number}\t{_says(number, 3)}\n" for number in range(12))
    write(root / "dstc7/ubuntu_responses_subtask_1.tsv", answers)
    mark_done(str(root / "dstc7"), "2.0")
    rows = [[_ubuntu_context(n), f"{_says(n, 9)} __eou__", float(n % 2)] for n in range(40)]
    write_csv(root / "Ubuntu/train.csv", ["Context", "Utterance", "Label"], rows)
    header = ["Context", "Ground Truth Utterance", *(f"Distractor_{n}" for n in range(9))]
    for split in ("valid", "test"):
        rows = [[_ubuntu_context(n), *(f"{_says(n, 9 + m)} __eou__" for m in range(10))] for n in range(8)]
        write_csv(root / f"Ubuntu/{split}.csv", header, rows)
    mark_done(str(root / "Ubuntu"))
    for split, count in {"train": 20, "valid": 6, "test": 6}.items():
        articles = ["\t".join(f"{_says(n, m)} of {split}" for m in range(3 + n % 3)) for n in range(count)]
        write(root / f"wiki_article_search/wikipedia_{split}.txt", "\n".join(articles) + "\n")
    for task in ("reddit", "amazonqa"):
        for split in ("train", "test"):  # evaluation takes examples by the hundred
            write(root / f"{task}/{split}-00000-of-00001.json", map(_thread, range(100)))
    return root


def write(path: Path, content: str | bytes | Iterable) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, str | bytes):
        content = "".join(json.dumps(record) + "\n" for record in content)
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


def write_csv(path: Path, header: list[str], rows: Iterable[list], *, delimiter: str = ",") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


def _says(number: int, turn: int) -> str:
    """A sentence that occurs once."""
    words = random.Random(number * 1000 + turn).sample(WORDS, 3)
    return f"the {' '.join(words)} is number {number} at {turn} ."


def _persona_chat(number: int) -> str:
    facts = [f"your persona: i like the {WORDS[(number + n) % len(WORDS)]} ." for n in range(2)]
    lines = []
    for turn in (0, 2):
        candidates = "|".join(
            _says(number + other, turn + 1) for other in (1, 2, 3, 0)
        )  # the label is last, as in theirs
        lines.append(f"{_says(number, turn)}\t{_says(number, turn + 1)}\t\t{candidates}")
    return "".join(f"{line} {text}\n" for line, text in enumerate([*facts, *lines], start=1))


def dialogue(number: int, *, turns: int = 3, options: int = 5, answered: bool = True) -> dict:
    messages = [{"speaker": f"participant_{1 + turn % 2}", "utterance": _says(number, turn)} for turn in range(turns)]
    others = [{"candidate-id": f"id{number + n}", "utterance": _says(number + n, turns)} for n in range(options)]
    others = others[1:3] + others[:1] + others[3:]
    record = {"example-id": number, "messages-so-far": messages, "options-for-next": others, "scenario": 1}
    return record | ({"options-for-correct-answers": [others[2]]} if answered else {})


def _ubuntu_context(number: int) -> str:
    turns = [f"{_says(number, 0)} __eou__ {_says(number, 1)}", _says(number, 2)]
    return " ".join(f"{turn} __eou__ __eot__" for turn in turns)


def _thread(number: int) -> dict:
    return {
        "context": _says(number, 2),
        "context/0": _says(number, 1),
        "context/1": _says(number, 0),
        "response": _says(number, 3),
        "subreddit": "sea",
    }
