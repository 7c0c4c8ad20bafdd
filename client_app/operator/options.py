"""Options of the commands that ask a federation, or simulated clients in its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from fedcore.errors import ConfigurationError

Clients = Annotated[int, typer.Option(min=0, help="Ask this many simulated clients in memory, and no server.")]
Server = Annotated[str, typer.Option(help="URL of the server; by default the one in the operator's kit.")]
Operator = Annotated[
    Path, typer.Option(envvar="FEDCORE_OPERATOR", help="The operator's kit: token, CA and the server's address.")
]
OPERATOR: Final = Path("federation/operator")
ConnectSeconds = Annotated[float, typer.Option(help="How long to try to reach the server.")]
CONNECT_SECONDS: Final = 30.0


def check_clients(clients: int, server: str, data_dir: Path | None) -> None:
    """Refuse simulated clients of a server, and let them find their data; raises ConfigurationError."""
    if clients and server:
        raise ConfigurationError("--clients asks simulated clients in memory, --server a federation; give one of them")
    if data_dir is not None and clients:
        os.environ["FEDCORE_DATA"] = str(data_dir.absolute())
