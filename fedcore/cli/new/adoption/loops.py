"""Where a script trains and tests: its loop over epochs, the statements of one epoch, and what they are made of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeAlias, TypeGuard

from fedcore.cli.new.adoption.scripts import Script, called, keyword

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Loop: TypeAlias = ast.For | ast.While

SCHEDULERS: Final = re.compile(
    r"(\w+LR|ReduceLROnPlateau|CosineAnnealingWarmRestarts|get_\w*schedule\w*|get_scheduler)$"
)
FIGURE: Final = re.compile(
    r"loss|acc|auc|f1|iou|dice|mae|mse|rmse|r2|score|ppl|perplexity|precision|recall|error", re.I
)
_REPORTS: Final = frozenset({"print", "wandb", "writer", "logger", "logging", "log", "mlflow", "tb", "summary_writer"})
_REPORT_METHODS: Final = frozenset({"set_description", "set_postfix", "set_postfix_str", "add_scalar"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoop:
    """The loop over epochs of a script.

    epochs: None if there is none, as if there were one epoch.
    body: the statements of one epoch.
    trains: those of them in which gradients are made.
    scope: the function that has them, or the module.
    batches: the loop over batches.
    """

    epochs: ast.For | None
    body: tuple[ast.stmt, ...]
    trains: tuple[ast.stmt, ...]
    scope: ast.AST
    batches: ast.For | None

    @classmethod
    def of(cls, script: Script) -> Self | None:
        """That of the first backward pass; None if there is none, or a loop that no rule here follows."""
        backward = script.calls("backward")
        if not backward:
            return None
        ways = [_climb(script, call) for call in backward]
        epochs, top = ways[0]
        body = tuple(epochs.body) if epochs is not None else (top,)
        if any(epoch is not epochs for epoch, _ in ways) or (epochs is None and any(one is not top for _, one in ways)):
            return None
        trains = tuple(one for one in body if any(one is way for _, way in ways))
        scope = scope_of(script, epochs or top)
        around = [node for node in ancestors(script, backward[0]) if isinstance(node, ast.For) and node is not epochs]
        batches = next((one for one in around if not _over_numbers(one)), None)
        return cls(epochs=epochs, body=body, trains=trains, scope=scope, batches=batches)

    @property
    def counters(self) -> set[str]:
        """The names that count the epochs."""
        return stores(self.epochs.target) if self.epochs is not None else set()

    @property
    def top(self) -> ast.stmt:
        """The statement of the scope that holds the training."""
        return self.epochs if self.epochs is not None else self.body[0]


def _climb(script: Script, node: ast.AST) -> tuple[ast.For | None, ast.stmt]:
    """The loop over epochs around a node and the statement of it in which the node is, through calls of functions."""
    visited: set[ast.AST] = set()
    while True:
        around = [node, *ancestors(script, node)]
        for one, inside in zip(around[1:], around, strict=False):
            if isinstance(one, ast.For) and is_over_epochs(one) and isinstance(inside, ast.stmt):
                return one, inside
        function = scope_of(script, node)
        top = next(one for one in reversed(around) if isinstance(one, ast.stmt) and _stands_in(script, one, function))
        if not isinstance(function, Function) or function in visited:
            return None, top
        visited.add(function)
        calls = outside_calls(script, function)
        if not calls:
            return None, top
        node = calls[0]


def _stands_in(script: Script, statement: ast.stmt, scope: ast.AST) -> bool:
    return any(statement is one for one in flat(scope))


def is_over_epochs(loop: ast.For) -> bool:
    """Whether a loop counts epochs."""
    return _over_numbers(loop) and any("ep" in name for name in _names_in(loop.target))


def _over_numbers(loop: ast.For) -> bool:
    calls = [one for one in ast.walk(loop.iter) if isinstance(one, ast.Call)]
    return any(called(one) in ("range", "trange") for one in calls)


def _names_in(node: ast.AST) -> list[str]:
    return [one.id.lower() for one in ast.walk(node) if isinstance(one, ast.Name)]


def ancestors(script: Script, node: ast.AST) -> Iterator[ast.AST]:
    """The nodes around one, from the inside out, within its outermost function."""
    outer = scope_of(script, node)
    while (parent := script.parents.get(node)) is not None and node is not outer:
        yield parent
        node = parent


def scope_of(script: Script, node: ast.AST) -> ast.AST:
    """The function of the module, or the method, in which a node is; else the module."""
    outer: ast.AST = script.tree
    for scope in script.scopes[node]:
        if isinstance(scope, Function) and scope is not node:
            return scope
        outer = outer if isinstance(scope, ast.ClassDef) else scope
    return script.tree


def outside_calls(script: Script, function: Function) -> list[ast.Call]:
    """The calls of a function by its name, without those that it makes itself."""
    return [call for call in script.calls(function.name) if scope_of(script, call) is not function]


def flat(scope: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a scope, with those under `if __name__ == "__main__":`."""
    for statement in getattr(scope, "body", ()):
        if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
            yield from statement.body
        else:
            yield statement


