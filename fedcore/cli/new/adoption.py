"""`fedcore new --from train.py`: an app around a person's own model, data, loss and optimizer.

The script's definitions are copied as they are, and its statements that would run at once are left out: the training
loop is what fedcore does in its place. What was found is put where an app has it, each with its line; what was not is a
line with TODO that stops the app and says what to decide.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fedcore.cli.new.scripts import Expression, Script, called, keyword
from fedcore.cli.new.writing import check_free, package_name, project_name, write_app
from fedcore.errors import DataError

_LOSSES: Final[Mapping[str, str]] = {
    "CrossEntropyLoss": "cross_entropy", "cross_entropy": "cross_entropy", "NLLLoss": "cross_entropy",
    "nll_loss": "cross_entropy", "BCEWithLogitsLoss": "binary_cross_entropy",
    "binary_cross_entropy_with_logits": "binary_cross_entropy", "MSELoss": "squared_error", "mse_loss": "squared_error",
    "L1Loss": "absolute_error", "l1_loss": "absolute_error", "HuberLoss": "huber", "huber_loss": "huber",
}  # fmt: skip
_METRICS: Final[Mapping[str, str]] = {
    "cross_entropy": "metrics.accuracy,", "binary_cross_entropy": "metrics.accuracy, metrics.auc()",
    "squared_error": "metrics.rmse, metrics.mae", "absolute_error": "metrics.mae, metrics.rmse",
    "huber": "metrics.mae, metrics.rmse",
}  # fmt: skip
_NOT_CARRIED: Final[Mapping[str, str]] = {
    "StepLR": "a schedule of the learning rate", "MultiStepLR": "a schedule of the learning rate",
    "CosineAnnealingLR": "a schedule of the learning rate", "OneCycleLR": "a schedule of the learning rate",
    "ExponentialLR": "a schedule of the learning rate", "ReduceLROnPlateau": "a schedule of the learning rate",
    "clip_grad_norm_": "clipping of gradients", "GradScaler": "mixed precision", "autocast": "mixed precision",
}  # fmt: skip
_EPOCHS: Final = frozenset({"epochs", "num_epochs", "n_epochs", "max_epochs", "epoch_count"})


@dataclass(slots=True)
class _AdoptionPlan:
    """What goes into the files, what was recognized in the script, and what is left to do."""

    script: Script
    package: str
    values: dict[str, Any] = field(default_factory=dict)
    recognized: list[str] = field(default_factory=list)
    todo: list[str] = field(default_factory=list)

    def find(self, what: str, lines: Iterable[int]) -> None:
        numbers = sorted(set(lines))
        self.recognized.append(f"{what} (line{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))})")

    def leave(self, what: str, file: str) -> str:
        """Something to decide in a file of the package; returns what stands there."""
        self.todo.append(f"{self.package}/{file}: {what}")
        return f"TODO: {what}"

    def imported(self, *expressions: Expression | None) -> list[str]:
        """The statements that make these expressions' names known: libraries first, then the copied script."""
        names = {name for one in expressions if one is not None for name in one.names}
        libraries, own = self.script.imports(), self.script.definitions()
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
    _plan_model(plan)
    _plan_optimizer(plan)
    _plan_loss(plan)
    _plan_data(plan)
    _plan_rest(plan)
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
    }
    files = write_app(folder, "script", values)
    used = sum(1 for number in lines if script.lines[number - 1].strip())
    written = sum(1 for line in script.lines if line.strip())
    return {
        "files": [str(one) for one in files],
        "found": plan.recognized,
        "todo": plan.todo,
        "lines": {
            "script": written,
            "changed": 0,
            "used": used,
            "replaced": written - used,
            "to_decide": len(plan.todo),
        },
    }


def _plan_model(plan: _AdoptionPlan) -> None:
    node = plan.script.model()
    if node is None:
        if not plan.script.optimizer() and not plan.script.modules():
            raise DataError(
                f"{plan.script.path} has no nn.Module and no optimizer of torch; name a script that trains a model"
            )
        plan.values |= {"model": None, "model_todo": plan.leave("make the model and return it", "model.py")}
        plan.values |= {"model_imports": [], "model_before": ()}
        return
    expression = plan.script.expression(node)
    plan.find(f"the model: {ast.unparse(node)}", expression.lines)
    todo = ""
    if expression.unknown:
        what = f"say what {', '.join(expression.unknown)} is in {plan.script.path.name}, line {node.lineno}"
        todo = plan.leave(what, "model.py")
    plan.values |= {
        "model": expression.text, "model_before": expression.before, "model_imports": plan.imported(expression),
        "model_todo": todo,
    }  # fmt: skip


