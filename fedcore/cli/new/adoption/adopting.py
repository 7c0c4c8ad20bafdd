"""`fedcore new --from train.py`: an app around a person's own model, data, loss and optimizer.

The script's definitions are copied as they are. A loop that does what `supervised_app` does is left to that; any other
becomes the app's own. What cannot be carried over is a line with TODO that stops the app and says what to write, and
all that is in no file is listed, with its line.
"""

from __future__ import annotations

import ast
import importlib.util
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fedcore.cli.new.adoption.following import Expression, Follower, ModelFollower, follow
from fedcore.cli.new.adoption.left_out import left_out
from fedcore.cli.new.adoption.loop_parts import LoopPlan, model_roots
from fedcore.cli.new.adoption.loops import TrainingLoop, is_test, test_functions
from fedcore.cli.new.adoption.own_check import plan_check
from fedcore.cli.new.adoption.own_loop import plan_loop
from fedcore.cli.new.adoption.plain_step import LOSSES, SupervisedStep, plain_step
from fedcore.cli.new.adoption.scripts import Script, called, keyword, lines_of
from fedcore.cli.new.writing import check_free, package_name, project_name, write_app
from fedcore.errors import DataError

_METRICS: Final[Mapping[str, str]] = {
    "cross_entropy": "metrics.accuracy,", "binary_cross_entropy": "metrics.accuracy, metrics.auc()",
    "squared_error": "metrics.rmse, metrics.mae", "absolute_error": "metrics.mae, metrics.rmse",
    "huber": "metrics.mae, metrics.rmse",
}  # fmt: skip
_EPOCHS: Final = frozenset({"epochs", "num_epochs", "n_epochs", "max_epochs", "epoch_count"})
_LOOP_IMPORTS: Final = (
    "import torch", "from fedcore import LocalJob", "from fedcore.errors import ConfigurationError",
    "from fedcore.training import Engine, derive_seed",
)  # fmt: skip


@dataclass(slots=True)
class _AdoptionPlan:
    """What goes into the files, what was recognized in the script, and what is left to do."""

    script: Script
    package: str
    values: dict[str, Any] = field(default_factory=dict)
    recognized: list[str] = field(default_factory=list)
    todo: list[str] = field(default_factory=list)
    carried: set[int] = field(default_factory=set)

    def find(self, what: str, lines: Iterable[int]) -> None:
        numbers = sorted(set(lines))
        self.carried |= set(numbers)
        self.recognized.append(f"{what} (line{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))})")

    def leave(self, what: str, file: str) -> str:
        """Something to decide in a file of the package; returns what stands there."""
        self.todo.append(f"{self.package}/{file}: {what}")
        return f"TODO: {what}"

    def imported(self, *expressions: Expression | None) -> list[str]:
        """The statements that make these expressions' names known: libraries first, then the copied script."""
        return self.imports_of({name for one in expressions if one is not None for name in one.names})

    def imports_of(self, names: Iterable[str]) -> list[str]:
        """The same of names."""
        names = set(names)
        libraries, own = self.script.imports(), self.script.definitions()
        libraries = {"SimpleNamespace": "from types import SimpleNamespace", **libraries}
        imports = sorted(libraries[name] for name in names if name in libraries)
        mine = sorted(name for name in names if name in own and name not in libraries)
        return imports + ([f"from {self.package}.script import {', '.join(mine)}"] if mine else [])


def adopt(folder: Path, path: Path, *, private: bool = False) -> dict[str, Any]:
    """Read the script and write the app; what was found, what is left, and how many of its lines are used.

    Raises DataError for a script without anything of PyTorch's, and what `write_app` raises.
    """
    name = project_name(folder)
    check_free(folder)
    script = Script.read(path)
    plan = _AdoptionPlan(script, package_name(name))
    loop = TrainingLoop.of(script)
    step = plain_step(script, loop) if loop is not None else SupervisedStep()
    _check_script(script)
    if loop is not None and step.why_not:
        template = "loop"
        _plan_own_loop(plan, loop, step)
    else:
        template = "script"
        _plan_supervised(plan, loop, step)
    _plan_data(plan, split=template == "script" or bool(step.pairs))
    _plan_rest(plan)
    left = left_out(script, loop, plan.carried, test_functions(script))
    lines = script.copied_lines()
    text = "\n".join(script.lines[number - 1] for number in lines).rstrip() + "\n"
    values = {
        **plan.values,
        "script": path.name,
        "kept": text,
        "clients": 5,
        "private": private,
        "todo": plan.todo,
        "found": plan.recognized,
        "left": left,
    }
    files = write_app(folder, template, values)
    used = sum(1 for number in lines if script.lines[number - 1].strip())
    written = sum(1 for line in script.lines if line.strip())
    return {
        "files": [str(one) for one in files],
        "found": plan.recognized,
        "todo": plan.todo,
        "not_carried": left,
        "lines": {
            "script": written,
            "changed": 0,
            "used": used,
            "replaced": written - used,
            "to_decide": len(plan.todo),
        },
    }


