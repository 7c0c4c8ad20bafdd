"""The group of ranks that runs the owner's ClientApp, as the agent uses it.

One federated client is one group, of one process or of many. Its ranks start once and stay, with everything that
the app keeps, from task to task. Any failure ends all of them, since nobody may wait in a collective for a rank that
will not come, and a new group starts at once in the background: the next task finds it warm.

Drivers: `client_app.ranks.supervisor` for one machine, `client_app.ranks.elastic` for several.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol, Self

from client_app.output import Output
from client_app.ranks.failures import RANK_HUNG, RANK_KILLED, RankFailed
from client_app.ranks.group_size import needs_group
from client_app.ranks.messages import FromRank, Greeting, LocalAnswer, RankTask, Ready, ToRank
from client_app.ranks.progress import OnProgress, TaskProgress
from fedcore.errors import AppError
from fedcore.flower.app import FlowerApp
from fedcore.flower.node.keys import checked_node
from fedcore.system.concurrency import end
from fedcore.system.files import full_disk_named, make_private_folder, remove_tree
from fedcore.system.json_lines import printed_lines
from fedcore.system.left_files import remove_left
from fedcore.system.sandbox.sandbox import Rules, Sandbox, clean_environment, named_paths
from fedcore.system.tracing import WORK, Traces, traceparent
from fedcore.system.workers.cores import allowed_cores, granted_cores
from fedcore.wire.base import Scalar
from fedcore.wire.tasks import Task

START_SECONDS: Final = 600.0
"""How long ranks may take to import torch and the app, and to find each other: minutes on a slow or busy machine."""
PRINTING_SECONDS: Final = 1.0
"""What was printed last is still in the pipe; a process that left the group may hold it open."""
SOCKET: Final = "agent"
"""In the private folder: where rank 0 of a group on several machines reaches its agent."""
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - POSIX says where it is


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Which app a group runs, as whom, on which data, and in how many processes.

    app: a copy of the app that nobody else writes to.
    app_sha256: hash of the app that the agent agreed to run; a rank that loads something else is not used.
    data_dir: where `fedcore.data` looks for files, or None for what the environment says.
    models: where the agent keeps the global models.
    scratch: where rank 0 leaves new ones, on the same disk as their target; None for the group's private folder.
    local_folder: where rank 0 keeps the client's own model, or None for nowhere durable.
    engine: the site's settings of the training engine, which every rank gets.
    ranks: processes on this machine.
    rules: what the owner adds to what user code may see.
    progress_seconds: how long a rank may be in a loop over batches without another step; 0 for any time.
    """

    app: Path
    app_sha256: str
    client_id: int
    node_config: Mapping[str, Scalar]
    data_dir: Path | None = None
    models: Path | None = None
    scratch: Path | None = None
    local_folder: Path | None = None
    engine: Mapping[str, Scalar] = field(default_factory=dict)
    ranks: int = 1
    rules: Rules = field(default_factory=Rules)
    progress_seconds: float = 0.0

    def greeting(self) -> Greeting:
        """The first message to every rank."""
        return Greeting(
            app=str(self.app),
            app_sha256=self.app_sha256,
            client_id=self.client_id,
            node_config=dict(self.node_config),
            local_folder=str(self.local_folder) if self.local_folder else None,
            engine=dict(self.engine),
        )

    def environment(self, private: Path) -> dict[str, str]:
        """The environment of every rank; `private` is its folder for temporary files.

        Ranks of one machine share its cores, of which a container or a job may have a few only.
        """
        environment = clean_environment(self.rules, private)
        if self.data_dir is not None:
            environment["FEDCORE_DATA"] = str(self.data_dir)
        cores = granted_cores()
        if self.ranks > 1 or cores < allowed_cores():
            environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // self.ranks)))
        return environment

    @property
    def alone(self) -> bool:
        """Whether one rank does the work and looks for no others, so that it needs no network."""
        return self.ranks == 1 and not needs_group(self.engine)

    def sandbox(self, private: Path, *, alone: bool) -> Sandbox:
        """What the ranks may read and write.

        Args:
            private: the ranks' folder for temporary files.
            alone: whether nobody needs the network.
        """
        config_paths = [
            Path(value) for value in self.node_config.values() if isinstance(value, str) and os.path.exists(value)
        ]
        paths = (self.data_dir, self.models, *config_paths, *self.rules.read, *named_paths(self.environment(private)))
        return Sandbox(
            read=(self.app, *(path for path in paths if path is not None)),
            write=tuple(path for path in (private, self.scratch, self.local_folder) if path is not None),
            network=not alone,
            confined=self.rules.confined,
            shared_memory=None if alone else shared_memory_of(private),
            account=self.rules.account,
        )


