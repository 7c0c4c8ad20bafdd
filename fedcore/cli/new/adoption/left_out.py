"""What of a script is in no file of its app, by line, and why."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fedcore.cli.new.adoption.loops import Function, TrainingLoop, flat, reports, scope_of
from fedcore.cli.new.adoption.scripts import Script, called, is_quiet, last_line, lines_of

_WHY = (
    (("save", "save_pretrained", "save_checkpoint", "dump"), "fedcore saves the model (--out)"),
    (("manual_seed", "manual_seed_all", "seed", "set_seed", "seed_everything"), "the key seed of pyproject.toml"),
    (("add_argument", "ArgumentParser", "parse_args", "parse_known_args"), "its defaults are in the app"),
    (("eval", "no_grad", "inference_mode"), "an evaluation"),
    (("device", "is_available", "cuda", "to", "DataParallel", "compile"), "the engine chooses device and ranks"),
    (("SummaryWriter", "init", "login"), "a log of its own; fedcore keeps a run's history (--json)"),
    (("plot", "savefig", "show", "figure", "subplots"), "a drawing; fedcore's reports have some"),
)


def left_out(script: Script, loop: TrainingLoop | None, carried: Iterable[int], tests: set[str]) -> list[str]:
    """Every statement that the training runs through and the app does not have: its lines, its text, why."""
    lines = set(carried)
    listed = []
    for statement in _statements(script, loop, lines):
        first, last = statement.lineno, last_line(statement)
        where = f"line {first}" if first == last else f"lines {first} to {last}"
        text = ast.unparse(statement).splitlines()[0]
        listed.append(
            f"{where}: `{text[:70]}{'...' if len(text) > 70 or first != last else ''}`: {_why(statement, tests)}"
        )
    return listed


def _statements(script: Script, loop: TrainingLoop | None, carried: set[int]) -> Iterator[ast.stmt]:
    """Those that run and are not carried, in the order of their lines."""
    scopes: dict[ast.AST, None] = {script.tree: None}
    scope = loop.scope if loop is not None else script.tree
    for _ in range(9):
        scopes[scope] = None
        calls = script.calls(scope.name) if isinstance(scope, Function) else []
        if not calls:
            break
        scope = scope_of(script, calls[0])
    calls_of_scopes = {scope.name for scope in scopes if isinstance(scope, Function)}
    matches: list[ast.stmt] = []
    for scope in scopes:
        for statement in flat(scope):
            matches += _parts(statement, carried, calls_of_scopes, quiet=scope is script.tree)
    return iter(sorted(matches, key=lambda one: one.lineno))


def _parts(statement: ast.stmt, carried: set[int], calls: set[str], *, quiet: bool) -> Iterator[ast.stmt]:
    lines = lines_of(statement)
    if quiet and is_quiet(statement):
        return
    if isinstance(statement, Function | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Return | ast.Global):
        return
    names = {called(one) for one in ast.walk(statement) if isinstance(one, ast.Call)}
    if isinstance(statement, ast.Expr | ast.Assign) and (names & calls or isinstance(statement.value, ast.Constant)):
        return
    if not carried & lines:
        yield statement
        return
    if isinstance(statement, ast.For | ast.With | ast.If) and not lines <= carried:
        body = [*statement.body, *getattr(statement, "orelse", ())]
        if any(carried & lines_of(one) for one in body):
            for one in body:
                yield from _parts(one, carried, calls, quiet=False)


def _why(statement: ast.stmt, tests: set[str]) -> str:
    if reports(statement):
        return "fedcore reports what the app returns"
    names = {called(one) for one in ast.walk(statement) if isinstance(one, ast.Call)}
    if names & tests:
        return "the app tests in its own way, see check"
    for group, why in _WHY:
        if names & set(group):
            return why
    return "nothing of the training that was found needs it"
