"""What the parts that lead one run share."""

from __future__ import annotations

import asyncio
import math
import random
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from fedcore.errors import OutOfMemory, RoundFailed, RunFailed, StorageFull
from fedcore.run.engine.announcing import TaskFactory
from fedcore.run.engine.attempts import Attempt
from fedcore.run.engine.events import Names, exchange_failed, group_ended, names_of, traffic
from fedcore.run.engine.outcome import ExchangeOutcome, ExchangeUsage
from fedcore.run.engine.state import RunState, evaluates
from fedcore.run.groups import groups_in
from fedcore.run.integer_means import rounded_line
from fedcore.run.retries import attempt_ended
from fedcore.run.room import LEAST_MODEL, RoomNeeds, check_disk, check_memory, free_line, readable, room_line
from fedcore.state import Layout, ModelFacts
from fedcore.system.memory import free_memory
from fedcore.wire.base import moment
from fedcore.wire.events import ExchangeStarted, FiguresFound, GroupStarted
from fedcore.wire.tasks import Task
from server_app.exchanges.exchange import Exchange
from server_app.runs.event_log import EventLog
from server_app.runs.exchanges.cohort import CohortSelection
from server_app.runs.exchanges.failures import explain
from server_app.runs.files.run_files import RunFiles
from server_app.runs.plan import RunPlan
from server_app.services import Services
from server_app.storage.blobs import Spool
from server_app.storage.tables import ExchangeRow

_NO_ROOM: Final = (
    "a round of this model takes about {needed} of the server's disk (the model, the updates, their sum, and a "
    "reserve), and {free} are free, so nothing was written or sent: free some, or ask fewer clients, or make the "
    "updates smaller (field-bits, upload-fraction)"
)
_NO_MEMORY: Final = (
    "the ServerApp of this model takes at least {needed} of the server's memory in addition to the model, of which "
    "{free} are free, and nothing was sent: free some, raise the memory limit of the server's container or service, "
    "or train a smaller model (adapters, a narrower dtype)"
)
MOST_LOST: Final = 10_000
"""By how many numbers of exchanges clients may be ahead, at one time, of a server whose backup was put back."""


def refuse_without_room(spool: Spool, needs: RoomNeeds) -> None:
    """Refuse a run of a large model for whose first round the disk has no room; raises RunFailed."""
    try:
        check_disk(spool.folder, needs.server_disk + spool.reserve_bytes, _NO_ROOM)
    except StorageFull as error:
        raise RunFailed(str(error), check="no-room") from None


def refuse_without_memory(free: int | None, model: int) -> None:
    """Refuse a run whose ServerApp clearly has too little memory for its large model; raises RunFailed.

    Args:
        free: bytes; None if the system does not say.
        model: bytes of the model, which has been written, so that it takes no memory of the process itself.
    """
    needs = RoomNeeds(model=model, update=0, clients=0)
    try:
        if needs.is_large:
            check_memory(free, needs.least_server_memory, _NO_MEMORY)
    except OutOfMemory as error:
        raise RunFailed(str(error), check="no-memory") from None


