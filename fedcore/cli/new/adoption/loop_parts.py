"""What a script's own loop gets in an app: the models, the device and the DataLoaders of a client, by their names."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from fedcore.cli.new.adoption.following import Expression, Follower, ModelFollower
from fedcore.cli.new.adoption.loops import (
    Function,
    TrainingLoop,
    ancestors,
    functions,
    loads,
    outside_calls,
    scope_of,
)
from fedcore.cli.new.adoption.names import root
from fedcore.cli.new.adoption.scripts import Script, called, keyword, lines_of, targets_of

_BY_PLACE: Final = ("shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn")
_LOADER_OPTIONS: Final = ("dataset", "batch_size")


@dataclass(slots=True)
class LoopPlan:
    """What goes into the file with the loop.

    models: the names of the federated models, and what makes them.
    fit, check: their statements.
    train_loader, test_loader: likewise, of the functions that make the DataLoaders of a client.
    imports: statements of import that these need.
    own: names of the copied script that these need.
    carried: lines of the script that are in them.
    marks: places that a person has to fill in: the file and what to write.
    found: what was recognized.
    figures: names of what `check` reports.
    """

    script: Script
    loop: TrainingLoop
    models: dict[str, Expression] = field(default_factory=dict)
    fit: list[str] = field(default_factory=list)
    check: list[str] = field(default_factory=list)
    train_loader: list[str] = field(default_factory=list)
    test_loader: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    carried: set[int] = field(default_factory=set)
    marks: list[str] = field(default_factory=list)
    findings: list[tuple[str, list[int]]] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)
    stand_ins: dict[str, str] = field(default_factory=dict)
    rate: str = ""

    def mark(self, what: str, nodes: Iterable[ast.AST] = (), file: str = "loop.py") -> list[str]:
        """Lines that stand where a person has to write something, with those of the script."""
        self.marks.append(f"{file}: {what}")
        lines = [f"# TODO: {what}"]
        for node in nodes:
            last = getattr(node, "end_lineno", None) or getattr(node, "lineno", 1)
            part = self.script.lines[getattr(node, "lineno", 1) - 1 : last]
            lines += [f"# {one}".rstrip() for one in textwrap.dedent("\n".join(part)).splitlines()]
        return [*lines, f'raise NotImplementedError("{file}: {_quoted(what)}")']

    @property
    def test_loaders(self) -> set[str]:
        """What the script calls its DataLoader of tests."""
        return {name for name, what in self.stand_ins.items() if what == "test_loader"}

    def follower_at(self, node: ast.AST) -> Follower:
        """One that reads the script from a node on; the statements that hold the training are left out."""
        follower = Follower(self.script, self.stand_ins, held_statements(self.script, self.loop))
        follower.set_at(node)
        return follower

    def take(self, follower: Follower) -> None:
        """Note what a follower used."""
        self.names |= follower.names
        self.carried |= follower.lines


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', "'")


def model_roots(script: Script) -> dict[str, ast.AST]:
    """The models whose parameters the optimizers step, by name, with the first node that says so."""
    findings: dict[str, ast.AST] = {}
    for call in script.optimizers():
        nodes: list[ast.AST] = list(ast.walk(call))
        first = call.args[0] if call.args else keyword(call, "params")
        if isinstance(first, ast.Name | ast.Attribute) and (made := script.assigned(first, call)) is not None:
            nodes += list(ast.walk(made))
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr in ("parameters", "named_parameters"):
                name = root(node.value)
                if name and name not in findings and not isinstance(node.value, ast.Call):
                    findings[name] = call
    return findings


def plan_models(plan: LoopPlan) -> None:
    """What makes the models that the optimizers step."""
    script = plan.script
    for name, call in model_roots(script).items():
        variable, at = _origin(script, name, call)
        for alias in {name, variable, f"self.{name}" if name.startswith("self.") else name}:
            plan.stand_ins[alias] = variable.removeprefix("self.")
        short = variable.removeprefix("self.")
        if short in plan.models:
            continue
        follower = ModelFollower(script, without=held_statements(script, plan.loop))
        follower.define(variable, at)
        plan.models[short] = follower.result(short)
        plan.carried |= follower.lines
        plan.findings.append((f"the model: {short}", sorted(follower.lines)))


def held_statements(script: Script, loop: TrainingLoop) -> list[ast.stmt]:
    """The statements that hold the training, in its scope and where that is called."""
    holders: list[ast.stmt] = [loop.top]
    scope = loop.scope
    for _ in range(9):
        if not isinstance(scope, Function):
            break
        calls = outside_calls(script, scope)
        if not calls:
            break
        around = [one for one in ancestors(script, calls[0]) if isinstance(one, ast.stmt)]
        holders += around
        scope = scope_of(script, calls[0])
    return holders


def _origin(script: Script, name: str, at: ast.AST) -> tuple[str, ast.AST]:
    """The variable that a parameter is called by, where the function is called."""
    for _ in range(9):
        scope = scope_of(script, at)
        if not isinstance(scope, Function) or name not in [one.arg for one in scope.args.args]:
            break
        argument = Follower(script).argument(scope, name)
        if argument is None or not isinstance(argument[0], ast.Name | ast.Attribute):
            break
        if script.assigned(ast.Name(name, ast.Load()), at) is not None:
            break
        name, at = ast.unparse(argument[0]), argument[1]
    return name, at


def plan_given(plan: LoopPlan) -> None:
    """What the engine and the run config stand for: device, DataLoaders, the number of epochs."""
    script = plan.script
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            text, target = ast.unparse(node.value), ast.unparse(node.targets[0])
            if "device(" in text:
                plan.stand_ins[target] = "device"
            elif "cuda" in text and "is_available" in text and "device" in target.lower():
                plan.stand_ins[target] = "device_type"
    for name, call in zip(("train_loader", "test_loader"), script.loaders(), strict=True):
        if call is None:
            continue
        for target in _places(script, call):
            plan.stand_ins[target] = name
        for alias in _returned_as(script, call):
            plan.stand_ins[alias] = name
    for _ in range(3):
        _add_aliases(script, plan.stand_ins)
    if plan.loop.epochs is not None:
        end = _end_of(plan.loop.epochs)
        if isinstance(end, ast.Name | ast.Attribute):
            plan.stand_ins[ast.unparse(end)] = "total_epochs"


def _places(script: Script, call: ast.Call) -> list[str]:
    """What a call's value is assigned to: a name, or an entry of a tuple, a list or a dict."""
    parent = script.parents[call]
    if isinstance(parent, ast.Assign):
        return targets_of(parent)
    above = script.parents.get(parent)
    if not isinstance(above, ast.Assign):
        return script.target_of(call).split() if not isinstance(parent, ast.Dict | ast.Tuple | ast.List) else []
    if isinstance(parent, ast.Tuple | ast.List):
        number = next(n for n, one in enumerate(parent.elts) if one is call)
        targets = targets_of(above)
        return [targets[number]] if len(targets) == len(parent.elts) > 1 else [f"{one}[{number}]" for one in targets]
    if isinstance(parent, ast.Dict):
        key = next((k for k, v in zip(parent.keys, parent.values, strict=True) if v is call and k is not None), None)
        return [f"{one}[{ast.unparse(key)}]" for one in targets_of(above)] if key is not None else []
    return targets_of(above)


