"""Whether a server's process ended without a word while it led a run, and how often that may be.

A mark in the data folder is there while a run is led. A server that suspends the run removes it, so a mark that is
there at a start belongs to a process that was killed: by the kernel, whose memory the ServerApp may have filled, or by
a signal. If the machine was started again in between, the reason is unknown, and the death does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Final

from fedcore.errors import RunFailed
from fedcore.system.files import write_file
from server_app.storage.objects import trouble_named
from server_app.storage.store import Store

MOST_DEATHS: Final = 2
"""How often a server may be killed while it leads a run that comes no further in between."""
_MARK: Final = "leading.json"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Deaths:
    """Of the server processes that had this data folder.

    boot
        Says which start of the machine this is; "" if nothing does.
    """

    def __init__(self, store: Store, data_dir: Path, boot: str | None = None) -> None:
        self._store = store
        self._mark = data_dir / _MARK
        self._boot = _boot_id() if boot is None else boot

    async def begin(self, run: str) -> None:
        """A run is led from now on; counts the death of the process that led it before, if it died.

        Raises RunFailed if that is one too many, and StorageFull and StorageUnavailable. A run that has come further
        since the last death begins to count again.
        """
        if await asyncio.to_thread(self._read) == {"run": run, "boot": self._boot}:
            deaths = await self._store.count_death(run)
            if deaths >= MOST_DEATHS:
                raise RunFailed(
                    f"the server's process was killed {deaths} times while it led this run, which came no further in "
                    "between: its ServerApp may fill the machine's memory, or end the server. Look at the server's log "
                    "and the kernel's (dmesg) before you resume it"
                )
        text = json.dumps({"run": run, "boot": self._boot})
        with trouble_named():
            await asyncio.to_thread(write_file, self._mark, text, mode=0o600, durable=True)

    async def end(self) -> None:
        """The run has ended, or is suspended on purpose: nobody died."""
        with contextlib.suppress(OSError):  # a read-only disk: one death too many is counted at most
            await asyncio.to_thread(self._mark.unlink, missing_ok=True)

    def _read(self) -> object:
        try:
            return json.loads(self._mark.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