@dataclass(slots=True, kw_only=True)
class RunContext:
    """Made again for each start of the ServerApp.

    on_exchange
        Called with every exchange that is led, so that the routes find it.
    past
        The exchanges of the step that has no reply yet, which may have been opened by an earlier process.
    led
        Numbers of the exchanges that were led to their end since the ServerApp was started last.
    """

    services: Services
    plan: RunPlan
    files: RunFiles
    event_log: EventLog
    state: RunState
    clients: CohortSelection
    on_exchange: Callable[[Exchange], None]
    past: Sequence[ExchangeRow] = field(default=())
    led: set[int] = field(default_factory=set)
    _has_memory: bool = field(default=False, init=False)

    def past_of(self, step: int) -> Iterator[ExchangeRow]:
        """The exchanges that `step` has opened already, in order."""
        return (row for row in self.past if row.step == step)

    def next_exchange(self) -> int:
        """The number of an exchange that is about to be opened: larger than any that its clients have taken.

        If a backup was restored, they took numbers that the database does not have, and take no such task again.
        """
        newest = self.services.presence.newest_task(self.plan.run)
        if self.state.count < newest <= self.state.count + MOST_LOST:
            self.state.count = newest
        return self.state.next_exchange()

    async def pause(self, attempt: Attempt) -> None:
        """Before a new attempt: none begins at once after one that failed at once."""
        jitter = random.random()  # noqa: S311 - no secret
        await asyncio.sleep(attempt.pause(self.services.settings.retry_seconds, jitter))

    @property
    def tasks(self) -> TaskFactory:
        """Makes the tasks of the run's exchanges."""
        plan = self.plan
        return TaskFactory(
            run=plan.run,
            settings=plan.settings,
            app_sha256=plan.app_sha256,
            run_config=plan.run_config,
            state=self.state,
            number=self.next_exchange,
        )

    async def check_disk(self, layout: Layout, nodes: int) -> None:
        """Before a large model is written, say what its run takes, or refuse it for lack of room; raises RunFailed.

        Args:
            layout: of the model.
            nodes: how many a round asks.
        """
        needs, spool = self._room_needs(layout, nodes), self.services.spool
        if not self.state.rounds:
            await asyncio.to_thread(refuse_without_room, spool, needs)
            free = free_line(free_memory(), shutil.disk_usage(spool.folder).free)
            size, needed = readable(needs.model), room_line(needs.facts)
            self.event_log.warn_once(f"with this model of {size} {needed}; free at the server: {free}")

    async def has_room_to_spare(self, layout: Layout, nodes: int) -> bool:
        """Whether a round leaves room on the disk for smaller forms of its model, which clients can do without."""
        if layout.nbytes < LEAST_MODEL:
            return True
        return await asyncio.to_thread(self.services.spool.has_room, self._room_needs(layout, nodes).server_disk)

    def _room_needs(self, layout: Layout, nodes: int) -> RoomNeeds:
        settings, update = self.plan.settings, layout.nbytes
        if settings.aggregation == "secure":
            clients, members = math.ceil(nodes / settings.groups), len(self.services.roster.members)
            update = self.state.encodings.update_bytes("train", layout, clients, members, model="")
        return RoomNeeds.of(settings, model=layout.nbytes, update=update, clients=nodes)

    async def check_memory(self, model: int) -> None:
        """Before the first round, refuse a run for lack of memory; raises RunFailed. model: bytes."""
        if not self.state.rounds and not self._has_memory:
            await asyncio.to_thread(refuse_without_memory, free_memory(), model)
            self._has_memory = True

    def note_attempt(self, task: Task, end: ExchangeOutcome, error: RoundFailed, *, again: bool) -> None:
        """Report an attempt at a sum that ended with `error`."""
        self.event_log.add(
            attempt_ended(
                error,
                str(error),
                task.exchange,
                task.server_round,
                len(end.survivors),
                again=again,
                traffic=traffic([end.usage], self.name),
            )
        )

    def explain(self, task: Task, end: ExchangeOutcome, error: RoundFailed) -> str:
        """Why an exchange gave nothing, as an operator reads it."""
        return explain(error, end, task, self.plan.settings, self.services.names)

    async def lead(self, exchange: Exchange, row: ExchangeRow | None) -> ExchangeOutcome:
        """Lead an exchange to its end, from the stage that `row` has."""
        task = exchange.task
        self.services.presence.expect_unheard(task.cohort)
        if row is not None:
            await exchange.restore(await self.services.store.history(task.run, task.exchange))
        self.on_exchange(exchange)
        try:
            await exchange.run()
        except RoundFailed:  # the end says so too, and alike after a restart
            if exchange.end is None:
                raise
        assert exchange.end is not None  # noqa: S101
        self.led.add(task.exchange)
        return exchange.end

    async def close(self, task: Task, end: ExchangeOutcome) -> bool:
        """An exchange has ended: count it, and exclude clients that cheated; whether it evaluated the best model."""
        best = self.state.take(task, end)
        if self.state.rounded:
            self.event_log.warn_once(rounded_line(self.state.rounded))
        self.clients.exclude(end.blamed)
        columns = {"rounds": self.state.rounds, "epsilon": self.state.budget.epsilon_spent}
        await self.services.store.update_run(self.plan.run, **columns)
        return best

    async def checkpoint(self, model: Path, sha256: str) -> None:
        """Keep the model that the app hands over, if a round has made it: what a run leaves that does not finish."""
        if self.state.rounds:
            saved = await self.files.keep_checkpoint(model, sha256, self.facts("checkpoint"))
            await self.services.store.update_run(self.plan.run, model_sha256=saved.sha256, model_size=saved.size)

    async def close_judged(self, task: Task, end: ExchangeOutcome, model: Path | None) -> None:
        """`close`, and keep the model that was evaluated if no other was better.

        Before the answer is in the journal: a process that ends in between does the same again from the same rows.
        """
        best = await self.close(task, end)
        if model is None or end.total is None or not evaluates(task, end):
            return
        self.state.selection.note_missing(end.total.metrics)
        if best:
            await self._keep_best(model)

    async def take_figures(self, figures: FiguresFound, evaluated: tuple[int, Path] | None) -> None:
        """Take what the ServerApp made of replies, by which the model evaluated last may be the best.

        The model is durable before the event, which says so: a process that ends in between gets the same figures
        again.

        evaluated
            The round of the last evaluation, and the file of its model.
        """
        if evaluated is not None and figures.source == "evaluate" and figures.server_round == evaluated[0]:
            best = self.state.selection.judge_figures(figures.metrics)
            if best and not self.event_log.has(figures):
                await self._keep_best(evaluated[1])
        self.event_log.add(figures)

    async def _keep_best(self, model: Path) -> None:
        facts = replace(self.facts("best"), best=self.state.selection.describe())
        await self.files.keep_best(model, facts)

    def warn_unjudged(self) -> None:
        """Warn once that an evaluation did not have the metric by which the best model is chosen."""
        if self.state.selection.missing:
            self.event_log.warn_once(self.state.selection.missing)

    def facts(self, kind: str) -> ModelFacts:
        """What the file of a model of this run says of it, as of now."""
        privacy = self.state.encodings.privacy
        return ModelFacts(
            kind=kind,
            run=self.plan.run,
            federation=self.services.roster.federation,
            app=self.plan.app,
            app_sha256=self.plan.app_sha256,
            rounds=self.state.rounds,
            epsilon=self.state.budget.epsilon_spent,
            delta=privacy.delta if privacy is not None else None,
            run_config=self.plan.run_config,
            train_configs=self.state.configs,
            time=moment(self.services.wall()),
        )

    def note_start(self, task: Task, *, model: str | None, content: str | None = None) -> None:
        """Report that an exchange with a cohort, or with a group of one, begins.

        model, content
            As in `ExchangeStarted`.
        """
        encoding = task.encoding
        common: dict[str, Any] = {
            "exchange": task.exchange,
            "server_round": task.server_round,
            "attempt": task.attempt,
            "cohort": self.names(task.cohort),
            "quorum": task.quorum,
            "field_bits": encoding.field_bits if encoding and encoding.layout else None,
        }
        if (group := task.group) is not None:
            self.event_log.add(GroupStarted(**common, drawn=group.exchange, group=group.number, groups=group.of))
            return
        started = ExchangeStarted(
            **common,
            message_type=task.message_type,
            aggregation=task.aggregation,
            model=model,
            content=content,
            groups=groups_in(task),
        )
        self.event_log.add(started)

    def note_failure(self, task: Task, reason: str, *usages: ExchangeUsage, retry: bool) -> None:
        """Report that an exchange that makes no sum itself has failed, or that the sums of its groups have."""
        self.event_log.add(exchange_failed(task, reason, usages, self.name, retry=retry))

    def note_group_end(self, task: Task, end: ExchangeOutcome, *, reason: str = "", retry: bool = False) -> None:
        """Report that a group has given its sum, or why an attempt at it has not."""
        assert task.group is not None  # noqa: S101 - the caller leads groups
        self.event_log.add(group_ended(task.group, task, end, self.name, reason=reason, retry=retry))

    @property
    def name(self) -> Names:
        """The name of a client."""
        return self.services.names.__getitem__

    def names(self, clients: Collection[int]) -> list[str]:
        """Clients by name, in the order of their numbers."""
        return names_of(clients, self.name)
