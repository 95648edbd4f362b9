"""Damaged and hostile files are refused in one line: every kind of file that the library reads, changed at random.

Each is opened and used in a forked child with 1 GB more memory and 5 s of a processor. None may die by a signal or
touch a file elsewhere, and what is opened as whole must have the results of what was written.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from polyencoder.checkpoint import check_folder, read_states, write_states
from polyencoder.config import TextConfig
from polyencoder.errors import PolyencoderError
from polyencoder.index import FolderIndex, verify
from polyencoder.index.folder.build import build_index
from polyencoder.ranker import Ranker
from polyencoder.text.encoder import TextEncoder, read_tokenizer
from polyencoder.text.subwords.learning import SubwordSettings, count_words, learn_subwords
from tests.reliability.world import CONTEXTS, TEXTS, Budget, Counts, World, entries, in_child, records

MEMORY, SECONDS = 1 << 30, 5
NUMBERS = [0, 1, 0x7F, 0xFF, 0x7FFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 1 << 40]


class Kind(NamedTuple):
    """A folder, and what opens and uses it: gives what of its results must not change."""

    folder: Path
    use: Callable[[Path], Any]


def mutated(content: bytes, other: bytes, draw: random.Random) -> tuple[str, bytes]:
    """The kind of change, and the changed content."""
    data, at = bytearray(content), draw.randrange(max(1, len(content)))
    if draw.random() < 0.5:  # headers say most
        at = draw.randrange(max(1, min(len(content), 256)))
    how = draw.choice(("flip", "flips", "cut", "swap", "grow", "number", "digits", "splice", "other", "empty"))
    match how:
        case "flip":
            data[at : at + 1] = bytes([(data[at] if data else 0) ^ (1 << draw.randrange(8))])
        case "flips":
            for _ in range(draw.randint(2, 40)):
                offset = draw.randrange(max(1, len(data)))
                data[offset : offset + 1] = bytes([draw.randrange(256)])
        case "cut":
            del data[at:]
        case "swap":
            size, start = draw.randint(1, 64), draw.randrange(max(1, len(data)))
            data[at : at + size], data[start : start + size] = data[start : start + size], data[at : at + size]
        case "grow":
            data[at:at] = draw.randbytes(draw.randint(1, 5000))
        case "number":
            wide = draw.choice(["<I", ">I", "<Q", ">Q"])
            packed = struct.pack(wide, draw.choice(NUMBERS) & (2 ** (8 * struct.calcsize(wide)) - 1))
            data[at : at + len(packed)] = packed
        case "digits":
            digits = [i for i in range(len(data)) if 48 <= data[i] < 58] or [at]
            start = draw.choice(digits)
            data[start : start + 1] = draw.choice(
                (b"-1", b"1e999", b"99999999999999999999", b"NaN", b"null", b"[" * 5000)
            )
        case "splice":
            data[at:] = other[draw.randrange(max(1, len(other))) :]
        case "other":
            data = bytearray(other)
        case "empty":
            data = bytearray()
    return how, bytes(data)


def kinds(world: World, folder: Path) -> Iterator[tuple[str, Kind]]:
    texts = entries(TEXTS[:40])

    def use_index(here: Path) -> Any:
        verified: Any = None
        try:
            verify(here)
            verified = world.problem(here, texts, tolerance=0.05)
        except PolyencoderError as error:
            one_line(error)
        index = FolderIndex.open(here, world.fingerprints)
        for exactness in ("exact", "certified", None):
            index.search(world.contexts, top_k=5, exactness=exactness)
        if index.has_words:
            index.search(world.contexts, texts=CONTEXTS, top_k=5)
        index.search(world.contexts, top_k=5, filter={"n": 1})
        return verified

    for name, settings, faiss in (
        ("index", {"words": True, "dtype": "float16"}, None), ("index of int8", {"dtype": "int8"}, None),
        ("index with FAISS", {}, {"kind": "ivf-flat", "nlist": 1, "storage": "float32"}),
        ("index with HNSW", {}, {"kind": "hnsw"}),
    ):  # fmt: skip
        build_index(folder / name, records(texts), world.ranker, shard_size=32, **settings)
        if faiss is not None:
            FolderIndex.open(folder / name, world.ranker).build_faiss(**faiss)
        yield name, Kind(folder / name, use_index)

    def use_model(here: Path) -> Any:
        ranker = Ranker.load(here, device="cpu")
        scores = ranker.score(CONTEXTS, TEXTS[:2])
        try:
            check_folder(here)
        except PolyencoderError as error:
            return one_line(error)
        return None if np.allclose(scores, expected, atol=1e-4) else "a model that is whole has other scores"

    expected = np.asarray(world.ranker.score(CONTEXTS, TEXTS[:2]))
    world.ranker.save_pretrained(folder / "model")
    yield "model", Kind(folder / "model", use_model)

    (folder / "checkpoint").mkdir()
    states = {"model": {"w": torch.arange(99.0)}, "optimizer": [{"step": torch.tensor(3)}], "seconds": 0.5}
    write_states(folder / "checkpoint" / "checkpoint.pt", states)
    yield "checkpoint", Kind(folder / "checkpoint", lambda here: read_states(here / "checkpoint.pt") and None)

    (folder / "vocabulary").mkdir()
    subwords = learn_subwords(count_words(TEXTS), SubwordSettings(min_count=2, buckets=9))
    (folder / "vocabulary" / "tokenizer.json").write_text(subwords.to_str(), encoding="utf-8")

    def use_vocabulary(here: Path) -> None:
        tokenizer = read_tokenizer(here / "tokenizer.json")
        TextEncoder(tokenizer, TextConfig()).batch_candidates(["open the red door \0 \U0001f642" * 50])

    yield "vocabulary", Kind(folder / "vocabulary", use_vocabulary)


def one_line(error: PolyencoderError) -> None:
    if len(str(error).splitlines()) != 1:
        raise AssertionError(f"{len(str(error).splitlines())} lines: {error}")


def run(*, seed: int, budget: Budget, folder: Path) -> Counts:
    world, counts, draw = World(seed=seed), Counts(), random.Random(seed)
    by_name = dict(kinds(world, folder / "whole"))
    files = {name: sorted(path for path in kind.folder.rglob("*") if path.is_file() and path.name != ".lock")
             for name, kind in by_name.items()}  # fmt: skip
    guard = folder / "elsewhere"
    guard.mkdir()
    (guard / "file").write_text("whole")
    contents = {path: path.read_bytes() for paths in files.values() for path in paths}
    for number in budget(counts):
        name = draw.choice([*by_name])
        kind, path = by_name[name], draw.choice(files[name])
        here = guard / str(number)
        shutil.copytree(kind.folder, here)
        how, content = mutated(contents[path], contents[draw.choice([*contents])], draw)
        (here / path.relative_to(kind.folder)).write_bytes(content)
        counts.count(name)
        ended = in_child(partial(_limited, kind, here), seconds=20 * SECONDS)
        where = f"trial {number}, {name}: {path.name}: {how}"
        if ended.signal:
            counts.fail("signals", f"{where}: signal {ended.signal}")
        elif ended.failed:
            counts.fail("wrong", f"{where}: {ended.text}")
        else:
            counts.count(ended.text)
        shutil.rmtree(here)
        if {*os.listdir(guard)} != {"file"} or (guard / "file").read_text() != "whole":
            counts.fail("wrong", f"{where}: a file elsewhere was touched: {os.listdir(guard)}")
    return counts


def _limited(kind: Kind, here: Path) -> str:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))  # the machine may be busy
    try:
        if problem := kind.use(here):
            raise AssertionError(problem)
    except PolyencoderError as error:
        one_line(error)
        return "refused"
    return "opened"
