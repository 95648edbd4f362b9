"""Every module of the library has a test file in the folder that mirrors its own, and those tests need no ParlAI."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIBRARY, TESTS = ROOT / "projects" / "polyencoder", ROOT / "tests" / "polyencoder"

# Modules that no file of the mirrored folder imports or is named after -> the file that tests them through the command,
# the server or the class that uses them. A new module has its own file instead.
TESTED_BY = {
    "cli/importing.py": "cli/test_import.py",
    "cli/prepare_reddit.py": "pretraining/test_reddit.py",
    "cli/serve.py": "serving/test_run.py",
    "cli/shared/loading.py": "cli/test_check.py",
    "importing/parlai_encoder.py": "importing/test_parlai_weights.py",
    "importing/parlai_model.py": "importing/test_parlai_scores.py",
    "cli/mcp_proxy.py": "serving/test_mcp_proxy.py",
    "pretraining/card.py": "pretraining/test_run.py",
    "encoding/protocol.py": "encoding/test_encode.py",
    "settings/common.py": "cli/test_flags.py",
    "settings/evaluate.py": "cli/test_flags.py",
    "settings/pretrain.py": "test_validation.py",
    "training/callbacks/base.py": "training/test_trainer.py",
    "training/start.py": "cli/test_train.py",
}


@functools.cache
def imported(path: Path) -> set[str]:
    """The modules that a file imports, by `import` or `from`, and what it takes from them."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules


def without_a_file() -> list[str]:
    missing = []
    for path in sorted(LIBRARY.rglob("*.py")):
        within = path.relative_to(LIBRARY)
        folder, name = TESTS / within.parent, ".".join(("polyencoder", *within.with_suffix("").parts))
        has_own = path.stem.startswith("__") or (folder / f"test_{path.name}").exists()
        if not has_own and not any(name in imported(file) for file in folder.glob("*.py")):
            missing.append(within.as_posix())
    return missing


def test_every_module_has_a_test_file():
    assert without_a_file() == sorted(TESTED_BY)  # one that got a file of its own leaves the list


def test_the_files_are_there():
    assert [file for file in TESTED_BY.values() if not (TESTS / file).exists()] == []


@functools.cache
def needs_parlai(path: Path) -> bool | None:
    """Whether importing a test file imports ParlAI; None if it is skipped where there is none.

    Counts imports outside of functions, and those of the tests' own modules that it imports.
    """
    todo = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Call) and ast.unparse(node).startswith("pytest.importorskip('parlai'"):
            return None
        names = [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            parts = name.split(".")
            if parts[0] == "parlai":
                return True
            files = [ROOT.joinpath(*parts[:end]).with_suffix(".py") for end in (len(parts), len(parts) - 1)]
            if parts[0] == "tests" and any(needs_parlai(file) for file in files if file.exists()):
                return True
        todo[:0] = ast.iter_child_nodes(node)
    return False


def test_the_librarys_tests_need_no_parlai():
    """They run on a machine with the library alone; what compares with ParlAI's own code skips."""
    files = [ROOT / "tests" / "conftest.py", *TESTS.rglob("test_*.py"), *TESTS.rglob("conftest.py")]
    by_file = {path.relative_to(ROOT / "tests").as_posix(): needs_parlai(path) for path in files}
    assert [name for name, needs in by_file.items() if needs] == []
    compared = ("dictionary", "scores", "weights")
    assert {name for name, needs in by_file.items() if needs is None} == {
        f"polyencoder/importing/test_parlai_{kind}.py" for kind in compared
    }
    assert needs_parlai(TESTS / "importing" / "parlai_rankers.py")
