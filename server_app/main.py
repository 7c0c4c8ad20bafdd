"""The command `fedcore server`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
    import logging

    from fedcore.federation import ServerKit
    from fedcore.system.files import write_file
    from server_app import logs
    from server_app.http import serving
    from server_app.settings import ServerSettings

    log = logging.getLogger("fedcore.server")
    logs.configure(as_json=log_json)
    kit = ServerKit.load(federation)
    settings = ServerSettings(data_dir=(data_dir or kit.data_dir).absolute())

    def ready(url: str) -> None:
        log.info("federation %s: %d members, listening on %s", kit.federation, len(kit.roster.members), url)
        if ready_file is not None:
            write_file(ready_file, f"{url}\n")  # somebody waits for it, and may read it at once

    serving.run(kit, settings, host=host or kit.host, port=kit.port if port < 0 else port, ready=ready)
    log.info("stopped")
