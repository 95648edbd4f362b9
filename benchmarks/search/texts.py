"""Real contexts and candidates from ParlAI's data folder, and synthetic ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count, islice, pairwise
from pathlib import Path

from polyencoder.data.readers import iter_lines, iter_records
from polyencoder.data.ubuntu import join_ubuntu_turn

SYNTHETIC = "words of one to three made syllables, as many as ConvAI2's validation examples have on average"

_CONVAI2 = "ConvAI2/{split}_*_original*.txt*"
_UBUNTU = "Ubuntu/train.csv*"
_DAILYDIALOG = "dailydialog/dialogues.jsonl*"


def read_contexts(datapath: Path | None, count: int) -> list[list[str]]:
    """The turns, persona lines first, of `count` of ConvAI2's validation examples; without a folder synthetic ones."""
    if datapath is None:
        return make_contexts(count)
    contexts = [turns for turns, _ in _read_convai2(_find_file(datapath, _CONVAI2.format(split="valid")))]
    return random.Random(0).sample(contexts, min(count, len(contexts)))


def read_candidates(datapath: Path | None, count: int | None = None) -> list[str]:
    """The distinct labels of ConvAI2's and Ubuntu's training sets and of DailyDialog, shuffled; at most `count`.

    Without a folder `count` synthetic ones.
    """
    if datapath is None:
        return make_candidates(count or 0)
    replies = [label for _, label in _read_convai2(_find_file(datapath, _CONVAI2.format(split="train")))]
    for _, row in iter_records(_find_file(datapath, _UBUNTU)):
        if float(row["Label"]) == 1:
            replies.append(join_ubuntu_turn(row["Utterance"]))
    for _, dialogue in iter_records(_find_file(datapath, _DAILYDIALOG)):
        replies += [reply for _, reply in pairwise(dialogue["turns"])]
    different = [text for text in dict.fromkeys(replies) if text.strip()]
    random.Random(0).shuffle(different)
    return different[:count]


def iter_numbered(texts: Sequence[str], rows: int | None = None) -> Iterator[str]:
    """`rows` distinct texts, or endlessly many: the given ones, then these with a number appended."""
    seen: set[str] = set()
    for text in (f"{text} {again}" if again else text for again in count() for text in texts):
        if len(seen) == rows:
            return
        if text not in seen:
            seen.add(text)
            yield text


def make_contexts(count: int) -> list[list[str]]:
    """`count` synthetic contexts, always the same: twelve turns of eleven words on average."""
    rng = random.Random(0)
    return [[_make_sentence(rng) for _ in range(round(rng.triangular(4, 28, 5)))] for _ in range(count)]


def make_candidates(count: int) -> list[str]:
    """`count` synthetic candidates, always the same."""
    rng = random.Random(1)
    return [_make_sentence(rng) for _ in range(count)]


def _make_sentence(rng: random.Random) -> str:
    """About eleven words, of some three thousand, short ones more often."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
    words = ("".join(rng.choices(syllables[:12] if n == 3 else syllables, k=n)) for n in rng.choices((1, 2, 3), k=22))
    return " ".join(islice(words, rng.randint(4, 18)))


def _read_convai2(path: Path) -> Iterator[tuple[list[str], str]]:
    """(turns so far, label) of each example of a file in ParlAI's text format.

    Persona lines are turns, the first ones; as `-t selection:convai2` without ParlAI.
    """
    turns: list[str] = []
    for _, line in iter_lines(path):
        number, _, rest = line.rstrip(" ").partition(" ")
        if number == "1":
            turns = []
        text, *fields = rest.split("\t")
        turns.append(text)
        if fields:
            yield list(turns), fields[0]
            turns.append(fields[0])


def _find_file(datapath: Path, pattern: str) -> Path:
    paths = [path for path in datapath.glob(pattern) if path.is_file()]
    if not paths:
        raise SystemExit(f"{datapath}: has no {pattern}; --datapath is ParlAI's data folder (docs/tasks.md)")
    return max(paths, key=lambda path: path.stat().st_size)
