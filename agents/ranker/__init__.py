"""Base classes and shared parts of the agents. Importing it checks that ParlAI is installed.

ParlAI cannot be an ordinary requirement, as its own pins conflict, so pip does not install it. Without it `parlai` can
still be imported, as a namespace with only our packages, and the first import of `parlai.core` fails with an error that
names neither cause nor remedy. Hence this check of the installed distributions.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

PARLAI_VERSION = "1.7.2"


def require_parlai() -> None:
    """Raises `ImportError`, with a remedy, unless ParlAI is installed at `PARLAI_VERSION`."""
    try:
        installed = version("parlai")
    except PackageNotFoundError:
        problem = "ParlAI is not installed"
    else:
        if installed == PARLAI_VERSION:
            return
        problem = f"ParlAI {installed} is installed, but only {PARLAI_VERSION} is supported"
    raise ImportError(f"{problem}: run `pip install --no-deps parlai=={PARLAI_VERSION}`")


require_parlai()
