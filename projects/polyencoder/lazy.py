"""Imports a package's names on first use: what needs no torch is then imported without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def build_lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` (PEP 562) of a package. `modules`: each public name's module."""
    module = import_module(package)

    def get(name: str) -> Any:
        if name in modules:
            value = getattr(import_module(modules[name]), name)
        elif not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")  # `polyencoder.index.open`, without an import of its own
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(module, name, value)  # looked up once
        return value

    return get, lambda: sorted({*vars(module), *module.__all__})
