"""What the statements of a script do to its names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from fedcore.cli.new.adoption.loops import Function, plain_stores, reports, stores
from fedcore.cli.new.adoption.scripts import called, defines

_HARMLESS: Final = frozenset(
    {
        "to", "cuda", "cpu", "train", "eval", "parameters", "named_parameters", "backward", "step", "zero_grad", "info",
        "describe", "head", "summary", "state_dict", "print", "len", "save", "watch", "add_graph", "isinstance", "str",
        "update_bn", "close", "modules", "children", "named_modules", "print_trainable_parameters", "DataParallel",
        "manual_seed", "manual_seed_all", "seed", "set_seed", "seed_everything", "set_detect_anomaly",
    }
)  # fmt: skip
_COMPOUND: Final = (ast.For, ast.While, ast.If, ast.With, ast.Try)


def touches(statement: ast.stmt, key: str) -> bool:
    """Whether a statement gives a name a value, or changes what it has."""
    if defines(statement) or reports(statement):
        return False
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return any(root(one) == key for one in bound_by(statement)) or calls_on(
            statement.value, key, as_statement=False
        )
    if isinstance(statement, ast.Expr):
        return calls_on(statement.value, key, as_statement=True)
    if isinstance(statement, _COMPOUND):
        heads = [*getattr(statement, "items", ()), getattr(statement, "target", None)]
        if any(one is not None and key in names_bound(one) for one in heads):
            return True
        return any(touches(one, key) for one in inner_statements(statement))
    return False


def inner_statements(statement: ast.stmt) -> Iterator[ast.stmt]:
    """The statements directly inside a compound one."""
    for part in ("body", "orelse", "finalbody"):
        yield from getattr(statement, part, ())
    for handler in getattr(statement, "handlers", ()):
        yield from handler.body


def names_bound(node: ast.AST) -> set[str]:
    """The names that the head of a loop or a `with` gives values."""
    target = node.optional_vars if isinstance(node, ast.withitem) else node
    return stores(target) if target is not None else set()


def bound_by(statement: ast.stmt) -> list[ast.expr]:
    """The targets of an assignment, those of a tuple one by one."""
    many = statement.targets if isinstance(statement, ast.Assign) else [statement.target]  # type: ignore[attr-defined]
    return [inner for one in many for inner in (one.elts if isinstance(one, ast.Tuple | ast.List) else [one])]


def root(node: ast.AST) -> str:
    """The name, or `self.x`, at which a target begins."""
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Starred):
        text = ast.unparse(node)
        if isinstance(node, ast.Attribute) and text.startswith("self.") and text.count(".") == 1:
            return text
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def calls_on(value: ast.AST | None, key: str, *, as_statement: bool) -> bool:
    """Whether a call changes the name: by a method of it, or, if it is all of the statement, as an argument."""
    if not isinstance(value, ast.Call) or called(value) in _HARMLESS:
        return False
    if isinstance(value.func, ast.Attribute) and root(value.func.value) == key:
        return as_statement or called(value) in ("load_state_dict", "pop")
    return as_statement and any(root(one) == key for one in [*value.args, *(it.value for it in value.keywords)])


def gives(statement: ast.stmt, key: str) -> bool:
    """Whether a statement gives the name a whole new value."""
    if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        return any(ast.unparse(one) == key for one in bound_by(statement))
    return isinstance(statement, ast.With) and any(gives(one, key) for one in statement.body)


def own_names(node: ast.AST) -> set[str]:
    """Names that comprehensions, lambdas and inner functions bind."""
    names: set[str] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.comprehension):
            names |= stores(one.target)
        elif isinstance(one, ast.arg):
            names.add(one.arg)
        elif isinstance(one, Function):
            names |= {one.name, *plain_stores(one)}
        elif isinstance(one, ast.ExceptHandler) and one.name:
            names.add(one.name)
        elif isinstance(one, ast.NamedExpr):
            names |= stores(one.target)
    return names


def asks(node: ast.AST | None) -> bool:
    """Whether it reads what a person types, or what the command line says."""
    return node is not None and any(
        isinstance(one, ast.Call) and called(one) in ("parse_args", "parse_known_args", "input")
        for one in ast.walk(node)
    )


def option_name(call: ast.Call) -> str:
    """What an ArgumentParser calls the option of `add_argument`."""
    flags = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    long = [flag for flag in flags if flag.startswith("--")] or flags
    return long[0].lstrip("-").replace("-", "_") if long else ""


def arguments(function: Function) -> list[ast.arg]:
    """All parameters of a function."""
    plain = function.args
    return [
        one
        for one in [*plain.posonlyargs, *plain.args, plain.vararg, *plain.kwonlyargs, plain.kwarg]
        if one is not None
    ]


def declared_global(function: Function) -> set[str]:
    """Names that it says are the module's."""
    return {name for one in ast.walk(function) if isinstance(one, ast.Global) for name in one.names}


def default_of(function: Function, name: str) -> ast.expr | None:
    """The default of a function's parameter, if it has one."""
    plain = function.args.args
    for one, default in zip(reversed(plain), reversed(function.args.defaults), strict=False):
        if one.arg == name:
            return default
    for one, keyword_default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if one.arg == name:
            return keyword_default
    return None
