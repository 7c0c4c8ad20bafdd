"""Implementation of `fedcore client status`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import rich.table
import typer
from rich.console import Console

from client_app.owner.processing import PROCESSING_FILE, form_text
from client_app.owner.sections import StatusSection, Table, sections
from client_app.owner.status import read_status, status_json
from fedcore.errors import ConfigurationError
from fedcore.federation import ClientKit
from fedcore.monitoring.formatting import the_federation
from fedcore.system.files import write_file
from fedcore.system.terminal import escape, visible_json


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions:
    """Output options of `fedcore client status`."""

    export: Path | None = None
    page: bool = False
    form: bool = False
    as_json: bool = False


def show_status(kit: Path, state_dir: Path | None, options: StatusOptions) -> None:
    """Print, export or serve a client's status; raises FedcoreError."""
    if sum((options.page, options.form, options.export is not None)) > 1:
        raise ConfigurationError("--page, --form and --export exclude each other; name one of them")
    if options.form:
        path = make_form(kit)
        typer.echo(json.dumps({"form": str(path)}) if options.as_json else f"fill it in, and export again: {path}")
        return
    if options.page:
        from client_app.owner.page import serve

        serve(kit, state_dir, say=lambda url: _say_address(url, as_json=options.as_json))
        return
    status = read_status(kit, state_dir)
    if options.export is not None:
        from client_app.owner.document import export

        export(status, options.export)
        typer.echo(json.dumps({"export": str(options.export)}) if options.as_json else f"written: {options.export}")
    elif options.as_json:
        typer.echo(visible_json(status_json(status)))
    else:
        console = Console(highlight=False)
        console.print(f"[bold]{escape(status.client)}[/] in {escape(the_federation(status.federation))}\n")
        _print(sections(status), console)
        if status.apps.offers:
            console.print(f"\nto see an offered app: fedcore client offers --kit {kit} --diff", soft_wrap=True)
            console.print(f"to approve it: fedcore client approve SHA256 --kit {kit}", soft_wrap=True)


def make_form(kit: Path) -> Path:
    """Write the form for the record of processing into a kit; returns it. Raises KitError, ConfigurationError."""
    path = ClientKit.load(kit).folder / PROCESSING_FILE
    if path.exists():
        raise ConfigurationError(f"{path} is there already; edit it, or remove it first", check="processing-form")
    write_file(path, form_text(), mode=0o600)
    return path


def _say_address(url: str, *, as_json: bool) -> None:
    typer.echo(
        json.dumps({"url": url}) if as_json else f"{url}\nIt opens once, and only on this machine. Ctrl-C ends it."
    )


def _print(listed: list[StatusSection], console: Console) -> None:
    for number, section in enumerate(listed):
        if number:
            console.print()
        console.print(f"[bold{' red' if section.bad else ''}]{escape(section.title)}[/]")
        for text in section.text:
            console.print(escape(text), soft_wrap=True)
        if section.table is not None:
            _print_table(section.table, console)


def _print_table(table: Table, console: Console) -> None:
    """A table if it fits, otherwise one row below the other, so that nothing is cut off."""
    widths = [max(map(len, column)) for column in zip(table.headings, *table.rows, strict=True)]
    if sum(widths) + 2 * len(widths) <= console.width:
        grid = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in table.headings:
            grid.add_column(heading, no_wrap=True)
        for row in table.rows:
            grid.add_row(*map(escape, row))
        console.print(grid)
        return
    widest = max(map(len, table.headings))
    for number, row in enumerate(table.rows):
        if number:
            console.print()
        for heading, cell in zip(table.headings, row, strict=True):
            console.print(f"  [dim]{heading:<{widest}}[/]  {escape(cell)}", soft_wrap=True)
