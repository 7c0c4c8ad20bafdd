"""The folders in which a ServerApp and clients work that share a process."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingFolders:
    """A ServerApp's files come home with its run, as on a server; clients find their data where the user is.

    server
        What the ServerApp writes without naming a folder lies there.
    clients
        Clients read relative paths from there.
    """

    server: Path
    clients: Path

    def of_server(self) -> contextlib.AbstractContextManager[None]:
        """The ServerApp works in this block."""
        return _work_in(self.server)

    def of_clients(self) -> contextlib.AbstractContextManager[None]:
        """Clients work in this block, while the ServerApp waits for their replies."""
        return _work_in(self.clients)


def _work_in(folder: Path) -> contextlib.AbstractContextManager[None]:
    # The one change of the current folder in the library: an app of Flower's has no other way to know its folder, and
    # on a server each app has a process for itself.
    return contextlib.chdir(folder)
