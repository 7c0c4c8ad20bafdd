"""A group of ranks in a job of a cluster, as the agent sees it.

The job is submitted when the agent starts, and again for the next task after it ended. It stays between tasks, with
warm ranks, until nothing was asked of it for `idle-seconds`.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from client_app.ranks.failures import JOB_LOST, JOB_QUEUED, RANK_HUNG, RankFailed
from client_app.ranks.group import START_SECONDS, Limit, RankGroup, RunningRanks
from client_app.ranks.jobs.launcher import Launcher, RankJob
from client_app.ranks.jobs.mailbox import Mailbox, make_mailbox
from client_app.ranks.jobs.messages import FROM_HOST, HostReady, HostSettings, HostTask, HostWithdraw
from client_app.ranks.jobs.own_model import copy_own_model
from client_app.ranks.jobs.running import JobWatch
from client_app.ranks.messages import FromRank, LocalAnswer, RankTask, ToRank
from client_app.ranks.progress import TaskProgress
from fedcore.errors import AppError
from fedcore.federation.kits.rank_jobs import RankJobs
from fedcore.system.concurrency import in_thread
from fedcore.system.files import full_disk_named, write_file
from fedcore.system.left_files import remove_left

NAME_FILE: Final = "job-name"
"""In the state folder: the name of all jobs of this agent."""
PATIENCE_SECONDS: Final = 120.0
_MARGIN_SECONDS: Final = 2.0
"""The host gives up so much earlier than the agent, since it knows which rank did not answer."""
_LOGS: Final = 10
"""Of jobs before, which stay in the folder."""


def job_name(state_dir: Path, client: str) -> str:
    """The name of this agent's jobs, the same at every start, so that those of an agent that was killed are known."""
    path = state_dir / NAME_FILE
    if not path.exists():
        plain = re.sub("[^a-z0-9]+", "-", client.lower()).strip("-")[:30]
        write_file(path, f"fedcore-{plain}-{secrets.token_hex(4)}", mode=0o600, durable=True)
    return path.read_text(encoding="utf-8").strip()


@dataclass(slots=True)
class JobGroup(RankGroup):
    """The group.

    jobs: what client.toml says of them.
    launcher: the scheduler.
    name: of its jobs, as `job_name` gives it.
    patience: seconds without a word of this agent after which a job ends by itself.
    """

    jobs: RankJobs = field(kw_only=True)
    launcher: Launcher = field(kw_only=True)
    name: str = field(kw_only=True)
    patience: float = field(default=PATIENCE_SECONDS, kw_only=True)
    _cleared: bool = field(default=False, init=False)
    _pending: JobWatch | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.settings = replace(self.settings, models=self.folder / "models", scratch=self.folder / "scratch")

    @property
    def folder(self) -> Path:
        """What the agent and the nodes share, for this agent alone."""
        return self.jobs.folder / self.name

    async def _launch(self) -> RunningRanks:
        if not self._cleared:
            await self._clear()
        folder = self.folder / f"run-{secrets.token_hex(6)}"
        await in_thread(self._prepare, folder)
        job = RankJob(
            name=self.name,
            folder=folder,
            log=self.folder / "job-%j.log",
            nodes=self.jobs.nodes,
            variables=self.settings.rules.variables,
        )
        watch = JobWatch(
            job=job,
            box=Mailbox(folder, FROM_HOST, host=False),
            launcher=self.launcher,
            output=self.output,
            poll_seconds=self.jobs.poll_seconds,
            start_seconds=START_SECONDS,
        )
        running = _JobRanks(self, watch)
        try:
            self._pending = watch
            await watch.submit()
            ready = await watch.expect(HostReady)
            if ready.app_sha256 != self.settings.app_sha256:
                raise AppError(f"the copy of the app in {folder} was changed; restart the agent")
        except BaseException:
            await running.end()
            raise
        finally:
            self._pending = None
        self.output.info("job", f"{watch.title}: the ranks are ready")
        return running

    async def _clear(self) -> None:
        """Cancel jobs that an agent left, and remove its files."""
        for job in await self.launcher.cancel_left(self.name):
            self.output.warning("job", f"job {job}, which an earlier start of this client left, is cancelled")
        for path in (*self.folder.glob("run-*"), self.folder / "models", self.folder / "scratch"):
            await in_thread(remove_left, path)
        logs = sorted(self.folder.glob("job-*.log"), key=lambda path: path.stat().st_mtime)
        for path in logs[:-_LOGS]:
            path.unlink(missing_ok=True)
        self._cleared = True

    def _prepare(self, folder: Path) -> None:
        """The folder of a job, with the app, the settings, and the client's own model."""
        settings = self.settings
        with full_disk_named(f"the disk of {self.jobs.folder} (folder of client.toml's [ranks]) is full"):
            make_mailbox(folder)
            for path in (self.folder / "models", self.folder / "scratch"):
                path.mkdir(mode=0o700, exist_ok=True)
            shutil.copytree(settings.app, folder / "app")
            own = settings.local_folder
            if own is not None:
                own.mkdir(mode=0o700, parents=True, exist_ok=True)
                copy_own_model(own, self.own_model)
            content = HostSettings(
                app=str(folder / "app"),
                app_sha256=settings.app_sha256,
                client_id=settings.client_id,
                node_config=dict(settings.node_config),
                data_dir=str(settings.data_dir) if settings.data_dir else None,
                models=str(settings.models),
                scratch=str(settings.scratch),
                local_folder=str(self.own_model) if own else None,
                engine=dict(settings.engine),
                ranks=settings.ranks,
                nodes=self.jobs.nodes,
                read=tuple(map(str, settings.rules.read)),
                variables=settings.rules.variables,
                confined=settings.rules.confined,
                progress_seconds=settings.progress_seconds,
                patience=self.patience,
            )
            write_file(folder / "job.json", content.model_dump_json(), mode=0o600)

    @property
    def own_model(self) -> Path:
        """Where the nodes have the model that the client keeps for itself."""
        return self.folder / "local"

    async def _ready(self, limit: Limit | None = None) -> RunningRanks:
        try:
            return await super(JobGroup, self)._ready(limit)  # a class with slots is made twice
        except RankFailed as error:
            if error.check == RANK_HUNG and limit is not None and self._pending is not None:
                text = (
                    f"{self._pending.title} had no ranks ready within {limit.seconds:.0f} s; it stays for the next task"
                )
                raise RankFailed(text, JOB_QUEUED) from None
            raise

    async def _replace_when_lost(self, running: RunningRanks) -> None:
        """Between two tasks: a job that is lost is replaced, one without work is cancelled."""
        try:
            async with asyncio.timeout(self.jobs.idle_seconds or None):
                how = await running.lost()
        except TimeoutError:
            how = f"no task for {self.jobs.idle_seconds:.0f} s (idle-seconds of client.toml): the job is cancelled"
        self.output.info("job", f"{how}; the next task submits another")
        self._starting, self._watching, self._lost = None, None, running
        await self._end_lost()

    async def _stop_ranks(self) -> None:
        await super(JobGroup, self)._stop_ranks()
        await self._end_lost()

    def _stays_warm(self, error: BaseException) -> bool:
        del error
        running = self.present
        return isinstance(running, _JobRanks) and running.intact


