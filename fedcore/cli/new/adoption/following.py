"""Takes code out of a script: what an expression or a statement needs comes before it, and nothing else.

A name is followed to what was assigned to it last and to all that changed it since: `rows.append(...)` in a loop,
`model.fc = nn.Linear(...)`, `frame["age"] /= 100`. Parameters are followed to the arguments of the function's calls,
options of a command line to their defaults. What ends elsewhere is unknown, and a person has to decide.
"""

from __future__ import annotations

import ast
import builtins
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedcore.cli.new.adoption.loops import Function, flat, loads, own_stores, plain_stores, scope_of, stores
from fedcore.cli.new.adoption.names import (
    arguments,
    asks,
    bound_by,
    declared_global,
    default_of,
    gives,
    option_name,
    own_names,
    touches,
)
from fedcore.cli.new.adoption.scripts import (
    Script,
    called,
    defines,
    first_line,
    is_quiet,
    last_line,
    plainly,
    targets_of,
    unwrapped,
)


@dataclass(frozen=True, slots=True)
class Expression:
    """Code that can stand elsewhere.

    text: of the expression.
    before: statements that it needs, in order.
    lines: of the script, from which it comes.
    unknown: names in it that could not be followed.
    """

    text: str
    before: tuple[str, ...]
    names: frozenset[str]
    lines: tuple[int, ...]
    unknown: tuple[str, ...]

    @property
    def number(self) -> float | None:
        """The number that it is, if it is one by itself."""
        if self.before or self.names or self.unknown:
            return None
        try:
            value = ast.literal_eval(self.text)
        except ValueError:
            return None
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def follow(script: Script, node: ast.expr) -> Expression:
    """A part of the script, so that it can stand in a function of its own."""
    follower = Follower(script)
    text = follower.expression(node)
    return follower.result(text)


