"""The reference of commands, from the objects that parse them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
import typer

from fedcore.cli import app
from sitegen.tables import code, table


def render() -> str:
    """A section for each command, one below for each of a group's."""
    root = typer.main.get_command(app)
    return "\n".join(_section(names, command) for names, command in every(("fedcore",), root) if len(names) > 1)


def every(names: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command and all below it, each with the words that call it."""
    yield names, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=names[-1])
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from every((*names, name), found)


def _section(names: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command, info_name=" ".join(names))
    usage = " ".join(command.collect_usage_pieces(context))
    text = _plain(inspect.cleandoc(command.help or ""))
    rows = [row for found in command.params if (row := _row(found, context))]
    options = table(("argument or option", "default", "meaning"), rows) if rows else ""
    return f"{'#' * len(names)} {' '.join(names)}\n\n```text\n{' '.join(names)} {usage}\n```\n\n{text}\n\n{options}"


def _row(found: click.Parameter, context: click.Context) -> tuple[str, str, str] | None:
    if getattr(found, "hidden", False) or found.name == "help":
        return None
    if isinstance(found, click.Argument):
        shown, kind = found.make_metavar(context), ""
    else:
        shown = ", ".join([*found.opts, *found.secondary_opts])
        kind = "" if getattr(found, "is_flag", False) else found.make_metavar(context).removesuffix(" RANGE")
    value = found.get_default(context, call=False)
    said = "required" if found.required else ""
    if value not in (None, "", False, ()) and not callable(value):
        said = code(value)
    meaning = _plain(getattr(found, "help", "") or "")
    return code(f"{shown} {kind}".strip()), said, f"{meaning} (also {code(found.envvar)})" if found.envvar else meaning


def _plain(text: str) -> str:
    """Help text as Markdown: rich's escapes undone, what Markdown would take for its own kept."""
    for sign in ("*", "<", "_"):
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\b", "").replace("\\[", "[").replace("[", "\\[")
