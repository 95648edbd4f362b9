"""Imports a package's names and modules on first use: what needs no torch is then imported without it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import get_data
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` (PEP 562) of the package with this `__name__`.

    Its names are those that it imports `if TYPE_CHECKING`, which are read from its source.
    """

    @cache
    def modules() -> dict[str, str]:
        source = ast.parse(get_data(package, "__init__.py") or b"")
        guards = [node for node in source.body if isinstance(node, ast.If)]
        lines = [line for guard in guards for line in guard.body if isinstance(line, ast.ImportFrom)]
        return {imported.name: str(line.module) for line in lines for imported in line.names}

    def get(name: str) -> Any:
        if (module := modules().get(name)) is None:
            if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
                return import_module(f"{package}.{name}")  # `polyencoder.index.open`, without an import of its own
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if find_spec(module) is None:
            raise ImportError(
                f"polyencoder-runtime has no {package}.{name}: take Ranker from polyencoder.runtime, or install "
                "parlai-polyencoder"
            )
        found = getattr(import_module(module), name)
        setattr(import_module(package), name, found)  # asked for once
        return found

    def names() -> list[str]:
        module = import_module(package)
        return sorted({*vars(module), *module.__all__})

    return get, names
