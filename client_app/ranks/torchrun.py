"""Keeping torchrun alive on one of several machines: started, shown, started again, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_app.output import Output
from client_app.ranks.group import PRINTING_SECONDS, GroupSettings, relay
from client_app.ranks.group_size import GroupShape, interface_of, own_address
from fedcore.system.concurrency import end

RESTART_PAUSE: Final = 1.0
"""Seconds before a torchrun that ended is started again, and between two looks for machine 0."""
_MAX_RESTARTS: Final = 1_000_000
_JOIN_SECONDS: Final = 7 * 24 * 3600
"""How long torchrun waits for a machine that is away; a person decides how long that may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torchrun:
    """torchrun on this machine. folder: private, for the socket to the agent and for models on their way."""

    settings: GroupSettings
    shape: GroupShape
    folder: Path
    output: Output

    async def keep(self) -> None:
        """Run torchrun, again and again, until cancelled; raises ConfigurationError for an endpoint that is none."""
        host, port = self.shape.endpoint
        address = own_address(self.shape.endpoint, is_host=self.shape.node_rank == 0)
        while True:
            if self.shape.node_rank > 0:
                self.output.info("ranks", f"waiting for machine 0 at {host}:{port}")
                await _listens(host, port)
            status = await self._once(address)
            self.output.warning("ranks", f"torchrun ended with exit status {status}; starting it again")
            await asyncio.sleep(RESTART_PAUSE)

    async def _once(self, address: str) -> int:
        """One life of torchrun; its exit status."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "client_app.ranks.launcher", str(theirs.fileno()), str(self.folder)),
                *self._arguments(address),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env=self._environment(address),
            )
            theirs.close()
            assert process.stdout is not None  # noqa: S101 - it was started with a pipe
            printing = asyncio.create_task(relay(self.output, process.stdout))
            try:
                return await process.wait()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()  # its ranks see that it is gone, and hold the pipe until they have ended too
                await process.wait()
                await end(printing, within=PRINTING_SECONDS)

    def _arguments(self, address: str) -> Sequence[str]:
        host, port = self.shape.endpoint
        is_host = self.shape.node_rank == 0
        return (
            *("--nnodes", str(self.shape.nnodes), "--nproc-per-node", str(self.shape.nproc_per_node)),
            *("--rdzv-backend", "c10d", "--rdzv-id", "fedcore", "--rdzv-endpoint", f"{host}:{port}"),
            *("--rdzv-conf", f"is_host={str(is_host).lower()},join_timeout={_JOIN_SECONDS}"),
            *("--local-addr", address, "--max-restarts", str(_MAX_RESTARTS)),
            *("-m", "client_app.ranks.elastic_rank", "--node-rank", str(self.shape.node_rank)),
            *("--app", str(self.settings.app), "--folder", str(self.folder)),
        )

    def _environment(self, address: str) -> dict[str, str]:
        environment = {
            **os.environ,
            **self.settings.environment(),
            # Sharing the rendezvous' store with the ranks makes half of the restarts fail (torch 2.13, gloo).
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        # Or else every rank that is lost costs the log a page of frames in C++.
        environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        if (interface := interface_of(address)) is not None:
            environment.setdefault("GLOO_SOCKET_IFNAME", interface)
            environment.setdefault("NCCL_SOCKET_IFNAME", interface)
        return environment


async def _listens(host: str, port: int) -> None:
    """Wait until somebody accepts connections there; torchrun gives up after a minute."""
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                _, writer = await asyncio.open_connection(host, port)
            writer.close()
            await writer.wait_closed()
            return
        await asyncio.sleep(RESTART_PAUSE)
