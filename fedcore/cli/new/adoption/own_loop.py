"""A script's own loop in an app: `fit` trains one client by it for one round."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable

from fedcore.cli.new.adoption.following import Follower, follow
from fedcore.cli.new.adoption.loop_parts import LoopPlan, plan_given, plan_loader, plan_models
from fedcore.cli.new.adoption.loops import (
    FIGURE,
    SCHEDULERS,
    Function,
    TrainingLoop,
    ancestors,
    kept_statements,
    loads,
    stores,
    tests_only,
)
from fedcore.cli.new.adoption.scripts import Script, called, keyword, lines_of, targets_of


def plan_loop(script: Script, loop: TrainingLoop) -> LoopPlan:
    """Decide on all of it."""
    plan = LoopPlan(script, loop)
    plan_models(plan)
    plan_given(plan)
    train, test = script.loaders()
    plan.train_loader, plan.test_loader = plan_loader(plan, "train", train), plan_loader(plan, "test", test)
    _plan_fit(plan)
    return plan


def _plan_fit(plan: LoopPlan) -> None:
    script, loop = plan.script, plan.loop
    optimizers = _assigned_names(script, script.optimizers())
    schedulers = {
        name: call
        for call in ast.walk(script.tree)
        if isinstance(call, ast.Call) and SCHEDULERS.match(called(call))
        for name in _assigned_names(script, [call])
    }
    scalers = _assigned_names(script, script.calls("GradScaler"))
    owned = {*plan.models, *optimizers, *schedulers, *scalers, *(one.removeprefix("self.") for one in plan.stand_ins)}
    owned -= {"device", "train_loader", "test_loader"}
    tests = {one.removeprefix("self.") for one in plan.test_loaders}
    tests |= {
        one.name for one in script.definitions().values() if isinstance(one, Function) and tests_only(script, one)
    }
    training, left = kept_statements(loop, owned - tests, tests)
    follower = plan.follower_at(loop.body[0])
    _plan_rate(plan, follower)
    stored: set[str] = set().union(*(stores(one) for one in training))
    follower.bind(loop.counters)
    body = [follower.statement_in(one, stored) for one in training]
    for name in sorted(optimizers):
        follower.need(name, loop.body[0])
    marks = _unsafe(plan, follower, schedulers, left, owned)
    plan.take(follower)
    for one in training:
        plan.carried |= lines_of(one)
    plan.findings.append(
        ("the training: its own loop, in loop.py", sorted({loop.top.lineno, *(one.lineno for one in training)}))
    )
    before = list(follower.before)
    prepared = [name for name in (*plan.models, *sorted(optimizers)) if name in plan.models or _made(name, before)]
    lines = head_lines(plan, follower)
    lines += before
    lines += [f"{', '.join([*prepared, 'train_loader'])} = engine.prepare({', '.join([*prepared, 'train_loader'])})"]
    lines += marks
    first = _first_epoch(loop)
    lines += [
        'local_epochs = int(job.config["local-epochs"])',
        f"first_epoch = local_epochs * max(job.server_round - 1, 0){f' + {first}' if first else ''}",
    ]
    for name, call in schedulers.items():
        if _made(name, before):
            plan.findings.append(
                (f"the schedule of the learning rate: {called(call)}, which goes on over the rounds", [call.lineno])
            )
            lines.append(f"go_on({name}, steps={_steps_before(plan, name, first)})")
    lines.append("engine.model.train()")
    counter = ast.unparse(loop.epochs.target) if loop.epochs is not None else "_epoch"
    lines.append('with engine.seeded(derive_seed("order", int(job.config["seed"]), job.server_round, job.client)):')
    lines.append(f"    for {counter} in range(first_epoch, first_epoch + local_epochs):")
    lines += [textwrap.indent(text, " " * 8) for text in body]
    figures = _train_figures(training)
    reported = "".join(f', "{name}": float({text})' for name, text in figures.items())
    lines.append(f'return {{"num-examples": examples_of(train_loader){reported}}}')
    plan.fit = lines


def _plan_rate(plan: LoopPlan, follower: Follower) -> None:
    """The learning rate of the only optimizer, as a key of the run config."""
    calls = plan.script.optimizers()
    rate = keyword(calls[0], "lr", 1) if len(calls) == 1 else None
    if rate is None:
        return
    number = follow(plan.script, rate).number
    if number is not None:
        plan.rate = repr(float(number))
        follower.rate_of = called(calls[0])
        plan.findings.append((f"lr = {plan.rate}", [rate.lineno]))


def _assigned_names(script: Script, calls: Iterable[ast.Call]) -> set[str]:
    return {name.removeprefix("self.") for call in calls for name in script.target_of(call).split()}


def _made(name: str, before: Iterable[str]) -> bool:
    return any(
        name in stores(statement)
        for text in before
        for statement in ast.parse(text).body
        if not isinstance(statement, Function)
    )


def head_lines(plan: LoopPlan, follower: Follower) -> list[str]:
    """Statements that give the script's names what the engine has."""
    lines = []
    if len(plan.models) == 1:
        lines.append(f"{next(iter(plan.models))} = engine.model")
    else:
        lines += [f'{name} = engine.model["{name}"]' for name in plan.models]
    if follower.used & {"device"}:
        lines.append("device = engine.device")
    if follower.used & {"device_type"}:
        lines.append("device_type = engine.device.type")
    if "total_epochs" in follower.used:
        lines.append('total_epochs = int(job.config["num-server-rounds"]) * int(job.config["local-epochs"])')
    if "lr" in follower.used:
        lines.append('lr = float(job.config["lr"])')
    lines.append("train_loader = train_batches(job)")
    return lines


