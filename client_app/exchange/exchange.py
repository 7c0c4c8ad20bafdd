"""A client's part in one exchange, from the task to the last share.

Secure (docs/protocol.md): the keys are exchanged (R0, R1) while the model comes, the worker trains and its update is
encoded; then it is masked and uploaded (R2), the survivors are signed (R3) and the shares released (R4). If the local
work fails, a vector that adds nothing takes its place, unless the policy reports failures. Plain: the message goes to
the app, its reply or the error to the server. An error in any step ends the exchange for this client; the caller
withdraws from it.

A server that is away ends nothing: requests are sent again for as long as the exchange may last (`take_part`), and the
local work goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NoReturn

from client_app.exchange.channel import ExchangeChannel
from client_app.exchange.client import Client
from client_app.exchange.contribution import seconds_to_pad, show_failure
from client_app.exchange.local_update import LocalUpdate, Vector, summary
from client_app.exchange.models import MODELS_FOLDER, Models, open_canonical
from client_app.exchange.room import check_ranks_memory, check_room, memory_of_ranks, room_of
from client_app.exchange.upload import cut_parts, read_parts
from client_app.exchange.withdrawal import BadDealing, plain_error
from client_app.http.transport import LONG_POLL_SECONDS
from client_app.records.ledger import note_task
from fedcore.errors import AppError, FedcoreError, ProtocolViolation, RoundFailed, WorkerDied
from fedcore.federation.admission.admit import Admitted, AdmittedSum, admit
from fedcore.federation.admission.app_agreement import check_message
from fedcore.federation.admission.draws import answer_draw
from fedcore.federation.admission.privacy import PrivacySpending
from fedcore.federation.transcript import TranscriptOut
from fedcore.monitoring import formatting
from fedcore.run.groups import is_draw
from fedcore.secagg import Check, ClientSession, Outcome, RoundParameters, ShareDelivery, Survivors
from fedcore.state import ModelState
from fedcore.system.concurrency import guarded, in_thread
from fedcore.wire import secagg_codec
from fedcore.wire.chunks import PART_BYTES, update_digest
from fedcore.wire.secagg import CohortOut, ConsistencyIn, DealingOut, DeliveryOut, SignaturesOut, SurvivorsOut
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import ComplaintIn, ManifestIn, ReplyError

_COMPLAINTS: Final = frozenset({Check.SHARE_UNSEALING, Check.UNCOMMITTED_SHARE})
"""Checks that prove a neighbour's fault, unless the server lies."""


async def take_part(task: Task, client: Client, unread: ProtocolViolation | None = None) -> None:
    """Take part in one exchange; raises what ended it early: `unread` if the task was not read to its end.

    A client whose owner does not let the machine train leaves before it enters the exchange. One that loses its leave
    while it trains contributes nothing, or leaves if the policy reports failures; once its update is on its way it
    stays to the end, which takes little, and spares the others the work that a dropout costs them.
    """
    note_task(task, client.agreed, client.ledger)
    if unread is not None:
        raise unread
    client.eligibility.check()
    admitted = await in_thread(admit, task, [client.participant(task.run)])
    exchange = _ClientExchange(task=task, admitted=admitted, client=client)
    try:
        async with asyncio.timeout(task.seconds + client.others_seconds) as limit:
            exchange.limit = limit
            await exchange.take_part()
    except TimeoutError:
        raise RoundFailed("the server did not bring the exchange to an end in time") from None


