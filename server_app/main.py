"""The commands `fedcore server`, `fedcore server approve` and `fedcore server upgrade`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import click
import typer

server = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Federation = Annotated[Path | None, typer.Option(help="The federation's folder, or its server folder; required.")]


@server.callback(invoke_without_command=True)
def serve(
    context: typer.Context,
    federation: Federation = None,
    host: Annotated[str, typer.Option(help="Address to listen on; default from server.toml.")] = "",
    port: Annotated[int, typer.Option(help="Port; default from server.toml, 0 for any.", min=-1, max=65535)] = -1,
    address: Annotated[str, typer.Option(help="Its address in the clients' kits; default from server.toml.")] = "",
    data_dir: Annotated[Path | None, typer.Option(help="Database, spool and models; default from server.toml.")] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="One JSON object a line.")] = False,
    ready_file: Annotated[Path | None, typer.Option(help="Written with the server's URL once it listens.")] = None,
) -> None:
    """Serve a federation: clients connect to it, operators submit runs to it.

    Example: fedcore server --federation federation

    Ctrl-C or SIGTERM stop it cleanly, with status 0; a run that was open resumes with the next start.
    SIGHUP takes a new certificate.
    """
    if context.invoked_subcommand is not None:
        return
    import logging

    from fedcore.federation import ServerKit
    from fedcore.federation.kits.kit_values import is_https_address
    from fedcore.system.files import write_file
    from fedcore.system.sandbox.sandbox import describe, refuse_to_show
    from server_app import logs, serving
    from server_app.settings import ServerSettings

    log = logging.getLogger("fedcore.server")
    logs.configure(as_json=log_json)
    if address and not is_https_address(address):
        raise click.BadParameter("it must look like https://a.example.org:8443", param_hint="'--address'")
    kit = ServerKit.load(_required(federation))
    host, port = host or kit.host, kit.port if port < 0 else port
    settings = ServerSettings.of_kit(
        kit,
        data_dir=data_dir,
        database=os.environ.get("FEDCORE_DATABASE", ""),
        url=f"https://{host}:{port}",
        address=address.rstrip("/"),
    )
    secret = kit.oidc.secret_file if kit.oidc is not None else None
    secrets = [kit.tls_key, settings.database_file, *([secret] if secret is not None else [])]
    refuse_to_show(kit.app_rules.read, secrets, kit.app_rules)

    def ready(url: str, bound: str) -> None:
        where = (kit.federation, len(kit.roster.members), bound, url)
        log.info("federation %s: %d members, listening on %s (%s on this machine)", *where)
        text, is_bad = describe(kit.app_rules, network=False)
        log.log(logging.WARNING if is_bad else logging.INFO, "sandbox of ServerApps: %s", text)
        if kit.approved_apps is None:
            log.warning('the operator may run any code in it: server.toml has approve-apps = "any"')
        if kit.oidc is not None:
            log.info("people may sign in at %s", kit.oidc.issuer)
        if ready_file is not None:
            write_file(ready_file, f"{url}\n")  # somebody waits for it, and may read it at once

    serving.run(kit, settings, host=host, port=port, ready=ready)
    log.info("stopped")


@server.command()
def approve(
    app: Annotated[str, typer.Argument(metavar="[APP_DIR]", help="Folder of the Flower app.")] = "",
    federation: Federation = None,
    remove: Annotated[bool, typer.Option("--remove", help="Let it run no more; its hash will do as well.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Show the apps that may run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the apps that may run as JSON.")] = False,
) -> None:
    """Let an app run on this server: the operator may submit approved apps only.

    Example: fedcore server approve examples/digits --federation federation

    Its ServerApp is code that runs on this machine, in a sandbox. Read it first; the hash covers every file of the
    folder. A server that runs counts the approval at once.
    """
    from server_app.members.approved_apps import change, listed, listed_json

    folder = _required(federation)
    if not app and not show:
        raise click.MissingParameter(param_type="argument", param_hint="'APP_DIR'")
    lines = change(folder, app, remove=remove) if app else []
    if as_json:
        typer.echo(listed_json(folder))
        return
    for line in [*lines, *(listed(folder) if show else [])]:
        typer.echo(line)


@server.command()
def upgrade(
    federation: Federation = None,
    data_dir: Annotated[Path | None, typer.Option(help="The data folder; default from server.toml.")] = None,
    to: Annotated[int, typer.Option(help="The version to migrate to, up or down; by default the newest.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Migrate the server's database to the version that this fedcore reads.

    Example: fedcore server upgrade --federation federation

    Stop all of the federation's servers first. An SQLite database is copied first, in its folder; copy a
    PostgreSQL database with pg_dump. The migration is done completely or not at all. To go back to an earlier
    fedcore, migrate down with the newer one first, which loses what the earlier version does not know.
    """
    from fedcore.federation import ServerKit
    from server_app.serving import lock_data_folder
    from server_app.settings import DATABASE_FILE
    from server_app.storage.schema import upgrade as lead
    from server_app.storage.tables import SCHEMA_VERSION

    kit = ServerKit.load(_required(federation))
    folder = (data_dir or kit.data_dir).absolute()
    database = os.environ.get("FEDCORE_DATABASE") or kit.database or folder / DATABASE_FILE
    with lock_data_folder(folder):
        done = []
        for line in lead(database, to or SCHEMA_VERSION):
            done.append(line)
            if not as_json:
                typer.echo(line)
    if as_json:
        typer.echo(json.dumps({"version": to or SCHEMA_VERSION, "done": done}))


def _required(federation: Path | None) -> Path:
    if federation is None:  # not required by its type, since `approve` has one of its own
        raise click.MissingParameter(param_type="option", param_hint="'--federation'")
    return federation
