"""Imports a package's names and modules on first use: what needs no torch is then imported without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__` (PEP 562).

    Args:
        package: its `__name__`.
        modules: the names that it offers, each with the module, relative to the package, that defines it.
    """

    def get(name: str) -> Any:
        if name not in modules:
            if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
                return import_module(f"{package}.{name}")  # `polyencoder.index.open`, without an import of its own
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(import_module(package), name, found)  # asked for once
        return found

    def names() -> list[str]:
        module = import_module(package)
        return sorted({*vars(module), *module.__all__})

    return get, names
