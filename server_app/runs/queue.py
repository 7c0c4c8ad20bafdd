"""The queue of runs: accepts them, leads one at a time in the order of submission, ends them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from fedcore.errors import FedcoreError, RunFailed
from fedcore.events import AppPrinted, RunOut, Warned
from fedcore.flower.app import AppBundle
from fedcore.system.concurrency import end
from fedcore.system.files import remove_tree
from fedcore.wire import ModelRef, ProblemKind, RunFile, RunFilesOut, RunIn, RunStatus
from server_app.exchanges.exchange import Exchange
from server_app.http.problems import Rejection
from server_app.runs.app_files import kept_file, kept_files
from server_app.runs.app_process import AppConnection, AppProcess, OnLine
from server_app.runs.event_log import EventLog
from server_app.runs.orchestrator import RunEnd, RunOrchestrator
from server_app.runs.plan import RunPlan
from server_app.runs.run_files import APP_FOLDER, MODEL_FILE, RunFiles
from server_app.services import Services
from server_app.storage.tables import RunRow

log = logging.getLogger("fedcore.server")

RETRY_SECONDS: Final = 2.0
CANCELLED: Final = "cancelled by the operator"

StartApp = Callable[[Path, OnLine], Awaitable[AppConnection]]


class RunQueue:
    """Runs wait in the database; one task leads the first of them.

    start_app: makes a ServerApp process in a folder; by default a real one, in the sandbox that the settings say.
    """

    def __init__(self, services: Services, *, start_app: StartApp | None = None) -> None:
        self._services = services
        self._start_app = start_app or partial(AppProcess.start, rules=services.settings.app_rules)
        self._wake = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._active: tuple[str, asyncio.Task[RunEnd]] | None = None
        self._told: set[str] = set()
        self.exchange: Exchange | None = None

    async def start(self) -> None:
        """Clear up after the last process, then begin to lead runs."""
        services = self._services
        services.settings.runs_dir.mkdir(parents=True, exist_ok=True)
        left = services.spool.clear()
        runs = await services.store.interrupt_runs("the server stopped while the run was open", self._now())
        services.presence.installed.update(await services.store.installed_apps())
        if left or runs:
            log.info("cleared %d spooled files; interrupted runs: %s", left, ", ".join(runs) or "none")
        self._worker = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """End the run that is led, and its processes; it stays as interrupted."""
        if self._worker is not None:
            await end(self._worker)

    @property
    def alive(self) -> bool:
        """Whether runs are being led."""
        return self._worker is not None and not self._worker.done()

    # --- what operators ask ---------------------------------------------------------------------

    async def submit(self, body: RunIn) -> RunOut:
        """Check and queue a run. Raises Rejection and ConfigurationError; nothing is kept then."""
        store = self._services.store
        if await store.count_waiting() >= self._services.settings.waiting_runs:
            raise Rejection(ProblemKind.BUSY, "too many runs wait already; try again later")
        bundle = AppBundle(body.files)
        if bundle.sha256 != body.app_sha256:
            raise Rejection(ProblemKind.DIGEST_MISMATCH, "the app's files do not have the hash named")
        if refused := await asyncio.to_thread(self._not_approved, bundle.sha256):
            raise Rejection(ProblemKind.APP_NOT_APPROVED, refused)
        run = self._services.new_id()
        folder = self._services.settings.runs_dir / run
        try:
            await asyncio.to_thread(bundle.write, folder / APP_FOLDER)
            plan = RunPlan.submitted(run, folder, body)
            await asyncio.to_thread(plan.keep_question)
            plan.check(len(self._services.roster.members), self._services.min_cohort)
            await store.add_run(
                run=run,
                aggregation=plan.settings.aggregation,
                app=plan.app,
                app_sha256=plan.app_sha256,
                run_config=dict(plan.run_config),
                settings=plan.settings.to_mapping(),
            )
        except BaseException:
            await asyncio.to_thread(remove_tree, folder)
            raise
        self._wake.set()
        return await self.describe(run, after=0)

    def _not_approved(self, sha256: str) -> str:
        """Why an app may not run, empty where it may."""
        approved = self._services.settings.approved_apps
        if approved is None or sha256 in approved.load():
            return ""
        return (
            f"the server's owner has not approved the app {sha256}; ask for it: "
            "fedcore server approve APP_DIR --federation DIR"
        )

    async def describe(self, run: str, after: int) -> RunOut:
        """The state of a run and its events after number `after`; Rejection where there is none."""
        # The row first: a final status then means that its event is among those read after it.
        row = await self._row(run)
        events = await self._services.store.events(run, after)
        model = ModelRef(sha256=row.model_sha256, size=row.model_size) if row.model_sha256 else None
        return RunOut(
            run=row.run,
            status=RunStatus(row.status),
            reason=row.reason,
            aggregation="plain" if row.aggregation == "plain" else "secure",
            app=row.app,
            app_sha256=row.app_sha256,
            events=events,
            model=model,
        )

    async def cancel(self, run: str) -> RunOut:
        """End a run that waits or is led; one that has ended stays as it is."""
        while not RunStatus((await self._row(run)).status).final:
            waiting = (RunStatus.WAITING,)
            await self._end(run, RunStatus.CANCELLED, CANCELLED, seconds=0.0, before=waiting)
            # Once only: a second one would break off the clearing up that the first one began.
            if self._active is not None and self._active[0] == run and run not in self._told:
                self._told.add(run)
                self._active[1].cancel()
            await self._services.run_bell.wait(0.1)
            if not self.alive:
                raise Rejection(ProblemKind.BUSY, "the server is stopping; the run ends with it")
        return await self.describe(run, after=0)

    async def model_file(self, run: str) -> tuple[Path, ModelRef]:
        """The model of a finished run; Rejection where there is none."""
        row = await self._row(run)
        if not row.model_sha256:
            raise Rejection(ProblemKind.NOT_FOUND, "the run has no model")
        reference = ModelRef(sha256=row.model_sha256, size=row.model_size)
        return self._services.settings.runs_dir / row.run / MODEL_FILE, reference

    async def files(self, run: str) -> RunFilesOut:
        """What the ServerApp of a run that has ended left; Rejection where there is no such run."""
        row = await self._row(run)
        return await asyncio.to_thread(kept_files, self._services.settings.runs_dir / row.run)

    async def file(self, run: str, path: str) -> tuple[Path, RunFile]:
        """One of these files, and where it lies; Rejection where there is none."""
        row = await self._row(run)
        found = await asyncio.to_thread(kept_file, self._services.settings.runs_dir / row.run, path)
        if found is None:
            raise Rejection(ProblemKind.NOT_FOUND, "the run left no such file")
        return found

    async def _row(self, run: str) -> RunRow:
        row = await self._services.store.run(run)
        if row is None:
            raise Rejection(ProblemKind.NOT_FOUND, "there is no such run")
        return row

    # --- what clients ask -----------------------------------------------------------------------

    async def find_exchange(self, run: str, exchange: int, client: int) -> Exchange:
        """The exchange that is open, or ended last. Rejection for others, by what became of them."""
        shown = self.exchange
        if shown is not None and (shown.task.run, shown.task.exchange) == (run, exchange):
            shown.require_member(client)
            return shown
        cohort = await self._services.store.cohort(run, exchange)
        if cohort is None:
            raise Rejection(ProblemKind.NOT_FOUND, "there is no such exchange")
        if client not in cohort:
            raise Rejection(ProblemKind.NOT_IN_COHORT, f"this client is not in exchange {exchange}")
        raise Rejection(ProblemKind.ROUND_FAILED, f"exchange {exchange} has ended")

    # --- leading --------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            try:
                await self._lead_next()
            except FedcoreError as error:  # a full disk, say: nothing is lost, try again
                log.error("no run can be led for now: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _lead_next(self) -> None:
        self._wake.clear()
        row = await self._services.store.next_waiting()
        if row is None:
            await self._wake.wait()
        elif await self._services.store.start_run(row.run):
            await self._lead(row)

    async def _lead(self, row: RunRow) -> None:
        """Lead one run and record how it ended; only the server's own stop comes out of it."""
        event_log = EventLog(
            store=self._services.store,
            run=row.run,
            clock=self._services.clock,
            wall=self._services.wall,
            bell=self._services.run_bell,
        )
        task = asyncio.create_task(self._run(row, event_log))
        self._active = (row.run, task)
        model, status, reason = None, RunStatus.FINISHED, ""
        try:
            await asyncio.wait({task})
            model, status, reason = self._outcome(row.run, task)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            status, reason = RunStatus.INTERRUPTED, "the server was stopped"
            raise
        finally:
            self._active = None
            self._told.discard(row.run)
            await self._finish(row.run, event_log, status, reason, model)

    def _outcome(self, run: str, task: asyncio.Task[RunEnd]) -> tuple[ModelRef | None, RunStatus, str]:
        if task.cancelled():
            return None, RunStatus.CANCELLED, CANCELLED
        error = task.exception()
        if error is None:
            return task.result().model, RunStatus.FINISHED, task.result().stopped
        if isinstance(error, FedcoreError):
            return None, RunStatus.FAILED, str(error)
        log.error("run %s failed", run, exc_info=error)
        return None, RunStatus.FAILED, "the server failed; its log says more"

    async def _finish(
        self, run: str, event_log: EventLog, status: RunStatus, reason: str, model: ModelRef | None
    ) -> None:
        # A record that cannot be written must not keep the run from ending.
        end = partial(self._end, run, status, reason, seconds=event_log.seconds, model=model)
        for step in (event_log.close, end):
            try:
                await step()
            except FedcoreError as error:
                log.error("run %s (%s) could not be recorded: %s", run, status.value, error)

    async def _end(
        self,
        run: str,
        status: RunStatus,
        reason: str,
        *,
        seconds: float,
        model: ModelRef | None = None,
        before: tuple[RunStatus, ...] = (RunStatus.WAITING, RunStatus.RUNNING),
    ) -> None:
        ended = await self._services.store.end_run(
            run, status, reason, seconds=round(seconds, 3), time=self._now(), model=model, before=before
        )
        if ended:
            log.info("run %s %s%s", run, status.value, f": {reason}" if reason else "")
        self._services.run_bell.ring()

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._services.wall(), UTC)

    async def _run(self, row: RunRow, event_log: EventLog) -> RunEnd:
        plan = RunPlan.stored(row, self._services.settings.runs_dir / row.run)
        files = RunFiles(plan.folder)
        await asyncio.to_thread(files.check_app, plan.app_sha256)
        if refused := await asyncio.to_thread(self._not_approved, plan.app_sha256):  # it may have waited for long
            raise RunFailed(refused)
        files.work.mkdir(exist_ok=True)
        orchestrator = RunOrchestrator(self._services, plan, files, event_log=event_log, show=self._show)
        app = await self._start_app(files.work, lambda line: event_log.add(AppPrinted(line=line)))
        try:
            return await orchestrator.lead(app)
        finally:
            await app.stop()
            await self._keep_files(files, event_log)
            await files.remove_temporary()

    async def _keep_files(self, files: RunFiles, event_log: EventLog) -> None:
        """A file more or less must not keep the run from ending."""
        try:
            left_out = await files.keep_app_files()
        except FedcoreError as error:
            event_log.add(Warned(line=str(error)))
            return
        if left_out:
            line = f"{left_out} files of the ServerApp were left out: hidden ones, links, too many or too large"
            event_log.add(Warned(line=line))

    def _show(self, exchange: Exchange) -> None:
        self.exchange = exchange
