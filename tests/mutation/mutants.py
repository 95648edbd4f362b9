"""The mutants of a module: small changes of its code, of cosmic-ray's operators, that a test should notice."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

__all__ = ["Mutant", "mutants_of", "sample"]

# An operator becomes one that is likely to be written by mistake: any test would notice `x << y` in place of `x + y`,
# and none `==` in place of `is`.
BINARY = [
    *("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Div", "FloorDiv_Mul", "Mod_Div", "Pow_Mul"),
    *("BitOr_BitAnd", "BitAnd_BitOr", "RShift_LShift", "LShift_RShift"),
]
COMPARISONS = [
    *("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is"),
    *("Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt"),
]
OTHERS = [
    *("ReplaceUnaryOperator_USub_UAdd", "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_Invert"),
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ExceptionReplacer", "NumberReplacer"),
    *("RemoveDecorator", "ZeroIterationForLoop"),
]
OPERATORS = [
    *(f"ReplaceBinaryOperator_{name}" for name in BINARY),
    *(f"ReplaceComparisonOperator_{name}" for name in COMPARISONS),
    *OTHERS,
]

# What no result depends on
LOGS = {"debug", "info", "warning", "warn"}  # methods
DECORATORS = {"abstractmethod", "dataclass", "no_grad", "overload"}  # contracts and memory
KEYWORDS = {"strict", "stacklevel", "non_blocking", "indent"}  # of calls: checks of our own code, speed, looks


@dataclass(frozen=True, order=True)
class Mutant:
    """One change of a module: the `occurrence`-th place of an operator."""

    line: int
    column: int
    operator: str
    occurrence: int

    def code(self, source: str) -> str:
        """The source with the change."""
        return mutate_code(source, get_operator(f"core/{self.operator}")(), self.occurrence) or source


def mutants_of(source: str) -> list[Mutant]:
    """All mutants of a module that compile and may change a result."""
    unobserved = list(_unobserved(ast.parse(source)))
    tree = get_ast(source)
    found = []
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        places = (
            (*start, node.parent.type if node.parent else "")
            for node in ast_nodes(tree)
            for start, _ in operator.mutation_positions(node)
        )
        for occurrence, (line, column, parent) in enumerate(places):
            hidden = any(first <= (line, column) < last for first, last in unobserved)
            if not hidden and parent != "parameters":  # where a * is no product
                found.append(Mutant(line, column, name, occurrence))
    return found


def sample(sources: dict[str, str], *, size: int, seed: int) -> list[tuple[str, Mutant]]:
    """At most `size` (module, mutant), each of another place: a place with many mutants is no likelier than others.

    Which ones depends on the seed and on the lines themselves, so the sample stays the same where others change.
    """
    places: dict[tuple[str, int, int], list[Mutant]] = {}
    for module, source in sorted(sources.items()):
        for mutant in mutants_of(source):
            places.setdefault((module, mutant.line, mutant.column), []).append(mutant)
    drawn = []
    for (module, line, column), mutants in places.items():
        generator = random.Random(f"{seed} {module} {column} {sources[module].splitlines()[line - 1]}")
        drawn.append((generator.random(), module, generator.choice(mutants)))
    valid = ((module, one) for _, module, one in sorted(drawn) if _compiles(one.code(sources[module])))
    return sorted(islice(valid, size))


def _compiles(source: str) -> bool:
    try:
        compile(source, "<mutant>", "exec")
    except SyntaxError:
        return False
    return True


def _unobserved(tree: ast.Module) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """(start, end) of annotations, assertions, logging, and the decorators and keywords above."""
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = [node.returns, *(one for one in node.decorator_list if _name(one) in DECORATORS)]
        elif isinstance(node, ast.ClassDef):
            parts = [one for one in node.decorator_list if _name(one) in DECORATORS]
        elif isinstance(node, ast.arg | ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.keyword) and node.arg in KEYWORDS:
            parts = [node.value]
        elif (
            isinstance(node, ast.Assert)
            or (isinstance(node, ast.Call) and _name(node) in LOGS)
            or (isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING")
        ):
            parts = [node]
        for part in parts:
            if part is not None:
                # a decorator begins with its @
                start = (part.lineno, part.col_offset - (part in getattr(node, "decorator_list", [])))
                yield start, (part.end_lineno, part.end_col_offset)


def _name(node: ast.AST) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
