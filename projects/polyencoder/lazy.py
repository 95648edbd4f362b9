"""Imports a package's names and modules on first use: what needs no torch is then imported without it."""

from __future__ import annotations

import dis
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` (PEP 562) of a package whose `__all__` is imported for type checkers alone.

    Those imports, under `if TYPE_CHECKING`, are read in its code, and made when a name is asked for. The loader has the
    code of a zip file and of compiled modules, too, which have no source.
    """
    module = import_module(package)
    loader: Any = module.__loader__
    modules, origin = {}, ""
    for step in dis.get_instructions(loader.get_code(package)):
        if step.opname == "IMPORT_NAME":
            origin = step.argval
        elif step.opname == "IMPORT_FROM" and step.argval in module.__all__:
            modules[step.argval] = origin

    def get(name: str) -> Any:
        if name not in modules:
            if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
                return import_module(f"{package}.{name}")  # `polyencoder.index.open`, without an import of its own
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(modules[name]), name)
        setattr(module, name, found)  # asked for once
        return found

    def names() -> list[str]:
        return sorted({*vars(module), *module.__all__})

    return get, names