def _check_script(script: Script) -> None:
    """Raise DataError for a script that trains nothing."""
    if not script.optimizers() and not script.modules():
        raise DataError(f"{script.path} has no nn.Module and no optimizer of torch; name a script that trains a model")


def _plan_supervised(plan: _AdoptionPlan, loop: TrainingLoop | None, step: SupervisedStep) -> None:
    _plan_model(plan)
    _plan_optimizer(plan)
    _plan_loss(plan, step)
    plan.values |= {
        "clip": step.clip or "",
        "loaders": False,
        "loader_imports": [],
        "figure": "eval_loss",
    }
    train, _ = plan.script.loaders()
    workers = _number(plan.script, keyword(train, "num_workers", 5) if train is not None else None)
    plan.values["workers"] = int(workers) if workers else ""
    if step.clip:
        plan.recognized.append(f"clipping of gradients: max-grad-norm = {step.clip}")
    if loop is not None and loop.batches is not None:
        plan.find("the training: supervised_app does the same steps", [loop.batches.lineno])
        plan.carried |= lines_of(loop.batches)
        plan.carried |= {one.lineno for one in loop.trains} | {loop.top.lineno}
    elif plan.script.optimizers():
        plan.todo.append("no loop with loss.backward() was found; supervised_app trains instead: compare app.py")


def _plan_own_loop(plan: _AdoptionPlan, loop: TrainingLoop, step: SupervisedStep) -> None:
    """The files of template "loop"."""
    made = plan_loop(plan.script, loop)
    why = "; ".join(f"line {line}: {what}" for line, what in step.why_not[:6])
    plan.recognized.append(f"an own loop, since supervised_app does not have all of it: {why}")
    pairs = bool(step.pairs and step.loss)
    test = plan.script.loaders()[1]
    _plan_check(plan, made, step.loss if pairs and (test is not None or not plan.script.streams) else "")
    _plan_models(plan, made)
    for what, lines in made.findings:
        plan.find(what, lines)
    plan.carried |= made.carried
    plan.todo += [f"{plan.package}/{mark}" for mark in made.marks]
    schedule = any(line.startswith("go_on(") for line in made.fit)
    imports = [*_LOOP_IMPORTS, *(["import warnings"] if schedule else [])]
    if "evaluate_pairs" in str(made.check):
        imports.append("from fedcore.training import evaluate as evaluate_pairs, metrics")
    imports.append(
        f"from {plan.package}.data import {'test_batches, ' if 'test_batches' in str(made.check) else ''}train_batches"
    )
    text = "\n".join([*made.fit, *made.check])
    loader_text = "\n".join([*made.train_loader, *made.test_loader])
    plan.values |= {
        "fit": made.fit, "check": made.check, "schedule": schedule, "pairs": pairs, "loss": step.loss,
        "metrics_text": _METRICS.get(step.loss, ""), "figures": made.figures, "loaders": True,
        "clip": "", "workers": "",
        "train_loader": made.train_loader, "test_loader": made.test_loader,
        "loop_imports": imports + plan.imports_of(_names(text, made.names)),
        "loader_imports": plan.imports_of(_names(loader_text, made.names)),
        "figure": made.figures[0] if made.figures else "",
        "lr": made.rate,
    }  # fmt: skip


def _names(text: str, names: Iterable[str]) -> set[str]:
    """Those of the names that code reads."""
    code = ast.parse("def code():\n" + (textwrap.indent(text, "    ") or "    pass"))
    return set(names) & {one.id for one in ast.walk(code) if isinstance(one, ast.Name)}


