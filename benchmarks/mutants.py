"""What a mutant is, and what `mutators` must know of a package before it can make any.

A mutant's name is made of file, function, kind and the source before and after. It stays the same while that piece of
source does, whatever happens around it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

OWN_MISTAKES = frozenset({"UsageError", "AssertionError", "TypeError", "ValueError", "NotImplementedError"})
"""Exceptions that blame our own caller. Any other refuses what a peer did, or what cannot be secure."""
MODULE_SCOPE = "<module>"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Edit:
    """Bytes `start` to `stop` of a file are replaced by `text`."""

    start: int
    stop: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one file.

    file: relative to the package. function: qualified name of the innermost function. scope: that of the outermost
    one, which runs whenever the changed code does; "<module>" for what runs at import. change: the source before and
    after, on one line. ordinal: from 1, tells mutants apart that are otherwise of the same name. line: for people
    only. security: whether its survival would let a lie or a leak through.
    """

    file: str
    function: str
    scope: str
    kind: str
    change: str
    line: int
    security: bool
    edits: tuple[Edit, ...]
    ordinal: int = 1

    @property
    def name(self) -> str:
        """Stable while the mutated piece of source is."""
        return f"{self.file}:{self.function}:{self.ordinal}:{self.kind}: {self.change}"

    def apply(self, source: bytes) -> bytes:
        """The file with the change made."""
        for edit in sorted(self.edits, key=lambda edit: edit.start, reverse=True):
            source = source[: edit.start] + edit.text.encode() + source[edit.stop :]
        return source


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What must be known of the whole package, by the bare names of its functions.

    refusing: may raise what is a security check, themselves or through another. variadic: functions with `*fields`,
    and how many positional parameters come before these.
    """

    refusing: frozenset[str]
    variadic: Mapping[str, int]

    def refuses(self, node: ast.AST) -> bool:
        """Whether the code below `node` may raise what is a security check."""
        return any(map(is_refusal, ast.walk(node))) or bool(_called(node) & self.refusing)


def facts_of(trees: Iterable[ast.Module]) -> Facts:
    """The facts of a package, given as the syntax trees of its files."""
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, Function)]
    calls: dict[str, set[str]] = {}
    for function in functions:
        calls.setdefault(function.name, set()).update(_called(function))
    refusing = {function.name for function in functions if any(map(is_refusal, ast.walk(function)))}
    while more := {name for name, called in calls.items() if name not in refusing and called & refusing}:
        refusing |= more
    variadic = {
        function.name: sum(one.arg not in {"self", "cls"} for one in function.args.args)
        for function in functions
        if function.args.vararg
    }
    return Facts(refusing=frozenset(refusing), variadic=variadic)


def bare_name(node: ast.expr) -> str:
    """The last part of a dotted name; empty for any other expression."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def is_refusal(node: ast.AST) -> bool:
    """Whether a node is a raise of anything but an own mistake; a bare one passes on what was caught."""
    if not isinstance(node, ast.Raise):
        return False
    raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return raised is None or bare_name(raised) not in OWN_MISTAKES


def is_own(target: ast.expr) -> bool:
    """Whether the target of an assignment is a part of `self`."""
    inner = target
    while isinstance(inner, ast.Attribute | ast.Subscript):
        inner = inner.value
    return inner is not target and isinstance(inner, ast.Name) and inner.id == "self"


def is_erasing(value: ast.expr) -> bool:
    """Whether a value is None, an empty display, or a constructor without arguments."""
    match value:
        case ast.Constant(value=None) | ast.Call(args=[], keywords=[]) | ast.Dict(keys=[]):
            return True
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all(map(is_erasing, parts))
        case _:
            return False


def is_length(node: ast.expr) -> bool:
    """Whether an expression is `len(...)` or `....size`."""
    return (isinstance(node, ast.Call) and bare_name(node.func) == "len") or (
        isinstance(node, ast.Attribute) and node.attr == "size"
    )


def is_count_of_set(node: ast.expr) -> bool:
    """Whether an expression is `len(set(...))`."""
    return isinstance(node, ast.Call) and is_length(node) and len(node.args) == 1 and is_set(node.args[0])


def is_set(node: ast.expr) -> bool:
    """Whether an expression is visibly a set."""
    return isinstance(node, ast.Set | ast.SetComp) or (
        isinstance(node, ast.Call) and bare_name(node.func) in {"set", "frozenset"}
    )


def _called(node: ast.AST) -> set[str]:
    return {bare_name(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)} - {""}
