"""Messages of clients to an exchange: steps, uploads and withdrawals, each stored before it counts.

All of it runs on the event loop; slow work runs in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from fedcore.errors import EnvironmentFailure, FedcoreError, RoundFailed, StorageFull
from fedcore.run.engine.outcome import ExchangeUsage
from fedcore.secagg import Fault
from fedcore.wire.base import Message
from fedcore.wire.events import NOT_NEEDED, ClientBlamed, ClientDropped, RunEvent
from fedcore.wire.problems import ProblemKind
from fedcore.wire.tasks import ModelRef, Task
from fedcore.wire.uploads import ComplaintIn, ManifestIn, WithdrawalReason, WithdrawIn
from server_app.exchanges.context import ExchangeContext
from server_app.exchanges.receipts import WITHDRAWAL, Receipts
from server_app.exchanges.stages import Participants, ParticipantState, Stages
from server_app.exchanges.transfers import Transfers, UpdateLimits, Uploads
from server_app.rejection import Rejection
from server_app.storage.blobs import Body


class MessageReceiver(ABC):
    """One exchange as its clients see it.

    Every method for a client raises Rejection: not-in-cohort, busy while the exchange is suspended, round-failed after
    the end, stale-step once the client was dropped or the step is over, not-needed if others were faster.
    """

    steps: Mapping[str, str]
    """Step of a client -> stage in which it is taken."""
    stage_names: tuple[str, ...]
    updates_folder: str
    """Where whole updates go, below the exchange's key."""

    def __init__(self, context: ExchangeContext, limits: UpdateLimits) -> None:
        services, task = context.services, context.task
        self.context = context
        self.services = services
        self.task = task
        self.usage = ExchangeUsage()
        self.stages = Stages(self.stage_names)
        self.clients = Participants(task.cohort)
        self.blamed: dict[int, Fault] = {}
        self.transfers = Transfers(services.clock)
        self.receipts = Receipts(services.store, task.run, task.exchange)
        self.uploads = Uploads(services.spool, services.objects, f"{context.key}/{self.updates_folder}", limits)
        self._stored_stage = ""
        """The stage that the database has; empty as long as it does not know the exchange."""
        self._has_failed = False
        self._is_suspended = False
        self._is_silent = False
        self._failure: FedcoreError | None = None
        self._storage_was_full = False
        self._writing = 0
        self._taking: set[asyncio.Task[None]] = set()
        self._ends_of_uploads: dict[int, asyncio.Lock] = {}
        self._opened = services.clock()

    @property
    def is_led(self) -> bool:
        """Whether messages can be taken: the database knows of the exchange, and it was not put down."""
        return bool(self._stored_stage) and not self._is_suspended

    # --- what the kinds do ----------------------------------------------------------------------

    @abstractmethod
    def check_manifest(self, manifest: ManifestIn) -> None:
        """Raise Rejection unless the upload that this manifest ends can be used."""

    @abstractmethod
    async def add_update(self, client: int, manifest: ManifestIn) -> None:
        """Make an update, whose object and receipt are kept, part of the result."""

    def judge_complaint(self, client: int, complaint: ComplaintIn) -> None:
        """Judge a complaint and blame the client at fault; raises Rejection if it has no grounds."""
        raise Rejection(ProblemKind.MALFORMED, f"an exchange in {self.task.aggregation} mode knows no complaints")

    # --- what clients may do --------------------------------------------------------------------

    def task_for(self, client: int) -> Task | None:
        """The task, if the client may still begin it."""
        begins = self.is_led and self.stages.is_first and self.stages.takes_messages
        if not begins or client not in self.clients or client in self.clients.reasons:
            return None
        left = self.task.seconds - (self.services.clock() - self._opened)
        return self.task.model_copy(update={"seconds": max(left, 1.0)})

    def model_for(self, client: int) -> tuple[Path, ModelRef] | None:
        """The file that a client downloads and its reference in the task, if there is one."""
        path, reference = self.context.model, self.task.model
        return (path, reference) if path is not None and reference is not None else None

    def model_size(self, client: int) -> int:
        """Bytes of the file that a client downloads; 0 if there is none."""
        model = self.model_for(client)
        return model[1].size if model is not None else 0

    def update_size(self, client: int) -> int:
        """Bytes of a client's update; of a plain reply, which the app decides, those of what it was sent."""
        limits = self.uploads.limits
        return limits.longest if limits.exact else self.model_size(client)

    def difference_to(self, base: str) -> Path | None:
        """The file with the difference of the model to the one whose SHA-256 is `base`, if there is one."""
        difference = self.context.difference
        return difference.path if difference is not None and difference.base == base else None

    def require(self, client: int) -> None:
        """Raise Rejection unless the client takes part and the exchange goes on."""
        self.require_member(client)
        if self.clients.reasons.get(client) == NOT_NEEDED:  # after the end too: nothing has failed
            number = self.task.exchange
            raise Rejection(ProblemKind.NOT_NEEDED, f"exchange {number} has enough updates without this client's")
        if self.stages.over or self._has_failed:
            raise Rejection(ProblemKind.ROUND_FAILED, f"exchange {self.task.exchange} has ended")
        if client in self.clients.reasons:
            raise Rejection(
                ProblemKind.STALE_STEP,
                f"this client was declared dropped in exchange {self.task.exchange}{self._line_of(client)}",
            )

    def _line_of(self, client: int) -> str:
        """Why the client is not asked next, if that is for its line."""
        services, within = self.services, self.context.settings.stage_seconds
        why = services.lines.resting(within, services.clock()).get(client, "")
        return f": {why}" if why else ""

    def require_member(self, client: int) -> None:
        """Raise Rejection unless the client is in the cohort, and the exchange is led."""
        if client not in self.clients:
            raise Rejection(ProblemKind.NOT_IN_COHORT, f"this client is not in exchange {self.task.exchange}")
        if not self.is_led and not self.stages.over:
            raise Rejection(ProblemKind.BUSY, f"exchange {self.task.exchange} is about to resume; ask again")

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

    # --- what clients send ----------------------------------------------------------------------

    async def take(self, client: int, step: str, digest: bytes, body: Message, apply: Callable[[], None]) -> None:
        """A control message: `apply` checks it and takes it over, and it counts once its receipt is kept."""
        if self.was_taken(client, step, digest):
            return
        self.require_step(client, step)
        apply()
        with self._persisting():
            await self.receipts.keep(client, step, digest, body)
            if client not in self.clients.reasons:  # it may have been given up meanwhile
                self.clients.answer(client)

    def was_taken(self, client: int, step: str, digest: bytes) -> bool:
        """Whether these very bytes came before; ConflictingMessage if others did."""
        self.require_member(client)
        return self.receipts.has(client, step, digest)

    def parts_of(self, client: int, size: int) -> dict[int, bytes]:
        """The parts that are here of the update of `size` bytes that the client sends: index -> SHA-256.

        Refuses what sending a part would be refused for: who sends a body may not get to hear why it was refused.
        """
        self.require_step(client, "part")
        self.uploads.limits.check_size(size)
        return self.uploads.received(client)

    async def take_part(self, client: int, index: int, body: Body) -> None:
        """One part of the client's update: spooled and checked, and of no use before the manifest."""
        self.require_member(client)

        def admit() -> None:
            self.require_step(client, "part")

        def progress() -> None:
            self.services.presence.touch(client)

        async def chunks() -> AsyncIterator[bytes | memoryview]:
            async for chunk in body.chunks:
                self.transfers.note_sent(client, len(chunk))
                yield chunk

        try:
            with self.transfers.receiving(client, self.update_size(client)):
                part = replace(body, chunks=chunks())
                await self.uploads.take(client, index, part, admit=admit, progress=progress)
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
            if manifest.size:
                await self.uploads.publish(client, manifest.size)
            # The client may have been dropped during its upload. From the admission on its update counts, whatever
            # happens to the client, and the stage does not end before that.
            self.require_step(client, "manifest")
            self.clients.admit(client)
            self.services.lines.note_on_time(client)
            if (upload := self.transfers.measure(client)) is not None:
                self.services.lines.note_up(client, upload.received, upload.seconds)
            self.transfers.end_upload(client)
            taking = asyncio.create_task(self.use_update(client, manifest, digest))
            self._taking.add(taking)
            taking.add_done_callback(self._taking.discard)
            try:
                # A client that hangs up now does not cancel it: in the database it may count already.
                await asyncio.shield(taking)
            except asyncio.CancelledError:
                self.require_member(client)  # the exchange may have been suspended
                raise

    async def use_update(self, client: int, manifest: ManifestIn, digest: bytes) -> None:
        """The receipt first, and only then into the result."""
        try:
            with self._persisting():
                await self.receipts.keep(client, "manifest", digest, manifest)
        except BaseException:
            self.clients.refuse(client)
            if client in self.clients.reasons:
                self._forget_update(client)
            raise
        try:
            await self.add_update(client, manifest)
        except Exception as error:  # on the disk it counts, so there is no result without it
            lasting = isinstance(error, RoundFailed | EnvironmentFailure)
            self.fail(error if lasting else RoundFailed(f"an update could not be used: {error}"))  # type: ignore[arg-type]
            self.clients.refuse(client)
            raise
        self.clients.take(client)

    def fail(self, error: FedcoreError) -> None:
        """The exchange cannot go on: `run` raises `error`."""
        self._failure = error

    async def withdraw(self, client: int, body: WithdrawIn, digest: bytes) -> None:
        """The client leaves; saying it again, or after it was given up, changes nothing."""
        if client in self.clients.reasons and self.is_led and not self.stages.over:
            return
        self.require(client)
        if body.complaint is not None:
            self.judge_complaint(client, body.complaint)
        with self._persisting():
            await self.receipts.keep(client, WITHDRAWAL, digest, body)
            self.drop_withdrawn(client, body)

    def drop_withdrawn(self, client: int, withdrawal: WithdrawIn) -> None:
        """Drop a client that withdrew."""
        refused = withdrawal.reason is WithdrawalReason.POLICY
        why = ", ".join(filter(None, ("" if refused and withdrawal.why else withdrawal.reason.value, withdrawal.why)))
        self.give_up(client, f"{'refused' if refused else 'withdrew'}: {why}", withdrawal)

    @contextlib.contextmanager
    def _persisting(self) -> Iterator[None]:
        """A stage does not end, and the exchange is not suspended, while a message is being stored."""
        self._writing += 1
        try:
            yield
        finally:
            self._writing -= 1
            self.clients.changed.ring()

    # --- giving up ------------------------------------------------------------------------------

    def blame(self, client: int, fault: Fault) -> None:
        """Blame a client for a protocol violation, and go on without it."""
        if client in self.blamed:
            return
        self.blamed[client] = fault
        name, number, stage = self.services.names[client], self.task.exchange, self.stages.current
        self._add_event(ClientBlamed(exchange=number, client=name, stage=stage, reason=fault.value))
        self.give_up(client, f"protocol violation: {fault}")

    def give_up(self, client: int, reason: str, withdrawal: WithdrawIn | None = None) -> None:
        """Declare a client dropped; its later messages are refused."""
        if client in self.clients.reasons:
            return
        self.clients.drop(client, reason, withdrawal)
        if self.clients.state(client) is ParticipantState.DROPPED:
            self._forget_update(client)
        name, number, stage = self.services.names[client], self.task.exchange, self.stages.current
        self._add_event(ClientDropped(exchange=number, client=name, stage=stage, reason=reason))
        self.services.client_bell.ring()

    def _add_event(self, event: RunEvent) -> None:
        """Add an event, unless it was added before a restart."""
        if not self._is_silent:
            self.context.add_event(event)

    def _forget_update(self, client: int) -> None:
        self.uploads.drop(client)


def no_such_step(aggregation: str) -> Rejection:
    """The problem of a step that this kind of exchange does not have."""
    return Rejection(ProblemKind.NOT_FOUND, f"an exchange in {aggregation} mode has no such step")
