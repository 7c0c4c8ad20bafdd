"""Reads a person's PyTorch script as a syntax tree, without running any of it.

What is looked for: the model that the optimizer is given, the optimizer, the loss, and what the DataLoaders read. An
expression is followed through assignments of its own function and of the module, `self.x` of a class, defaults of
parameters, and the defaults of an ArgumentParser. If that ends at something unknown, a person has to decide.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, TypeAlias

from fedcore.errors import DataError

Scope: TypeAlias = tuple[ast.AST, ...]
"""The module, and the classes and functions around a node, from the outside in."""

_OPTIMIZERS: Final = frozenset(
    {
        "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "NAdam", "RAdam", "RMSprop",
        "Rprop", "SGD", "SparseAdam",
    }
)  # fmt: skip
_WRAPPERS: Final = frozenset({"to", "cuda", "cpu", "float", "double", "train", "DataParallel", "compile"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script as text and tree.

    scopes: of each node.
    parents: the node around each.
    """

    path: Path
    lines: tuple[str, ...]
    tree: ast.Module
    scopes: dict[ast.AST, Scope] = field(repr=False)
    parents: dict[ast.AST, ast.AST] = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises DataError for a file that is absent or no Python."""
        try:
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
        except FileNotFoundError:
            raise DataError(f"there is no file {path}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path} cannot be read: {error}") from None
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            raise DataError(f"{path} is no Python{f', line {line}' if line else ''}: {error}") from None
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        return cls(
            path=path, lines=tuple(text.splitlines()), tree=tree, scopes=dict(_scopes(tree, ())), parents=parents
        )

    def calls(self, *names: str) -> list[ast.Call]:
        """Calls of functions with one of these names, whatever module they are of, in the order of their lines."""
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and called(node) in names]
        return sorted(calls, key=lambda call: (call.lineno, call.col_offset))

    def optimizers(self) -> list[ast.Call]:
        """The optimizers that are made, in the order of their lines."""
        return [call for call in self.calls(*_OPTIMIZERS) if call.args or call.keywords]

    def optimizer(self) -> ast.Call | None:
        """The first of them."""
        return next(iter(self.optimizers()), None)

    def classes(self) -> list[ast.ClassDef]:
        """The classes of the module."""
        return [node for node in self.tree.body if isinstance(node, ast.ClassDef)]

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The outermost class around a node."""
        return next((one for one in self.scopes[node] if isinstance(one, ast.ClassDef)), None)

    def called_as(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
        """The name in calls of a function of the module or of a method: of `__init__` that of its class."""
        cls = self.class_of(function)
        return cls.name if cls is not None and function.name == "__init__" else function.name

    @property
    def streams(self) -> bool:
        """Whether its data are a stream: no length, and no example by its number."""
        return any("IterableDataset" in ast.unparse(base) for one in self.classes() for base in one.bases)

    def modules(self) -> list[ast.ClassDef]:
        """Classes of the module that are models: subclasses of nn.Module, or of another one of them."""
        modules: list[ast.ClassDef] = []
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef):
                bases = {_last(base) for base in node.bases}
                if bases & {"Module", *(one.name for one in modules)}:
                    modules.append(node)
        return modules

    def model(self) -> ast.expr | None:
        """What the optimizer's parameters are of, without `.to(device)`; else the last model that is made."""
        if (optimizer := self.optimizer()) is not None:
            for node in ast.walk(optimizer):
                if isinstance(node, ast.Attribute) and node.attr in ("parameters", "named_parameters"):
                    expression = self.assigned(node.value, optimizer)
                    if expression is not None and isinstance(expression.value, ast.expr):
                        return unwrapped(expression.value)
        calls = self.calls(*(one.name for one in self.modules()))
        outside = [call for call in calls if not any(isinstance(s, ast.ClassDef) for s in self.scopes[call])]
        return outside[-1] if outside else None

    def loaders(self) -> tuple[ast.Call | None, ast.Call | None]:
        """The DataLoaders of training and of testing."""
        train = test = None
        for call in self.calls("DataLoader"):
            text = f"{self.target_of(call)} {ast.unparse(call)}".lower()
            shuffled = "shuffle=true" in text.replace(" ", "")
            if any(word in text for word in ("test", "val", "eval")) and not shuffled:
                test = test or call
            elif train is None or (shuffled and "train" in text):
                train = call
        return train, test

    def loader_argument(self, loader: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
        """An argument of a DataLoader, also of a dict that it is given as `**options`."""
        if (value := keyword(loader, name, position)) is not None:
            return value
        for one in loader.keywords:
            made = self.assigned(one.value, loader) if one.arg is None else None
            if made is not None and isinstance(made.value, ast.Dict):
                for key, inner in zip(made.value.keys, made.value.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == name:
                        return inner
        return None

    def assigned(self, target: ast.expr, before: ast.AST) -> ast.Assign | ast.AnnAssign | None:
        """The last assignment to a name or to self.name, in the scopes of a node and above its line."""
        name = ast.unparse(target)
        own = name.startswith("self.")
        line = getattr(before, "lineno", 0)
        for scope in reversed(self.scopes[before]):
            if isinstance(scope, ast.ClassDef) and not own:
                continue
            innermost = scope is next(s for s in reversed(self.scopes[before]) if not isinstance(s, ast.ClassDef))
            assignments = [
                node
                for node in ast.walk(scope)
                if isinstance(node, ast.Assign | ast.AnnAssign)
                and name in targets_of(node)
                and (own or (self.scopes[node][-1] is scope and (node.lineno < line or not innermost)))
            ]
            if assignments:
                return max(assignments, key=lambda node: node.lineno)
        return None

    def parser_default(self, name: str) -> ast.expr | None:
        """What an ArgumentParser says where nobody gives --name."""
        for call in self.calls("add_argument"):
            flags = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            if name in (flag.lstrip("-").replace("-", "_") for flag in flags):
                values = {one.arg: one.value for one in call.keywords}
                action = getattr(values.get("action"), "value", "")
                flag = {"store_true": ast.Constant(False), "store_false": ast.Constant(True)}.get(action)
                default = values.get("default", flag)
                if default is None and "required" not in values and flags[0].startswith("-"):
                    default = ast.Constant(None)
                return default if default is None or hasattr(default, "lineno") else ast.copy_location(default, call)
        return None

    def imports(self) -> dict[str, str]:
        """Names that the module imports, and the statement for each."""
        statements = {}
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Import | ast.ImportFrom) or getattr(node, "module", "") == "__future__":
                continue
            for alias in node.names:
                one: ast.stmt = ast.Import(names=[alias])
                if isinstance(node, ast.ImportFrom):
                    one = ast.ImportFrom(module=node.module, names=[alias], level=node.level)
                statements[alias.asname or alias.name.partition(".")[0]] = ast.unparse(one)
        return statements

    def definitions(self) -> dict[str, ast.AST]:
        """Functions and classes of the module."""
        return {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}

    def copied_lines(self) -> list[int]:
        """Numbers of the lines that do nothing when they are imported: imports, definitions, plain values, comments."""
        dropped: set[int] = set()
        for node in self.tree.body:
            if not is_quiet(node):
                dropped |= set(range(first_line(node), last_line(node) + 1))
        return [number for number in range(1, len(self.lines) + 1) if number not in dropped]

    def target_of(self, call: ast.Call) -> str:
        """The names that a call's value is assigned to."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and any(one is call for one in ast.walk(node.value)):
                return " ".join(targets_of(node))
        return ""


def plainly(node: ast.AST) -> str:
    """The code of a node, with double quotes around strings, as formatters write them."""
    text = ast.unparse(node)
    if '"' not in text and "\\" not in text:
        other = text.replace("'", '"')
        try:
            same = ast.dump(ast.parse(other)) == ast.dump(ast.parse(text))
        except SyntaxError:
            same = False
        return other if same else text
    return text


def called(call: ast.Call) -> str:
    """The last part of the name of what is called."""
    return _last(call.func)


def keyword(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """An argument of a call, by its name or its position."""
    for one in call.keywords:
        if one.arg == name:
            return one.value
    return call.args[position] if position is not None and len(call.args) > position else None


def _scopes(node: ast.AST, around: Scope) -> Iterator[tuple[ast.AST, Scope]]:
    yield node, around or (node,)
    inside = (*around, node) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else around
    for child in ast.iter_child_nodes(node):
        yield from _scopes(child, inside)


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def targets_of(node: ast.Assign | ast.AnnAssign) -> list[str]:
    """The names that an assignment gives values."""
    assigned: Sequence[ast.expr] = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [
        ast.unparse(one) for target in assigned for one in (target.elts if isinstance(target, ast.Tuple) else [target])
    ]


def unwrapped(node: ast.expr) -> ast.expr:
    """Without .to(device), DataParallel and the like."""
    while isinstance(node, ast.Call) and called(node) in _WRAPPERS:
        is_method = isinstance(node.func, ast.Attribute) and not (
            isinstance(node.func.value, ast.Name) and node.func.value.id in ("nn", "torch")
        )
        inner = node.func.value if is_method and isinstance(node.func, ast.Attribute) else next(iter(node.args), None)
        if inner is None:
            break
        node = inner
    return node


def first_line(node: ast.stmt) -> int:
    """The line of its first decorator, if it has one."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def last_line(node: ast.stmt | ast.expr) -> int:
    """The line where it ends."""
    return node.end_lineno or node.lineno


def lines_of(node: ast.stmt | ast.expr) -> set[int]:
    """The numbers of its lines, without those of decorators."""
    return set(range(node.lineno, last_line(node) + 1))


def defines(node: ast.AST) -> bool:
    """Whether it is a definition or an import."""
    return isinstance(node, _DEFINITIONS)


def is_quiet(node: ast.stmt) -> bool:
    """Whether it does nothing when it is imported: a definition, an import, a plain value, a comment."""
    if defines(node):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        return not any(isinstance(one, ast.Call | ast.Await | ast.Subscript) for one in ast.walk(node.value))
    return False
