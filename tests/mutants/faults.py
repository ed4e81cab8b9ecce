"""The faults that can be put into a file: cosmic-ray's operators, one exchange for each kind, and swaps of names.

Left out is what no result depends on: annotations, decorators, imports, docstrings, and the text of errors and of logs.
"""

# cosmic-ray has no types, and is installed by `make mutants` alone.
# pyright: reportMissingImports=false, reportIncompatibleMethodOverride=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportReturnType=false, reportOptionalIterable=false

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.operators.operator import Operator
from cosmic_ray.operators.provider import OperatorProvider

from mutants.sabotages import SABOTAGES

ARITHMETIC = (
    "Add_Sub",
    "Sub_Add",
    "Mul_Div",
    "Div_Mul",
    "FloorDiv_Mul",
    "Mod_Mul",
    "Pow_Mul",
    "BitAnd_BitOr",
    "BitOr_BitAnd",
)
COMPARISONS = ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_Gt", "Gt_Lt", "Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is")
OTHERS = (
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceUnaryOperator_USub_UAdd",
    "ReplaceUnaryOperator_Invert_UAdd",
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "NumberReplacer",
    "ZeroIterationForLoop",
)
SWAPS = (
    ("min", "max"),
    ("minimum", "maximum"),
    ("fmin", "fmax"),
    ("argmin", "argmax"),
    ("any", "all"),
    ("zeros", "ones"),
    ("sum", "mean"),
    ("floor", "ceil"),
    ("flatnonzero", "argsort"),
    ("terminated", "truncated"),
    ("source", "target"),
    ("low", "high"),
    ("old", "new"),
    ("train", "held"),
    ("critics", "target_critics"),
    ("actor", "target_actor"),
    ("online", "target"),
    ("observation", "next_observation"),
    ("logged", "jump"),
    ("first", "last"),
    ("apply", "undo"),
    ("mean", "std"),
    ("scale", "change"),
)
"""Names that are easily taken for each other."""


class SwapName(Operator):
    """Take one name for another."""

    def __init__(self, one: str, other: str) -> None:
        self.names = {one: other, other: one}

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type == "name" and node.value in self.names and not _is_defined(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        return parso.python.tree.Name(self.names[node.value], node.start_pos, node.prefix)

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


def _is_defined(node: Any) -> bool:
    """Return whether a name is that of a parameter, a keyword argument, a function, a class or a field."""
    parent = node.parent
    if parent.type in ("param", "tfpdef", "funcdef", "classdef"):
        return True
    if parent.type == "argument":
        return parent.children[0] is node and len(parent.children) == 3
    return parent.type == "expr_stmt" and parent.children[0] is node


CHOSEN = "chosen"
"""The operator of faults that were chosen by hand."""


@dataclass(frozen=True)
class Fault:
    """A fault that can be put into a file."""

    path: str
    """Of the file, from the folder of the package on."""
    operator: str
    occurrence: int
    line: int
    file: str
    """The file's code without it."""
    exchange: tuple[str, str] = ("", "")
    """Of a chosen fault: what stands there, and what takes its place."""

    @property
    def key(self) -> str:
        """A name that stays the same as long as the file and the fault do."""
        text = f"{self.path}\n{self.operator}\n{self.occurrence}\n{self.file}"
        text += "\n".join(self.exchange) if self.operator == CHOSEN else ""
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def code(self) -> str:
        """The file's code with the fault."""
        if self.operator == CHOSEN:
            return self.file.replace(*self.exchange)
        changed = MutationVisitor.mutate_code(self.file, operators()[self.operator], self.occurrence)
        assert changed is not None
        return changed

    @cached_property
    def lines(self) -> tuple[str, str]:
        """The line that the fault changes, as it is and with the fault."""
        both = zip(self.file.split("\n"), self.code.split("\n"), strict=False)
        before, after = next(pair for pair in both if pair[0] != pair[1])
        return before.strip(), after.strip()


def operators() -> dict[str, Operator]:
    """Return all operators by name."""
    known, found = OperatorProvider(), {}
    names = [f"ReplaceBinaryOperator_{name}" for name in ARITHMETIC]
    names += [f"ReplaceComparisonOperator_{name}" for name in COMPARISONS]
    for name in (*names, *OTHERS):
        found[name] = known[name]()
    return found | {f"Swap_{one}_{other}": SwapName(one, other) for one, other in SWAPS}


def faults_of(path: str, source: Path) -> list[Fault]:
    """Return every fault that can be put into a file. A name is swapped for one that the file knows as well."""
    code = (source / path).read_text()
    nodes, found = list(ast_nodes(parso.parse(code))), []
    names = {node.value for node in nodes if node.type == "name"}
    kept = [not _is_text(node) for node in nodes]
    for name, operator in operators().items():
        if isinstance(operator, SwapName) and not names.issuperset(operator.names):
            continue
        occurrence = -1
        for node, counts in zip(nodes, kept, strict=True):
            for _ in operator.mutation_positions(node):
                occurrence += 1
                if counts:
                    found.append(Fault(path, name, occurrence, node.start_pos[0], code))
    return found


def chosen_faults(source: Path) -> list[Fault]:
    """Return the faults that were chosen by hand."""
    found = []
    for path, before, after in SABOTAGES:
        code = (source / path).read_text()
        if code.count(before) != 1:
            raise ValueError(f"{path}: {before!r} stands there {code.count(before)} times: mend `mutants/sabotages.py`")
        line = code[: code.index(before)].count("\n") + 1
        found.append(Fault(path, CHOSEN, 0, line, code, (before, after)))
    return found


def _is_text(node: Any) -> bool:
    """Return whether no result depends on a node: an annotation, a decorator, an import, a message, a log, a check."""
    if node.type in ("assert_stmt", "raise_stmt"):
        return True
    child = node
    while child.parent is not None:
        parent = child.parent
        if parent.type in ("decorator", "import_from", "import_name", "raise_stmt", "fstring", "assert_stmt"):
            return True
        if parent.type == "annassign" and parent.children[1] is child:
            return True
        if (
            parent.type in ("param", "tfpdef")
            and ":" in [getattr(one, "value", "") for one in parent.children[:2]]
            and child is not parent.children[0]
        ):
            default = [getattr(one, "value", "") for one in parent.children]
            return "=" not in default or parent.children.index(child) < default.index("=")
        values = [getattr(one, "value", "") for one in parent.children]
        if parent.type == "funcdef" and "->" in values and parent.children.index(child) == values.index("->") + 1:
            return True
        if parent.type in ("atom_expr", "power") and parent.get_code(include_prefix=False).startswith(
            ("logger.", "progress(")
        ):
            return True
        child = parent
    return False