def _unsafe(
    plan: LoopPlan, follower: Follower, schedulers: dict[str, ast.Call], left: list[ast.stmt], owned: set[str]
) -> list[str]:
    """Marks for what the loop needs and does not get."""
    marks: list[str] = []
    if follower.unknown:
        marks += plan.mark(f"say what {', '.join(follower.unknown)} is in {plan.script.path.name}")
    if "train_loader" not in follower.used:
        what = "read this client's batches from train_loader; the loop takes them from elsewhere, all of them"
        marks += plan.mark(what, [plan.loop.batches.iter] if plan.loop.batches is not None else [])
    if any("DataLoader(" in one for one in follower.before):
        marks += plan.mark("give each client its share of a further DataLoader")
    for call in schedulers.values():
        if called(call) == "ReduceLROnPlateau":
            what = "set the learning rate by job.server_round; ReduceLROnPlateau goes by results of earlier rounds"
            steps = [one for one in left if SCHEDULERS.match(called(call)) and ".step(" in ast.unparse(one)]
            marks += plan.mark(f"{what}, line {call.lineno}", [call, *steps])
    for one in left:
        text = ast.unparse(one)
        if (
            loads(one) & owned
            and any(f"{name}.step(" in text for name in owned)
            and "ReduceLROnPlateau" not in str(marks)
        ):
            marks += plan.mark(f"line {one.lineno} changes the training by what the evaluation gave", [one])
    return marks


def _first_epoch(loop: TrainingLoop) -> str:
    if loop.epochs is None:
        return ""
    for call in ast.walk(loop.epochs.iter):
        if isinstance(call, ast.Call) and called(call) in ("range", "trange") and len(call.args) > 1:
            text = ast.unparse(call.args[0])
            return text if text.isdigit() and text != "0" else ""
    return ""


def _steps_before(plan: LoopPlan, name: str, first: str) -> str:
    """How many steps a schedule has made in the rounds before."""
    epochs = f"(first_epoch - {first})" if first else "first_epoch"
    for call in plan.script.calls("step"):
        target = call.func.value if isinstance(call.func, ast.Attribute) else None
        if target is None or ast.unparse(target).removeprefix("self.") != name:
            continue
        around = list(ancestors(plan.script, call))
        if plan.loop.batches is None or not any(one is plan.loop.batches for one in around):
            return epochs
        every = [one for one in around if isinstance(one, ast.If)]
        if not every:
            return f"{epochs} * len(train_loader)"
        test = ast.unparse(every[0].test)
        for node in ast.walk(every[0].test):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                by = follow(plan.script, node.right).text
                steps = f"-(-len(train_loader) // {by})" if " or " in test else f"(len(train_loader) // {by})"
                return f"{epochs} * {steps}"
    return epochs


def _train_figures(training: Iterable[ast.stmt]) -> dict[str, str]:
    figures: dict[str, str] = {}
    for statement in training:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            for name in targets_of(statement):
                if FIGURE.search(name) and name.isidentifier():
                    figures[name if name.startswith("train") else f"train_{name}"] = name
    return figures
