"""One exchange as the server leads it: who was asked, who is left, what each has done.

`Exchange` holds what secure and plain exchanges share: stages that end when everybody has answered,
left, fallen silent or run out of time; receipts, so that a repeated message is answered alike;
withdrawals; uploads; and the account of bytes and seconds. All of it lives on the event loop; what takes long
is sent to threads.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from fedcore.errors import CohortTooSmall, ConflictingMessage, FedcoreError, PeerError, RoundFailed, StorageFull
from fedcore.wire import (
    ManifestIn,
    ProblemKind,
    Task,
    WithdrawalReason,
    WithdrawIn,
)
from server_app.exchanges.context import ExchangeResult, ExchangeSetup, Ledger
from server_app.exchanges.stage_progress import StageProgress
from server_app.exchanges.uploads import UpdateLimits, Uploads
from server_app.http.polling import Bell
from server_app.http.problems import Rejection
from server_app.storage.blobs import Body

log = logging.getLogger("fedcore.server")
T = TypeVar("T")

DONE: Final = "done"
FAILED: Final = "failed"
APP_REASONS: Final = frozenset(
    {
        WithdrawalReason.APP_FAILED,
        WithdrawalReason.APP_MISMATCH,
        WithdrawalReason.WRONG_RECORDS,
        WithdrawalReason.UPDATE_REFUSED,
        WithdrawalReason.POLICY,
    }
)
"""Reasons that will be the same at the next attempt, if all clients give the same one."""
_TICK_SECONDS: Final = 0.5


class Exchange(ABC):
    """One exchange; `run` leads it to its result, the other methods are called by the routes.

    Every method for a client raises Rejection: not-in-cohort, round-failed after the end, stale-step
    once the client was given up or the step is over.
    """

    steps: Mapping[str, str]
    """Step of a client -> stage in which it is taken."""
    stages: tuple[str, ...]
    taken: set[int]
    """Clients whose update is part of the result, whatever becomes of them later."""

    def __init__(self, setup: ExchangeSetup, limits: UpdateLimits) -> None:
        self.setup = setup
        self.task = setup.task
        self.cohort = frozenset(setup.task.cohort)
        self.ledger = Ledger()
        self.dropped: dict[int, str] = {}
        self.withdrawals: dict[int, WithdrawIn] = {}
        self.manifests: dict[int, ManifestIn] = {}
        self.taken = set()
        self._stage_index = 0
        self._end = ""
        self._closing = False
        self._admitted: set[int] = set()
        self._broken: FedcoreError | None = None
        self._storage_was_full = False
        self._answers = Bell()
        # What the receipts' table holds of this exchange, which lives and ends with this object.
        self._receipts: dict[tuple[str, int], bytes] = {}
        self._ends_of_uploads: dict[int, asyncio.Lock] = {}
        self.uploads = Uploads(setup.spool, setup.folder / "uploads", limits)
        self._opened = setup.clock()

    # --- leading --------------------------------------------------------------------------------

    async def run(self) -> ExchangeResult:
        """Lead the exchange to its end. Raises RoundFailed where too few clients were left."""
        await self._open()
        try:
            for index, stage in enumerate(self.stages):
                await self._lead(index, stage)
            result = await self._timed("result", self._finish())
        except BaseException as error:
            await asyncio.shield(self._fail())
            if isinstance(error, RoundFailed | PeerError):
                raise RoundFailed(self._explain(error)) from error
            raise
        await self._end_as(DONE)
        return result

    async def _open(self) -> None:
        task = self.task
        await self.setup.store.add_exchange(
            task.run,
            task.exchange,
            stage=self.stages[0],
            server_round=task.server_round,
            attempt=task.attempt,
            cohort=task.cohort,
        )
        self.setup.bell.ring()

    async def _fail(self) -> None:
        try:
            await self._end_as(FAILED)
        except FedcoreError as error:  # the first error is the one to report
            log.warning("the end of exchange %d is not recorded: %s", self.task.exchange, error)

    async def _end_as(self, end: str) -> None:
        last, self._end = self.stage, end
        self._release()
        self.uploads.close()
        self.setup.bell.ring()
        await self._move(last, end)

    async def _lead(self, index: int, stage: str) -> None:
        self._stage_index, self._closing = index, False
        await self._begin(stage)
        if index:
            await self._move(self.stages[index - 1], stage)
            self.setup.bell.ring()
        await self._timed(stage, self._wait(stage))
        await self._close(stage)

    async def _timed(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        start = self.setup.clock()
        try:
            return await work
        finally:
            self.ledger.stage_seconds[name] = round(self.setup.clock() - start, 4)

    async def _wait(self, stage: str) -> None:
        """Until nobody is missing, or the time is up, or too few are left to go on."""
        clock = self.setup.clock
        deadline = clock() + self._seconds(stage)
        progress = StageProgress(self.setup, stage, self._opened)
        while clock() < deadline and self._broken is None:
            self._drop_silent()
            progress.show(self.done(), self.missing())
            if not self.missing() or (self._is_lost() and not self._worth_hearing(progress)):
                break
            await self._answers.wait(min(_TICK_SECONDS, deadline - clock()))
        self._closing = True  # from here on nothing is admitted, and what was is finished
        if clock() >= deadline:
            for client in self.missing() - self._admitted:
                self.give_up(client, f"no answer in stage {stage} within {self._seconds(stage):g} s")
        while self._admitted:
            await self._answers.wait(_TICK_SECONDS)
        if self._broken is not None:
            raise self._broken
        progress.show(self.done(), self.missing(), final=True)
        if self._is_lost():
            present = len(self.missing() | self.done())
            raise CohortTooSmall(stage, present, self.task.quorum)

    def _is_lost(self) -> bool:
        return len(self.missing() | self.done()) < self.task.quorum

    def _worth_hearing(self, progress: StageProgress) -> bool:
        """Whether a lost exchange waits a little: all clients may have the same trouble."""
        reasons = {withdrawal.reason for withdrawal in self.withdrawals.values()}
        alike = len(reasons) == 1 and reasons <= APP_REASONS and not self.done()
        return alike and progress.seconds_lost() < self.setup.grace_seconds

    def _drop_silent(self) -> None:
        limit = self.setup.settings.liveness_seconds
        for client in self.missing() - self._admitted:
            if self.setup.presence.silent_for(client) > limit:
                self.give_up(client, f"silent for more than {limit:g} s")

    async def _move(self, before: str, after: str) -> None:
        await self.setup.store.move_exchange(self.task.run, self.task.exchange, before, after)

    def _explain(self, error: FedcoreError) -> str:
        names = self.setup.names
        lost = [f"{names[client]}: {reason}" for client, reason in sorted(self.dropped.items())]
        lost = lost[:10] + (["the server's disk was full when an upload came"] if self._storage_was_full else [])
        return f"{error}" + (f" ({'; '.join(lost)})" if lost else "")

    def common_reason(self) -> WithdrawalReason | None:
        """The reason that every client of the cohort gave, where another attempt will not help."""
        reasons = {withdrawal.reason for withdrawal in self.withdrawals.values()}
        everybody = self.withdrawals.keys() == self.cohort
        return reasons.pop() if everybody and len(reasons) == 1 and reasons <= APP_REASONS else None

    # --- what the two kinds differ in -----------------------------------------------------------

    @abstractmethod
    def missing(self) -> frozenset[int]:
        """Whom the present stage still waits for."""

    @abstractmethod
    def done(self) -> frozenset[int]:
        """Whose answer of the present stage is here."""

    @abstractmethod
    def _seconds(self, stage: str) -> float:
        """The time limit of a stage."""

    @abstractmethod
    async def _begin(self, stage: str) -> None:
        """Prepare a stage."""

    @abstractmethod
    async def _close(self, stage: str) -> None:
        """End a stage; raises RoundFailed."""

    @abstractmethod
    async def _finish(self) -> ExchangeResult:
        """After the last stage."""

    @abstractmethod
    def _release(self) -> None:
        """The exchange has ended: let go of what takes memory."""

    @abstractmethod
    def _lose(self, client: int) -> None:
        """A client was given up."""

    @abstractmethod
    def check_manifest(self, manifest: ManifestIn) -> None:
        """Raise Rejection unless the upload that this manifest ends can be used."""

    @abstractmethod
    async def _use_update(self, client: int, manifest: ManifestIn, digest: bytes) -> None:
        """Take over an update that is here whole; the receipt of its manifest has `digest`."""

    # --- what clients ask -----------------------------------------------------------------------

    @property
    def stage(self) -> str:
        """The present stage, or "done" or "failed"."""
        return self._end or self.stages[self._stage_index]

    @property
    def over(self) -> bool:
        """Whether the exchange has ended."""
        return bool(self._end)

    def task_for(self, client: int) -> Task | None:
        """The task, where the client may still begin it."""
        first = self._stage_index == 0 and not self._closing and not self.over
        if not first or client not in self.cohort or client in self.dropped:
            return None
        left = self.task.seconds - (self.setup.clock() - self._opened)
        return self.task.model_copy(update={"seconds": max(left, 1.0)})

    def require(self, client: int) -> None:
        """Raise Rejection unless the client takes part and the exchange goes on."""
        self.require_member(client)
        if self.over:
            raise Rejection(ProblemKind.ROUND_FAILED, f"exchange {self.task.exchange} has ended")
        if client in self.dropped:
            raise Rejection(
                ProblemKind.STALE_STEP,
                f"this client was declared dropped in exchange {self.task.exchange}",
            )

    def require_member(self, client: int) -> None:
        """Raise Rejection unless the client was asked."""
        if client not in self.cohort:
            raise Rejection(ProblemKind.NOT_IN_COHORT, f"this client is not in exchange {self.task.exchange}")

    def require_step(self, client: int, step: str) -> None:
        """Raise Rejection unless the client may do `step` now."""
        self.require(client)
        stage = self.steps.get(step)
        if stage is None:
            raise no_such_step(self.task.aggregation)
        due = self.stages.index(stage)
        if due > self._stage_index:
            raise Rejection(
                ProblemKind.PROTOCOL_VIOLATION,
                f"out-of-order: {step} is not due in stage {self.stage}",
                check="out-of-order",
            )
        if due < self._stage_index or self._closing:
            raise Rejection(ProblemKind.STALE_STEP, f"the stage for {step} is over")

    async def take(self, client: int, step: str, digest: bytes, apply: Callable[[], None]) -> None:
        """A control message: `apply` checks it and takes it over, then the receipt is kept."""
        if self.was_taken(client, step, digest):
            return
        self.require_step(client, step)
        apply()
        self._answers.ring()
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
        await self.setup.store.add_receipt(task.run, task.exchange, step, client, digest)
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
            self.setup.presence.touch(client)

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
            self.uploads.limits.check_size(manifest.size)
            self.uploads.check_whole(client, manifest)
            self._check_metric_names(client, manifest)
            self.manifests[client] = manifest
            await self._use_update(client, manifest, digest)

    def _check_metric_names(self, client: int, manifest: ManifestIn) -> None:
        """All clients must report the same metrics: the first manifest fixes them."""
        others = (known for other, known in self.manifests.items() if other != client)
        first = next(others, None)
        if first is not None and first.metrics != manifest.metrics:
            names = ", ".join(slot.name for slot in first.metrics) or "none"
            raise Rejection(
                ProblemKind.BAD_CONFIGURATION,
                f"this client reports other metrics than the rest of the cohort, which has: {names}. "
                "The ClientApp must return the same metrics with the same lengths at every client",
            )

    async def withdraw(self, client: int, body: WithdrawIn) -> None:
        """The client leaves; saying it again changes nothing."""
        if client in self.withdrawals and not self.over:
            return
        self.require(client)
        self.withdrawals[client] = body
        reason = f"withdrew: {body.reason.value}" + (f", {body.check}" if body.check else "")
        self.give_up(client, reason)

    def give_up(self, client: int, reason: str) -> None:
        """Declare a client dropped; its later messages are refused."""
        if client in self.dropped:
            return
        self.dropped[client] = reason
        if client not in self.taken | self._admitted:
            self.manifests.pop(client, None)  # its metrics bind nobody any more
            self.uploads.drop(client)
        self._lose(client)
        self.setup.record.add(
            "dropped",
            {
                "exchange": self.task.exchange,
                "client": self.setup.names[client],
                "stage": self.stage,
                "reason": reason,
            },
        )
        self._answers.ring()
        self.setup.bell.ring()


def no_such_step(aggregation: str) -> Rejection:
    """The problem of a step that this kind of exchange does not have."""
    return Rejection(ProblemKind.NOT_FOUND, f"an exchange in {aggregation} mode has no such step")
