"""Plain, slow versions of what `polyencoder.text.subwords` does, each after its source line by line."""

from __future__ import annotations

from collections import defaultdict

import regex

MARKER = "\ufe4f"


def words(text: str) -> list[str]:
    """PolyAI's graph: the sentinel `T`, which no lower-cased text has, goes where runs meet, and is split at."""
    for upper in "ABCDEFGHIJKLMNOPQRSTUVWXYZ":
        text = text.replace(upper, upper.lower())
    text = regex.sub(r"([^\p{P}\p{Z}])([\p{P}\p{Z}])", r"\1T\2", text)
    text = regex.sub(r"([\p{P}\p{Z}])([^\p{P}\p{Z}])", r"\1T\2", text)
    return [word for word in text.replace("T T", "T").split("T") if word]


def segment(word: str, vocabulary: set[str]) -> list[str]:
    """Greedy longest prefixes, on bytes as TensorFlow Text does it; a whole character where there is no prefix."""
    known = {subword.encode() for subword in vocabulary}
    data, pieces, start = word.encode(), [], 0
    while start < len(data):
        end = next((end for end in range(len(data), start, -1) if data[start:end] in known), None)
        if end is None:
            end = start + len(data[start:].decode()[0].encode())
        pieces.append(data[start:end].decode())
        start = end
    return pieces


def tokens(text: str, vocabulary: set[str]) -> list[str]:
    return [piece for word in words(text) for piece in segment(MARKER + word, vocabulary)]


def learn(counts: dict[str, int], *, iterations: int, min_count: int, max_length: int, max_digits: int) -> list[str]:
    """tensor2tensor's `build_from_token_counts`, without its alphabet, and with the limits of ConveRT's note 4."""
    subwords: set[str] = set()
    ordered: list[str] = []
    for _ in range(iterations):
        totals: dict[str, int] = defaultdict(int)
        for word, count in counts.items():
            start = 0
            for piece in segment(word, subwords):
                for end in range(start + 1, len(word) + 1):
                    if end - start <= max_length:
                        totals[word[start:end]] += count
                start += len(piece)
        by_length: list[set[str]] = [set() for _ in range(max_length + 1)]
        for subword, count in totals.items():
            if count >= min_count and not regex.search(r"\d" * (max_digits + 1), subword):
                by_length[len(subword)].add(subword)
        new = []
        for length in range(max_length, 0, -1):
            for subword in by_length[length]:
                if totals[subword] >= min_count:
                    new.append((totals[subword], subword))
                    for end in range(1, length):
                        totals[subword[:end]] -= totals[subword]
        ordered = [subword for _, subword in sorted(new, key=lambda pair: (-pair[0], pair[1]))]
        subwords = set(ordered)
    return ordered