def _plan_check(plan: _AdoptionPlan, made: LoopPlan, loss: str) -> None:
    """The test: fedcore's, of pairs with a known loss; the script's own; or a place for one.

    Args:
        loss: the name of the known one, "" if fedcore's test does not do.
    """
    if loss:
        made.check = [
            f"result = evaluate_pairs(engine, test_batches(job), metrics=({_METRICS[loss]}))",
            'return {"num-examples": result.examples, **result.reported(result.examples)}',
        ]
        made.figures = ["eval_loss"]
        return
    if plan_check(made):
        return
    tests = [one for one in ast.walk(plan.script.tree) if isinstance(one, ast.With | ast.Expr) and is_test(one, set())]
    if tests and plan.script.loaders()[1] is not None:
        what = "test engine.model on test_batches(job), and return num-examples and the figures"
        made.check = made.mark(what, tests[:1])
        made.figures = ["eval_loss"]
        return
    made.check = ['return {"num-examples": examples_of(train_batches(job))}  # the script tests nothing']


def _plan_models(plan: _AdoptionPlan, made: LoopPlan) -> None:
    expressions = list(made.models.values())
    unknown = [name for one in expressions for name in one.unknown]
    before = list(dict.fromkeys(line for one in expressions for line in one.before))
    names = list(made.models)
    todo = ""
    if unknown or not names:
        todo = (
            f"say what {', '.join(unknown)} is in {plan.script.path.name}"
            if unknown
            else "make the model and return it"
        )
        plan.leave(todo, "model.py")
    text = names[0] if len(names) == 1 else "{" + ", ".join(f'"{name}": {name}' for name in names) + "}"
    last = before[-1].rpartition("  # line")[0] if before else ""
    if len(names) == 1 and last.startswith(f"{names[0]} = ") and "\n" not in last:
        before, text = before[:-1], last.removeprefix(f"{names[0]} = ")
    plan.values |= {
        "model": text if names else None, "models": names, "model_before": before, "model_todo": todo,
        "model_imports": plan.imported(*expressions),
    }  # fmt: skip


def _plan_model(plan: _AdoptionPlan) -> None:
    node = plan.script.model()
    if node is None:
        plan.leave("make the model and return it", "model.py")
        plan.values |= {"model": None, "model_todo": "make the model and return it", "models": [], "figures": []}
        plan.values |= {"model_imports": [], "model_before": ()}
        return
    expression = _model(plan.script, node)
    plan.find(f"the model: {ast.unparse(node)}", expression.lines)
    todo = ""
    if expression.unknown:
        todo = f"say what {', '.join(expression.unknown)} is in {plan.script.path.name}, line {node.lineno}"
        plan.leave(todo, "model.py")
    plan.values |= {
        "model": expression.text, "model_before": expression.before, "model_imports": plan.imported(expression),
        "model_todo": todo, "models": [expression.text], "figures": [],
    }  # fmt: skip


def _model(script: Script, node: ast.expr) -> Expression:
    """What makes the model; with statements that change it afterwards its name, else one expression."""
    roots = model_roots(script)
    if len(roots) == 1:
        ((name, at),) = roots.items()
        follower = ModelFollower(script)
        follower.define(name, at)
        if len(follower.before) > 1 and any(
            line.startswith(f"{name.removeprefix('self.')} = ") for line in follower.before
        ):
            changed = [line for line in follower.before if not line.split(" = ")[0].replace(", ", "").isidentifier()]
            if changed:
                return follower.result(name.removeprefix("self."))
    return follow(script, node)


def _plan_optimizer(plan: _AdoptionPlan) -> None:
    call = plan.script.optimizer()
    lr, options, todo = "0.01", "", ""
    if call is None:
        plan.values["optimizer"] = "Adam"
        todo = plan.leave("choose the optimizer, and its lr in pyproject.toml; none was found", "app.py")
    else:
        plan.values["optimizer"] = called(call)
        plan.find(f"the optimizer: {called(call)}", [call.lineno])
        rate = keyword(call, "lr", 1)
        expression = follow(plan.script, rate) if rate is not None else None
        number = expression.number if expression is not None else None
        if number is not None:
            lr = repr(float(number))
            plan.find(f"lr = {lr}", expression.lines if expression else ())
        else:
            todo = plan.leave(f"choose lr, which line {call.lineno} does not say in a number", "app.py")
        others = [one for one in call.keywords if one.arg not in ("lr", "params", None)]
        for one in others:
            part = follow(plan.script, one.value)
            if part.before or part.unknown or part.names:
                todo = plan.leave(f"give {one.arg} of line {one.value.lineno} to the optimizer", "app.py")
            else:
                options += f", {one.arg}={part.text}"
    plan.values |= {"lr": lr, "options": options, "optimizer_todo": todo}


