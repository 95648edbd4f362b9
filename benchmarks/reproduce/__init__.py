"""The papers' tables, each by one command: `python -m benchmarks.reproduce TABLE`."""
