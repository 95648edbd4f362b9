"""The versions of the packages that a model or a result depends on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

__all__ = ["PACKAGES", "version_of", "versions_line"]

PACKAGES = ("parlai-polyencoder", "parlai", "torch", "transformers", "tokenizers", "numpy")


def version_of(package: str) -> str | None:
    """The installed version of a package, by its name on PyPI; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions_line() -> str:
    """What a bug report should begin with: `parlai-polyencoder 0.1.0, torch 2.13.0, ..., Python 3.11.7`."""
    installed = [f"{package} {number}" for package in PACKAGES if (number := version_of(package))]
    return ", ".join([*installed, f"Python {platform.python_version()}"])
