"""The queue of runs, as operators and clients see it: accepts runs, shows them, cancels them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from fedcore.flower.app import AppBundle
from fedcore.system.files import remove_tree
from fedcore.system.left_files import remove_left
from fedcore.wire.events import RunOut
from fedcore.wire.forms import understands
from fedcore.wire.operator import RunClientsOut, RunFile, RunFilesOut, RunIn, RunsOut, RunStatus
from fedcore.wire.problems import ProblemKind
from fedcore.wire.tasks import ModelRef
from fedcore.wire.watch import MarksOut, ServerViewOut
from server_app.exchanges.exchange import Exchange
from server_app.rejection import Rejection
from server_app.runs.active_exchanges import ActiveExchanges
from server_app.runs.app.files import saved_file, saved_files
from server_app.runs.files.initial_models import claim_model, resend_model, take_model
from server_app.runs.files.run_files import APP_FOLDER, RunKeys, checkpoints, load_bundle, save_bundle
from server_app.runs.files.run_files import reference as reference_of
from server_app.runs.known_statistics import known_statistics
from server_app.runs.plan import RunPlan
from server_app.runs.worker import CANCELLED, RunWorker, StartApp
from server_app.services import Services
from server_app.storage.blobs import Body
from server_app.storage.tables import RunRow
from server_app.views.client_status import client_statuses
from server_app.views.listing import columns, list_runs, waiting_runs
from server_app.views.participation_timeline import current_marks
from server_app.views.run_views import RunView, RunViews

log = logging.getLogger("fedcore.server")

CANCEL_SECONDS: Final = 60.0
"""How long an operator waits for the end of a run; much more than it takes to end its processes."""

_SUBMITTED: Final = ".submitted"
"""Ends the name of a folder that is there until a run's row is, or its objects are removed."""
RESUMABLE: Final = (RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.INTERRUPTED)


