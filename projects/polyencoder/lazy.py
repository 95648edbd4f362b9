"""Imports a package's names on first use: what needs no torch is then imported without it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` (PEP 562) of a package, for the names that it imports under TYPE_CHECKING."""
    module: Any = import_module(package)
    block = next(node for node in ast.parse(module.__loader__.get_source(package)).body if isinstance(node, ast.If))
    imports = [line for line in block.body if isinstance(line, ast.ImportFrom)]
    modules = {alias.name: str(line.module) for line in imports for alias in line.names}

    def get(name: str) -> Any:
        if name in modules:
            value = getattr(import_module(modules[name]), name)
        elif not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")  # `polyencoder.index.open`, without an import of its own
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(module, name, value)  # asked for once
        return value

    return get, lambda: sorted({*vars(module), *module.__all__})
