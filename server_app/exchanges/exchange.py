"""One exchange as the server leads it: who was asked, who is left, what each has done.

`Exchange` holds what secure and plain exchanges share: stages that end when everybody has answered,
left, fallen silent or run out of time; receipts, so that a repeated message is answered alike;
withdrawals; uploads; and the account of bytes and seconds. All of it lives on the event loop; what takes long
is sent to threads.
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from fedcore.errors import (
    CohortTooSmall,
    ConflictingMessage,
    FedcoreError,
    NothingContributed,
    PeerError,
    RepliesDiffer,
    RoundFailed,
    StorageFull,
    TooFewContributed,
    UpdateTooLarge,
)
from fedcore.events import ClientBlamed, ClientDropped
from fedcore.secagg import Fault
from fedcore.wire import (
    ComplaintIn,
    ManifestIn,
    ModelRef,
    ProblemKind,
    Task,
    WithdrawIn,
)
from server_app.exchanges.context import ExchangeContext, ExchangeResult, ExchangeUsage
from server_app.exchanges.stage_progress import StageReporter
from server_app.exchanges.stages import Participants, StageEvent, Stages, Standing
from server_app.exchanges.uploads import UpdateLimits, Uploads
from server_app.http.problems import Rejection
from server_app.storage.blobs import Body

log = logging.getLogger("fedcore.server")
T = TypeVar("T")

_TICK_SECONDS: Final = 0.5


class Exchange(ABC):
    """One exchange; `run` leads it to its result, the other methods are called by the routes.

    Every method for a client raises Rejection: not-in-cohort, round-failed after the end, stale-step
    once the client was given up or the step is over.
    """

    steps: Mapping[str, str]
    """Step of a client -> stage in which it is taken."""
    stage_names: tuple[str, ...]

    def __init__(self, context: ExchangeContext, limits: UpdateLimits) -> None:
        self.context = context
        self.services = context.services
        self.task = context.task
        self.usage = ExchangeUsage()
        self.stages = Stages(self.stage_names)
        self.clients = Participants(context.task.cohort)
        self.blamed: dict[int, Fault] = {}
        self.late: frozenset[int] = frozenset()
        self.uploads = Uploads(context.services.spool, context.folder / "uploads", limits)
        self._spoilt: RoundFailed | None = None
        self._storage_was_full = False
        # What the receipts' table holds of this exchange, which lives and ends with this object.
        self._receipts: dict[tuple[str, int], bytes] = {}
        self._ends_of_uploads: dict[int, asyncio.Lock] = {}
        self._opened = self.services.clock()

    @property
    def survivors(self) -> frozenset[int]:
        """Whose updates are in the sum, once that is decided; of a plain exchange nobody's."""
        return frozenset()

    # --- leading --------------------------------------------------------------------------------

    async def run(self) -> ExchangeResult:
        """Lead the exchange to its end. Raises RoundFailed where too few clients were left."""
        await self._open()
        try:
            await self._lead()
            while not self.stages.is_last:
                before = self.stages.current
                self.clients.begin_stage()
                self.stages.move(StageEvent.NEXT_STAGE)
                await self._lead(before)
            result = await self._timed("result", self.finish())
        except BaseException as error:
            await asyncio.shield(self._fail())
            if isinstance(error, NothingContributed | RepliesDiffer | TooFewContributed | UpdateTooLarge):
                raise
            if isinstance(error, RoundFailed | PeerError):
                raise RoundFailed(self._explain(error)) from error
            raise
        await self._end(StageEvent.FINISH)
        return result

    async def _open(self) -> None:
        task = self.task
        await self.services.store.add_exchange(
            task.run,
            task.exchange,
            stage=self.stages.current,
            server_round=task.server_round,
            attempt=task.attempt,
            cohort=task.cohort,
        )
        self.services.client_bell.ring()

    async def _fail(self) -> None:
        try:
            await self._end(StageEvent.FAIL)
        except FedcoreError as error:  # the first error is the one to report
            log.warning("the end of exchange %d is not recorded: %s", self.task.exchange, error)

    async def _end(self, event: StageEvent) -> None:
        last = self.stages.current
        self.stages.move(event)
        self.release()
        self.uploads.close()
        self.services.client_bell.ring()
        await self._record_stage(last)

    async def _lead(self, before: str = "") -> None:
        """Lead one stage to its end; `before` is the one that it follows."""
        stage = self.stages.current
        self.begin(stage)
        if before:
            await self._record_stage(before)
            self.services.client_bell.ring()
        await self._timed(stage, self._wait(stage))
        await self.close(stage)

    async def _timed(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        start = self.services.clock()
        try:
            return await work
        finally:
            self.usage.stage_seconds[name] = round(self.services.clock() - start, 4)

    async def _wait(self, stage: str) -> None:
        """Until nobody is missing, or the time is up, or too few are left to go on."""
        clock = self.services.clock
        seconds = self.seconds_for(stage)
        deadline = clock() + seconds
        progress = StageReporter(self.context, stage, self._opened)
        while clock() < deadline and self._spoilt is None:
            self._drop_silent()
            progress.show(self.clients.done, self.clients.missing)
            if not self.clients.missing or (self._is_lost() and not self._worth_hearing(progress)):
                break
            await self.clients.changed.wait(min(_TICK_SECONDS, deadline - clock()))
        late = clock() >= deadline
        self.stages.move(StageEvent.CLOSE)
        while self.clients.being_taken:
            await self.clients.changed.wait(_TICK_SECONDS)
        if self._spoilt is not None:
            raise self._spoilt
        if late:
            self.late = self.clients.missing
            for client in self.late:
                self.give_up(client, f"no answer in stage {stage} within {seconds:g} s")
        progress.show(self.clients.done, self.clients.missing, final=True)
        if self._is_lost():
            raise CohortTooSmall(stage, self._present(), self.task.quorum)

    def _present(self) -> int:
        return len(self.clients.missing | self.clients.done)

    def _is_lost(self) -> bool:
        return self._present() < self.task.quorum

    def _worth_hearing(self, progress: StageReporter) -> bool:
        """Whether a lost exchange waits a little: all clients may have the same trouble."""
        alike = self.clients.lasting_reason() is not None and not self.clients.done
        return alike and progress.seconds_lost() < self.services.settings.grace_seconds

    def _drop_silent(self) -> None:
        limit = self.context.settings.liveness_seconds
        for client in self.clients.missing - self.clients.being_taken:
            if (silent := self.services.presence.silent_for(client)) > limit:
                self.give_up(client, "has stopped" if math.isinf(silent) else f"silent for more than {limit:g} s")

    async def _record_stage(self, before: str) -> None:
        await self.services.store.move_exchange(self.task.run, self.task.exchange, before, self.stages.current)

    def _explain(self, error: FedcoreError) -> str:
        names = self.services.names
        if self.blamed:  # whoever left because of them did nothing wrong, and the error may say whose secret is lost
            what = f"{error}" if isinstance(error, CohortTooSmall) else "the sum is lost"
            cheats = (f"{names[client]}: {fault}" for client, fault in sorted(self.blamed.items()))
            return f"{what}; who cheated: {', '.join(cheats)}"
        lost = [f"{names[client]}: {reason}" for client, reason in sorted(self.clients.reasons.items())]
        lost = lost[:10] + (["the server's disk was full when an upload came"] if self._storage_was_full else [])
        return f"{error}" + (f" ({'; '.join(lost)})" if lost else "")

    # --- what the two kinds differ in -----------------------------------------------------------

    @abstractmethod
    def seconds_for(self, stage: str) -> float:
        """The time limit of a stage."""

    @abstractmethod
    def begin(self, stage: str) -> None:
        """Prepare a stage."""

    async def close(self, stage: str) -> None:  # noqa: B027 - not every kind has something to do
        """End a stage over which no client is missing; raises RoundFailed."""

    @abstractmethod
    async def finish(self) -> ExchangeResult:
        """After the last stage."""

    def release(self) -> None:  # noqa: B027
        """The exchange has ended: let go of what takes memory."""

    @abstractmethod
    def check_manifest(self, manifest: ManifestIn) -> None:
        """Raise Rejection unless the upload that this manifest ends can be used."""

    async def check_update(self, path: Path) -> None:  # noqa: B027
        """Raise Rejection unless the update that is here whole, in a file, can be used."""

    @abstractmethod
    async def add_update(self, client: int, manifest: ManifestIn, path: Path | None) -> None:
        """Make an update, whose receipt is kept, part of the result; its file is this method's to keep or remove.

        path: None where the manifest is all there is.
        """

    # --- what clients ask -----------------------------------------------------------------------

    def task_for(self, client: int) -> Task | None:
        """The task, where the client may still begin it."""
        begins = self.stages.is_first and self.stages.takes_messages
        if not begins or client not in self.clients or client in self.clients.reasons:
            return None
        left = self.task.seconds - (self.services.clock() - self._opened)
        return self.task.model_copy(update={"seconds": max(left, 1.0)})

    def model_for(self, client: int) -> tuple[Path, ModelRef] | None:
        """The file that a client fetches and what it was told of it, if there is one."""
        path, reference = self.context.model, self.task.model
        return (path, reference) if path is not None and reference is not None else None

    def require(self, client: int) -> None:
        """Raise Rejection unless the client takes part and the exchange goes on."""
        self.require_member(client)
        if self.stages.over:
            raise Rejection(ProblemKind.ROUND_FAILED, f"exchange {self.task.exchange} has ended")
        if client in self.clients.reasons:
            raise Rejection(
                ProblemKind.STALE_STEP,
                f"this client was declared dropped in exchange {self.task.exchange}",
            )

    def require_member(self, client: int) -> None:
        """Raise Rejection unless the client was asked."""
        if client not in self.clients:
            raise Rejection(ProblemKind.NOT_IN_COHORT, f"this client is not in exchange {self.task.exchange}")

    def require_step(self, client: int, step: str) -> None:
        """Raise Rejection unless the client may do `step` now."""
        self.require(client)
        stage = self.steps.get(step)
        if stage is None:
            raise no_such_step(self.task.aggregation)
        if self.stages.is_ahead(stage):
            raise Rejection(
                ProblemKind.PROTOCOL_VIOLATION,
                f"out-of-order: {step} is not due in stage {self.stages.current}",
                check="out-of-order",
            )
        if self.stages.is_past(stage) or not self.stages.takes_messages:
            raise Rejection(ProblemKind.STALE_STEP, f"the stage for {step} is over")

    async def take(self, client: int, step: str, digest: bytes, apply: Callable[[], None]) -> None:
        """A control message: `apply` checks it and takes it over, then the receipt is kept."""
        if self.was_taken(client, step, digest):
            return
        self.require_step(client, step)
        apply()
        self.clients.answer(client)
        await self.keep_receipt(client, step, digest)

    def was_taken(self, client: int, step: str, digest: bytes) -> bool:
        """Whether these very bytes came before; ConflictingMessage where others did."""
        self.require_member(client)
        known = self._receipts.get((step, client))
        if known is not None and known != digest:
            raise ConflictingMessage("this step was answered before with other content")
        return known is not None

    async def keep_receipt(self, client: int, step: str, digest: bytes) -> None:
        """Make durable that the client did this step; ConflictingMessage where it did another."""
        task = self.task
        await self.services.store.add_receipt(task.run, task.exchange, step, client, digest)
        self._receipts[step, client] = digest

    def parts_of(self, client: int, size: int) -> dict[int, bytes]:
        """The parts that are here of the update of `size` bytes that the client sends: index -> SHA-256.

        Refuses what sending a part would be refused for: who sends a body may not get to hear why it was refused.
        """
        self.require_step(client, "part")
        self.uploads.limits.check_size(size)
        return self.uploads.held(client)

    async def take_part(self, client: int, index: int, body: Body) -> None:
        """One part of the client's update: spooled and checked, and of no use before the manifest."""
        self.require_member(client)

        def admit() -> None:
            self.require_step(client, "part")

        def progress() -> None:
            self.services.presence.touch(client)

        try:
            await self.uploads.take(client, index, body, admit=admit, progress=progress)
        except StorageFull:
            self._storage_was_full = True  # for the operator, who sees neither this answer nor the log
            raise

    async def take_manifest(self, client: int, manifest: ManifestIn, digest: bytes) -> None:
        """The end of an upload: what was sent becomes the client's update, once all of it is here and durable.

        One manifest of a client at a time; its repetition waits and finds the receipt.
        """
        async with self._ends_of_uploads.setdefault(client, asyncio.Lock()):
            if self.was_taken(client, "manifest", digest):
                return
            self.require_step(client, "manifest")
            self.check_manifest(manifest)
            self.uploads.check_whole(client, manifest)
            await self._use_update(client, manifest, digest)

    async def _use_update(self, client: int, manifest: ManifestIn, digest: bytes) -> None:
        """The receipt first, and only then into the result."""
        path = await self.uploads.publish(client, manifest.size) if manifest.size else None
        # The client may have been given up while it sent. From the admission on its update counts, whatever becomes
        # of the client, and the stage does not end before that.
        self.require_step(client, "manifest")
        self.clients.admit(client)
        try:
            if path is not None:
                await self.check_update(path)
            await self.keep_receipt(client, "manifest", digest)
            await self.add_update(client, manifest, path)
        except BaseException:
            self.clients.refuse(client)
            if client in self.clients.reasons:
                self._forget_update(client)
            raise
        self.clients.take(client)
        self.uploads.keep(client)

    def spoil(self, error: RoundFailed) -> None:
        """The exchange cannot succeed any more: `run` raises `error`."""
        self._spoilt = error

    async def withdraw(self, client: int, body: WithdrawIn) -> None:
        """The client leaves; saying it again changes nothing."""
        if client in self.clients.withdrawals and not self.stages.over:
            return
        self.require(client)
        if body.complaint is not None:
            self.hear(client, body.complaint)
        reason = f"withdrew: {body.reason.value}" + (f", {body.why}" if body.why else "")
        self.give_up(client, reason, body)

    def hear(self, client: int, complaint: ComplaintIn) -> None:
        """Blame the one of the two who is at fault; raises Rejection where there is nothing to complain of."""
        raise Rejection(ProblemKind.MALFORMED, f"an exchange in {self.task.aggregation} mode knows no complaints")

    def blame(self, client: int, fault: Fault) -> None:
        """Name a client that was found to cheat, and go on without it."""
        if client in self.blamed:
            return
        self.blamed[client] = fault
        self.context.event_log.add(
            ClientBlamed(
                exchange=self.task.exchange,
                client=self.services.names[client],
                stage=self.stages.current,
                reason=fault.value,
            )
        )
        self.give_up(client, f"cheated: {fault}")

    def give_up(self, client: int, reason: str, withdrawal: WithdrawIn | None = None) -> None:
        """Declare a client dropped; its later messages are refused."""
        if client in self.clients.reasons:
            return
        self.clients.drop(client, reason, withdrawal)
        if self.clients.standing(client) is Standing.DROPPED:
            self._forget_update(client)
        name = self.services.names[client]
        self.context.event_log.add(
            ClientDropped(exchange=self.task.exchange, client=name, stage=self.stages.current, reason=reason)
        )
        self.services.client_bell.ring()

    def _forget_update(self, client: int) -> None:
        self.uploads.drop(client)


def no_such_step(aggregation: str) -> Rejection:
    """The problem of a step that this kind of exchange does not have."""
    return Rejection(ProblemKind.NOT_FOUND, f"an exchange in {aggregation} mode has no such step")
