"""Leads the runs, one at a time in the order of submission: first the one that is open, then those that wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from fedcore.errors import FedcoreError, LeaseLost, RunFailed, StorageFull, StorageUnavailable
from fedcore.run.engine.journal import Journal
from fedcore.run.engine.state import RunState
from fedcore.system.concurrency import end
from fedcore.system.tracing import RUN
from fedcore.wire.events import RunResumed, TrafficCounted
from fedcore.wire.operator import RunStatus
from fedcore.wire.tasks import ModelRef
from server_app import logs
from server_app.exchanges.exchange import Exchange
from server_app.members.traffic import KEY_PREFIX, NONE, OPERATORS, Totals, since
from server_app.runs.active_exchanges import ActiveExchanges
from server_app.runs.app.process import AppConnection, AppKilled, AppProcess, OnLine
from server_app.runs.deaths import Deaths
from server_app.runs.event_log import EventLog
from server_app.runs.exchanges.cohort import CohortSelection
from server_app.runs.files.run_files import RunFiles
from server_app.runs.journal import JournalTable, RunInterrupted, fold_rows
from server_app.runs.orchestrator import RunEnd, RunOrchestrator
from server_app.runs.persistence import pauses, persist, reason_of
from server_app.runs.plan import RunPlan
from server_app.runs.retention import drop_journal, remove_expired
from server_app.runs.run_context import RunContext
from server_app.services import Services
from server_app.storage.tables import RunRow

log = logging.getLogger("fedcore.server")

CANCELLED: Final = "cancelled by the operator"
STOP_SECONDS: Final = 5.0
"""How long a server that stops tries to write what is still to be written."""
TIDY_SECONDS: Final = 3600.0
"""How often a server without work looks for runs that are to be forgotten."""
MOST_DEATHS: Final = 3
"""How often a ServerApp that a signal ended is started again at one of its requests."""
_PASSING: Final = (StorageUnavailable, StorageFull, LeaseLost)
"""What ends no run: the run is suspended, and resumed."""

StartApp = Callable[[Path, OnLine], Awaitable[AppConnection]]


class RunWorker:
    """One task that leads one run after the other. No error ends it: it says what is wrong, and tries again.

    start_app
        Makes a ServerApp process in a folder; by default a real one, in the sandbox that the settings say.
    """

    def __init__(self, services: Services, start_app: StartApp | None = None) -> None:
        self._services = services
        self._start_app = start_app or partial(AppProcess.start, rules=services.settings.app_rules)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._active: tuple[str, asyncio.Task[RunEnd], EventLog] | None = None
        self._to_cancel: set[str] = set()
        self._trouble = ""
        self._resumed_because = ""
        self._deaths = Deaths(services.store, services.settings.data_dir)
        self.active_exchanges = ActiveExchanges()

    def start(self) -> None:
        """Begin to lead runs."""
        self._resumed_because = "the server was started again"
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Suspend the run that is led, and end its processes; the next leader resumes it."""
        if self._task is not None:
            await end(self._task)
        self.active_exchanges.clear()

    @property
    def alive(self) -> bool:
        """Whether runs are being led."""
        return self._task is not None and not self._task.done()

    @property
    def trouble(self) -> str:
        """What keeps runs from being led or written down; empty if nothing does."""
        return self._trouble or (self._active[2].trouble if self._active else "")

    def wake(self) -> None:
        """A run has come into the queue."""
        self._wake.set()

    def cancel(self, run: str) -> None:
        """End a run that is led, or is about to be; saying it again changes nothing."""
        # Once only: a second one would break off the clearing up that the first one began.
        if run not in self._to_cancel:
            self._to_cancel.add(run)
            if self._active is not None and self._active[0] == run:
                self._active[1].cancel()

    def resumes(self, run: str) -> None:
        """A run that was cancelled, or failed, is to go on."""
        self._to_cancel.discard(run)
        self._resumed_because = "the operator resumed it"

    async def write_end(
        self,
        run: str,
        status: RunStatus,
        reason: str,
        *,
        seconds: float,
        model: ModelRef | None = None,
        before: tuple[RunStatus, ...] = (RunStatus.WAITING, RunStatus.RUNNING),
    ) -> None:
        """Write down how a run ended, unless it is in none of the states `before`."""
        ended = await self._services.store.end_run(
            run, status, reason, seconds=round(seconds, 3), time=self.now(), model=model, before=before
        )
        if ended:
            now = time.monotonic()
            self._services.traces.record(RUN, run, began=now - seconds, ended=now)
            self._services.metrics.run_ended(status)
            log.info("run %s %s%s", run, status.value, f": {reason}" if reason else "", extra={"run": run})
        self._services.run_bell.ring()

    def now(self) -> datetime:
        """The time by the wall clock."""
        return datetime.fromtimestamp(self._services.wall(), UTC)

    # --- the queue ------------------------------------------------------------------------------

    async def _work(self) -> None:
        waits = pauses()
        while True:
            try:
                await self._lead_next()
            except Exception as error:
                self._note(f"no run can be led for now: {reason_of(error)}")
                log.error("%s", self._trouble, exc_info=None if isinstance(error, FedcoreError) else error)
                await asyncio.sleep(next(waits))
            else:
                self._note("")
                waits = pauses()

    async def _lead_next(self) -> None:
        self._wake.clear()
        store = self._services.store
        row = await store.running()
        if row is None and (row := await store.next_waiting()) is not None:
            if not await store.start_run(row.run, started_at=row.started_at or self._services.wall()):
                return
            row = await store.run(row.run)
        self._note("")
        if row is None:
            await remove_expired(self._services)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TIDY_SECONDS):
                    await self._wake.wait()
        else:
            await self._lead(row)

    async def _lead(self, row: RunRow) -> None:
        """Lead one run and write down how it ended; a stop of the server, and what passes, leave it open."""
        event_log = await self._event_log(row)
        from_start, before = not event_log.has_events, self._services.traffic.totals()
        task = asyncio.create_task(self._run(row, event_log))
        self._active = (row.run, task, event_log)
        if row.run in self._to_cancel:
            task.cancel()
        try:
            await asyncio.wait({task})
            if not task.cancelled() and isinstance(error := task.exception(), _PASSING):
                self._resumed_because = str(error)
                raise error
            if from_start and (traffic := self._traffic(before)) is not None:
                event_log.add(traffic)
            await self._finish(row.run, event_log, *self._outcome(row.run, task))
        except BaseException:
            await end(task)
            await end(asyncio.create_task(event_log.close()), within=STOP_SECONDS)
            raise
        finally:
            self._active = None
            await asyncio.shield(self._deaths.end())
        self._to_cancel.discard(row.run)

    def _traffic(self, before: Totals) -> TrafficCounted | None:
        """All bytes since earlier totals, by the names of clients; None if nobody counts them."""
        came, names = since(self._services.traffic.totals(), before), self._services.names
        clients = {
            names[int(who.removeprefix(KEY_PREFIX))]: both for who, both in came.items() if who.startswith(KEY_PREFIX)
        }
        if not clients:
            return None
        operators = came.get(OPERATORS, NONE)
        return TrafficCounted(
            bytes_up={name: up for name, (up, _) in clients.items()},
            bytes_down={name: down for name, (_, down) in clients.items()},
            operators_up=operators[0],
            operators_down=operators[1],
        )

    async def _event_log(self, row: RunRow) -> EventLog:
        services = self._services
        return EventLog(
            store=services.store,
            run=row.run,
            clock=services.clock,
            wall=services.wall,
            bell=services.run_bell,
            observe=services.observer(row.run),
            past=await services.store.events(row.run, 0),
            before=max(services.wall() - row.started_at, 0.0) if row.started_at is not None else 0.0,
        )

    def _outcome(self, run: str, task: asyncio.Task[RunEnd]) -> tuple[ModelRef | None, RunStatus, str]:
        if task.cancelled():
            return None, RunStatus.CANCELLED, CANCELLED
        error = task.exception()
        if error is None:
            return task.result().model, RunStatus.FINISHED, task.result().stopped
        if isinstance(error, RunInterrupted):
            return None, RunStatus.INTERRUPTED, str(error)
        if isinstance(error, FedcoreError):
            return None, RunStatus.FAILED, str(error)
        log.error("run %s failed", run, exc_info=error)
        return None, RunStatus.FAILED, "the server failed; its log says more"

    async def _finish(
        self, run: str, event_log: EventLog, model: ModelRef | None, status: RunStatus, reason: str
    ) -> None:
        """The open exchange, then the record, then the end: a reader of the end can read everything before it."""
        # Clients and viewers read why it was abandoned, and an app's own words are not for them.
        public = reason if status is RunStatus.CANCELLED else "the run failed"
        what = f"the end of run {run} ({status.value}) is not written"
        for exchange in self.active_exchanges.open_of(run):
            await persist(partial(exchange.abandon, public), what=what, report=self._note)
        await event_log.close()
        write = partial(self.write_end, run, status, reason, seconds=event_log.seconds, model=model)
        await persist(write, what=what, report=self._note)
        self._services.work.end(run)
        if status is RunStatus.FINISHED:
            await persist(partial(drop_journal, self._services, run), what="its journal stays", report=self._note)

    def _note(self, trouble: str) -> None:
        self._trouble = trouble

    # --- one run --------------------------------------------------------------------------------

    async def _run(self, row: RunRow, event_log: EventLog) -> RunEnd:
        """Lead a run; if a signal ends its ServerApp, that is started again, a number of times."""
        logs.note(run=row.run)
        await self._deaths.begin(row.run)
        plan = RunPlan.stored(row)
        files = RunFiles(self._services.objects, row.run, self._services.settings.work_dir / row.run)
        if refused := await asyncio.to_thread(self._services.settings.not_approved, plan.app_sha256):
            raise RunFailed(refused)  # it may have waited for long
        deaths: Counter[int] = Counter()
        while True:
            journal = await Journal.open(JournalTable(store=self._services.store, run=row.run))
            try:
                return await self._lead_app(plan, files, event_log, journal)
            except AppKilled as error:
                deaths[journal.number] += 1
                if deaths[journal.number] > MOST_DEATHS:
                    raise
                self._resumed_because = str(error)

    async def _lead_app(self, plan: RunPlan, files: RunFiles, event_log: EventLog, journal: Journal) -> RunEnd:
        """Lead the run over one start of its ServerApp."""
        await files.prepare(plan.app_sha256)
        context = await self._context(plan, files, event_log, journal)
        app = await self._start_app(files.work, event_log.add_line)
        try:
            return await RunOrchestrator(context, journal).lead(app)
        finally:
            self._services.work.close()
            await app.stop()
            await self._save_files(files, event_log)
            await files.remove_temporary()

    async def _context(self, plan: RunPlan, files: RunFiles, event_log: EventLog, journal: Journal) -> RunContext:
        """The state of the run, folded over its exchanges."""
        services = self._services
        rows = await services.store.exchanges_of(plan.run)
        state = RunState(plan.settings, services.min_cohort)
        state.count = max([event_log.last_exchange, *(row.exchange for row in rows)])
        fold_rows(state, [row for row in rows if row.step <= journal.answered])
        clients = CohortSelection(services, plan, event_log)
        clients.exclude(state.blamed)
        if journal.known or event_log.has_events:
            event_log.add(RunResumed(steps=journal.answered, why=self._resumed_because))
            event_log.expect_lines_again()
        return RunContext(
            services=services,
            plan=plan,
            files=files,
            event_log=event_log,
            state=state,
            clients=clients,
            on_exchange=self._note_exchange,
            past=[row for row in rows if row.step > journal.answered],
        )

    async def _save_files(self, files: RunFiles, event_log: EventLog) -> None:
        """A file more or less must not keep the run from ending."""
        try:
            left_out = await files.keep_app_files()
        except FedcoreError as error:
            event_log.warn_once(str(error))
            return
        if left_out:
            line = f"{left_out} files of the ServerApp were left out: hidden ones, links, too many or too large"
            event_log.warn_once(line)

    def _note_exchange(self, exchange: Exchange) -> None:
        logs.note(exchange=exchange.task.exchange)
        self.active_exchanges.add(exchange)
