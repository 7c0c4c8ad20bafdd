"""A script's own evaluation in an app: `check` tests by it."""

from __future__ import annotations

import ast
import textwrap

from fedcore.cli.new.adoption.following import Follower
from fedcore.cli.new.adoption.loop_parts import LoopPlan
from fedcore.cli.new.adoption.loops import (
    FIGURE,
    Function,
    flat,
    functions,
    is_test,
    loads,
    outside_calls,
    printed_figures,
    stores,
    tests_only,
)
from fedcore.cli.new.adoption.own_loop import head_lines
from fedcore.cli.new.adoption.scripts import called, lines_of, targets_of


def plan_check(plan: LoopPlan) -> bool:
    """The script's own evaluation; whether there is one whose figures are known."""
    script, loop = plan.script, plan.loop
    for function in [one for one in functions(script) if tests_only(script, one)]:
        calls = outside_calls(script, function)
        if calls and _by_call(plan, function, calls[0]):
            return True
    after = list(flat(loop.scope))
    after = after[next((n for n, one in enumerate(after) if one is loop.top), len(after)) + 1 :]
    return any(_inline(plan, statements) for statements in (list(loop.body), after))


def _by_call(plan: LoopPlan, function: Function, call: ast.Call) -> bool:
    """By a function that returns its figures to names, or prints them."""
    script = plan.script
    follower = plan.follower_at(call)
    parent = script.parents[call]
    while isinstance(parent, ast.Call | ast.Subscript):
        parent = script.parents[parent]
    names = targets_of(parent) if isinstance(parent, ast.Assign) else []
    returned = [one for one in ast.walk(function) if isinstance(one, ast.Return) and one.value is not None]
    if not returned:
        return _printing(plan, function, call)
    follower.bind(plan.loop.counters)
    text = follower.expression(call)
    value = returned[-1].value
    if isinstance(value, ast.Dict) or (isinstance(value, ast.Call) and called(value) == "dict"):
        lines = [f"figures = {text}  # line {call.lineno}"]
        figures = "**{name: float(value) for name, value in figures.items()}"
        plan.figures.append("figures")
    else:
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        own = [ast.unparse(one) if isinstance(one, ast.Name) else "" for one in parts if one is not None]
        titles = [one for one in names if one.isidentifier()] if len(names) == len(own) else own
        if len(own) == 1 and not (titles and titles[0] and FIGURE.search(titles[0])):
            titles = [function.name if FIGURE.search(function.name) else "score"]
        titles = [name or f"figure_{number}" for number, name in enumerate(titles, 1)]
        lines = [f"{', '.join(titles)} = {text}  # line {call.lineno}"]
        reported = [name for name in titles if FIGURE.search(name)]
        if not reported:
            return False
        figures = ", ".join(f'"{name}": float({name})' for name in reported)
        plan.figures += reported
    return _finish(plan, follower, lines, figures, [call.lineno])


def _printing(plan: LoopPlan, function: Function, call: ast.Call) -> bool:
    figures = printed_figures([function], stores(function))
    if not figures:
        return False
    follower = plan.follower_at(call)
    follower.bind(plan.loop.counters)
    answer = ", ".join(f'"{name}": float({text})' for name, text in figures.items())
    follower.nest(function, last=f"return {{{answer}}}")
    text = follower.expression(call)
    plan.figures += list(figures)
    return _finish(
        plan, follower, [f"figures = {text}  # line {call.lineno}"], "**figures", [call.lineno, function.lineno]
    )


def _inline(plan: LoopPlan, statements: list[ast.stmt]) -> bool:
    """By statements in the loop over epochs, or after it."""
    texts = plan.test_loaders
    tests = {one.removeprefix("self.") for one in texts}
    if not any(text in ast.unparse(one) for one in statements if not _plain_call(one) for text in texts):
        return False
    begin = next((n for n, one in enumerate(statements) if is_test(one, tests)), len(statements))
    made = set().union(*(stores(one) for one in statements[begin:]))
    figures = printed_figures(statements[begin:], made)
    if not figures:
        return False
    needed: set[str] = {name for text in figures.values() for name in loads(ast.parse(text))}
    chosen: list[ast.stmt] = []
    for statement in reversed(statements):
        if any(statement is one for one in plan.loop.trains):
            continue
        if stores(statement) & needed or (statements.index(statement) >= begin and is_test(statement, tests)):
            chosen.insert(0, statement)
            needed |= loads(statement)
    follower = plan.follower_at(statements[begin])
    stored = set().union(*(stores(one) for one in chosen))
    follower.bind(plan.loop.counters)
    lines = [follower.statement_in(one, stored) for one in chosen]
    for one in chosen:
        plan.carried |= lines_of(one)
    plan.figures += list(figures)
    answer = ", ".join(f'"{name}": float({text})' for name, text in figures.items())
    return _finish(plan, follower, lines, answer, [one.lineno for one in chosen])


def _plain_call(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign | ast.Expr) and isinstance(statement.value, ast.Call)


def _finish(plan: LoopPlan, follower: Follower, lines: list[str], figures: str, where: list[int]) -> bool:
    if "test_loader" not in follower.used or follower.unknown:
        plan.figures.clear()
        return False
    head = [
        one.replace("train_loader = train_batches", "test_loader = test_batches") for one in head_lines(plan, follower)
    ]
    if loop_names := sorted(plan.loop.counters & {w for one in lines for w in loads(ast.parse(one))}):
        head += [f"{name} = job.server_round" for name in loop_names]
    lines = ["with torch.no_grad():", *(textwrap.indent(one, "    ") for one in lines)]
    plan.check = [
        *head,
        *follower.before,
        "engine.model.eval()",
        *lines,
        f'return {{"num-examples": examples_of(test_loader), {figures}}}',
    ]
    plan.take(follower)
    plan.findings.append(("the evaluation, in loop.py", sorted(where)))
    return True