class Follower(ast.NodeTransformer):
    """Rewrites code of a script, and gathers what it needs.

    names: of libraries and of the copied script.
    lines: from which it comes.
    unknown: names that could not be followed.
    used: what stands for names in `stand_ins` that came up.
    rate_of: the optimizer whose learning rate is the variable `lr`, "" for none.
    """

    def __init__(
        self, script: Script, stand_ins: Mapping[str, str] | None = None, without: Collection[ast.stmt] = ()
    ) -> None:
        self.script = script
        self.stand_ins = dict(stand_ins or {})
        self.known = {*script.imports(), *script.definitions(), *dir(builtins), "__name__", "__file__"}
        self.names: set[str] = set()
        self.lines: set[int] = set()
        self.unknown: dict[str, None] = {}
        self.used: set[str] = set()
        self.rate_of = ""
        self._without = without
        self._before: dict[tuple[float, int, str], str] = {}
        self._at: ast.AST = script.tree
        self._bound: set[str] = set()
        self._stored: set[str] = set()

    @property
    def before(self) -> tuple[str, ...]:
        """The statements that are needed, in the order in which they run."""
        return tuple(self._before[key] for key in sorted(self._before) if self._before[key])

    def result(self, text: str) -> Expression:
        """What was followed, with the text of it."""
        return Expression(text, self.before, frozenset(self.names), tuple(sorted(self.lines)), tuple(self.unknown))

    def expression(self, node: ast.expr) -> str:
        """The text of an expression."""
        copy = ast.parse(ast.unparse(node), mode="eval").body
        return plainly(self._rewritten(node, copy))

    def statement(self, node: ast.stmt) -> str:
        """The text of a statement, as it stands in the script if nothing in it had to change."""
        source = textwrap.dedent("\n".join(self.script.lines[first_line(node) - 1 : node.end_lineno]))
        copy = ast.parse(ast.unparse(node)).body[0]
        before = ast.dump(copy)
        changed = self._rewritten(node, copy)
        return source if ast.dump(changed) == before else plainly(changed)

    def define(self, name: str, at: ast.AST) -> None:
        """Have the statements come before that give a name its value, above a node."""
        outer = self._at
        self._at = at
        self._followed(name, ast.Name(name.removeprefix("self."), ast.Load()))
        self._at = outer

    def need(self, name: str, at: ast.AST) -> None:
        """As `define`, of a name or that of `self`, if the script gives it a value there."""
        outer, self._at = self._at, at
        for key in (name, f"self.{name}"):
            if self._sources(key)[0]:
                self._followed(key, ast.Name(name, ast.Load()))
                break
        self._at = outer

    def set_at(self, node: ast.AST) -> None:
        """The place in the script from which names are followed."""
        self._at = node

    def bind(self, names: Collection[str]) -> None:
        """Names that the place where the code will stand has."""
        self._bound |= set(names)

    def statement_in(self, node: ast.stmt, stored: Collection[str]) -> str:
        """As `statement`, among others that store these names."""
        outer, self._stored = self._stored, self._stored | set(stored)
        text = self.statement(node)
        self._stored = outer
        return text

    def _rewritten(self, node: ast.AST, copy: Any) -> Any:
        at, bound, stored = self._at, self._bound, self._stored
        self._at = node
        self._bound = bound | own_names(copy)
        self._stored = stored | stores(copy)
        self.lines.add(getattr(node, "lineno", 1))
        changed = ast.fix_missing_locations(self.visit(copy))
        self._at, self._bound, self._stored = at, bound, stored
        return changed

    # --- names ----------------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if self.rate_of and called(node) == self.rate_of:
            self.used.add("lr")
            self._bound = self._bound | {"lr"}
            for one in node.keywords:
                if one.arg == "lr":
                    one.value = ast.Name("lr", ast.Load())
            if len(node.args) > 1:
                node.args[1] = ast.Name("lr", ast.Load())
        return self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> ast.AST:
        return ast.Nonlocal(node.names)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        text = ast.unparse(node)
        if text in self.stand_ins:
            return self._as_given(text, node)
        if isinstance(node.value, ast.Name) and node.value.id == "self" and "self" not in self._bound:
            return self._of_self(node, text)
        if isinstance(node.value, ast.Name) and node.value.id not in self.known | self._bound:
            default = self.script.parser_default(node.attr)
            if default is not None and self._is_options(node.value.id):
                self.lines.add(default.lineno)
                return ast.parse(self.expression(default), mode="eval").body
            if self._is_options(node.value.id):
                self.unknown[text] = None
                return node
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        text = ast.unparse(node)
        return self._as_given(text, node) if text in self.stand_ins else self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._bound:
            return node
        if node.id in self.stand_ins:
            return self._as_given(node.id, node)
        if isinstance(node.ctx, ast.Store):
            return node
        if node.id in self.known:
            definition = self.script.definitions().get(node.id)
            if isinstance(definition, Function) and self._is_closure(definition, set()):
                self.nest(definition)
            else:
                self.names.add(node.id)
            return node
        return self._followed(node.id, node)

    def _as_given(self, text: str, node: Any) -> ast.AST:
        self.used.add(self.stand_ins[text])
        if isinstance(node.ctx, ast.Load):
            return ast.parse(self.stand_ins[text], mode="eval").body
        stand_ins = self.stand_ins[text]
        return ast.Name(stand_ins, node.ctx) if stand_ins.isidentifier() else node

    def _of_self(self, node: ast.Attribute, text: str) -> ast.AST:
        cls = self.script.class_of(self._at)
        method = next(
            (one for one in getattr(cls, "body", ()) if isinstance(one, Function) and one.name == node.attr), None
        )
        if method is not None:
            self.nest(method)
            return ast.Name(f"self_{node.attr}", ast.Load())  # a method and a variable may have one name
        if isinstance(node.ctx, ast.Store):
            return ast.Name(node.attr, node.ctx)
        return self._followed(text, ast.Name(node.attr, ast.Load()))

    def _is_options(self, name: str) -> bool:
        """Whether it is an object of options, made from what a person types, or a parameter that nobody gives."""
        if name in self.stand_ins or name in self._stored:
            return False
        statements, scope = self._sources(name)
        if statements:
            return isinstance(statements[0], ast.Assign | ast.AnnAssign) and asks(statements[0].value)
        if isinstance(scope, Function) and (argument := self.argument(scope, name)) is not None:
            value, call = argument
            outer, self._at = self._at, call
            answer = isinstance(value, ast.Name) and self._is_options(value.id)
            self._at = outer
            return answer or asks(value)
        return True

    # --- where a name comes from ------------------------------------------------------------------------------------

    def _followed(self, key: str, name: ast.Name) -> ast.AST:
        """The name, once what gives it its value comes before it; or that value, if it is a plain one."""
        statements, scope = self._sources(key)
        if statements:
            return self._emitted(key, name, statements, scope)
        if isinstance(scope, Function):
            argument = self.argument(scope, name.id)
            if argument is not None:
                return self._passed(name, scope, *argument)
            default = default_of(scope, name.id)
            if default is not None:
                return ast.parse(ast.unparse(default), mode="eval").body
        if name.id not in self._stored:
            self.unknown[key] = None
        return name

    def _emitted(self, key: str, name: ast.Name, statements: Sequence[ast.stmt], scope: ast.AST) -> ast.AST:
        value = getattr(statements[0], "value", None)
        if len(statements) == 1 and isinstance(value, ast.Constant) and name.id not in self._stored:
            self.lines.add(statements[0].lineno)
            return value
        if isinstance(statements[0], ast.Assign | ast.AnnAssign) and asks(statements[0].value):
            self._options(name.id, statements[0])
            return name
        for statement in statements:
            self._emit(statement)
        return name

    def _emit(self, statement: ast.stmt) -> None:
        scope = scope_of(self.script, statement)
        order = (self._rank(scope), statement.lineno, "")
        if order in self._before:
            return
        self._before[order] = ""  # seen, so that a circle ends
        for one in sorted({f"self.{name}" for name in stores(statement)} | stores(statement)):
            if one in self.stand_ins:  # what is given would be made a second time
                self.unknown[f"{ast.unparse(statement).splitlines()[0]} (line {statement.lineno})"] = None
        bound, self._bound = self._bound, set()
        stored, self._stored = self._stored, set()
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            names = ", ".join(one.removeprefix("self.") for one in targets_of(statement))
            text = self.expression_of(statement)
            self._before[order] = f"{names} = {text}  # line {statement.lineno}"
        else:
            text = self.statement(statement)
            last = last_line(statement)
            where = f"lines {statement.lineno} to {last}" if last > statement.lineno else ""
            self._before[order] = f"# {where}\n{text}" if where else f"{text}  # line {statement.lineno}"
        self._bound, self._stored = bound, stored

    def expression_of(self, statement: ast.Assign | ast.AnnAssign) -> str:
        """The text of the value of an assignment."""
        assert statement.value is not None  # noqa: S101 - the caller looked
        return self.expression(statement.value)

    def _passed(self, name: ast.Name, function: Function, value: ast.expr, call: ast.Call) -> ast.AST:
        """A parameter's value: the argument of the function's call."""
        outer, bound = self._at, self._bound
        self._at, self._bound = call, set()
        text = self.expression(value)
        self._at, self._bound = outer, bound
        node = ast.parse(text, mode="eval").body
        if isinstance(node, ast.Constant) or text == name.id:
            return node
        self._before.setdefault(
            (self._rank(function) - 0.5, call.lineno, name.id), f"{name.id} = {text}  # line {call.lineno}"
        )
        return name

    def argument(self, function: Function, name: str) -> tuple[ast.expr, ast.Call] | None:
        """What all calls of a function give for a parameter, and the first of them; None if they differ."""
        is_method = self.script.class_of(function) is not None
        names = [one.arg for one in [*function.args.posonlyargs, *function.args.args]][is_method:]
        values: list[tuple[ast.expr, ast.Call]] = []
        for call in self.script.calls(self.script.called_as(function)):
            if scope_of(self.script, call) is function:
                continue
            stand_ins = {one.arg: one.value for one in call.keywords} | dict(zip(names, call.args, strict=False))
            if name not in stand_ins:
                return None
            values.append((stand_ins[name], call))
        if len({ast.dump(value) for value, _ in values}) != 1:
            return None
        return values[0]

    def _sources(self, key: str) -> tuple[list[ast.stmt], ast.AST]:
        """The statements that give a name its value, from the last whole one on, and the scope that has it."""
        function = scope_of(self.script, self._at)
        line = getattr(self._at, "lineno", 1 << 30)
        if key.startswith("self."):
            cls = self.script.class_of(self._at)
            every = [st for one in getattr(cls, "body", ()) if isinstance(one, Function) for st in one.body]
            own = [one for one in every if scope_of(self.script, one) is not function or one.lineno < line]
            return self._last(own, key), function
        for scope in dict.fromkeys((function, self.script.tree)):
            if isinstance(scope, Function) and key in [one.arg for one in arguments(scope)]:
                return self._last([one for one in scope.body if one.lineno < line], key), scope
            inside = [one for one in flat(scope) if scope is not function or one.lineno < line]
            if statements := self._last(inside, key):
                return statements, scope
        return [], function

    def _last(self, statements: Sequence[ast.stmt], key: str) -> list[ast.stmt]:
        matches = [one for one in statements if not self._holds(one) and touches(one, key)]
        full = [number for number, one in enumerate(matches) if gives(one, key)]
        matches = matches[full[-1] if full else 0 :]
        return matches if matches and (full or any(key.removeprefix("self.") in stores(one) for one in matches)) else []

    def _holds(self, statement: ast.stmt) -> bool:
        return any(statement is one for one in self._without)

    def _rank(self, scope: ast.AST, depth: int = 0) -> float:
        """In which order the scopes run: a caller before what it calls."""
        if not isinstance(scope, Function) or depth > 9:
            return 0.0
        is_method = self.script.class_of(scope) is not None
        outside = [scope_of(self.script, call) for call in self.script.calls(self.script.called_as(scope))]
        callers = [self._rank(one, depth + 1) for one in outside if one is not scope]
        return 1 + max(callers, default=0.0) + (is_method and scope.name != "__init__")

    # --- options and functions ----------------------------------------------------------------------------------

    def _options(self, name: str, statement: ast.stmt) -> None:
        """The object of options as a command line without words makes it."""
        values = []
        for call in self.script.calls("add_argument"):
            option = option_name(call)
            default = self.script.parser_default(option) if option else None
            if option and default is None:
                self.unknown[f"{name}.{option}"] = None
            elif option and default is not None:
                values.append(f"{option}={self.expression(default)}")
        self.names.add("SimpleNamespace")
        self._before[(0.0, statement.lineno, "")] = (
            f"{name} = SimpleNamespace({', '.join(values)})  # line {statement.lineno}"
        )

    def _is_closure(self, function: Function, visited: set[str]) -> bool:
        """Whether a function of the module reads what the module makes when it runs."""
        visited.add(function.name)
        free = loads(function) - stores(function) - {one.arg for one in arguments(function)}
        declared = declared_global(function)
        definitions = self.script.definitions()
        for name in free | declared:
            other = definitions.get(name)
            if isinstance(other, Function) and name not in visited and self._is_closure(other, visited):
                return True
            if name not in self.known and any(
                name in stores(one) and not is_quiet(one) for one in flat(self.script.tree) if not defines(one)
            ):
                return True
        return False

    def nest(self, function: Function, *, last: str = "") -> None:
        """Have a function of the script stand before, with what it reads from around it.

        Args:
            last: a statement to end it with.
        """
        order = (-1.0, function.lineno, "")
        if order in self._before:
            return
        self._before[order] = ""
        method = self.script.class_of(function) is not None
        at, bound, stored, self._bound, self._stored = self._at, self._bound, self._stored, set(), set()
        declared = declared_global(function)
        copy = ast.parse(ast.unparse(function)).body[0]
        assert isinstance(copy, Function)  # noqa: S101 - it is the text of one
        self._at = function.body[0]
        self._bound = ({one.arg for one in arguments(function)} | plain_stores(function)) - declared - {"self"}
        if method:
            copy.name = f"self_{function.name}"
            copy.args.args = copy.args.args[1:]
        copy.body = [self.visit(one) for one in copy.body]
        own = sorted(own_stores(function)) if method else []
        if own:
            for name in own:
                self._followed(f"self.{name}", ast.Name(name, ast.Load()))
            copy.body.insert(0, ast.Nonlocal(own))
        self._at, self._bound, self._stored = at, bound, stored
        self.lines.add(function.lineno)
        copy.body += ast.parse(last).body
        text = plainly(ast.fix_missing_locations(copy))
        self._before[order] = f"# lines {function.lineno} to {function.end_lineno}\n{text}"


class ModelFollower(Follower):
    """Leaves out `.to(device)` and what distributes a model."""

    def expression_of(self, statement: ast.Assign | ast.AnnAssign) -> str:
        assert statement.value is not None  # noqa: S101 - the caller looked
        return self.expression(unwrapped(statement.value))

    def _last(self, statements: Sequence[ast.stmt], key: str) -> list[ast.stmt]:
        return super()._last([one for one in statements if not _wraps_itself(one, key)], key)


def _wraps_itself(statement: ast.stmt, key: str) -> bool:
    value = statement.value if isinstance(statement, ast.Assign) else None
    return value is not None and ast.unparse(unwrapped(value)) == key and key in map(ast.unparse, bound_by(statement))
