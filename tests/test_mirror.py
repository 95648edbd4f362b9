"""Every module of the library has a test file in the folder that mirrors its own, and those tests need no ParlAI."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import forgetting

ROOT = Path(__file__).parents[1]
LIBRARY, TESTS = ROOT / "projects" / "polyencoder", ROOT / "tests" / "polyencoder"

# Modules that no file of the mirrored folder imports or is named after -> the file that tests them through the command,
# the server or the class that uses them. A new module has its own file instead.
TESTED_BY = {
    "cli/overlap.py": "pretraining/test_overlap.py",
    "cli/prepare_reddit.py": "pretraining/test_reddit.py",
    "cli/serve.py": "serving/test_run.py",
    "cli/shared/loading.py": "cli/test_check.py",
    "cli/shared/processes.py": "cli/test_torchrun.py",
    "importing/parlai_encoder.py": "importing/test_parlai_weights.py",
    "importing/parlai_model.py": "importing/test_parlai_scores.py",
    "pretraining/card.py": "pretraining/test_run.py",
    "ranker/protocol.py": "ranker/test_encoding.py",
    "settings/common.py": "cli/test_flags.py",
    "settings/evaluate.py": "cli/test_flags.py",
    "training/callbacks/base.py": "training/test_trainer.py",
    "training/trackers.py": "training/callbacks/test_tracking.py",
    "training/callbacks/hard_negatives.py": "training/test_hard_negatives.py",
    "training/process_group.py": "cli/test_torchrun.py",
    "training/start.py": "cli/test_train.py",
}


@functools.cache
def imported(path: Path) -> set[str]:
    """The modules that a file imports, by `import` or `from`, and what it takes from them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def without_a_file() -> list[str]:
    found = []
    for path in sorted(LIBRARY.rglob("*.py")):
        within = path.relative_to(LIBRARY)
        folder, name = TESTS / within.parent, ".".join(("polyencoder", *within.with_suffix("").parts))
        has_own = path.stem.startswith("__") or (folder / f"test_{path.name}").exists()
        if not has_own and not any(name in imported(file) for file in folder.glob("*.py")):
            found.append(within.as_posix())
    return found


def test_every_module_has_a_test_file():
    assert without_a_file() == sorted(TESTED_BY)  # one that got a file of its own leaves the list


def test_the_files_are_there():
    assert [file for file in TESTED_BY.values() if not (TESTS / file).exists()] == []


@pytest.mark.slow
@pytest.mark.usefixtures("forked_commands")
def test_the_librarys_tests_are_collected_without_parlai():
    """As on a machine that has the library alone; what compares with ParlAI's own code skips.

    The files are imported as pytest does that; making tests of their functions would take as long again.
    """
    code = f"""{forgetting("parlai", "polyencoder", "tests")}if True:
        import pytest

        sys.modules["parlai"] = None

        class Files:
            def pytest_pycollect_makeitem(self):
                return []

            def pytest_collectreport(self, report):
                print(report.outcome, report.nodeid)

        sys.exit(pytest.main(sys.argv[1:], plugins=[Files()]))
    """
    words = ["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(TESTS)]
    plain = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=ROOT, env=plain, capture_output=True, text=True, check=False
    )
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout[-3000:]
    found = {path: outcome for outcome, _, path in (line.partition(" ") for line in done.stdout.splitlines())}
    assert found["tests/polyencoder/training/test_trainer.py"] == "passed"
    assert found["tests/polyencoder/importing/test_parlai_scores.py"] == "skipped"
    assert found.keys() >= {path.relative_to(ROOT).as_posix() for path in TESTS.rglob("test_*.py")}
