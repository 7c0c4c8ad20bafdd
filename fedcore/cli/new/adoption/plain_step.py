"""Whether a script trains as `supervised_app` does: by pairs, with one model, one optimizer and one known loss."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from fedcore.cli.new.adoption.following import follow
from fedcore.cli.new.adoption.loops import SCHEDULERS, TrainingLoop, loads, reports, stores
from fedcore.cli.new.adoption.scripts import Script, called, keyword, unwrapped

LOSSES: Final[Mapping[str, str]] = {
    "CrossEntropyLoss": "cross_entropy", "cross_entropy": "cross_entropy", "NLLLoss": "cross_entropy",
    "nll_loss": "cross_entropy", "BCEWithLogitsLoss": "binary_cross_entropy",
    "binary_cross_entropy_with_logits": "binary_cross_entropy", "MSELoss": "squared_error", "mse_loss": "squared_error",
    "L1Loss": "absolute_error", "l1_loss": "absolute_error", "HuberLoss": "huber", "huber_loss": "huber",
}  # fmt: skip
_LOADER: Final = frozenset(
    {"dataset", "batch_size", "shuffle", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor"}
)
_RESHAPES: Final = frozenset({"squeeze", "view", "flatten", "float", "reshape", "unsqueeze", "long"})


@dataclass(slots=True)
class SupervisedStep:
    """What is known of the step.

    why_not: what `supervised_app` would not do, each with its line.
    pairs: whether batches are pairs of inputs and targets, and the loss is a known one of `model(inputs)`.
    loss: the name of it.
    clip: the bound of the gradient's norm, 0 for none.
    lines: of the script, that this stands for.
    """

    why_not: list[tuple[int, str]] = field(default_factory=list)
    pairs: bool = False
    loss: str = ""
    clip: float = 0.0
    lines: set[int] = field(default_factory=set)

    def refuse(self, node: ast.AST, what: str) -> None:
        self.why_not.append((getattr(node, "lineno", 1), what))


def plain_step(script: Script, loop: TrainingLoop) -> SupervisedStep:
    """Look at the loop over batches, the DataLoader, the optimizer and what else there is."""
    step = SupervisedStep()
    batches = loop.batches
    if batches is None:
        step.refuse(loop.top, "there is no loop over batches")
        return step
    _look_at_rest(script, loop, step)
    names = _pair(batches)
    if names is None:
        step.refuse(batches, "batches are no pairs (inputs, targets)")
        return step
    _look_at_body(script, batches, names, step)
    step.pairs = bool(step.loss)
    if not step.loss:
        step.refuse(batches, "the loss is none of those that are known")
    return step


def _look_at_rest(script: Script, loop: TrainingLoop, step: SupervisedStep) -> None:
    optimizers = script.optimizers()
    for call in optimizers[1:]:
        step.refuse(call, "a second optimizer")
    for call in optimizers[:1]:
        first = call.args[0] if call.args else keyword(call, "params")
        if first is None or not (isinstance(first, ast.Call) and called(first) == "parameters" and _is_plain(first)):
            step.refuse(call, "an optimizer of some of the parameters, or with several rates")
        if called(call) == "LBFGS":
            step.refuse(call, "an optimizer that computes the loss again")
    for call in [one for one in ast.walk(script.tree) if isinstance(one, ast.Call)]:
        if SCHEDULERS.match(called(call)):
            step.refuse(call, "a schedule of the learning rate")
        elif called(call) in ("autocast", "GradScaler"):
            step.refuse(call, "mixed precision")
    train, _ = script.loaders()
    if train is None:
        step.refuse(loop.top, "there is no DataLoader")
        return
    for one in train.keywords:
        if one.arg not in _LOADER:
            step.refuse(train, f"{one.arg} of the DataLoader")
    shuffle = keyword(train, "shuffle", 2)
    if len(train.args) > 3 or not (isinstance(shuffle, ast.Constant) and shuffle.value is True):
        step.refuse(train, "a DataLoader without shuffle=True")
    if script.streams:
        step.refuse(train, "a stream")


def _is_plain(parameters: ast.Call) -> bool:
    value = parameters.func.value if isinstance(parameters.func, ast.Attribute) else None
    return isinstance(value, ast.Name) or (
        isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == "self"
    )


def _pair(batches: ast.For) -> tuple[str, str] | None:
    target: ast.AST = batches.target
    calls = [called(one) for one in ast.walk(batches.iter) if isinstance(one, ast.Call)]
    if "enumerate" in calls and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        target = target.elts[1]
    if isinstance(target, ast.Tuple) and len(target.elts) == 2 and all(isinstance(it, ast.Name) for it in target.elts):
        one, other = (ast.unparse(it) for it in target.elts)
        return one, other
    return None


def _look_at_body(script: Script, batches: ast.For, pair: tuple[str, str], step: SupervisedStep) -> None:
    """The statements, each of which has to be one that `supervised_app` stands for."""
    x, y = {pair[0]}, {pair[1]}
    outputs: set[str] = set()
    losses: set[str] = set()
    later = list(batches.body)
    for number, statement in enumerate(batches.body):
        if reports(statement) or isinstance(statement, ast.AugAssign):
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            _look_at_call(script, statement.value, step)
            continue
        moved = list(_moves(statement))
        if moved:
            for old, new in moved:
                x |= {new} if old in x else set()
                y |= {new} if old in y else set()
            continue
        value = statement.value if isinstance(statement, ast.Assign) else None
        if value is not None and _is_output(value, x):
            outputs |= stores(statement)
        elif value is not None and (loss := _loss(script, value, x | outputs, outputs, y)):
            step.loss, losses = loss, losses | stores(statement)
        elif any(loads(one) & stores(statement) and not _counts(one) for one in later[number + 1 :]) or not (
            isinstance(statement, ast.Assign)
        ):
            step.refuse(statement, f"`{ast.unparse(statement).splitlines()[0]}`")


def _counts(statement: ast.stmt) -> bool:
    return reports(statement) or isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign)


def _look_at_call(script: Script, call: ast.Call, step: SupervisedStep) -> None:
    name = called(call)
    if name == "clip_grad_norm_":
        bound = keyword(call, "max_norm", 1)
        text = follow(script, bound).text if bound is not None else ""
        if text.replace(".", "", 1).isdigit() and len(call.args) + len(call.keywords) == 2:
            step.clip = float(text)
            return
    if name not in ("zero_grad", "backward", "step", "append", "update", "train") or (
        name == "backward" and call.keywords
    ):
        step.refuse(call, f"`{ast.unparse(call)}`")


def _moves(statement: ast.stmt) -> Iterator[tuple[str, str]]:
    """Names that a statement only puts on a device, with what they are called then."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return
    target, value = statement.targets[0], statement.value
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    values = value.elts if isinstance(value, ast.Tuple) else [value]
    pairs = [(one, it) for one, it in zip(values, targets, strict=False)]
    if len(values) != len(targets) or not all(
        isinstance(one, ast.Call) and called(one) in ("to", "cuda", "cpu") and isinstance(unwrapped(one), ast.Name)
        for one, _ in pairs
    ):
        return
    for one, it in pairs:
        yield ast.unparse(unwrapped(one)), ast.unparse(it)


