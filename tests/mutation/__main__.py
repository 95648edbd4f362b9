"""Mutation testing: the share of small changes to the library's code that the tests of the changed module notice.

    python -m tests.mutation --package scoring --sample 25

takes a seeded sample of places in the package's modules, changes one of them at a time in a copy of the repository, and
runs the test files of that module alone: of its own name, those beside it that import it, or the one that
tests/test_mirror.py lists. `equivalent.yaml` lists those that no test can notice, with the reason.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any

import yaml

from tests.mutation.mutants import sample
from tests.mutation.running import Runner, import_packages
from tests.test_mirror import LIBRARY, ROOT, TESTED_BY, TESTS, imported

PACKAGES = ["scoring", "training", "index", "calibration", "evaluation", "data"]
EQUIVALENT = Path(__file__).with_name("equivalent.yaml")


def tests_of(module: str) -> list[str]:
    """The test files of a module of the library, relative to the repository; its own file first."""
    within = Path(module)
    folder, package = TESTS / within.parent, ".".join(("polyencoder", *within.parts[:-1]))
    names = {f"{package}.{within.stem}"} | {f"{package}.{name}" for name in public_names(LIBRARY / module)}
    own = folder / f"test_{within.name}"
    beside = [file for file in sorted(folder.glob("test_*.py")) if file != own and names & imported(file)]
    files = [own] * own.exists() + beside or [TESTS / TESTED_BY[module]]
    return [file.relative_to(ROOT).as_posix() for file in files]


def public_names(path: Path) -> set[str]:
    """The functions and classes of a module: what a test may import from the package instead."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def mutate(
    package: str, tree: Path, *, size: int, seed: int, done: dict[str, dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The result of each mutant in a sample of a package; those that `done` says are killed are not run again."""
    place = LIBRARY / package
    paths = [place] if place.is_file() else sorted(place.rglob("*.py"))
    sources = {path.relative_to(LIBRARY).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    chosen = sample(sources, size=size, seed=seed)
    for module in sorted({module for module, _ in chosen}):
        waiting: dict[str, dict[str, Any]] = {}  # by code
        for mutant in [mutant for name, mutant in chosen if name == module]:
            code = mutant.code(sources[module])
            both = unified_diff(sources[module].split("\n"), code.split("\n"), n=0)
            diff = [line for line in both if line[:2] not in ("--", "++", "@@")]
            result = {"module": module, "line": mutant.line, "operator": mutant.operator, "diff": diff}
            before = done.get(name_of(result))
            if before and before["outcome"] != "survived":
                yield before
            else:
                waiting[code] = result
        if waiting:
            outcomes = Runner(ROOT, tree, module, tests_of(module)).outcomes(list(waiting))
            for result, outcome in zip(waiting.values(), outcomes, strict=True):
                yield result | {"outcome": outcome}


def name_of(result: dict[str, Any]) -> str:
    """What tells a mutant from others: not its line, which moves."""
    return json.dumps([result["module"], result["diff"]])


def report(package: str, results: list[dict[str, Any]]) -> None:
    """Prints the survivors of a package and the share of its mutants that were killed."""
    equivalent = {name_of(one) for one in yaml.safe_load(EQUIVALENT.read_text()) or []}
    counted = [one for one in results if one["outcome"] != "import" and name_of(one) not in equivalent]
    survived = [one for one in counted if one["outcome"] == "survived"]
    for one in survived:
        print(f"{one['module']}:{one['line']} {one['operator']}", *one["diff"], sep="\n  ")
    killed = len(counted) - len(survived)
    print(f"{package}: {killed} of {len(counted)} mutants killed ({killed / max(1, len(counted)):.0%})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--package", nargs="+", default=PACKAGES, help="folders of the library, or files")
    parser.add_argument("--sample", type=int, default=25, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, help="JSON of all results; a mutant that it says is killed is not run again"
    )
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import_packages()
    before = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "polyencoder"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "build"))
        for package in options.package:
            done = {name_of(one): one for one in before.get(package, [])}
            results = []
            for result in mutate(package, tree, size=options.sample, seed=options.seed, done=done):
                results.append(result)
                if options.out:
                    options.out.write_text(json.dumps(before | {package: results}, indent=1))
            before[package] = results
            report(package, results)


if __name__ == "__main__":
    main()
