"""Finds the mutants of a Python package: every check deleted, inverted, shifted or cut short, one at a time.

All of it comes from the syntax tree, nothing from positions or a list of files, so the mutants follow the code.

| kind       | what is done                                                                                     |
| ---------- | ------------------------------------------------------------------------------------------------ |
| never      | the condition of an `if` becomes False: the check is never made                                  |
| negate     | the condition of an `if`, or the filter of a comprehension, is inverted                          |
| boundary   | `<` becomes `<=` and so on, or the boundary moves by one the other way                           |
| one-sided  | `!=` of lengths lets pass what is longer, or shorter; of sets, what is smaller, or larger        |
| operand    | one operand of `and`, `or`, `max` or `min` is left out                                           |
| quantifier | `any` and `all` are exchanged                                                                    |
| either     | a conditional expression takes the one arm only, a function that returns bool gives one answer   |
| filter     | the filter of a comprehension is left out                                                        |
| call       | a call whose result is not used is deleted                                                       |
| raise      | a raise that stands in no `if` is deleted                                                        |
| once       | a loop that checks looks at its first item only                                                  |
| store      | an assignment to a part of `self` is deleted                                                     |
| early      | an assignment to a part of `self` is made before the checks, as early as its names are known     |
| field      | a field is left out of what is hashed, signed or derived: an argument that goes to `*fields`     |
| flag       | True and False are exchanged in a keyword argument                                               |

Left alone: constructors' assignments and decorators, the texts of messages, and the conditions of `while`.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

from benchmarks.mutants import (
    MODULE_SCOPE,
    Edit,
    Facts,
    Function,
    Mutant,
    bare_name,
    facts_of,
    is_count_of_set,
    is_erasing,
    is_length,
    is_own,
    is_refusal,
    is_set,
)

CHECK_PREFIXES = ("check", "_check")
ERASING_CALLS = frozenset({"clear", "abandon"})
STATES = frozenset({"_state", "_stage"})
CONSTRUCTORS = frozenset({"__init__", "__post_init__", "__new__"})
UNCOPYABLE = frozenset({"__reduce__", "__reduce_ex__", "__hash__", "__copy__", "__deepcopy__", "__getstate__"})
"""Methods that raise so that a secret or a session cannot be stored or copied."""

_ORDERS: dict[type[ast.cmpop], tuple[type[ast.cmpop], int]] = {
    # The same order with the other strictness, and how far the right side moves to shift the boundary the other way.
    ast.Lt: (ast.LtE, -1),
    ast.LtE: (ast.Lt, 1),
    ast.Gt: (ast.GtE, 1),
    ast.GtE: (ast.Gt, -1),
}
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


def find_mutants(package: Path) -> list[Mutant]:
    """All mutants of a package's files, in the order of the source; none of them twice."""
    sources = {path.relative_to(package).as_posix(): path.read_bytes() for path in sorted(package.rglob("*.py"))}
    trees = {file: ast.parse(source) for file, source in sources.items()}
    facts = facts_of(trees.values())
    found: list[Mutant] = []
    for file, tree in trees.items():
        finder = _Finder(file=file, facts=facts, starts=_line_starts(sources[file]))
        finder.visit(tree)
        found += _numbered(finder.found)
    return found


def _line_starts(source: bytes) -> tuple[int, ...]:
    return tuple(accumulate((len(line) for line in source.splitlines(keepends=True)), initial=0))


def _numbered(mutants: Iterable[Mutant]) -> Iterator[Mutant]:
    """Leave out changes that are made already, and number those that would share a name."""
    seen: set[tuple[Edit, ...]] = set()
    names: Counter[str] = Counter()
    for mutant in sorted(mutants, key=lambda mutant: mutant.edits[0].start):
        if mutant.edits not in seen:
            seen.add(mutant.edits)
            names[mutant.name] += 1
            yield replace(mutant, ordinal=names[mutant.name])