def _is_output(node: ast.expr, x: set[str]) -> bool:
    """Whether it is `model(x)`."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return False
    argument = node.args[0]
    if isinstance(argument, ast.Call) and called(argument) in ("to", "cuda"):
        argument = unwrapped(argument)
    function = ast.unparse(node.func).removeprefix("self.")
    return isinstance(argument, ast.Name) and argument.id in x and function.isidentifier() and not function[0].isupper()


def _loss(script: Script, node: ast.expr, x: set[str], outputs: set[str], y: set[str]) -> str:
    """The known loss that is computed of the model's output and the targets, "" for anything else."""
    if not isinstance(node, ast.Call) or len(node.args) != 2 or node.keywords:
        return ""
    output, target = (_reshaped(one) for one in node.args)
    if not (_is_output(output, x) or (isinstance(output, ast.Name) and output.id in outputs)):
        return ""
    if isinstance(target, ast.Call) and called(target) in ("to", "cuda"):
        target = unwrapped(target)
    if not (isinstance(target, ast.Name) and target.id in y):
        return ""
    if called(node) in LOSSES:
        return LOSSES[called(node)]
    made = script.assigned(node.func, node)
    value = made.value if made is not None else None
    if value is None:  # a parameter, say
        calls = script.calls(*(name for name in LOSSES if name.endswith("Loss")))
        value = calls[0] if len(calls) == 1 else None
    if isinstance(value, ast.Call) and called(value) in ("to", "cuda"):
        value = unwrapped(value)
    plain = isinstance(value, ast.Call) and not value.args and not value.keywords
    return LOSSES.get(called(value), "") if plain and isinstance(value, ast.Call) else ""


def _reshaped(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Call) and called(node) in _RESHAPES and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node