class RunQueue:
    """Runs wait in the database; a `RunWorker` leads the first of them.

    start_app
        Makes a ServerApp process in a folder; None for a real one.
    """

    def __init__(self, services: Services, *, start_app: StartApp | None = None) -> None:
        self._services = services
        self._worker = RunWorker(services, start_app)
        self._views = RunViews(services.store, services.run_bell)

    async def start(self) -> None:
        """Clear up after the last process, then begin to lead runs: first the one that it left open."""
        services = self._services
        left = services.spool.clear()
        await self._clear_submitted()
        await asyncio.to_thread(remove_left, services.settings.work_dir)
        services.settings.work_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        await services.roster.share(services.store)
        joined = await services.store.joined_clients()
        services.presence.installed.update((row.id, row.app_sha256) for row in joined)
        services.presence.outdated = {row.id: row.version for row in joined if not understands(row.version)}
        if left:
            log.info("cleared %d spooled files", left)
        services.client_bell.start()
        services.run_bell.start()
        self._views.forget()
        self._worker.start()

    async def _clear_submitted(self) -> None:
        """Remove the objects of runs whose submission was killed before their row was there."""
        for folder in self._services.settings.work_dir.glob(f"*{_SUBMITTED}"):
            run = folder.name.removesuffix(_SUBMITTED)
            if await self._services.store.run(run) is None:
                await self._services.objects.remove(RunKeys(run).all)

    async def stop(self) -> None:
        """Answer all polls, suspend the run that is led, and end its processes; the next leader resumes it."""
        self._services.client_bell.stop()
        self._services.run_bell.stop()
        await self._worker.stop()

    @property
    def alive(self) -> bool:
        """Whether runs are being led."""
        return self._worker.alive

    @property
    def trouble(self) -> str:
        """What keeps runs from being led or written down; empty if nothing does."""
        return self._worker.trouble

    @property
    def exchange(self) -> Exchange | None:
        """The one that began last."""
        return self._worker.active_exchanges.newest

    @property
    def active_exchanges(self) -> ActiveExchanges:
        """The exchanges that are open, and those that ended last."""
        return self._worker.active_exchanges

    # --- what operators ask ---------------------------------------------------------------------

    async def submit(self, body: RunIn) -> RunOut:
        """Check and queue a run. Raises Rejection and ConfigurationError, and keeps nothing then."""
        store = self._services.store
        if await store.count_waiting() >= self._services.settings.waiting_runs:
            raise Rejection(ProblemKind.BUSY, "too many runs wait already; try again later")
        bundle = AppBundle(body.files)
        if bundle.sha256 != body.app_sha256:
            raise Rejection(ProblemKind.DIGEST_MISMATCH, "the app's files do not have the hash named")
        if refused := await asyncio.to_thread(self._services.settings.not_approved, bundle.sha256):
            raise Rejection(ProblemKind.APP_NOT_APPROVED, refused)
        return await self._submit(bundle, body)

    async def again(self, run: str) -> RunOut:
        """Queue a run that is as `run` was: its app, config, settings and initial model. Raises as `submit`."""
        row, keys = await self._row(run), RunKeys(run)
        bundle = await load_bundle(self._services.objects, keys.app)
        if bundle is None:
            raise Rejection(ProblemKind.NOT_FOUND, "the app of this run is not kept any more; submit it again")
        again = RunIn(
            app_sha256=row.app_sha256,
            files=dict(bundle.files),
            run_config=row.run_config,
            settings=row.settings,
            statistics=row.question,
            initial_model=row.initial_sha256,
            statistics_from=(row.known_statistics or {}).get("run", ""),
        )
        if row.initial_sha256:
            await resend_model(self._services.spool, row.initial_sha256, self._services.objects, keys.initial)
        return await self.submit(again)

    async def _submit(self, bundle: AppBundle, body: RunIn) -> RunOut:
        run = self._services.new_id()
        folder = self._services.settings.work_dir / f"{run}{_SUBMITTED}"
        try:
            await self._save(run, folder, bundle, body)
        except BaseException:
            await asyncio.shield(self._services.objects.remove(RunKeys(run).all))
            raise
        finally:
            await asyncio.to_thread(remove_tree, folder)
        self._worker.wake()
        self._services.run_bell.ring()  # the list of runs has changed
        return await self.describe(run, after=0)

    async def _save(self, run: str, folder: Path, bundle: AppBundle, body: RunIn) -> None:
        """Check a run with its app in `folder`, and make it durable."""
        services, keys = self._services, RunKeys(run)
        await asyncio.to_thread(bundle.write, folder / APP_FOLDER)
        known = await known_statistics(services.store, body) if body.statistics_from else None
        plan = RunPlan.submitted(run, folder / APP_FOLDER, body, known)
        plan.check(len(services.roster.members), services.min_cohort)
        await save_bundle(services.objects, keys.app, bundle, folder / "bundle.json")
        if body.initial_model:
            await claim_model(services.spool, body.initial_model, services.objects, keys.initial)
        await services.store.add_run(**plan.columns(), submitted_at=services.wall())

    async def describe(self, run: str, after: int, most: int | None = None) -> RunOut:
        """The state of a run and its events after number `after`, `most` of them; Rejection if there is none."""
        # The row first: a final status then means that its event is among those read after it.
        row = await self._row(run)
        events = await self._services.store.events(run, after, most)
        waiting = await waiting_runs(self._services.store) if row.status == RunStatus.WAITING else []
        return RunOut(**columns(row, waiting), run_config=row.run_config, settings=row.settings, events=events)

    async def list_runs(self, limit: int, before: str, status: RunStatus | None) -> RunsOut:
        """Runs, the newest first; Rejection if there is no run `before`."""
        if before:
            await self._row(before)
        return await list_runs(self._services.store, limit=limit, before=before, status=status)

    async def clients(self, run: str) -> RunClientsOut:
        """The state of each client in a run; none in one that has ended."""
        row = await self._row(run)
        if RunStatus(row.status).final:
            return RunClientsOut(run=run, exchange=0, server_round=0, stage="", clients=[])
        return client_statuses(self._services, run, row.app_sha256, self.active_exchanges.of(run))

    async def info(self, run: str) -> RunRow:
        """A run without its events; Rejection if there is none."""
        return await self._row(run)

    async def view(self, run: str) -> RunView:
        """What people see of a run, as its record stands; Rejection if there is no such run."""
        await self._row(run)
        return await self._views.of(run)

    async def marks(self, run: str, last: int) -> MarksOut:
        """Where each client stood in the last exchanges of a run, and stands in the open one."""
        view = await self.view(run)
        active = self.active_exchanges
        now, number = current_marks(active.of(run) if active.open_of(run) else [], self._services.names)
        return view.marks.describe(last, [member.name for member in self._services.roster.members], now, number)

    async def server_view(self, run: str) -> ServerViewOut:
        """What the server observed of the newest exchange; Rejection if it is not one of this run."""
        await self._row(run)
        view = self._services.server_view.of(run)
        if view is None:
            raise Rejection(
                ProblemKind.NOT_FOUND, "the newest exchange that this server has summed is not one of this run"
            )
        return view

    async def take_model(self, body: Body) -> None:
        """Keep a model that a run is to start from, until one names it. Raises Rejection and StorageFull."""
        await take_model(self._services.spool, body)

    async def cancel(self, run: str) -> RunOut:
        """End a run that waits or is led; one that has ended stays as it is.

        Raises Rejection if the end comes, but cannot be written down for now.
        """
        deadline = asyncio.get_running_loop().time() + CANCEL_SECONDS
        while not (status := RunStatus((await self._row(run)).status)).final:
            if status is RunStatus.WAITING:
                await self._worker.write_end(run, RunStatus.CANCELLED, CANCELLED, seconds=0.0, before=(status,))
            else:
                self._worker.cancel(run)
            await self._services.run_bell.wait(0.1)
            if not self.alive:
                raise Rejection(ProblemKind.BUSY, "the server is stopping; the run ends with it")
            if self.trouble or asyncio.get_running_loop().time() >= deadline:
                why = self.trouble or f"it has not ended after {CANCEL_SECONDS:g} s"
                raise Rejection(ProblemKind.BUSY, f"the run is being cancelled; ask again later ({why})")
        return await self.describe(run, after=0)

    async def resume(self, run: str) -> RunOut:
        """Let a run that did not finish continue where it was; Rejection for one that cannot.

        The last requests, if they were refused or have no reply, are carried out again.
        """
        store, row = self._services.store, await self._row(run)
        if RunStatus(row.status) not in RESUMABLE:
            raise Rejection(
                ProblemKind.BAD_CONFIGURATION, f"the run is {row.status}; only one that ended early can go on"
            )
        steps = await store.steps(run)
        while steps and (steps[-1].answer is None or "refused" in steps[-1].answer):
            steps.pop()
        await store.drop_steps_from(run, len(steps) + 1)
        self._worker.resumes(run)
        if not await store.resume_run(run, RESUMABLE):
            raise Rejection(ProblemKind.BAD_CONFIGURATION, "the run has been resumed already")
        self._worker.wake()
        return await self.describe(run, after=0)

    async def model_file(self, run: str) -> tuple[Path, ModelRef, str]:
        """The model of a finished run, or the last checkpoint of another, and its name; Rejection if there is none."""
        row = await self._row(run)
        if not row.model_sha256:
            raise Rejection(ProblemKind.NOT_FOUND, "the run has no model")
        keys, objects = RunKeys(run), self._services.objects
        reference = ModelRef(sha256=row.model_sha256, size=row.model_size)
        try:
            if row.status == RunStatus.FINISHED:
                return await objects.fetch(keys.model), reference, f"{row.app}-{run}-model.safetensors"
            path, own = await checkpoints(objects, keys, self._services.spool.folder).file()
        except KeyError:
            why = "keep-runs or keep-days removes the run, or the files of runs are older than the database"
            raise Rejection(ProblemKind.NOT_FOUND, f"the server has no file of this run's model: {why}") from None
        return path, own or reference, f"{row.app}-{run}-checkpoint.safetensors"

    async def best_model_file(self, run: str) -> tuple[Path, ModelRef, str]:
        """The best model that a run has had so far, and its name; Rejection if there is none."""
        row = await self._row(run)
        try:
            path = await self._services.objects.fetch(RunKeys(run).best)
        except KeyError:
            why = "no evaluation has said yet which it is" if row.settings.get("best-model") else "it has no best-model"
            raise Rejection(ProblemKind.NOT_FOUND, f"the run keeps no best model: {why}") from None
        return path, await reference_of(path), f"{row.app}-{run}-best.safetensors"

    async def files(self, run: str) -> RunFilesOut:
        """What the ServerApp of a run that has ended left; Rejection if there is no such run."""
        await self._row(run)
        return await saved_files(self._services.objects, RunKeys(run).left)

    async def file(self, run: str, path: str) -> tuple[Path, RunFile]:
        """One of these files, and where it lies; Rejection if there is none."""
        await self._row(run)
        saved = await saved_file(self._services.objects, RunKeys(run).left, path)
        if saved is None:
            raise Rejection(ProblemKind.NOT_FOUND, "the run left no such file")
        return saved

    async def _row(self, run: str) -> RunRow:
        row = await self._services.store.run(run)
        if row is None:
            raise Rejection(ProblemKind.NOT_FOUND, "there is no such run")
        return row

    # --- what clients ask -----------------------------------------------------------------------

    async def find_exchange(self, run: str, exchange: int, client: int) -> Exchange:
        """One that is open, or ended last. Rejection for others, by what became of them."""
        active = self.active_exchanges.find(run, exchange)
        if active is not None:
            active.require_member(client)
            return active
        row = await self._services.store.exchange(run, exchange)
        if row is None:
            raise Rejection(ProblemKind.NOT_FOUND, "there is no such exchange")
        if client not in row.cohort:
            raise Rejection(ProblemKind.NOT_IN_COHORT, f"this client is not in exchange {exchange}")
        if row.result is None and not RunStatus((await self._row(run)).status).final:
            raise Rejection(ProblemKind.BUSY, f"exchange {exchange} is being resumed; ask again")
        raise Rejection(ProblemKind.ROUND_FAILED, f"exchange {exchange} has ended")
