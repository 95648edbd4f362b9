"""Names say what a value is or a function does: words that fit every value, such as `found`, name none."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORDS = {"one", "own", "found", "place", "places", "some", "said", "told", "asked", "made", "meant", "gone", "wanted"}
WORDS |= {"given", "kept", "taken", "twice", "few", "much", "least", "most", "there"}
FOLDERS = ("projects/polyencoder", "agents", "benchmarks", "examples", "tasks", "zoo", "tests")
PUBLIC = {  # `Hit.found`, and keys of files
    ("projects/polyencoder/index/hits.py", "found"),
    ("benchmarks/reproduce/scales.py", "places"),
    ("benchmarks/reproduce/results.py", "places"),
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def names(node: ast.AST) -> Iterator[tuple[str, int]]:
    """The names that a tree binds, with their lines."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        yield node.name, node.lineno
    elif isinstance(node, ast.arg):
        yield node.arg, node.lineno
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id, node.lineno
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr, node.lineno
    for child in ast.iter_child_nodes(node):
        yield from names(child)


def wrong_docstring(node: ast.AST) -> bool:
    """Whether a docstring begins as the rest of a sentence."""
    text = ast.get_docstring(node) if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) else None
    return text is not None and text.split()[0] in ("Of", "Those", "As", "What")


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_say_what_a_value_is_or_a_function_does(folder):
    problems, files = [], sorted((ROOT / folder).rglob("*.py"))
    for path in files:
        file, tree = path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))
        bound = [(name, line) for name, line in names(tree) if (file, name) not in PUBLIC]
        wrong = [(name, line) for name, line in bound if name.strip("_").lower() in WORDS]
        problems += [f"{file}:{line}: {name}" for name, line in wrong]
        for node in ast.walk(tree) if folder != "tests" else ():
            if wrong_docstring(node):
                problems.append(f"{file}:{node.lineno}: docstring")
            if isinstance(node, FUNCTIONS) and node.name.endswith("_of"):
                problems.append(f"{file}:{node.lineno}: {node.name} begins with no verb")
    assert files
    assert not problems
