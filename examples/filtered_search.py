"""Search many replies within a filter, while they change: add, remove, filter.

    python examples/filtered_search.py 100000

makes as many candidates with metadata, indexes them once, and searches a part of them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from polyencoder import Ranker
from polyencoder.index import Candidate, open_index

THINGS = ("tent", "stove", "lamp", "boots", "jacket", "backpack", "mattress", "bottle")
CITIES = ("Lisbon", "Oslo", "Zurich", "Vienna", "Ghent")


def make_candidates(count: int) -> Iterator[Candidate]:
    for n in range(count):
        thing, city = THINGS[n % len(THINGS)], CITIES[n % len(CITIES)]
        text = f"Order {n} ({thing}) was sent to {city}."
        yield Candidate(id=str(n), text=text, metadata={"thing": thing, "city": city, "number": n})


def main(count: int, *, encoder: str = "sentence-transformers/all-MiniLM-L6-v2") -> None:
    ranker = Ranker.load(encoder)
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "orders"
        ranker.index(make_candidates(count), where, progress=True).close()

        index = open_index(where, ranker)
        question = ["where did my boots go ?"]
        begin = time.perf_counter()
        for hit in ranker.search(question, index, top_k=3, filter={"city": ["Oslo", "Vienna"], "thing": "boots"}):
            print(f"{hit.score:6.2f}  {hit.text}  {hit.metadata}")
        print(f"{(time.perf_counter() - begin) * 1000:.0f} ms among {len(index):,} candidates\n")

        index.add([Candidate(id="new", text="Your boots are at the neighbour's.", metadata={"city": "Oslo"})])
        index.remove(["3", "11"])
        (best,) = ranker.search(question, index, top_k=1, filter={"city": "Oslo"})
        print(f"{best.score:6.2f}  {best.text}  (added a moment ago)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000)
