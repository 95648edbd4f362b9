"""Search in PostgreSQL: candidates beside the tables that you have, changed in transactions, filtered by metadata.

    PGPASSWORD=... python examples/postgres_search.py postgres://me@localhost/shop

Needs `pip install ".[postgres]"` and a server with the extension pgvector. It makes the table
`support_replies`, and a second run says that it exists.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from polyencoder import Ranker
from polyencoder.index import Candidate

DATA = Path(__file__).parent / "support"


def main(server: str, *, encoder: str = "sentence-transformers/all-MiniLM-L6-v2") -> None:
    ranker = Ranker.load(encoder)
    lines = (DATA / "replies.jsonl").read_text(encoding="utf-8").splitlines()
    index = ranker.index(map(json.loads, lines), f"{server}#support_replies")  # the name of its table

    with index.changing():  # one transaction: both changes or none
        index.add([Candidate("new-shop", "Our shop in Graz opens on Monday.", {"topic": "shop"})])
        index.remove(["refund-time"])
    for context, topic in (("when can I come to Graz", "shop"), ("where is my money", "returns")):
        for hit in ranker.search(context, index, top_k=2, filter={"topic": topic}):
            print(f"{hit.score:6.2f}  {hit.found}  {hit.id}: {hit.text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
