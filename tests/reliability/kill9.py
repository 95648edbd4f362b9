"""A writer is killed by SIGKILL at a random moment, beside a reader: each id keeps its own text's vector.

A forked child makes changes one after the other and says when each is committed. The parent reads meanwhile, kills it,
and compares the index with the state of the last change that was reported, or of the next one. Builds are killed, too,
and begun again.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from polyencoder.errors import PolyencoderError
from polyencoder.index import FolderIndex
from polyencoder.index.folder.build import build_index
from tests.reliability.world import TEXTS, Budget, Counts, World, begin, entries, records

SMALLEST, LARGEST = 6, 40  # candidates of the index


class Step(NamedTuple):
    """A change, and the texts by id after it."""

    name: str
    make: Callable[[FolderIndex], Any]
    after: dict[str, str]


def steps(draw: random.Random, texts: dict[str, str], n: int) -> list[Step]:
    """Random changes of an index of these texts."""
    plan: list[Step] = []
    for number in range(n):
        kinds = ["add", "add", "update", "remove", "remove", "compact", "words", "FAISS", "several"]
        name = draw.choice(kinds[:3] if len(texts) < SMALLEST else kinds[3:] if len(texts) > LARGEST else kinds)
        plan.append(step(draw, name, dict(texts), number))
        texts = plan[-1].after
    return plan


def step(draw: random.Random, name: str, texts: dict[str, str], number: int) -> Step:
    added = {f"new {draw.randrange(10**6)}": text for text in draw.sample(TEXTS, draw.randint(1, 4))}
    removed = draw.sample(sorted(texts), min(len(texts), draw.randint(1, 4)))
    changed = {id_: draw.choice(TEXTS) for id_ in removed}
    match name:
        case "add":
            return Step(name, lambda index: index.add(records(added)), texts | added)
        case "update":
            return Step(name, lambda index: index.update(records(changed)), texts | changed)
        case "remove":
            left = {id_: text for id_, text in texts.items() if id_ not in removed}
            return Step(name, lambda index: index.remove(removed), left)
        case "compact":
            return Step(name, lambda index: index.compact(), texts)
        case "words":
            return Step(name, lambda index: index.add_words(), texts)
        case "FAISS":
            faiss = draw.choice([{"kind": "ivf-flat", "nlist": 1, "storage": "float32"}, {"kind": "hnsw"}])
            return Step(name, lambda index: index.build_faiss(**faiss), texts)

    def several(index: FolderIndex) -> None:
        with index.changing():
            index.remove(removed)
            index.add(records(added))
            index.compact()

    return Step(name, several, {id_: text for id_, text in texts.items() if id_ not in removed} | added)


def run(*, seed: int, budget: Budget, folder: Path) -> Counts:
    world, counts, draw = World(seed=seed), Counts(), random.Random(seed)
    texts, path = entries(TEXTS[:20]), folder / "index"
    build_index(path, records(texts), world.ranker, shard_size=8)
    reader = FolderIndex.open(path, world.fingerprints)
    for number in budget(counts):
        if number % 5 == 4:
            killed_build(world, counts, draw, folder / "built")
            continue
        plan = steps(draw, texts, 12)
        done, problem = killed_writer(world, reader, path, texts, plan, draw.uniform(0.001, 0.15), counts)
        # A change that was killed while SQLite synced it is committed when the next one opens the database alone
        reader.close()
        states = [texts, *(each.after for each in plan)][done : done + 2]
        problem = problem or world.problem(path, *states)
        if problem:
            counts.fail("lost", f"trial {number}, in {plan[min(done, len(plan) - 1)].name}: {problem}")
            shutil.rmtree(path)
            texts = entries(TEXTS[:20])
            build_index(path, records(texts), world.ranker, shard_size=8)
            continue
        texts = (
            states[-1] if len(states) == 1 or reader.get_texts({**states[0], **states[1]}) == states[1] else states[0]
        )
        counts.count(plan[min(done, len(plan) - 1)].name)
    reader.close()
    return counts


def killed_writer(
    world: World,
    reader: FolderIndex,
    path: Path,
    texts: dict[str, str],
    plan: list[Step],
    seconds: float,
    counts: Counts,
) -> tuple[int, str | None]:
    """How many changes a writer had committed for certain when it was killed, and what the reader saw meanwhile."""
    receiver, sender = os.pipe()

    def write() -> None:
        os.close(receiver)
        index = FolderIndex.open(path, world.ranker)
        for each in plan:
            each.make(index)
            os.write(sender, b".")

    reader.close()  # no descriptor of the database is shared with the child
    child, errors = begin(write)
    os.close(sender)
    states, problem, until = [texts, *(each.after for each in plan)], None, time.monotonic() + seconds
    while problem is None and time.monotonic() < until:
        try:
            problem = world.difference(reader, *states, at_once=False)
        except PolyencoderError as error:
            problem = f"the reader: {error}"
        counts.count("reads beside it")
    os.kill(child, signal.SIGKILL)
    with open(receiver, "rb") as pipe:
        done = len(pipe.read())
    with open(errors, encoding="utf-8") as pipe:
        if (answer := pipe.read()).startswith("-"):
            problem = problem or answer
    status = os.waitpid(child, 0)[1]
    counts.count("killed" if os.WIFSIGNALED(status) else "ended before it was killed")
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
        counts.fail("signals", f"signal {os.WTERMSIG(status)}")
    return done, problem


def killed_build(world: World, counts: Counts, draw: random.Random, path: Path) -> None:
    """A build that is killed twice at most, and begun again with the same candidates."""
    texts = entries(draw.sample(TEXTS, 24))
    for seconds in (draw.uniform(0.001, 0.08), draw.uniform(0.001, 0.08)):
        child, errors = begin(lambda: build_index(path, records(texts), world.ranker, shard_size=5))
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(errors)
    try:
        build_index(path, records(texts), world.ranker, shard_size=5)
        problem = world.problem(path, texts) or (world.leftovers(path) and "files left behind")
    except PolyencoderError as error:
        problem = f"not built: {error}"
    if problem:
        counts.fail("lost", f"a build: {problem}")
    counts.count("builds")
    counts.count("killed", 2)
    shutil.rmtree(path)
