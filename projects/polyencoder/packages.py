"""Versions of installed packages, the guard of optional ones, and what they log."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from polyencoder.errors import ConfigError

PACKAGES = ("parlai-polyencoder", "polyencoder-runtime", "parlai", "torch", "transformers", "tokenizers", "numpy")


def get_version(package: str) -> str | None:
    """The installed version of a package, by its name on PyPI; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def format_versions() -> str:
    """The versions line for bug reports: `parlai-polyencoder 0.1.0, torch 2.13.0, ..., Python 3.11.7`."""
    installed = [f"{package} {number}" for package in PACKAGES if (number := get_version(package))]
    return ", ".join([*installed, f"Python {platform.python_version()}"])


def is_installed(module: str) -> bool:
    """Whether a package can be imported, by its import name."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def require(module: str, *, extra: str = "") -> Any:
    """Imports a package that may be missing.

    Args:
        module: its import name, such as `"faiss"`.
        extra: the extra of this project that installs it; none for what polyencoder-runtime alone lacks, such as torch.

    Raises:
        ConfigError: it is not installed.
    """
    if module.startswith("onnxruntime"):  # builds from 1.29 on report models to Microsoft; read at import
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # it is there, but something that it needs is not
        raise build_missing_error(module, extra=extra) from None


def build_missing_error(module: str, *, extra: str = "") -> ConfigError:
    """The error for a package that is not installed; takes the arguments of `require`."""
    ours = "parlai-polyencoder" if get_version("polyencoder-runtime") is None or not extra else "polyencoder-runtime"
    install = f"'{ours}[{extra}]'" if extra else ours
    package = module if module.startswith("backports.") else module.partition(".")[0]
    return ConfigError(f"the package `{package}` is not installed: pip install {install}")


@contextmanager
def errors_alone(logger: str) -> Iterator[None]:
    """Silences what a package's logger says below errors: advice and reports that are not for our users."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
