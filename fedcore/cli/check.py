"""The command `fedcore check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcore.cli.main import AppFolder, AsJson, DataFolder, RunConfig, Settings

EXIT_ERRORS = 2


def check(
    app: AppFolder,
    clients: Annotated[int, typer.Option(min=2, help="Number of clients.")] = 4,
    policy: Annotated[
        str,
        typer.Option(
            metavar="FILE|stock|own",
            help="Client policy to check against: a policy.toml, stock (the policy of default kits) or own (all "
            "clients are yours). By default stock; settings of yours that it refuses are then warnings.",
        ),
    ] = "",
    run_config: RunConfig = None,
    set_: Settings = None,
    data_dir: DataFolder = None,
    no_round: Annotated[
        bool, typer.Option("--no-round", help="Skip the round in memory, which tries strategy and data.")
    ] = False,
    no_first_model: Annotated[
        bool,
        typer.Option("--no-first-model", help="Skip the two processes that derive the first model, as clients do."),
    ] = False,
    kit: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A site's kit: check with its policy and its node config, on the site's own data."
        ),
    ] = None,
    node_config: Annotated[
        str,
        typer.Option(
            metavar="'K=V ...'", help="A site's node config, as TOML values; the round then uses its own data."
        ),
    ] = "",
    line: Annotated[
        str | None,
        typer.Option(
            metavar="SPEED,TIME",
            help="A site's line: say what a round takes there, and whether the settings allow it. 2mbit,300ms, or "
            "50mbit/10mbit,30ms for down and up; the time is that of a round trip, as ping shows it.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the errors that a deployment would report, before a run starts. Exit status 0, or 2 if there are any.

    Example: fedcore check examples/digits --clients 10

    It tries one round in memory: the first client trains one epoch and tests. And it derives the model that a run
    begins with, as every client with the stock policy does. Nothing leaves this machine.

    For a slow line: fedcore check examples/digits --line 2mbit,300ms

    A site tests its own data before a run does: fedcore check tumours --node-config 'csv="/srv/data/patients.csv"'
    """
    import contextlib
    import json
    import sys

    from rich.console import Console

    from fedcore.api.checks import check as check_app
    from fedcore.federation import ClientKit
    from fedcore.federation.kits.site_node import site_values
    from fedcore.flower.app import FlowerApp
    from fedcore.system.assignments import parse_assignments
    from fedcore.system.terminal import escape

    own = None if kit is None else ClientKit.load(kit)
    node = None
    if own is not None or node_config:
        node = site_values(FlowerApp.load(app).node_keys, own, node_config)
    with contextlib.redirect_stdout(sys.stderr):  # what the app prints
        report = check_app(
            app,
            clients=clients,
            policy=policy or (None if own is None else own.policy),
            run_config=parse_assignments(run_config or []) if run_config else None,
            settings=parse_assignments(set_ or []) if set_ else None,
            data_dir=data_dir,
            dry_round=not no_round,
            first_model=not no_first_model,
            node_config=node,
            line=line,
        )
    if as_json:
        typer.echo(json.dumps(report.to_plain(), indent=2))
    else:
        console = Console()
        if report.room:
            console.print(f"{'size':<8} {report.room}", highlight=False, soft_wrap=True)
        for kind, color, findings in (("error", "red", report.errors), ("warning", "yellow", report.warnings)):
            for one in findings:
                console.print(f"[{color}]{kind:<8}[/] {escape(str(one))}", highlight=False, soft_wrap=True)
        for text in (*report.rounds(), report.headline()):
            console.print(escape(text), highlight=False, soft_wrap=True)
    if not report.ok:
        raise typer.Exit(EXIT_ERRORS)
