"""Commands and flags that no longer exist, each with what to use in their place."""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    "map": "python -m benchmarks.reproduce.map in the repository measures the baseline MAP",
    "overlap": "compare the texts of your files with a few lines of your own",
    "tune": "examples/tune.py in the repository searches settings with Optuna",
}
"""Each removed command's replacement, a sentence without its full stop."""

FLAGS: dict[str, str] = {}
"""Each removed flag's replacement, for every command that had it."""
