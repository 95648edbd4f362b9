"""Reduces a session of cosmic-ray to a seeded sample of its mutants: python sample.py SESSION SIZE."""

from __future__ import annotations

import random
import sqlite3
import sys
from contextlib import closing

TABLES = ("work_results", "mutation_specs", "work_items")


def reduce(session: str, size: int) -> None:
    """Keeps `size` mutants, the same ones each time. Drops what a filter skipped, which the report counts as killed."""
    with closing(sqlite3.connect(session)) as database:
        pending = database.execute(
            "SELECT job_id FROM mutation_specs WHERE job_id NOT IN (SELECT job_id FROM work_results) "
            "ORDER BY module_path, operator_name, occurrence"
        ).fetchall()
        kept = random.Random(0).sample(pending, min(size, len(pending)))
        for table in TABLES:
            database.execute(f"DELETE FROM {table} WHERE job_id NOT IN ({','.join('?' * len(kept))})", sum(kept, ()))
        database.commit()


if __name__ == "__main__":
    reduce(sys.argv[1], int(sys.argv[2]))
