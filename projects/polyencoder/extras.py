"""Optional packages: imported where they are used, with one message that says how to get them."""

from __future__ import annotations

import importlib
from typing import Any

from polyencoder.errors import ConfigError

__all__ = ["require"]


def require(module: str, *, extra: str) -> Any:
    """The module of an optional package.

    Args:
        module: its import name, such as `"faiss"`.
        extra: the extra of this project that installs it.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # it is there, but something that it needs is not
        package = module.partition(".")[0]
        raise ConfigError(
            f"the package `{package}` is not installed: pip install 'parlai-polyencoder[{extra}]'"
        ) from None