def _plan_optimizer(plan: _AdoptionPlan) -> None:
    call = plan.script.optimizer()
    lr, options = "0.01", ""
    if call is None:
        plan.values["optimizer"] = "Adam"
        plan.todo.append("pyproject.toml: choose the learning rate; no optimizer was found, and Adam stands in app.py")
    else:
        plan.values["optimizer"] = called(call)
        plan.find(f"the optimizer: {called(call)}", [call.lineno])
        rate = keyword(call, "lr", 1)
        expression = plan.script.expression(rate) if rate is not None else None
        number = _number(expression)
        if number is not None:
            lr = repr(float(number))
            plan.find(f"lr = {lr}", expression.lines if expression else ())
        else:
            plan.todo.append(f"pyproject.toml: choose lr, which line {call.lineno} does not say in a number")
        others = [one for one in call.keywords if one.arg not in ("lr", "params", None)]
        for one in others:
            part = plan.script.expression(one.value)
            if part.before or part.unknown or part.names:
                plan.leave(f"give {one.arg} of line {one.value.lineno} to the optimizer", "app.py")
            else:
                options += f", {one.arg}={part.text}"
    plan.values |= {"lr": lr, "options": options}


def _plan_loss(plan: _AdoptionPlan) -> None:
    calls = plan.script.calls(*_LOSSES, "BCELoss", "binary_cross_entropy")
    loss, todo = "cross_entropy", ""
    if not calls:
        todo = plan.leave("choose the loss; none of torch's was found, and cross entropy stands there", "app.py")
    elif called(calls[0]) not in _LOSSES:
        loss = "binary_cross_entropy"
        todo = plan.leave("let the model return a logit: binary_cross_entropy here takes no sigmoid", "app.py")
    else:
        loss = _LOSSES[called(calls[0])]
        plan.find(f"the loss: {called(calls[0])}, here losses.{loss}", [calls[0].lineno])
        if called(calls[0]).endswith("Loss") and (calls[0].args or calls[0].keywords):
            todo = plan.leave(f"{ast.unparse(calls[0])} of line {calls[0].lineno} has options; write a loss", "app.py")
    plan.values |= {"loss": loss, "figures": _METRICS[loss], "loss_todo": todo}


def _plan_data(plan: _AdoptionPlan) -> None:
    train, test = plan.script.loaders()
    parts: dict[str, Expression | None] = {"train": None, "test": None}
    todo: dict[str, str] = {"train": "", "test": ""}
    for name, call in (("train", train), ("test", test)):
        node = keyword(call, "dataset", 0) if call is not None else None
        if node is None:
            continue
        parts[name] = expression = plan.script.expression(node)
        plan.find(f"the {name} data: {ast.unparse(node)}", expression.lines)
        if expression.unknown:
            what = f"say what {', '.join(expression.unknown)} is in {plan.script.path.name}, line {node.lineno}"
            todo[name] = plan.leave(what, "data.py")
    if parts["train"] is None:
        todo["train"] = plan.leave("return a Dataset of pairs (input, target); no DataLoader was found", "data.py")
    before = list(dict.fromkeys(line for one in parts.values() if one is not None for line in one.before))
    before.sort(key=lambda line: int(line.rpartition(" ")[2]))
    size = _number(_of(plan, keyword(train, "batch_size", 1) if train is not None else None))
    if size is not None and train is not None:
        plan.find(f"batch-size = {int(size)}", [train.lineno])
    plan.values |= {
        "train": parts["train"].text if parts["train"] else None,
        "test": parts["test"].text if parts["test"] else None,
        "data_before": before,
        "data_imports": plan.imported(*parts.values()),
        "train_todo": todo["train"],
        "test_todo": todo["test"],
        "batch_size": int(size) if size else 32,
    }
    plan.leave("read a real site's own examples; a simulation divides those of the script", "data.py")


def _plan_rest(plan: _AdoptionPlan) -> None:
    """Epochs, what of the loop is not carried over, and files and packages that have to be there."""
    script = plan.script
    epochs = _epochs(script)
    if epochs:
        plan.find(f"epochs: {epochs[0]}, as num-server-rounds of one local epoch each", [epochs[1]])
    plan.values["rounds"] = epochs[0] if epochs else 10
    for call in script.calls(*_NOT_CARRIED):
        plan.todo.append(f"line {call.lineno}, {_NOT_CARRIED[called(call)]}: not carried over, see README.md")
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
                    ends = [_number(_of_script(script, argument)) for argument in one.args[:2]]
                    if all(end is not None for end in ends):
                        return int(ends[-1] or 0) - (int(ends[0] or 0) if len(ends) > 1 else 0), node.lineno
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            number = _number(_of_script(script, node.value)) if node.targets[0].id.lower() in _EPOCHS else None
            if number:
                return int(number), node.lineno
    return None


def _of(plan: _AdoptionPlan, node: ast.expr | None) -> Expression | None:
    return _of_script(plan.script, node) if node is not None else None


def _of_script(script: Script, node: ast.expr) -> Expression:
    return script.expression(node)


def _number(expression: Expression | None) -> float | None:
    """The number that an expression is, if it is one by itself."""
    if expression is None or expression.before or expression.names or expression.unknown:
        return None
    try:
        value = ast.literal_eval(expression.text)
    except ValueError:
        return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
