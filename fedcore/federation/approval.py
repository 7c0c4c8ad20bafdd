"""Which apps may run on the server: the right of the owner of its folder, not of the operator who submits runs.

A ServerApp is code that runs on the server's machine. So its SHA-256 stands in the file `approved_apps` of the server's
folder before anybody can submit it, with the app's name next to it, one app a line:

    9f8ce6ce0f9a38e403baa5c3...  digits
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedcore.errors import KitError
from fedcore.federation.files import broken, read_text
from fedcore.system.files import write_file

APPROVED_FILE: Final = "approved_apps"
LISTED: Final = "listed"
ANY: Final = "any"
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


@dataclass(frozen=True, slots=True)
class ApprovedApps:
    """The list in a file, which is read again each time: an approval counts at once."""

    path: Path

    def load(self) -> Mapping[str, str]:
        """Hash -> name of the app; empty if there is no file yet. Raises KitError."""
        if not self.path.exists():
            return {}
        apps = {}
        for number, line in enumerate(read_text(self.path).splitlines(), start=1):
            match = _LINE.fullmatch(line)
            if match is None:
                raise broken(self.path, f"line {number} is not a hash, two blanks and a name", "mend or remove it")
            apps[match[1]] = match[2]
        return apps

    def approve(self, sha256: str, name: str) -> None:
        """Let an app run from now on; raises KitError."""
        self._write({**self.load(), sha256: name})

    def remove(self, sha256: str) -> str:
        """Let an app run no more; its name. Raises KitError if it was not approved."""
        apps = dict(self.load())
        if sha256 not in apps:
            raise KitError(f"the app {sha256} is not approved, so nothing was removed; `--list` shows those that are")
        name = apps.pop(sha256)
        self._write(apps)
        return name

    def _write(self, apps: Mapping[str, str]) -> None:
        lines = [f"{sha256}  {' '.join(name.split()) or 'app'}\n" for sha256, name in apps.items()]
        write_file(self.path, "".join(lines), mode=0o600, durable=True)
