"""Mutation testing: a sample of a package's mutants, each judged by the tests of its module but the long ones.

    python -m tests.mutation.run scoring --sample 40    # in a copy of the tree: mutants are written to disk

cosmic-ray makes the mutants. Their tests are forked from a process that has imported torch and transformers once; the
library, which the mutants change, is imported anew for each of them.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.util
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from tests import forked
from tests.test_mirror import LIBRARY, ROOT, TESTED_BY, TESTS, imported

PACKAGES = ["pytest", "hypothesis", "numpy.testing", "sklearn.feature_extraction.text", "sklearn.metrics"]
PACKAGES += ["torch", "torch.distributed.tensor", "transformers.models.bert.modeling_bert", "tokenizers", "datasets"]

EXCLUDED = re.compile(
    r"core/(ReplaceBinaryOperator_BitOr_.*"  # `int | None`: annotations are not evaluated
    r"|ReplaceBinaryOperator_.*_(Bit.*|.Shift|Pow|Mod)"  # errors at once
    r"|ReplaceComparisonOperator_(?!Is).*_Is(Not)?"  # `is` for numbers: luck
    r"|ReplaceComparisonOperator_Is(Not)?_(?!Is).*"  # `== None` is equivalent, `< None` an error at once
    r"|Variable.*)"  # these want names
)


class Mutant(NamedTuple):
    module: Path
    operator: str
    occurrence: int

    def code(self) -> str:
        code = mutate_code(self.module.read_text(encoding="utf-8"), get_operator(self.operator)(), self.occurrence)
        return code.replace("CosmicRayTestingException", "ZeroDivisionError")

    def diff(self) -> str:
        codes = [code.split("\n") for code in (self.module.read_text(encoding="utf-8"), self.code())]
        return "\n".join(difflib.unified_diff(*codes, n=1, lineterm="")).split("\n", 2)[2]


def mutants(module: Path) -> Iterator[Mutant]:
    nodes = list(ast_nodes(get_ast(module.read_text(encoding="utf-8"))))
    for name in operator_names():
        if EXCLUDED.fullmatch(name):
            continue
        operator = get_operator(name)()
        positions = [node for node in nodes for _ in operator.mutation_positions(node)]
        for occurrence, node in enumerate(positions):
            # The `*` before keyword-only arguments is no product.
            if not name.startswith("core/ReplaceBinaryOperator_Mul_") or node.parent.type == "term":
                yield Mutant(module, name, occurrence)


def is_code(mutant: Mutant) -> bool:
    """Whether Python can compile it: what cannot be imported says nothing about the tests."""
    try:
        ast.parse(mutant.code())
    except (SyntaxError, ValueError):
        return False
    return True


def tests_of(module: Path) -> list[Path]:
    """The module's test file, tests of its package that import it, and the others of the mirrored folder."""
    within = module.relative_to(LIBRARY)
    folder, name = TESTS / within.parent, ".".join(("polyencoder", *within.with_suffix("").parts))
    mirrored = [folder / f"test_{module.name}", TESTS / TESTED_BY.get(within.as_posix(), "")]
    package = sorted((TESTS / within.parts[0]).rglob("test_*.py"))
    importing = [file for file in package if name.removesuffix(".__init__") in imported(file)]
    others = sorted(folder.glob("test_*.py"))
    return list(dict.fromkeys(file for file in (*mirrored, *importing, *others) if file.is_file()))


def failures(tests: list[Path], *options: str, timeout: float) -> list[str]:
    """The tests that fail, or what went wrong otherwise."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", *options]
    command += ["-m", "not long", "--hypothesis-profile", "unshrunk", *map(str, tests)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output = process.communicate(timeout=timeout)[0].decode()
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return [f"no end after {timeout:.0f} s"]
    if process.returncode in (0, 5):  # 5: all of the tests are long
        return []
    return re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE) or [output[-200:]]


def judged(mutant: Mutant, tests: list[Path], *options: str, timeout: float) -> str:
    """The first test that notices the mutant, or nothing."""
    path, code = mutant.module, mutant.code()
    original = path.read_text(encoding="utf-8")
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)  # it might be of the same second
    try:
        path.write_text(code, encoding="utf-8")
        return "".join(failures(tests, "-x", *options, timeout=timeout)[:1])
    finally:
        path.write_text(original, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", help="a module or package of the library: scoring/exact, scoring")
    parser.add_argument("--sample", type=int, default=20, help="of how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--tests", nargs="*", type=Path, help="other test files")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds; what takes longer is noticed")
    args = parser.parse_args()

    path = LIBRARY / args.module
    modules = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    drawn = [mutant for module in modules for mutant in mutants(module)]
    random.Random(args.seed).shuffle(drawn)
    sample = [mutant for mutant in drawn[: 2 * args.sample] if is_code(mutant)][: args.sample]
    tests = {module: args.tests or tests_of(module) for module, *_ in sample}
    print(f"{len(sample)} of {len(drawn)} mutants, in {len(tests)} of {len(modules)} modules", flush=True)

    forked.PRELOADED[:] = PACKAGES
    subprocess.Popen = forked.Forked  # type: ignore[misc]
    unfit = failures(sorted({file for files in tests.values() for file in files}), timeout=3600)
    if unfit:
        print("left out, as they fail without a mutant:", *unfit, flush=True)
    left_out = [f"--deselect={test}" for test in unfit]
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # what a mutant compiles must not be found by the next one
    survivors: Counter[Path] = Counter()
    for mutant in sorted(sample):
        start = time.perf_counter()
        failure = judged(mutant, tests[mutant.module], *left_out, timeout=args.timeout)
        name = mutant.module.relative_to(LIBRARY)
        print(f"{time.perf_counter() - start:5.1f} s {name} {mutant.operator} {mutant.occurrence}", end=": ")
        print(failure.replace(f"{ROOT}/", "") or f"SURVIVED\n{mutant.diff()}", flush=True)
        survivors[mutant.module] += not failure
    print(f"{len(sample) - survivors.total()} of {len(sample)} were noticed")


if __name__ == "__main__":
    main()