@dataclass(slots=True)
class _JobRanks:
    """The ranks of a job. intact: whether the job is ready for another task after the last one failed."""

    group: JobGroup
    watch: JobWatch
    intact: bool = field(default=True, init=False)
    _number: int = field(default=0, init=False)

    async def ask(self, message: ToRank, limit: Limit, progress: TaskProgress | None = None) -> list[FromRank]:
        assert isinstance(message, RankTask)  # noqa: S101 - the settings are in job.json
        self._number += 1
        number, self.intact = self._number, False
        shared = None if message.model is None else self.group.folder / "models" / f"{number}-{secrets.token_hex(4)}"
        try:
            if shared is not None and message.model is not None:
                await in_thread(_share, Path(message.model), shared)
            answer = await self._answer(number, message, shared, limit, progress)
            if (own := self.group.settings.local_folder) is not None:
                await in_thread(copy_own_model, self.group.own_model, own)
            return [answer]
        finally:
            if shared is not None:
                shared.unlink(missing_ok=True)

    async def _answer(
        self, number: int, message: RankTask, shared: Path | None, limit: Limit, progress: TaskProgress | None
    ) -> LocalAnswer:
        seconds = max(limit.remaining() - _MARGIN_SECONDS, limit.remaining() / 2, 0.1)
        task = HostTask(
            number=number,
            task=message.task.model_copy(update={"seconds": seconds}),
            model=str(shared) if shared else None,
            out=message.out,
            aggregated_round=message.counted,
        )
        watch = self.watch
        try:
            async with asyncio.timeout(limit.remaining()):
                answer = await watch.ask(task, progress)
        except TimeoutError:
            raise RankFailed(f"{watch.title} gave no answer within {limit.seconds:.0f} s", RANK_HUNG) from None
        except asyncio.CancelledError:
            watch.box.post_if_possible(HostWithdraw(number=number))
            self.intact = True
            raise
        except RankFailed as error:
            self.intact = error.check != JOB_LOST
            raise
        except Exception:
            self.intact = True  # the host has said it, and starts its ranks again
            raise
        self.intact = True
        return answer

    async def lost(self) -> str:
        return await self.watch.lost()

    async def end(self) -> None:
        await self.watch.end()
        await in_thread(remove_left, self.watch.job.folder)


def _share(model: Path, shared: Path) -> None:
    """Make a model visible to the nodes, without a copy if it is on the same disk already."""
    with full_disk_named("the disk of folder of client.toml's [ranks] is full"):
        try:
            os.link(model, shared)
        except OSError:
            shutil.copyfile(model, shared)