@dataclass(slots=True, kw_only=True)
class _Finder(ast.NodeVisitor):
    """Walks one file. starts: offset of each line. security: whether the condition now walked refuses something."""

    file: str
    facts: Facts
    starts: tuple[int, ...]
    found: list[Mutant] = field(default_factory=list)
    path: tuple[str, ...] = ()
    scope: str = MODULE_SCOPE
    function: Function | None = None
    security: bool = False

    # Where the walk is.

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Into a class, past its decorators."""
        outer, self.path = self.path, (*self.path, node.name)
        self._visit_all(node.body)
        self.path = outer

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Into a function; its defaults belong to what is around it."""
        self._visit_all((*node.args.defaults, *filter(None, node.args.kw_defaults)))
        before = self.path, self.scope, self.function
        self.path = (*self.path, node.name)
        self.scope = self.scope if self.function else ".".join(self.path)
        self.function = node
        if node.name not in CONSTRUCTORS:
            self._move_stores(node.body)
        self._visit_all(node.body)
        self.path, self.scope, self.function = before

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """What a message says is no check."""

    def visit_While(self, node: ast.While) -> None:
        """A loop that ends too late may not end at all, and is no check."""
        self._visit_all((*node.body, *node.orelse))

    # Statements.

    def visit_If(self, node: ast.If) -> None:
        """A check, or a branch."""
        security = self.facts.refuses(node)
        self._replace("never", node.test, ast.Constant(False), security=security)
        self._replace("negate", node.test, _negated(node.test), security=security)
        with self._within(security):
            self.visit(node.test)
        # The raises of this very body go with its condition.
        self._visit_all(one for one in node.body if not isinstance(one, ast.Raise))
        self._visit_all(node.orelse)

    def visit_For(self, node: ast.For) -> None:
        """A loop that checks every item."""
        if any(self.facts.refuses(one) for one in node.body):
            end = self._span(node.body[-1])[1]
            edit = Edit(end, end, f"\n{' ' * node.body[0].col_offset}break")
            what = f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
            self._add("once", node, what, [edit], security=True)
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """A raise that no condition guards."""
        refusal = is_refusal(node) or self._named(UNCOPYABLE)
        self._delete("raise", node, security=refusal)

    def visit_Expr(self, node: ast.Expr) -> None:
        """A call for its effect: a check, a change of state, an erasure."""
        if isinstance(node.value, ast.Call):
            name = bare_name(node.value.func)
            checks = name.startswith(CHECK_PREFIXES) or name in self.facts.refusing
            self._delete("call", node, security=checks or name in ERASING_CALLS)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        """Something forgotten on purpose."""
        self._delete("store", node, security=True)

    def visit_Assign(self, node: ast.Assign) -> None:
        """A change of what the object holds; each part of a tuple by itself."""
        target, value = node.targets[0], node.value
        if self._named(CONSTRUCTORS):
            pass
        elif is_own(target):
            state = isinstance(target, ast.Attribute) and target.attr in STATES
            self._delete("store", node, security=state or is_erasing(value))
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and all(map(is_own, target.elts)):
            for left, right in zip(target.elts, value.elts, strict=True):
                others = [pair for pair in zip(target.elts, value.elts, strict=True) if pair[0] is not left]
                kept = "; ".join(f"{ast.unparse(one)} = {ast.unparse(other)}" for one, other in others)
                what = f"{ast.unparse(left)} = {ast.unparse(right)}"
                self._add("store", node, what, [Edit(*self._span(node), kept)], security=is_erasing(right))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """As an assignment."""
        if is_own(node.target):
            self._delete("store", node, security=False)
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        """The answer of a function that tells whether something holds."""
        returns = self.function.returns if self.function else None
        decides = isinstance(returns, ast.Name) and returns.id == "bool"
        if decides and node.value is not None:
            self._either(node.value)
        with self._within(decides):
            self.generic_visit(node)

    def _move_stores(self, body: list[ast.stmt]) -> None:
        """Each assignment to a part of self, where it can be made before something that refuses."""
        first = 1 if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) else 0
        for place, node in enumerate(body):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if not any(is_own(one) for target in targets for one in getattr(target, "elts", [target])):
                continue
            needed = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)} - {"self"}
            earliest = 1 + max((i for i in range(place) if _binds(body[i], needed)), default=first - 1)
            if any(map(self.facts.refuses, body[earliest:place])):
                start = self._span(body[earliest])[0]
                moved = Edit(start, start, f"{ast.unparse(node)}\n{' ' * node.col_offset}")
                self._add("early", node, ast.unparse(node), [moved, Edit(*self._span(node), "pass")], security=True)

    # Expressions.

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """A choice of two values."""
        self._either(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """A selection, such as the one of whose share is released."""
        for test in node.ifs:
            self._replace("filter", test, ast.Constant(True), security=True)
            self._replace("negate", test, _negated(test), security=True)
        with self._within(bool(node.ifs)):
            self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """A condition of several parts."""
        for operand in node.values:
            rest = [one for one in node.values if one is not operand]
            left = rest[0] if len(rest) == 1 else ast.BoolOp(op=node.op, values=rest)
            self._replace("operand", node, left, security=self.security)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """A comparison: its boundary, and its two sides."""
        for place, op in enumerate(node.ops):
            if type(op) in _ORDERS:
                for changed in _boundaries(node, place):
                    self._replace("boundary", node, changed, security=self.security)
        for passing in _one_sided(node):
            self._replace("one-sided", node, passing, security=self.security)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Bounds, quantifiers, the fields of a statement, and switches."""
        name = bare_name(node.func)
        if name in {"any", "all"}:
            other = ast.Call(func=ast.Name("all" if name == "any" else "any"), args=node.args, keywords=[])
            self._replace("quantifier", node, other, security=self.security)
        if name in {"max", "min"} and len(node.args) > 1:
            self._leave_out("operand", node, node.args)
        elif name in self.facts.variadic:
            self._leave_out("field", node, node.args[self.facts.variadic[name] :])
        for keyword in node.keywords:
            # What zip is told concerns our own lists only.
            if name != "zip" and isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, bool):
                edit = Edit(*self._span(keyword.value), str(not keyword.value.value))
                self._add("flag", keyword.value, ast.unparse(keyword), [edit], security=True)
        self.generic_visit(node)

    # Making mutants.

    def _either(self, node: ast.expr) -> None:
        for answer in (True, False):
            if not (isinstance(node, ast.Constant) and node.value is answer):
                self._replace("either", node, ast.Constant(answer), security=True)

    def _leave_out(self, kind: str, node: ast.Call, arguments: Iterable[ast.expr]) -> None:
        for argument in arguments:
            rest = [one for one in node.args if one is not argument]
            call = ast.Call(func=node.func, args=rest, keywords=node.keywords)
            self._replace(kind, node, rest[0] if kind == "operand" and len(rest) == 1 else call, security=True)

    def _replace(self, kind: str, node: ast.expr, changed: ast.expr, *, security: bool) -> None:
        text = ast.unparse(changed)
        edit = Edit(*self._span(node), text if isinstance(changed, ast.Constant | ast.Name) else f"({text})")
        what = ast.unparse(node) if kind in {"never", "filter"} else f"{ast.unparse(node)} -> {text}"
        self._add(kind, node, what, [edit], security=security)

    def _delete(self, kind: str, node: ast.stmt, *, security: bool) -> None:
        self._add(kind, node, ast.unparse(node), [Edit(*self._span(node), "pass")], security=security)

    def _add(self, kind: str, node: ast.expr | ast.stmt, what: str, edits: list[Edit], *, security: bool) -> None:
        mutant = Mutant(
            file=self.file,
            function=".".join(self.path) or MODULE_SCOPE,
            scope=self.scope,
            kind=kind,
            change=" ".join(what.split()),
            line=node.lineno,
            security=security,
            edits=tuple(edits),
        )
        self.found.append(mutant)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Byte offsets; the syntax tree counts columns in bytes, too."""
        last, column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[last - 1] + column

    def _named(self, names: frozenset[str]) -> bool:
        return self.function is not None and self.function.name in names

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    @contextmanager
    def _within(self, security: bool) -> Iterator[None]:
        before, self.security = self.security, security
        yield
        self.security = before


def _negated(node: ast.expr) -> ast.expr:
    match node:
        case ast.UnaryOp(op=ast.Not()):
            return node.operand
        case ast.Compare(ops=[op]) if type(op) in _OPPOSITES:
            return ast.Compare(left=node.left, ops=[_OPPOSITES[type(op)]()], comparators=node.comparators)
        case _:
            return ast.UnaryOp(op=ast.Not(), operand=node)


def _binds(node: ast.stmt, names: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id in names for n in ast.walk(node))


def _boundaries(node: ast.Compare, place: int) -> Iterator[ast.Compare]:
    """One order of a comparison with the other strictness, and with its boundary one off the other way."""
    operands = [node.left, *node.comparators]
    swapped, by = _ORDERS[type(node.ops[place])]
    yield ast.Compare(
        left=node.left,
        ops=[*node.ops[:place], swapped(), *node.ops[place + 1 :]],
        comparators=node.comparators,
    )
    # In a chain an inner operand belongs to two orders; only an outer one can move.
    moving = place + 1 if place + 2 == len(operands) else place
    if (moving == place and place > 0) or any(map(is_set, operands)):
        return
    shifted = by if moving > place else -by
    operands[moving] = ast.BinOp(
        left=operands[moving], op=ast.Add() if shifted > 0 else ast.Sub(), right=ast.Constant(1)
    )
    yield ast.Compare(left=operands[0], ops=node.ops, comparators=operands[1:])


def _one_sided(node: ast.Compare) -> Iterator[ast.expr]:
    """An equality of lengths or sets that lets one of the two inequalities pass."""
    sides = (node.left, *node.comparators)
    if len(node.ops) > 1 or any(map(is_count_of_set, sides)) or not any(is_set(s) or is_length(s) for s in sides):
        return  # A list that is no shorter than its set: one of the two inequalities cannot hold.
    orders = (ast.LtE(), ast.GtE())
    if isinstance(node.ops[0], ast.Eq):
        yield from (ast.Compare(left=node.left, ops=[order], comparators=node.comparators) for order in orders)
    elif isinstance(node.ops[0], ast.NotEq):
        # Sets need not be ordered, so the opposite of <= is not >.
        yield from (
            _negated(ast.Compare(left=node.left, ops=[order], comparators=node.comparators)) for order in orders
        )
