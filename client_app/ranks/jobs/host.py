"""The process that a job starts on each of its machines: it runs the ranks there, for an agent elsewhere.

On machine 0 it is to its group of ranks what an agent is: it starts them, hands them tasks, and starts them again after
a failure. It has no key, and no connection to the server. It ends when the agent says so, or is silent for too long.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from client_app.output import Level, Output, clean
from client_app.ranks.elastic import ElasticGroup, serve_node
from client_app.ranks.group import GroupSettings, RankGroup
from client_app.ranks.group_size import GroupSize
from client_app.ranks.jobs.mailbox import ALIVE_SECONDS, LOOK_SECONDS, Mailbox
from client_app.ranks.jobs.messages import (
    TO_HOST,
    Alive,
    HostAnswer,
    HostLeave,
    HostLine,
    HostReady,
    HostSettings,
    HostSteps,
    HostTask,
    HostWithdraw,
    ToHost,
    failure_of,
)
from client_app.ranks.supervisor import LocalGroup
from fedcore.errors import FedcoreError
from fedcore.system.concurrency import end
from fedcore.system.files import write_file
from fedcore.system.sandbox.sandbox import Rules, describe

_ENDPOINT: Final = "endpoint"
"""In the job's folder: where machine 0 waits for the others."""


def main() -> None:
    """Serve tasks until the agent ends the job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the job's folder")
    parser.add_argument("--node", type=int, required=True, help="which machine of the job this is, from 0 on")
    parser.add_argument("--address", default="", help="machine 0's address, as the others reach it")
    options = parser.parse_args()
    settings = HostSettings.model_validate_json((options.folder / "job.json").read_bytes())
    node: int = options.node
    work = _serve(options.folder, settings, options.address) if node == 0 else _join(options.folder, settings, node)
    sys.exit(asyncio.run(_until_signal(work)))


async def _until_signal(work: Any) -> int:
    """Run it; a scheduler ends a job by SIGTERM."""
    loop, working = asyncio.get_running_loop(), asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, working.cancel)
    try:
        return int(await working)
    except asyncio.CancelledError:
        return 0


def _group_settings(settings: HostSettings) -> GroupSettings:
    """Raises ConfigurationError for a file or a variable of the owner's rules that is not on this machine."""
    return GroupSettings(
        app=Path(settings.app),
        app_sha256=settings.app_sha256,
        client_id=settings.client_id,
        node_config=settings.node_config,
        data_dir=Path(settings.data_dir) if settings.data_dir else None,
        models=Path(settings.models),
        scratch=Path(settings.scratch),
        local_folder=Path(settings.local_folder) if settings.local_folder else None,
        engine=settings.engine,
        ranks=settings.ranks,
        rules=Rules(variables=settings.variables, read=tuple(map(Path, settings.read)), confined=settings.confined),
        progress_seconds=settings.progress_seconds,
    )


async def _serve(folder: Path, settings: HostSettings, address: str) -> int:
    """What machine 0 does; its exit status."""
    box = Mailbox(folder, TO_HOST, host=True)
    output = HostOutput(name=f"job on {socket.gethostname()}", box=box)
    greeting = asyncio.create_task(_greet(box))
    group: RankGroup | None = None
    try:
        group = _group(folder, settings, address, output)
        group.on_progress = lambda steps, still: box.post_if_possible(HostSteps(steps=steps, still=still))
        host = _Host(box, group, settings.patience)
        return await host.serve(settings.app_sha256)
    except FedcoreError as error:  # also one whose reason is this machine
        box.post(failure_of(0, error))
        return 1
    finally:
        if group is not None:
            await group.stop()
        await end(greeting)


def _group(folder: Path, settings: HostSettings, address: str, output: Output) -> RankGroup:
    group_settings = _group_settings(settings)
    text, is_bad = describe(group_settings.rules, network=settings.nodes > 1 or not group_settings.alone)
    (output.warning if is_bad else output.info)("sandbox", text)
    if settings.nodes == 1:
        return LocalGroup(group_settings, output)
    host = address or socket.gethostname()
    family = socket.getaddrinfo(host, None)[0][0]
    with socket.create_server((host, 0), family=family) as free:
        port = free.getsockname()[1]
    endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    write_file(folder / _ENDPOINT, endpoint, mode=0o600)
    return ElasticGroup(group_settings, output, size=_size(settings, 0, endpoint))


def _size(settings: HostSettings, node: int, endpoint: str) -> GroupSize:
    return GroupSize(nproc_per_node=settings.ranks, nnodes=settings.nodes, node_rank=node, rdzv_endpoint=endpoint)


async def _join(folder: Path, settings: HostSettings, node: int) -> int:
    """What another machine does: its ranks join those of machine 0, until the job ends."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            endpoint = (folder / _ENDPOINT).read_text(encoding="utf-8")
            break
        await asyncio.sleep(LOOK_SECONDS)
    await serve_node(_group_settings(settings), _size(settings, node, endpoint), Output(name=f"node-{node}"))
    return 0


async def _greet(box: Mailbox[ToHost]) -> None:
    while True:
        box.post_if_possible(Alive())
        await asyncio.sleep(ALIVE_SECONDS)


@dataclass(slots=True, kw_only=True)
class HostOutput(Output):
    """The log of the agent, from here; the job's own log has the same lines."""

    box: Mailbox[ToHost]

    def _write(self, level: Level, stage: str, text: str, fields: dict[str, Any]) -> None:
        super(HostOutput, self)._write(level, stage, text, fields)
        self.box.post_if_possible(HostLine(level=level, stage=stage, text=clean(text)))


@dataclass(slots=True)
class _Host:
    """The side of the mailbox that runs tasks, one at a time."""

    box: Mailbox[ToHost]
    group: RankGroup
    patience: float

    async def serve(self, app_sha256: str) -> int:
        """Start the ranks and run tasks, until the agent leaves; raises FedcoreError if they do not start."""
        loop = asyncio.get_running_loop()
        starting = asyncio.ensure_future(self.group.start())
        working: tuple[int, asyncio.Task[None]] | None = None
        last_word, ready = loop.time(), False
        try:
            while True:
                if not ready and starting.done():
                    starting.result()
                    self.box.post(HostReady(app_sha256=app_sha256))
                    ready = True
                for message in self.box.read():
                    last_word = loop.time()
                    match message:
                        case HostLeave():
                            return 0
                        case HostTask():
                            working = message.number, asyncio.create_task(self._run(message))
                        case HostWithdraw():
                            if working is not None and working[0] == message.number:
                                await end(working[1])
                        case Alive():
                            pass
                if loop.time() - last_word > self.patience:
                    self.group.output.warning("job", f"the agent has said nothing for {self.patience:.0f} s")
                    return 0
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await end(starting, *([working[1]] if working else []))

    async def _run(self, message: HostTask) -> None:
        model = Path(message.model) if message.model else None
        try:
            answer = await self.group.run(
                message.task, model, Path(message.out), aggregated_round=message.aggregated_round
            )
        except Exception as error:  # also a fault of this program: somebody waits for the answer
            self.box.post(failure_of(message.number, error))
        else:
            self.box.post(HostAnswer(number=message.number, answer=answer))


if __name__ == "__main__":
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    main()