def _add_aliases(script: Script, stand_ins: dict[str, str]) -> None:
    """Further names of what is given: attributes of self and variables with the same value, and parameters."""
    pairs = [
        (ast.unparse(node.value), ast.unparse(node.targets[0]))
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute) and len(node.targets) == 1
    ]
    for function in functions(script):
        names = [one.arg for one in function.args.args][script.class_of(function) is not None :]
        for call in script.calls(script.called_as(function)):
            pairs += [(ast.unparse(one), name) for name, one in zip(names, call.args, strict=False)]
            pairs += [(ast.unparse(one.value), one.arg) for one in call.keywords if one.arg in names]
    for source, name in pairs:
        for text, what in list(stand_ins.items()):
            if text == source or text.startswith(f"{source}["):
                stand_ins.setdefault(name + text[len(source) :], what)


def _returned_as(script: Script, loader: ast.Call) -> list[str]:
    """Names that a function's caller gives a DataLoader which the function makes."""
    function = scope_of(script, loader)
    if not isinstance(function, Function):
        return []
    mine = {*script.target_of(loader).split()}
    aliases = []
    for node in ast.walk(function):
        if not isinstance(node, ast.Return) or node.value is None:
            continue
        parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        places = [number for number, one in enumerate(parts) if one is loader or ast.unparse(one) in mine]
        for call in script.calls(function.name):
            parent = script.parents[call]
            if isinstance(parent, ast.Assign) and places:
                targets = targets_of(parent)
                aliases += [targets[number] for number in places if number < len(targets)]
    return aliases


def _end_of(epochs: ast.For) -> ast.expr | None:
    for call in ast.walk(epochs.iter):
        if isinstance(call, ast.Call) and called(call) in ("range", "trange") and call.args:
            end = call.args[min(1, len(call.args) - 1)]
            if isinstance(end, ast.BinOp):
                return end.left
            return end
    return None


def plan_loader(plan: LoopPlan, name: str, call: ast.Call | None) -> list[str]:
    """The statements of a function that makes a client's DataLoader of `examples`."""
    if call is None:
        if name == "train":
            return plan.mark("return a DataLoader of the examples; the script has none", (), "data.py")
        return ["return DataLoader(examples, batch_size=256)"]
    follower = Follower(plan.script, {"": ""})
    source = keyword(call, "dataset", 0)
    same = {ast.unparse(source): "examples"} if isinstance(source, ast.Name | ast.Attribute) else {}
    follower.stand_ins = dict(same)
    size = plan.script.loader_argument(call, "batch_size", 1)
    words = ["examples"]
    spread = [one.value for one in call.keywords if one.arg is None]
    if size is not None and spread and keyword(call, "batch_size", 1) is None:
        inside = ", ".join(f"**{follower.expression(one)}" for one in spread)
        number = 'int(job.config["batch-size"])' if name == "train" else follower.expression(size)
        words.append(f'**{{{inside}, "batch_size": {number}}}')
        size, spread = None, []
    words += [f"**{follower.expression(one)}" for one in spread]
    if size is not None and name == "train":
        words.append('batch_size=int(job.config["batch-size"])')
    elif size is not None:
        words.append(f"batch_size={follower.expression(size)}")
    words += [f"{name}={follower.expression(one)}" for name, one in zip(_BY_PLACE, call.args[2:], strict=False)]
    hard: list[ast.AST] = []
    for option in call.keywords:
        if option.arg in _LOADER_OPTIONS or option.arg is None:
            continue
        free = loads(option.value) - {name for name in loads(option.value) if name in follower.known}
        if option.arg in ("sampler", "batch_sampler") and not free <= {*same, "examples"}:
            hard.append(option.value)
            continue
        words.append(f"{option.arg}={follower.expression(option.value)}")
    plan.take(follower)
    plan.carried |= lines_of(call)
    plan.findings.append(
        (f"the DataLoader for {name}ing: {', '.join(words[1:])}".replace("testing:", "tests:"), [call.lineno])
    )
    if hard:
        what = f"give the DataLoader a sampler for the client's own examples, as line {call.lineno} does for all"
        return plan.mark(what, [call], "data.py")
    return [*follower.before, f"return DataLoader({', '.join(words)})"]