@dataclass(slots=True, kw_only=True)
class _ClientExchange:
    """The steps of one exchange."""

    task: Task
    admitted: Admitted
    client: Client
    limit: asyncio.Timeout | None = None
    _started: float = field(init=False)
    _channel: ExchangeChannel = field(init=False)
    _update: LocalUpdate = field(init=False)

    def __post_init__(self) -> None:
        self._started = self.client.clock()
        self._channel = ExchangeChannel(self.task, self.client)
        self._update = LocalUpdate(self._channel)

    async def take_part(self) -> None:
        """Take part in an exchange of any kind."""
        if self.task.aggregation == "plain":
            await self.plain()
        elif is_draw(self.task):
            await self.draw()
        else:
            await self.secure()

    async def draw(self) -> None:
        """Send this client's ticket for the draw of the groups."""
        await self._follow_transcript()
        await self.client.trace_first_model(self.task)
        client = self.client
        ticket = await in_thread(
            answer_draw, self.task, client.kit, client.ledger, client.kit.identity, client.randomness
        )
        await self._channel.put("place", ticket)
        self._channel.log(
            "draw", f"sent a ticket for the draw of groups among {len(self.task.cohort)} clients", self._started
        )

    async def secure(self) -> None:
        """R0 to R4, once the transcript is known to lead up to them."""
        self._update.begin()
        await self._follow_transcript()
        await self.client.trace_first_model(self.task)
        await self._check_room()
        admitted = await in_thread(self.admitted.admit_sum, self.client.transcript.chain)
        account = admitted.account(self.client.kit.client_id)
        reference = self.task.model  # whose hash ctx has; `_model` takes no other file
        session = self._session(admitted.parameters(bytes.fromhex(reference.sha256) if reference else None))
        try:
            vector = await self._contribute(session, account, admitted)
            await in_thread(account.spend)
            named, send_again = await self._upload(session, vector)
            await self._unmask(session, admitted, named, send_again)
        finally:
            session.abandon()
            self._update.close()

    async def plain(self) -> None:
        """Pass the message to the app, and send its reply, or the error."""
        self._update.begin()
        await self._check_room()
        message = await self._model()
        content = message.path if message else None
        await in_thread(check_message, self.task, content, self.client.agreed, self.client.kit.policy)
        started = self.client.clock()
        cache = self.client.results
        try:
            local = await cache.get_or_run(self.task, lambda: self._update.run_app(content), keep_failure=False)
        except (AppError, WorkerDied) as error:
            show_failure(self.client.output, error)
            await self._channel.put("manifest", _without_file(plain_error(error)))
            return
        self._channel.log(self.task.message_type, summary(local), started)
        if local.error is not None:
            await self._channel.put("manifest", _without_file(local.error))
            return
        size = cache.model.stat().st_size
        digest = await self._channel.upload(read_parts(cache.model), size, "sent")
        manifest = ManifestIn(digest=digest, size=size, examples=local.examples, values=dict(local.metrics))
        await self._channel.end_upload(manifest, lambda: read_parts(cache.model))
        self._update.count()

    # --- model and update ---------------------------------------------------------------------------------------

    async def _model(self) -> ModelState | None:
        """The global model, from a file that has the SHA-256 that the task names."""
        reference = self.task.model
        if reference is None:
            return None
        if self.task.buffer is not None:  # ctx has the base of each update; the newest model is not needed
            return ModelState.open(self.client.pending.base)
        started, models = self.client.clock(), self._models
        path = models.path(reference.sha256)
        if not await in_thread(models.has, reference.sha256):
            received = await models.fetch(reference, self.client.transport, self._channel.path("model"))
            self._channel.log("model", f"received {formatting.size(received)}", started)
            self._wait_longer(self.client.clock() - started)
        if self.task.aggregation == "secure":
            return await in_thread(open_canonical, path)
        try:
            return ModelState.open(path)
        except FedcoreError as error:
            raise ProtocolViolation("model-malformed", str(error)) from None

    @property
    def _models(self) -> Models:
        return Models(self.client.state_dir / MODELS_FOLDER)

    async def _check_room(self) -> None:
        """Before anything is downloaded; raises StorageFull and OutOfMemory."""
        if self.task.model is None or self.task.buffer is not None:
            return
        if not self.client.results.has(self.task):
            self.client.results.clear()  # before another model takes its room
        begins = self.task.trains and self.task.server_round <= 1
        if begins and (line := await in_thread(room_of, self.task, self._models.folder)):
            self.client.output.info("room", line)
        await in_thread(check_room, self.task, self._models)
        if self.client.trains_here:
            await in_thread(check_ranks_memory, self.task, memory_of_ranks)

    def _wait_longer(self, seconds: float) -> None:
        """Extend the time limit by what the download took."""
        if self.limit is not None and (end := self.limit.when()) is not None:
            self.limit.reschedule(end + seconds)

    async def _contribute(self, session: ClientSession, account: PrivacySpending, admitted: AdmittedSum) -> Vector:
        """The vector to upload, when that is due, while R0 and R1 run; ends at once when the exchange does."""
        encoded, keys_known, keys_exchanged = asyncio.Event(), asyncio.Event(), asyncio.Event()
        pad = self.client.kit.policy.pad_seconds
        received: asyncio.Future[ModelState | None] = asyncio.get_running_loop().create_future()

        async def protocol() -> NoReturn:
            await self._exchange_keys(session, account)
            keys_known.set()
            await in_thread(self.client.know_model, self.task, await received)  # while the app trains
            keys_exchanged.set()
            if encoded.is_set() and not pad:  # the upload begins now
                await asyncio.Event().wait()
            await self._watch()

        async def work() -> Vector:
            try:
                model = await self._model()
                await in_thread(admitted.check_model, model)
            except ProtocolViolation:
                await keys_known.wait()  # chance does not decide what has left this client before it refuses
                raise
            received.set_result(model)
            vector = await self._update.vector(account.encoding, model)
            encoded.set()
            await keys_exchanged.wait()
            elapsed = self.client.clock() - self._started
            await self.client.sleep(seconds_to_pad(elapsed, pad=pad, limit=self.task.seconds))
            return vector

        return await guarded(work(), protocol())

    async def _watch(self) -> NoReturn:
        """Raise, while the worker still trains, if the exchange has failed or continues without this client."""
        await self._channel.poll("survivors", SurvivorsOut)
        raise ProtocolViolation(Check.OWN_ID_MISSING, "the survivors are named before this client sent its vector")

    # --- the protocol -------------------------------------------------------------------------------------------

    def _session(self, parameters: RoundParameters) -> ClientSession:
        kit = self.client.kit
        return ClientSession(
            parameters=parameters,
            client_id=kit.client_id,
            identity=kit.identity,
            roster=kit.roster.keys,
            min_cohort=kit.policy.min_cohort,
            min_threshold=kit.policy.min_threshold,
            randomness=self.client.randomness,
        )

    async def _follow_transcript(self) -> None:
        """Refuse an exchange whose transcript hides, skips or forges earlier ones."""
        started = self.client.clock()

        async def fetch(after: str) -> TranscriptOut | None:
            return await self.client.transport.get("/v1/transcript", TranscriptOut, after=after)

        traced = self.client.kit.policy.traces_models
        if news := await self.client.transcript.follow(self.task, fetch, whole_run=traced):
            self._channel.log("transcript", news, started)

    async def _exchange_keys(self, session: ClientSession, account: PrivacySpending) -> None:
        """R0 and R1: nothing in them depends on the update."""
        started = self.client.clock()
        cohort = self.task.cohort
        keys = secagg_codec.advertisement_to_wire(session.advertise())
        listed = await self._channel.step("advertisement", keys, "cohort", CohortOut)
        dealt = await in_thread(session.share_keys, secagg_codec.cohort_from_wire(listed, cohort))
        await in_thread(account.confirm, session.verified_clients)
        answer = secagg_codec.key_shares_to_wire(dealt)
        delivered = await self._channel.step("key-shares", answer, "key-shares", DeliveryOut)
        delivery = secagg_codec.delivery_from_wire(delivered, cohort)
        try:
            await in_thread(session.receive_shares, delivery)
        except ProtocolViolation as refusal:
            if refusal.check not in _COMPLAINTS or refusal.peer is None:
                raise
            complaint = await self._complain(session, delivery, refusal.peer)
            raise BadDealing(refusal, complaint) from refusal
        self._channel.log("keys", f"exchanged with {len(delivery.shares)} of {len(delivery.sharers)} clients", started)

    async def _complain(self, session: ClientSession, delivery: ShareDelivery, dealer: int) -> ComplaintIn:
        """The proof against a neighbour that signed what was delivered in its name; else ProtocolViolation."""
        answer = await self._channel.poll(f"key-shares/{dealer}", DealingOut)
        dealing = secagg_codec.dealing_from_wire(dealer, answer)
        return secagg_codec.complaint_to_wire(await in_thread(session.complain, delivery, dealing))

    async def _upload(
        self, session: ClientSession, vector: Vector
    ) -> tuple[SurvivorsOut | None, Callable[..., Awaitable[SurvivorsOut | None]]]:
        """R2: mask in place and send, part by part; then end the upload.

        Returns the survivors if the server names them with its answer, and what ends the upload again.
        """
        parts = await in_thread(
            session.mask_parts,
            vector,
            part_words=PART_BYTES // vector.itemsize,
            threads=self.client.threads,
            masker=self._update.encoder.apply_masks,
        )
        digest = await self._channel.upload(parts, vector.nbytes, "masked and sent")
        self._update.encoder.close()
        # Masked in place: a server that lost parts of it gets the same bytes again.
        witness = self._update.witness
        manifest = ManifestIn(digest=digest, size=vector.nbytes, pads=witness.pads.commitment if witness else None)
        end_upload = partial(self._channel.end_upload, manifest, lambda: cut_parts(vector))
        return await end_upload(wait=LONG_POLL_SECONDS), end_upload

    async def _unmask(
        self,
        session: ClientSession,
        admitted: AdmittedSum,
        named: SurvivorsOut | None,
        send_again: Callable[[], Awaitable[object]],
    ) -> None:
        """R3 and R4: agree on who survived, then release one share for each, once."""
        answer = named if named is not None else await self._channel.poll("survivors", SurvivorsOut, send_again)
        started = self.client.clock()
        survivors = secagg_codec.survivors_from_wire(answer, self.task.cohort)
        signature = session.sign_survivors(survivors)
        agreed = secagg_codec.consistency_to_wire(signature, await self._norm_proof(session.outcome))
        ledger, transcript = self.client.ledger, self.client.transcript
        await in_thread(
            admitted.agree, self.client.kit.client_id, survivors.survivors, present=session.verified_clients
        )
        outcome = session.outcome
        # On disk before the signature is on the wire: from then on the transcript has to contain this exchange.
        record = await in_thread(transcript.sign, self.task, outcome, self.client.kit.roster)
        agree_again = partial(self._agree_again, survivors, agreed, send_again)
        collected = await self._channel.step("consistency", agreed, "consistency", SignaturesOut, agree_again)
        signatures = secagg_codec.signatures_from_wire(collected)
        released = await in_thread(session.unmask, signatures)
        await in_thread(transcript.complete, record, outcome, signatures)
        # On disk before it is on the wire: no restart can make these shares leave twice.
        await in_thread(ledger.unmask, self.task.run, self.task.exchange)
        if self._update.contributes:
            self._update.count()
        if self.task.buffer is not None:
            await in_thread(self.client.pending.mark_spent)
        await self._channel.put("unmask", secagg_codec.unmask_to_wire(released))
        self._channel.trace("unmask", started)
        self._channel.log("done", f"in the sum of {len(survivors.survivors)} clients", self._started)

    async def _norm_proof(self, outcome: Outcome) -> bytes:
        """The proof of the norm of this client's update; empty if none is asked for."""
        witness = self._update.witness
        if (witness is None) != (not outcome.coin):
            raise ProtocolViolation(Check.MALFORMED, "a coin belongs to norm proofs, and only to them")
        if witness is None:
            return b""
        started, client = self.client.clock(), self.client
        proof = await in_thread(witness.prove, outcome, client.kit.client_id, client.randomness, client.threads)
        self._channel.log("proof", f"of the norm, {formatting.size(len(proof))}", started)
        return proof

    async def _agree_again(
        self, survivors: Survivors, agreed: ConsistencyIn, send_again: Callable[[], Awaitable[object]]
    ) -> None:
        """Send the update again, and the signature once the server has the same survivors; others are refused."""
        await send_again()
        answer = await self._channel.poll("survivors", SurvivorsOut, send_again)
        if secagg_codec.survivors_from_wire(answer, self.task.cohort) != survivors:
            raise ProtocolViolation(
                "survivors-changed",
                "the server names other survivors than those that this client signed: an older state of it was put "
                "back, or it hides what is summed",
            )
        await self._channel.put("consistency", agreed)


def _without_file(error: ReplyError) -> ManifestIn:
    """The reply of a client that has an error in place of records."""
    return ManifestIn(digest=update_digest(0, ()).hex(), size=0, error=error)
