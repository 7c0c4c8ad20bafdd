"""The command `fedcore server`."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from fedcore.errors import FedcoreError
from fedcore.federation import ServerKit
from server_app import logs
from server_app.http import serving
from server_app.settings import ServerSettings

log = logging.getLogger("fedcore.server")

app = typer.Typer(add_completion=False)


@app.command()
def server(
    federation: Annotated[Path, typer.Option(help="Folder that `fedcore provision` made, or its server folder.")],
    host: Annotated[str, typer.Option(help="Address to listen on; default from server.toml.")] = "",
    port: Annotated[int, typer.Option(help="Port; default from server.toml, 0 for any.", min=-1, max=65535)] = -1,
    data_dir: Annotated[Path | None, typer.Option(help="Database, spool and models; default from server.toml.")] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="One JSON object a line.")] = False,
    ready_file: Annotated[Path | None, typer.Option(help="Written with the server's URL once it listens.")] = None,
) -> None:
    """Serve a federation: clients connect to it, operators submit runs to it.

    Example: fedcore server --federation federation

    Ctrl-C or SIGTERM stop it cleanly, with status 0; a run that was open is then marked as interrupted.
    """
    logs.configure(as_json=log_json)
    try:
        kit = ServerKit.load(federation)
        settings = ServerSettings(data_dir=(data_dir or kit.data_dir).absolute())

        def ready(url: str) -> None:
            log.info(
                "federation %s: %d members, listening on %s",
                kit.federation, len(kit.roster.members), url,
            )  # fmt: skip
            if ready_file is not None:
                _write_ready(ready_file, url)

        serving.run(kit, settings, host=host or kit.host, port=kit.port if port < 0 else port, ready=ready)
    except FedcoreError as error:
        typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
        raise typer.Exit(error.exit_code) from None
    log.info("stopped")


def _write_ready(path: Path, url: str) -> None:
    """Whole or not at all: somebody waits for this file."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(f"{url}\n", encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    app()