def reports(statement: ast.stmt) -> bool:
    """Whether a statement only prints, logs or draws."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        root: ast.AST = function
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(function, ast.Attribute) and function.attr in _REPORT_METHODS:
            return True
        name = root.id if isinstance(root, ast.Name) else ""
        return name.lower().strip("_") in _REPORTS or ast.unparse(function).startswith("tqdm.write")
    if isinstance(statement, ast.If):
        return all(reports(one) for one in [*statement.body, *statement.orelse])
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def loads(node: ast.AST) -> set[str]:
    """Names that are read in a node, `self.x` as x."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Store)}
    names |= {
        one.target.id for one in ast.walk(node) if isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name)
    }
    return names | {one.attr for one in ast.walk(node) if _is_own(one)}


def stores(node: ast.AST) -> set[str]:
    """Names that are assigned in a node, `self.x` as x."""
    return plain_stores(node) | own_stores(node)


def plain_stores(node: ast.AST) -> set[str]:
    """Names that are assigned in a node, without those of `self`."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def own_stores(node: ast.AST) -> set[str]:
    """The attributes of `self` that are assigned in a node."""
    return {one.attr for one in ast.walk(node) if _is_own(one) and isinstance(one.ctx, ast.Store)}


def _is_own(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def kept_statements(loop: TrainingLoop, owned: set[str], tests: set[str]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The statements of an epoch that train, or that those need; and those that are left out.

    Args:
        owned: names of models, optimizers and schedulers, whose methods belong to the training.
        tests: names of what tests, functions and DataLoaders.
    """
    training: list[ast.stmt] = []
    needed: set[str] = set()
    made: set[str] = set().union(*(stores(one) for one in loop.trains))
    tested: set[str] = set().union(*(stores(one) for one in loop.body if is_test(one, tests)))
    owned = owned - tested
    for statement in reversed(loop.body):
        trains = any(statement is one for one in loop.trains)
        by_tests = bool(loads(statement) & (tested - made)) and not stores(statement) & needed
        if trains or (not by_tests and _belongs(statement, needed, owned, made, tests)):
            training.insert(0, statement)
            needed |= loads(statement)
    return training, [one for one in loop.body if not any(one is other for other in training)]


def _belongs(statement: ast.stmt, needed: set[str], owned: set[str], made: set[str], tests: set[str]) -> bool:
    if reports(statement) or is_test(statement, tests) or _saves(statement):
        return False
    if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
        return bool(stores(statement) & needed) and not stores(statement) <= made
    return bool(loads(statement) & owned)


def is_test(statement: ast.stmt, tests: set[str]) -> bool:
    """Whether a statement evaluates the model."""
    calls = {called(one) for one in ast.walk(statement) if isinstance(one, ast.Call)}
    return bool(calls & {"eval", "no_grad", "inference_mode"}) or bool(loads(statement) & tests)


def _saves(statement: ast.stmt) -> bool:
    calls = [one for one in ast.walk(statement) if isinstance(one, ast.Call)]
    return any(called(one) in ("save", "save_pretrained", "save_checkpoint", "dump", "state_dict") for one in calls)


def test_functions(script: Script) -> set[str]:
    """Names of functions and methods that evaluate the model."""
    return {one.name for one in functions(script) if tests_only(script, one)}


def functions(script: Script) -> list[Function]:
    """The functions of the module and the methods of its classes."""
    methods = [one for cls in script.classes() for one in cls.body]
    return [one for one in [*script.tree.body, *methods] if isinstance(one, Function)]


def tests_only(script: Script, function: Function) -> bool:
    """Whether a function of the script evaluates the model: it makes no gradients, and says so."""
    calls = {called(one) for one in ast.walk(function) if isinstance(one, ast.Call)}
    marks = any(
        "no_grad" in ast.unparse(one) or "inference_mode" in ast.unparse(one) for one in function.decorator_list
    )
    loops = any(isinstance(one, ast.For | ast.comprehension) for one in ast.walk(function))
    return (
        loops
        and "backward" not in calls
        and not calls & {"fit", "step"}
        and (marks or bool(calls & {"eval", "no_grad", "inference_mode"}))
    )


def printed_figures(nodes: Sequence[ast.AST], known: set[str]) -> dict[str, str]:
    """Figures that these nodes print: a name for each, and its expression."""
    figures: dict[str, str] = {}
    for node in nodes:
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and called(call) in (
                "print",
                "info",
                "log",
                "append",
                "format",
                "add_scalar",
            ):
                for one in ast.walk(call):
                    if isinstance(one, ast.Name) and one.id in known and FIGURE.search(one.id):
                        figures.setdefault(one.id, one.id)
                    if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div | ast.Mult) and _right(one, known):
                        figures.setdefault("accuracy", ast.unparse(one))
    return figures


def _right(node: ast.AST, known: set[str]) -> bool:
    """Whether it is a share of right answers."""
    return "/" in ast.unparse(node) and any(name in ("correct", "right", "hits") for name in loads(node) & known)


def dataset_argument(call: ast.Call) -> ast.expr | None:
    """What a DataLoader reads."""
    return keyword(call, "dataset", 0)