@dataclass(frozen=True, slots=True)
class Limit:
    """How long something may take: `seconds` in all, until `end` on the clock of the event loop."""

    seconds: float
    end: float

    @classmethod
    def of(cls, seconds: float) -> Self:
        """From now on."""
        return cls(seconds, asyncio.get_running_loop().time() + seconds)

    def remaining(self) -> float:
        """Seconds from now to the end, 0 after it."""
        return max(self.end - asyncio.get_running_loop().time(), 0.0)


class RunningRanks(Protocol):
    """The processes of a group, which started together and end together."""

    async def ask(self, message: ToRank, limit: Limit, progress: TaskProgress | None = None) -> list[FromRank]:
        """Send `message` to the ranks; their answers, rank 0's first. Raises what the first failure means.

        Args:
            message: goes to every rank.
            limit: how long that may take.
            progress: takes what they report until they answer, and says when one is stuck; for a task only.
        """
        ...

    async def lost(self) -> str:
        """Wait until one of them ends by itself; how it did, in words."""
        ...

    async def end(self) -> None:
        """End all its processes and whatever they started; does nothing the second time."""
        ...


@dataclass(slots=True)
class RankGroup(ABC):
    """A warm group; after a failure, or when ranks are ended, new ones start in the background."""

    settings: GroupSettings
    output: Output
    on_progress: OnProgress = field(default=lambda steps, still: None, kw_only=True)
    traces: Traces = field(default_factory=Traces, kw_only=True)
    _starting: asyncio.Task[RunningRanks] | None = field(default=None, init=False)
    _watching: asyncio.Task[None] | None = field(default=None, init=False)
    _lost: RunningRanks | None = field(default=None, init=False)
    _private: Path | None = field(default=None, init=False)

    @property
    def private(self) -> Path:
        """The private folder of the ranks of this machine, until `stop`."""
        if self._private is None:
            self._private = make_private_folder()
            if self.settings.local_folder is not None:  # its parent is not theirs to write to
                self.settings.local_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._private

    @property
    def present(self) -> RunningRanks | None:
        """The ranks that are ready for a task, None while they start."""
        starting = self._starting
        if starting is None or not starting.done() or starting.cancelled() or starting.exception():
            return None
        return starting.result()

    async def start(self) -> None:
        """Start the ranks and load the app, unless they run already.

        Raises AppError when the app cannot be loaded or was changed since the agent started, RankFailed when a rank
        ends or hangs.
        """
        await self._ready()

    async def use(self, app: Path, app_sha256: str) -> None:
        """End the ranks and start others with this copy of an app.

        Raises what `start` raises, and ConfigurationError if the node config lacks what the app asks for.
        """
        keys = (await asyncio.to_thread(FlowerApp.load, app)).node_keys
        node = checked_node(keys, self.settings.node_config, folder=Path.cwd())
        await self.stop()
        self.settings = replace(self.settings, app=app, app_sha256=app_sha256, node_config=node)
        await self.start()

    async def run(self, task: Task, model: Path | None, out: Path, *, aggregated_round: int = 0) -> LocalAnswer:
        """Run the ClientApp on one task, on all ranks, for at most `task.seconds`; rank 0 writes the state to `out`.

        Raises AppFailed, AppError (wrong records), StorageFull, or RankFailed after a death, a timeout or a lack of
        memory. When the caller is cancelled the ranks are ended, since nothing else stops user code.

        Args:
            task: what the server asks for.
            model: the file of the model, or of the message of a plain exchange.
            out: the file that the new model goes to.
            aggregated_round: the round of this client's last training whose update was in its sum, 0 for none.
        """
        made = (self.settings.scratch or self.private) / f"new-{secrets.token_hex(8)}.safetensors"
        request = RankTask(
            task=task,
            model=str(model) if model else None,
            out=str(made),
            counted=aggregated_round,
            traceparent=traceparent(WORK, task.run, task.exchange, self.traces.instance),
        )
        try:
            answer = await self._ask(request, Limit.of(task.seconds))
            if answer.trained:
                await asyncio.to_thread(take_new_model, made, out)
            return answer
        finally:
            made.unlink(missing_ok=True)

    async def _ask(self, request: RankTask, limit: Limit) -> LocalAnswer:
        running = await self._ready(limit)
        await self._stop_watching()
        try:
            progress, began = TaskProgress(self.settings.progress_seconds, self.on_progress), time.monotonic()
            try:
                answer = (await running.ask(request, limit, progress))[0]
            finally:
                for rank, ended in progress.answers.items():
                    self._trace(rank, request.task, began, ended)
            if not isinstance(answer, LocalAnswer):
                raise RankFailed("rank 0 gave an unexpected answer", RANK_KILLED)
        except BaseException as error:
            if self._stays_warm(error):
                self._watch(running)
            else:
                await running.end()
                self._starting = asyncio.create_task(self._next())
            raise
        self._watch(running)
        return answer

    def _trace(self, rank: int, task: Task, began: float, ended: float) -> None:
        self.traces.record(f"rank {rank}", task.run, task.exchange, began=began, ended=ended, below=WORK)

    async def stop(self) -> None:
        """End the ranks and everything that they started."""
        try:
            await self._stop_ranks()
        finally:
            private, self._private = self._private, None
            if private is not None:
                remove_left(private)
                remove_shared_memory(private)

    async def _stop_ranks(self) -> None:
        await self._stop_watching()
        starting, self._starting = self._starting, None
        if starting is None:
            return
        starting.cancel()
        await asyncio.wait([starting])
        await self._end_lost()
        if not starting.cancelled() and starting.exception() is None:
            await starting.result().end()

    @abstractmethod
    async def _launch(self) -> RunningRanks:
        """Start ranks, which have loaded the app on return; leaves nothing behind when that fails."""

    async def _ready(self, limit: Limit | None = None) -> RunningRanks:
        """The ranks, as soon as they are ready; RankFailed where that takes longer than `limit`."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._next())
        starting = self._starting
        try:
            async with asyncio.timeout(limit.remaining() if limit else None):
                return await asyncio.shield(starting)
        except TimeoutError:
            allowed = f" within {limit.seconds:.0f} s" if limit else ""
            raise RankFailed(f"the ranks were not ready{allowed}", RANK_HUNG) from None
        except Exception:
            self._starting = None  # the next call tries again
            raise

    async def _next(self) -> RunningRanks:
        """Start ranks, which are watched until their first task."""
        await self._end_lost()
        running = await self._launch()
        self._watch(running)
        return running

    def _watch(self, running: RunningRanks) -> None:
        self._watching = asyncio.create_task(self._replace_when_lost(running))

    async def _replace_when_lost(self, running: RunningRanks) -> None:
        """Between two tasks: a rank that ends then has cost nothing yet, if new ranks are ready in time."""
        how = await running.lost()
        self.output.warning("ranks", f"{how} between two tasks; starting the group again")
        self._watching, self._lost = None, running
        self._starting = asyncio.create_task(self._next())

    async def _end_lost(self) -> None:
        """End what is left of ranks one of which ended between two tasks."""
        if self._lost is not None:
            await self._lost.end()
            self._lost = None

    async def _stop_watching(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            await end(watching)

    def _stays_warm(self, error: BaseException) -> bool:
        """Whether the ranks can serve another task after `error`; with several, the state of the others is unknown."""
        del error
        return False


def check_app(answers: Sequence[FromRank], settings: GroupSettings) -> None:
    """Whether the ranks have loaded what the agent agreed to; raises AppError."""
    if any(answer != Ready(app_sha256=settings.app_sha256) for answer in answers):
        raise AppError(f"the copy of the app in {settings.app} was changed while the agent ran; restart the agent")


def take_new_model(made: Path, out: Path) -> None:
    """Move what rank 0 wrote to where user code cannot change what it is; raises AppError, StorageFull.

    A link there would have the agent send a file that user code itself may not read.
    """
    with full_disk_named("the disk of the state folder is full"):
        try:
            shutil.move(made, out)  # renames it where that can be; a link stays a link
        except FileNotFoundError:
            raise AppError("rank 0 left no new model", check="model-file") from None
    if not stat.S_ISREG(out.lstat().st_mode):
        remove_tree(out)
        raise AppError("the new model that rank 0 left is not a file of its own", check="model-file")


def shared_memory_of(private: Path) -> Path | None:
    """The folder of memory that ranks with this private folder share, made here; None on a machine without such."""
    folder = _SHARED_MEMORY / private.name
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        return None
    return folder


def remove_shared_memory(private: Path) -> None:
    """Remove that folder, if there is one."""
    remove_left(_SHARED_MEMORY / private.name)


async def relay(output: Output, stream: asyncio.StreamReader) -> None:
    """Show what the app prints; it stays on this machine."""
    async for line in printed_lines(stream):
        if line:
            output.info("app", line)
