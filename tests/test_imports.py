"""The order of the house: who imports whom. Imports inside functions and under TYPE_CHECKING count as well."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

from tests.test_mirror import LIBRARY, ROOT, imported

# The floors of the house, from the cellar up. An import names a module of its own floor or of one below. A name here
# covers the modules below it, unless these have a floor of their own.
FLOORS = (
    ("config", "errors", "guesses", "checks", "validation", "packages", "processor", "lazy", "progress"),
    ("storage", "settings.base", "settings.fields", "settings.metadata"),
    ("hub",),
    ("text", "data"),
    ("search", "scoring"),
    ("modeling",),
    ("encoding",),
    ("checkpoint",),
    ("importing", "calibration", "pictures"),
    ("index",),
    ("settings",),  # those of commands
    ("evaluation",),
    ("export",),
    ("ranked", "loading", "ranker", "selector", "inspection"),
    ("training",),
    ("pretraining",),
    ("serving", "adapters", "runtime"),
    ("cli",),
)


def floor_of(module: str) -> int:
    names = module.removeprefix("polyencoder.").removesuffix(".__init__")
    floors = {name: number for number, floor in enumerate(FLOORS) for name in floor}
    while names and names not in floors:
        names = names.rpartition(".")[0]
    return floors[names]  # a KeyError names nothing: a new package needs a floor


def library() -> dict[str, Path]:
    files = LIBRARY.rglob("*.py")
    return {".".join(["polyencoder", *file.relative_to(LIBRARY).with_suffix("").parts]): file for file in files}


def test_the_library_has_no_circles():
    modules = library()
    packages = {name.removesuffix(".__init__"): name for name in modules if name.endswith(".__init__")}
    graph: dict[str, set[str]] = {}
    for name, file in modules.items():
        imports = imported(file)
        # a package counts for what is taken from it, unless that is one of its modules
        through = {
            packages[package]
            for package in imports & packages.keys()
            if not any(w.startswith(f"{package}.") and w in modules for w in imports)
        }
        graph[name] = ((imports & modules.keys()) | through) - {name}
    assert len(graph) > 100
    TopologicalSorter(graph).prepare()  # CycleError, which names one


def test_no_import_runs_up_the_floors():
    modules = library()
    packages = {name.removesuffix(".__init__") for name in modules if name.endswith(".__init__")}
    upward = []
    for name, file in modules.items():
        if name in ("polyencoder.__init__", "polyencoder.__main__"):  # the front door
            continue
        for module in imported(file) & (modules.keys() | packages) - {"polyencoder"}:
            if floor_of(module) > floor_of(name):
                upward.append(f"{name} -> {module}")
    assert not upward, upward


def test_the_library_knows_neither_parlai_nor_those_who_use_it():
    for file in library().values():
        others = {name.partition(".")[0] for name in imported(file)} & {"parlai", "benchmarks", "tests"}
        assert not others, f"{file} imports {others}"


def test_importing_the_library_changes_no_environment():
    """Outside of functions no module names `os.environ`."""
    for file in library().values():
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        todo: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
        while todo:
            node = todo.pop()
            assert not (isinstance(node, ast.Attribute) and node.attr in ("environ", "putenv")), file
            todo += [child for child in ast.iter_child_nodes(node) if not isinstance(child, functions)]


def test_what_is_installed_does_not_need_the_benchmarks():
    for folder in ("agents", "tasks", "zoo"):
        for file in (ROOT / folder).rglob("*.py"):
            assert "benchmarks" not in {name.partition(".")[0] for name in imported(file)}, file


def test_whoever_holds_a_model_does_not_ask_what_it_is():
    """Outside of modeling no `isinstance` names an architecture's class: what differs is in `RankerModel`."""
    classes = {"RankerModel", "BiEncoder", "PolyEncoder", "CrossEncoder", "ConveRT", "TwoTowers", "Backbone"}
    uses = []
    for folder in ("projects", "agents", "tasks", "zoo", "benchmarks"):
        for file in (ROOT / folder).rglob("*.py"):
            if LIBRARY / "modeling" in file.parents:
                continue
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                    named = {getattr(part, "id", None) for part in ast.walk(node.args[1])}
                    uses += [f"{file}:{node.lineno}"] if named & classes else []
    assert len(uses) <= 5, uses