def _plan_loss(plan: _AdoptionPlan, step: SupervisedStep) -> None:
    calls = plan.script.calls(*LOSSES, "BCELoss", "binary_cross_entropy")
    loss, todo = step.loss or "cross_entropy", ""
    if not calls:
        todo = plan.leave("choose the loss; none of torch's was found", "app.py")
    elif called(calls[0]) not in LOSSES:
        todo = plan.leave(f"choose the loss; that of line {calls[0].lineno} takes no logits", "app.py")
    else:
        loss = step.loss or LOSSES[called(calls[0])]
        plan.find(f"the loss: {called(calls[0])}, here losses.{loss}", [calls[0].lineno])
        if called(calls[0]).endswith("Loss") and (calls[0].args or calls[0].keywords):
            todo = plan.leave(f"{ast.unparse(calls[0])} of line {calls[0].lineno} has options; write a loss", "app.py")
    plan.values |= {"loss": loss, "metrics_text": _METRICS[loss], "loss_todo": todo}


def _plan_data(plan: _AdoptionPlan, *, split: bool) -> None:
    script = plan.script
    train, test = script.loaders()
    parts: dict[str, Expression | None] = {"train": None, "test": None}
    follower = Follower(plan.script)
    todo: dict[str, str] = {"train": "", "test": ""}
    for name, call in (("train", train), ("test", test)):
        node = keyword(call, "dataset", 0) if call is not None else None
        if node is None:
            continue
        follower.unknown.clear()
        parts[name] = expression = follower.result(follower.expression(node))
        plan.carried |= {call.lineno} if call is not None else set()
        plan.find(f"the {name} data: {ast.unparse(node)}", expression.lines)
        if expression.unknown:
            what = f"say what {', '.join(expression.unknown)} is in {plan.script.path.name}, line {node.lineno}"
            todo[name] = plan.leave(what, "data.py")
    if parts["train"] is None:
        todo["train"] = plan.leave("return a Dataset of pairs (input, target); no DataLoader was found", "data.py")
    before = follower.before
    size = _number(script, script.loader_argument(train, "batch_size", 1) if train is not None else None)
    if size is not None and train is not None:
        plan.find(f"batch-size = {int(size)}", [train.lineno])
    plan.values |= {
        "train": parts["train"].text if parts["train"] else None,
        "test": parts["test"].text if parts["test"] else None,
        "data_before": before,
        "data_imports": plan.imported(*parts.values()),
        "stream": script.streams,
        "split": split and not script.streams,
        "train_todo": todo["train"],
        "test_todo": todo["test"],
        "batch_size": int(size) if size else 32 if train is None else 1,
    }
    plan.leave("read a real site's own examples; a simulation divides those of the script", "data.py")


def _plan_rest(plan: _AdoptionPlan) -> None:
    """Epochs, what of the loop is not carried over, and files and packages that have to be there."""
    script = plan.script
    epochs = _epochs(script)
    if epochs:
        plan.find(f"epochs: {epochs[0]}, as num-server-rounds of one local epoch each", [epochs[1]])
    plan.values["rounds"] = epochs[0] if epochs else 10
    modules = {statement.split()[1].partition(".")[0]: statement for statement in script.imports().values()}
    for module, statement in sorted(modules.items()):
        candidates = [script.path.parent / f"{module}.py", script.path.parent / module / "__init__.py"]
        if statement.startswith("from .") or any(one.is_file() for one in candidates):
            plan.todo.append(f"copy {module} of `{statement}` into the app's folder, where it is imported from")
        elif importlib.util.find_spec(module) is None:
            plan.todo.append(f"pip install {module}, on the server and at every site: `{statement}`")


def _epochs(script: Script) -> tuple[int, int] | None:
    """How many, and in which line: of a name for them, of an option, of a parameter, or of a loop over epochs."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and "epoch" in node.target.id.lower():
            for one in ast.walk(node.iter):
                if isinstance(one, ast.Call) and called(one) in ("range", "trange") and one.args:
                    ends = [_number(script, argument) for argument in one.args[:2]]
                    if all(end is not None for end in ends):
                        return int(ends[-1] or 0) - (int(ends[0] or 0) if len(ends) > 1 else 0), node.lineno
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            number = _number(script, node.value) if node.targets[0].id.lower() in _EPOCHS else None
            if number:
                return int(number), node.lineno
    return None


def _number(script: Script, node: ast.expr | None) -> float | None:
    """The number that a part of the script comes to, if it is one by itself."""
    return follow(script, node).number if node is not None else None
