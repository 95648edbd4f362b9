"""What pyproject.toml asks for is what the code imports: nothing is missing, and nothing is ParlAI's alone."""

from __future__ import annotations

import ast
import functools
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib", reason="Python 3.11")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INSTALLED = packages_distributions()
OF_MODULES = {
    "faiss": "faiss-cpu",
    "grpc": "grpcio",
    "haystack": "haystack-ai",
    "llama_index": "llama-index-core",
}


def name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def distribution(module: str) -> str:
    distributions = INSTALLED.get(module, [module])
    return name(OF_MODULES.get(module, distributions[0]))


@functools.cache
def imports(folder: str) -> dict[str, Path]:
    """The packages that the code of a folder imports, also by `require`, and a file of each."""
    files: dict[str, Path] = {}
    for file in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and getattr(node.func, "id", None) == "require":
                names = [node.args[0].value] if isinstance(node.args[0], ast.Constant) else []
            files |= {module.partition(".")[0]: file for module in names}
    others = {*sys.stdlib_module_names, "polyencoder", "parlai", ""}
    return {package: file for package, file in files.items() if package not in others}


CORE = {*map(name, PROJECT["dependencies"])}
EXTRAS = {extra: {*map(name, packages)} for extra, packages in PROJECT["optional-dependencies"].items()}


@pytest.mark.slow
def test_what_the_library_imports_is_asked_for():
    required = CORE.union(*(packages for extra, packages in EXTRAS.items() if extra != "parlai"))
    for module, file in imports("projects").items():
        assert distribution(module) in required, f"{file} imports {module}"


def test_the_library_asks_for_nothing_that_it_does_not_import():
    assert {distribution(module) for module in imports("projects")} >= CORE


@pytest.mark.parametrize("folder", ["agents", "tasks", "zoo"])
def test_the_plugin_asks_for_what_it_imports(folder):
    for module, file in imports(folder).items():
        assert distribution(module) in CORE | EXTRAS["parlai"], f"{file} imports {module}"


def test_the_lowest_versions_are_safe():
    """torch before 2.6 runs code that a file names (CVE-2025-32434), filelock before 3.20.1 follows links,
    and 3.20.1 lets a forked process give back its parent's lock.
    """
    assert "torch>=2.6" in PROJECT["dependencies"]
    assert "filelock>=3.30.2" in PROJECT["dependencies"]
