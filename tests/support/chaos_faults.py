"""Commands of the kill harness's fork server, and faults that it can plant in them to show that it would find them."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.forked import fork_from_here_on

COMMIT_SECONDS = 3.0
"""How much later than it is said the receipt of an update is on the disk: a kill has to come before that."""


def become(command: list[str], log: str, fault: str, clock: str = "") -> None:
    """In a new process of the fork server: be the command, with one fault planted where it is named.

    What it starts is forked, too. clock: a file with the seconds by which this process's clock is off, at any moment.
    """
    null = os.open(os.devnull, os.O_RDWR)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor, source in enumerate((null, out, out)):
        os.dup2(source, descriptor)
    os.environ.update({"FLWR_TELEMETRY_ENABLED": "0", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"})
    if fault:
        FAULTS[fault]()
    if clock:
        _set_clock_by(clock)
    sys.argv = command
    fork_from_here_on()
    from fedcore.cli.main import main

    main()


def _set_clock_by(file: str) -> None:
    right = time.time

    def shifted() -> float:
        with open(file, encoding="ascii") as offset:
            return right() + float(offset.read() or 0)

    time.time = shifted


def _fold_before_commit() -> None:
    """An update counts, and is folded into the sum, before its receipt is on the disk."""
    from server_app.exchanges.receipts import Receipts

    keep = Receipts.keep
    later: set[asyncio.Task[None]] = set()

    async def fold_first(self: Receipts, client: int, step: str, digest: bytes, body: Any) -> None:
        if step != "manifest":
            await keep(self, client, step, digest, body)
            return

        async def commit() -> None:
            await asyncio.sleep(COMMIT_SECONDS)
            await keep(self, client, step, digest, body)

        self._digests[step, client] = digest
        later.add(asyncio.create_task(commit()))

    Receipts.keep = fold_first  # type: ignore[method-assign]


FAULTS: Mapping[str, Callable[[], None]] = {"fold-before-commit": _fold_before_commit}
