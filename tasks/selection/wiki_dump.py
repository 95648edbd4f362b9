"""Converts a Wikipedia dump to article search's files: `python -m parlai.tasks.selection.wiki_dump EXTRACTED OUT`.

EXTRACTED is the output of WikiExtractor: a folder of files with `<doc id=... title=...> ... </doc>` in them, plain or
compressed. OUT gets `wikipedia_{train,valid,test}.txt`: one article a line, lower-cased, sentences separated by tabs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from polyencoder.data.readers import iter_lines
from polyencoder.data.seeded_random import SeededRandom
from polyencoder.errors import InputError, PolyencoderError
from polyencoder.storage.files import atomic_write

# After `.`, `!` or `?` and a closing quote, before a character that can begin a sentence.
SENTENCE_END = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["')\]]))\s+(?=["'(\[]?[A-Z0-9])""")


def iter_articles(folder: str) -> Iterator[list[str]]:
    """The sentences of each article in the files below a folder; titles and articles of one sentence are dropped."""
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    if not files:
        raise InputError(f"{folder}: has no files; give the folder that WikiExtractor wrote")
    for path in files:
        text: list[str] | None = None
        opened = 0
        for number, line in iter_lines(str(path)):
            if line.startswith("<doc "):
                if text is not None:
                    raise InputError(f"{path}, line {opened}: this <doc> has no </doc>")
                text, opened = [], number
            elif line.startswith("</doc>"):
                if text is None:
                    raise InputError(f"{path}, line {number}: </doc> without <doc>; is this WikiExtractor's output?")
                sentences = [s for paragraph in text[1:] for s in SENTENCE_END.split(paragraph.strip()) if s]
                if len(sentences) > 1:
                    yield [" ".join(sentence.lower().split()) for sentence in sentences]
                text = None
            elif text is not None:
                text.append(line)
        if text is not None:
            raise InputError(f"{path}, line {opened}: this <doc> has no </doc>; the file is cut short")


def write_splits(folder: str, out: str, *, held_out: int = 10_000, seed: int = 0) -> dict[str, int]:
    """Writes the three files; returns the number of articles in each.

    Validation and test get about `held_out` articles each, chosen at random. The articles are read twice instead of
    being kept in memory.
    """
    total = sum(1 for _ in iter_articles(folder))
    if not total:
        raise InputError(f"{folder}: has no article of two sentences or more")
    chance = min(0.1, held_out / total)
    counts = dict.fromkeys(("train", "valid", "test"), 0)
    rng = SeededRandom(f"{seed}:wikipedia")
    with ExitStack() as stack:
        files = {
            split: stack.enter_context(
                open(stack.enter_context(atomic_write(Path(out) / f"wikipedia_{split}.txt")), "w", encoding="utf-8")
            )
            for split in counts
        }
        for sentences in iter_articles(folder):
            split = "valid" if rng.draw_chance(chance) else "test" if rng.draw_chance(chance) else "train"
            files[split].write("\t".join(sentences) + "\n")
            counts[split] += 1
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("extracted", help="the folder that WikiExtractor wrote")
    parser.add_argument("out", help="the output folder, such as DATAPATH/wiki_article_search")
    parser.add_argument("--held-out", type=int, default=10_000, help="articles for validation and for test each")
    settings = parser.parse_args(arguments)
    try:
        counts = write_splits(settings.extracted, settings.out, held_out=settings.held_out)
    except PolyencoderError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(", ".join(f"{split}: {count} articles" for split, count in counts.items()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
