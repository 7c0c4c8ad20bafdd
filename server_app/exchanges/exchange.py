"""One exchange as the server leads it, stage by stage.

`Exchange` holds what secure and plain exchanges share: stages that end once every client has answered, left, fallen
silent or run out of time, and their closures, which are committed before any client learns what follows from them.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Final, TypeVar

from fedcore.errors import CohortTooSmall, EnvironmentFailure, FedcoreError, PeerError, RoundFailed
from fedcore.monitoring import formatting as units
from fedcore.run.engine.outcome import ExchangeFailure, ExchangeOutcome
from fedcore.system.concurrency import in_thread
from fedcore.system.memory import trim
from fedcore.wire.events import NOT_NEEDED
from fedcore.wire.forms import our_forms
from server_app.exchanges.context import ExchangeContext, ExchangeResult
from server_app.exchanges.outcome import Departure, StageClosure, result_of
from server_app.exchanges.receipts import retry_until_stored
from server_app.exchanges.recovery import FORMS, RecoverableExchange
from server_app.exchanges.stages import Phase, StageEvent, StageReporter
from server_app.exchanges.transfers import Transfer, UpdateLimits

log = logging.getLogger("fedcore.server")
T = TypeVar("T")

_TICK_SECONDS: Final = 0.5


class Exchange(RecoverableExchange):
    """One exchange; `run` leads it to its result, and routes call the methods of `MessageReceiver`.

    end: the outcome, once it is stored.
    """

    def __init__(self, context: ExchangeContext, limits: UpdateLimits) -> None:
        super().__init__(context, limits)
        self.late: frozenset[int] = frozenset()
        self.end: ExchangeOutcome | None = None

    @property
    def survivors(self) -> frozenset[int]:
        """Whose updates are in the sum, once that is decided; of a plain exchange nobody's."""
        return frozenset()

    # --- what the kinds do ----------------------------------------------------------------------

    @abstractmethod
    def seconds_for(self, stage: str) -> float:
        """How long a stage may last."""

    def has_enough(self, stage: str) -> bool:
        """Whether a stage need not wait for the missing clients."""
        return False

    async def persist_stage(self, stage: str) -> None:
        """Make the results of a stage durable, before it is closed."""

    async def cleanup_stage(self, stage: str) -> None:
        """Remove what is no longer needed, once the stage is closed in the database."""

    @abstractmethod
    async def finish(self) -> ExchangeOutcome:
        """The outcome after the last stage. Raises RoundFailed. May run again after a restart."""

    def free_memory(self) -> None:
        """Free memory, since this exchange is no longer led."""

    async def delete_files(self) -> None:
        """Delete the files that only this exchange needed, once it has ended."""

    # --- leading --------------------------------------------------------------------------------

    async def run(self) -> ExchangeResult:
        """Lead the exchange to its end. Raises RoundFailed if too few clients are left, or the like.

        On cancellation or loss of leadership (EnvironmentFailure) the exchange is suspended: clients must retry, its
        row stays open, and another object resumes it with `restore`.
        """
        try:
            await self._open()
            end = await self._lead()
            await retry_until_stored(lambda: self._store_outcome(end), f"the end of exchange {self.task.exchange}")
        except (EnvironmentFailure, asyncio.CancelledError):
            await asyncio.shield(self._suspend())
            raise
        except Exception:
            try:
                await self.abandon("the server failed; its log says more")
            except FedcoreError as error:  # the first error is the one to report
                log.warning("the end of exchange %d is not recorded: %s", self.task.exchange, error)
            raise
        await self._delete_files()
        return await retry_until_stored(lambda: result_of(end, self.services.objects.fetch), "the result")

    async def abandon(self, reason: str) -> None:
        """End the exchange without a result, for `reason`, unless it has ended already. May be repeated."""
        if self.stages.over:
            return
        row = await self.services.store.exchange(self.task.run, self.task.exchange) if self._stored_stage else None
        if row is not None:  # a write that was under way at the suspension may have succeeded
            self._stored_stage = row.stage
        if row is not None and row.result is not None:
            self._set_outcome(ExchangeOutcome.from_json(row.result))
        else:
            await self._store_outcome(self.make_outcome(failure=ExchangeFailure.of(RoundFailed(reason))))
        await self._delete_files()

    async def _open(self) -> None:
        if self._stored_stage:  # restored; a client that polled before that may not know of it yet
            self.services.client_bell.ring()
            return
        task, first = self.task, self.stages.current
        await retry_until_stored(
            lambda: self.services.store.add_exchange(
                task.run,
                task.exchange,
                stage=first,
                server_round=task.server_round,
                attempt=task.attempt,
                cohort=task.cohort,
                step=self.context.step,
                task=task.model_dump(mode="json", exclude={"places"}),  # they are those of the draw, which has a row
                extra={**(self.context.extra or {}), FORMS: our_forms()},
                opened_at=self.services.wall(),
            ),
            f"exchange {task.exchange}",
        )
        self._opened, self._stored_stage = self.services.clock(), first
        self.begin(first)
        self.services.client_bell.ring()

    async def _lead(self) -> ExchangeOutcome:
        try:
            while True:
                stage = self.stages.current
                await self._timed(stage, self._wait(stage))
                if self.stages.is_last:
                    return await self._timed("result", self.finish())
                await self._close(stage)
        except (RoundFailed, PeerError) as error:
            self._has_failed = True
            self.services.client_bell.ring()
            return self.make_outcome(failure=ExchangeFailure.of(error, self._explain(error)))

    async def _timed(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        start = self.services.clock()
        try:
            return await work
        finally:
            self.usage.stage_seconds[name] = round(self.services.clock() - start, 4)

    async def _wait(self, stage: str) -> None:
        """Wait until no client is missing, the time is up, or too few are left to go on."""
        clock = self.services.clock
        began = clock()
        progress = StageReporter(self.context, stage, self._opened)
        while clock() < (deadline := self._deadline(stage, began)) and self._failure is None:
            self.drop_silent()
            progress.show(self.clients.done, self.clients.missing)
            if (
                not self.clients.missing
                or self.has_enough(stage)
                or (self._is_lost() and not self._awaits_reasons(progress))
            ):
                break
            await self.clients.changed.wait(min(_TICK_SECONDS, deadline - clock()))
        late = clock() >= deadline
        self.stages.move(StageEvent.CLOSE)
        while self.clients.incoming or self._writing:
            await self.clients.changed.wait(_TICK_SECONDS)
        if self._failure is not None:
            raise self._failure
        if late:
            self.late = self.clients.missing
            for client in self.late:
                self.give_up(client, self._why_late(client, stage, clock() - began))
        elif self.has_enough(stage):
            for client in self.clients.missing:
                self.give_up(client, NOT_NEEDED)
        progress.show(self.clients.done, self.clients.missing, final=True)
        if self._is_lost():
            raise CohortTooSmall(stage, self._present(), self.task.quorum)

    def _deadline(self, stage: str, began: float) -> float:
        """When a stage ends: after its own time, or once no transfer over a slow line has any left."""
        end = began + self.seconds_for(stage)
        if self.services.clock() < end:
            return end
        return max((self.deadline_of(client, end) for client in self.clients.missing), default=end)

    def deadline_of(self, client: int, end: float) -> float:
        """When a client's time in a stage is up.

        Args:
            client: its number.
            end: when it is up for clients that are in no transfer.
        """
        settings, speed = self.context.settings, self.services.lines.speed(client)
        due = self.transfers.due(client, speed, settings.transfer_seconds)
        return end if due is None else max(end, min(due + settings.step_seconds, end + settings.transfer_seconds))

    def deadline_with_work(self, client: int, end: float) -> float:
        """As `deadline_of`, in a stage with the local work: the time for that begins when a client has its model."""
        transfers, settings = self.transfers, self.context.settings
        most = settings.transfer_seconds
        if transfers.current(client) is not Transfer.DOWNLOAD:
            return Exchange.deadline_of(self, client, end + min(transfers.seconds_to_model(client), most))
        due = transfers.due(client, self.services.lines.speed(client), most)
        return end if due is None else max(end, min(due + settings.step_seconds + self.task.seconds, end + most))

    def _why_late(self, client: int, stage: str, seconds: float) -> str:
        size = self.model_size(client)
        reason = self.transfers.why_late(client, size, seconds)
        reason = reason or f"no answer in stage {stage} within {self.seconds_for(stage):g} s"
        rest = self._note_late(client, size, seconds)
        return f"{reason}; {rest}" if rest else reason

    def _note_late(self, client: int, model: int, seconds: float) -> str:
        """Have a client rest that would miss its stage again; what follows, in words.

        Args:
            client: its number.
            model: bytes of the model.
            seconds: how long the stage has taken.
        """
        lines, now = self.services.lines, self.services.clock()
        more = max(self.context.settings.stage_seconds, seconds) + _TICK_SECONDS
        transfer = self.transfers.measure(client)
        if transfer is None:
            nothing = self.transfers.current(client) is Transfer.DOWNLOAD
            line = f"nothing of its download has come in {seconds:.0f} s" if nothing else ""
            return lines.note_late(client, line, needed=more, lost=seconds, now=now)
        is_upload = transfer.what is Transfer.UPLOAD
        (lines.note_up if is_upload else lines.note_down)(client, transfer.received, transfer.seconds)
        size, speed = self.update_size(client) if is_upload else model, transfer.speed
        needed = max(seconds - transfer.seconds + size / speed, more)
        what = f"its {transfer.what.value} of {units.size(size)}"
        line = f"its line carries {units.size(speed)} a second, at which {what} takes {size / speed:.0f} s"
        return lines.note_late(client, line, needed=needed, lost=seconds, now=now)

    def _present(self) -> int:
        return len(self.clients.missing | self.clients.done)

    def _is_lost(self) -> bool:
        return self._present() < self.task.quorum

    def _awaits_reasons(self, progress: StageReporter) -> bool:
        """Whether a lost exchange waits a little longer, because all clients may report the same reason."""
        alike = self.clients.lasting_reason() is not None and not self.clients.done
        return alike and progress.seconds_lost() < self.services.settings.grace_seconds

    def drop_silent(self) -> None:
        """Drop the clients that the stage waits for and that have been silent for too long."""
        settings, task = self.context.settings, (self.task.run, self.task.exchange)
        for client in self.clients.missing - self.clients.incoming:
            pause = settings.pause_seconds if self.transfers.current(client) else None
            if reason := self.services.presence.absence_reason(client, task, settings.liveness_seconds, pause):
                self.give_up(client, reason)

    async def _close(self, stage: str) -> None:
        """Close a stage in the database, and only then let clients see what follows."""
        await retry_until_stored(lambda: self.persist_stage(stage), f"stage {stage}")
        closing, following = self._closure(), self.stages.following
        also = self.finish_stage(stage)
        task, closure = self.task, closing.to_json()
        await retry_until_stored(
            lambda: self.services.store.close_stage(task.run, task.exchange, stage, following, closure, also=also),
            f"the end of stage {stage}",
        )
        self._stored_stage = following
        self._departed_before |= closing.gone.keys()
        await retry_until_stored(lambda: self.cleanup_stage(stage), f"stage {stage}")
        self._begin_next()
        self.services.client_bell.ring()

    def _closure(self) -> StageClosure:
        withdrawals = self.clients.withdrawals
        return StageClosure(
            answered=tuple(sorted(self.clients.done)),
            gone={
                client: Departure(reason=reason, withdrawal=withdrawals.get(client))
                for client, reason in self.clients.reasons.items()
                if client not in self._departed_before
            },
            blamed=dict(self.blamed),
            usage=self.usage,
        )

    # --- the end --------------------------------------------------------------------------------

    def make_outcome(self, **fields: Any) -> ExchangeOutcome:
        """An outcome of this exchange.

        fields
            Fields of `ExchangeOutcome` that differ from what the exchange knows.
        """
        end = ExchangeOutcome(
            survivors=tuple(sorted(self.survivors)),
            blamed=dict(self.blamed),
            withdrawals=dict(self.clients.withdrawals),
            common=self.clients.common_reason(),
            usage=self.usage,
        )
        return replace(end, **fields)

    async def _store_outcome(self, end: ExchangeOutcome) -> None:
        if self._stored_stage:
            task, after = self.task, (Phase.DONE if end.failure is None else Phase.FAILED).value
            await self.services.store.end_exchange(task.run, task.exchange, self._stored_stage, after, end.to_json())
        self._set_outcome(end)

    def _set_outcome(self, end: ExchangeOutcome) -> None:
        self.end = end
        self.stages.move(StageEvent.FINISH if end.failure is None else StageEvent.FAIL)
        self.free_memory()
        self.uploads.close()
        self.services.client_bell.ring()

    async def _delete_files(self) -> None:
        await in_thread(trim)  # what uploads held lies between smaller objects
        try:
            await self.delete_files()
        except FedcoreError as error:  # a folder more, until the run's files go
            log.warning("what exchange %d leaves is not removed: %s", self.task.exchange, error)

    async def _suspend(self) -> None:
        """Accept nothing more and finish pending writes, since the server that resumes the exchange reads them all."""
        if self.stages.over:
            return
        self._is_suspended = True
        self.services.client_bell.ring()
        while self._writing:
            await self.clients.changed.wait(_TICK_SECONDS)
        taking = list(self._taking)
        for task in taking:
            task.cancel()
        await asyncio.gather(*taking, return_exceptions=True)
        self.free_memory()
        self.uploads.close()

    def _explain(self, error: FedcoreError) -> str:
        names = self.services.names
        if self.blamed:  # clients that left because of them did nothing wrong, and the error may name them
            what = f"{error}" if isinstance(error, CohortTooSmall) else "the sum is lost"
            cheats = (f"{names[client]}: {fault}" for client, fault in sorted(self.blamed.items()))
            return f"{what}; excluded for protocol violations: {', '.join(cheats)}"
        lost = [f"{names[client]}: {reason}" for client, reason in sorted(self.clients.reasons.items())]
        lost = lost[:10] + (["the server's disk was full when an upload came"] if self._storage_was_full else [])
        return f"{error}; {', '.join(lost)}" if lost else str(error)
