"""Commands as tests of errors give them: MODEL stands for a model, and the files lie in the fixture `workdir`."""

from __future__ import annotations

EXPORT, IMPORT, CHECK = ["export", "MODEL", "out"], ["import", "MODEL", "out"], ["check", "MODEL"]
CALIBRATE = ["calibrate", "-m", "MODEL", "-d", "pairs.jsonl"]
INDEX = ["index", "-m", "MODEL", "-c", "texts.txt", "-o", "out", "--no-progress"]
UPDATE = ["update", "-m", "MODEL", "-i", "index", "--add", "texts.txt"]
SEARCH = ["search", "-m", "MODEL", "-i", "index", "--context", "hi"]
SERVE = ["serve", "-m", "MODEL", "-i", "index", "--port", "0"]
MINE = ["mine", "-m", "MODEL", "-p", "pairs.jsonl", "-o", "out.jsonl", "--no-progress"]
EVALUATE = ["evaluate", "-m", "MODEL", "-d", "pairs.jsonl"]
TRAIN = ["train", "--train", "pairs.jsonl", "--init", "MODEL", "--out", "out"]
ENCODE = ["encode", "texts.txt", "-m", "MODEL", "-o", "out.npy", "--no-progress"]
INSPECT = ["inspect", "-m", "MODEL", "--context", "hi", "-c", "texts.txt"]
_NAMED = (EVALUATE, TRAIN, EXPORT, CALIBRATE, INDEX, UPDATE, SEARCH, SERVE, INSPECT, MINE, ENCODE)
COMMANDS = {command[0]: command for command in _NAMED}
ALL = {**COMMANDS, "import": IMPORT, "check": CHECK}


def with_model(command: list[str], model: str) -> list[str]:
    return [model if part == "MODEL" else part for part in command]


def instead(command: list[str], old: str, new: str) -> list[str]:
    return [new if part == old else part for part in command]


def with_files_once(words: list[object]) -> list[object]:
    """The command with the last of each flag of files, which a command takes once."""
    words = [*words]
    for flag in ("--train", "--valid", "--pairs"):
        while words.count(flag) > 1:
            first = words.index(flag)
            del words[first : first + 2]
    return words
