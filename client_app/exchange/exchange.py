"""A client's part in one exchange, from the task to the last share.

Secure (docs/protocol.md): the keys are exchanged (R0, R1) while the worker trains and its update is encoded; then it is
masked and uploaded (R2), the survivors are signed (R3) and the shares released (R4). If the local work fails, a vector
that adds nothing takes its place, unless the policy reports failures. Plain: the message goes to the app, its reply or
the error to the server. An error in any step ends the exchange for this client; the caller withdraws from it.

A server that is away ends nothing: requests are sent again for as long as the exchange may last (`take_part`), and the
local work goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal, NoReturn, TypeAlias, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from client_app.exchange.client import Client
from client_app.exchange.contribution import seconds_to_pad, show_failure, show_nothing, tells_failures
from client_app.exchange.models import MODELS_FOLDER, Models
from client_app.exchange.update_encoder import UpdateEncoder
from client_app.exchange.upload import Parts, cut_parts, read_parts, send_missing_parts, send_parts
from client_app.exchange.withdrawal import BadDealing, plain_error
from client_app.http.transport import LONG_POLL_SECONDS
from client_app.ranks.messages import LocalAnswer
from client_app.records.aggregated_rounds import AggregatedRounds
from client_app.records.ledger import note_task
from fedcore.codec import AnyEncoding, encode, encode_nothing
from fedcore.errors import AppError, FedcoreError, ProtocolViolation, Refused, RoundFailed, WorkerDied
from fedcore.federation.admission.admit import Admitted, AdmittedSum, admit
from fedcore.federation.admission.draws import answer_draw
from fedcore.federation.admission.messages import check_message
from fedcore.federation.admission.privacy import PrivacySpending
from fedcore.federation.transcript import TranscriptOut
from fedcore.monitoring import formatting
from fedcore.run.groups import is_draw
from fedcore.secagg import (
    Check,
    ClientSession,
    RoundParameters,
    ShareDelivery,
)
from fedcore.state import ModelState
from fedcore.system.concurrency import guarded, in_thread
from fedcore.wire import secagg_codec
from fedcore.wire.base import Message
from fedcore.wire.chunks import PART_BYTES, update_digest
from fedcore.wire.problems import ProblemKind
from fedcore.wire.secagg import CohortOut, DealingOut, DeliveryOut, SignaturesOut, SurvivorsOut
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import ComplaintIn, ManifestIn, ReplyError

POLL_PAUSE: Final = 0.05
"""Seconds between two polls, so that a server that does not hold them gets no busy loop out of its clients."""

_SPANS: Final = {"model": "download", "upload": "mask and upload", "done": "take part"}
"""Names of stages as spans."""
_COMPLAINTS: Final = frozenset({Check.SHARE_UNSEALING, Check.UNCOMMITTED_SHARE})
"""Checks that prove a neighbour's fault, unless the server lies."""

Out = TypeVar("Out", bound=Message)
Vector: TypeAlias = NDArray[np.uint64]


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


def exchange_path(run: str, exchange: int) -> str:
    """The prefix of the paths of an exchange's routes."""
    return f"/v1/runs/{quote(run, safe='')}/exchanges/{exchange}"


@dataclass(slots=True, kw_only=True)
class _ClientExchange:
    """The steps of one exchange."""

    task: Task
    admitted: Admitted
    client: Client
    limit: asyncio.Timeout | None = None
    _started: float = field(init=False)
    _aggregated: AggregatedRounds = field(init=False)
    _contributes: bool = field(default=False, init=False)
    _encoder: UpdateEncoder = field(init=False)

    def __post_init__(self) -> None:
        client = self.client
        self._encoder = UpdateEncoder(
            gpu=client.gpu_uploads, randomness=client.randomness, warn=partial(client.output.warning, "encode")
        )
        self._started = self.client.clock()
        self._aggregated = AggregatedRounds(self.client.state_dir)

    @property
    def _trained_for(self) -> Task:
        """The task that the update was trained for: in an asynchronous run an earlier one."""
        trained = self.client.pending.task
        return trained if self.task.buffer is not None and trained is not None else self.task

    async def take_part(self) -> None:
        """Take part in an exchange of any kind."""
        if self.task.aggregation == "plain":
            await self.plain()
        elif is_draw(self.task):
            await self.draw()
        else:
            await self.secure()

    async def draw(self) -> None:
        """Name this client's place among the groups that are drawn."""
        await self._follow_transcript()
        client = self.client
        place = await in_thread(
            answer_draw, self.task, client.kit, client.ledger, client.kit.identity, client.randomness
        )
        await self._put("place", place)
        self._say("draw", f"named its place among {len(self.task.cohort)} clients", self._started)

    async def secure(self) -> None:
        """R0 to R4, once the transcript is known to lead up to them."""
        self._aggregated.begin(self._trained_for)
        await self._follow_transcript()
        model, model_hash = await self._model()
        admitted = await in_thread(self.admitted.admit_sum, model, self.client.transcript.chain)
        account = admitted.account(self.client.kit.client_id)
        session = self._session(admitted.parameters(model_hash))
        try:
            vector = await self._contribute(session, account, model)
            await in_thread(account.spend)
            await self._upload(session, vector)
            await self._unmask(session, admitted)
        finally:
            session.abandon()
            self._encoder.close()

    async def plain(self) -> None:
        """Pass the message to the app, and send its reply, or the error."""
        self._aggregated.begin(self.task)
        message, _ = await self._model()
        content = message.path if message else None
        await in_thread(check_message, self.task, content, self.client.agreed, self.client.kit.policy)
        started = self.client.clock()
        cache = self.client.results
        try:
            local = await cache.get_or_run(self.task, lambda: self._run_on(content), keep_failure=False)
        except (AppError, WorkerDied) as error:
            show_failure(self.client.output, error)
            await self._put("manifest", _without_file(plain_error(error)))
            return
        self._say(self.task.message_type, f"{local.examples} examples {_metrics_text(local)}", started)
        if local.error is not None:
            await self._put("manifest", _without_file(local.error))
            return
        size = cache.model.stat().st_size
        digest = await self._send(read_parts(cache.model), size, "sent")
        manifest = ManifestIn(digest=digest, size=size, examples=local.examples, values=dict(local.metrics))
        await self._end_upload(manifest, lambda: read_parts(cache.model))
        self._aggregated.add(self.task)

    # --- the local work -----------------------------------------------------------------------------------------

    async def _model(self) -> tuple[ModelState | None, bytes | None]:
        """The global model and the SHA-256 of the very file that it was read from."""
        reference = self.task.model
        if reference is None:
            return None, None
        if self.task.buffer is not None:  # ctx has the base of each update; the newest model is not needed
            return ModelState.open(self.client.pending.base), bytes.fromhex(reference.sha256)
        started = self.client.clock()
        models = Models(self.client.state_dir / MODELS_FOLDER)
        path = models.path(reference.sha256)
        if not await in_thread(models.has, reference.sha256):
            received = await models.fetch(reference, self.client.transport, self._path("model"))
            self._say("model", f"received {formatting.size(received)}", started)
            self._wait_longer(self.client.clock() - started)
        try:
            return ModelState.open(path), bytes.fromhex(reference.sha256)
        except FedcoreError as error:
            raise ProtocolViolation("model-malformed", str(error)) from None

    def _wait_longer(self, seconds: float) -> None:
        """Extend the time limit by what the download took."""
        if self.limit is not None and (end := self.limit.when()) is not None:
            self.limit.reschedule(end + seconds)

    async def _contribute(self, session: ClientSession, account: PrivacySpending, model: ModelState | None) -> Vector:
        """The vector to upload, when that is due, while R0 and R1 run; ends at once when the exchange does."""
        made, keyed = asyncio.Event(), asyncio.Event()
        pad = self.client.kit.policy.pad_seconds

        async def protocol() -> NoReturn:
            await self._exchange_keys(session, account)
            keyed.set()
            if made.is_set() and not pad:  # the upload begins now
                await asyncio.Event().wait()
            await self._watch()

        async def work() -> Vector:
            vector = await self._update_or_nothing(account.encoding, model)
            made.set()
            await keyed.wait()
            elapsed = self.client.clock() - self._started
            await self.client.sleep(seconds_to_pad(elapsed, pad=pad, limit=self.task.seconds))
            return vector

        return await guarded(work(), protocol())

    async def _update_or_nothing(self, encoding: AnyEncoding, model: ModelState | None) -> Vector:
        """The encoded update, ready to be masked; a vector that adds nothing to the sum if there is none."""
        try:
            vector = await self._encode(encoding, model, await self._work(model))
            self._contributes = True
            return vector
        except Exception as error:
            # Of any type: an unforeseen error may depend on the data as well.
            if tells_failures(self.task, self.client.kit.policy):
                raise
            show_nothing(self.client.output, error)
        # By the same encoder, so that masking it takes as long as an update's masking does.
        return (await in_thread(self._encoder.encode, partial(encode_nothing, encoding), encoding.words)).words

    async def _watch(self) -> NoReturn:
        """Raise, while the worker still trains, if the exchange has failed or continues without this client."""
        await self._poll("survivors", SurvivorsOut)
        raise ProtocolViolation(Check.OWN_ID_MISSING, "the survivors are named before this client sent its vector")

    async def _work(self, model: ModelState | None) -> LocalAnswer:
        """The app's result; the cached one for a repeated exchange."""
        started, cache = self.client.clock(), self.client.results
        if self.task.buffer is not None:
            if self.client.pending.answer is None:
                raise AppError("the work for this sum had failed")
            return self.client.pending.answer
        again = " (a repeated exchange; the app does not run again)" if cache.has(self.task) else ""
        keep_failure = not tells_failures(self.task, self.client.kit.policy)
        local = await cache.get_or_run(self.task, lambda: self._run_app(model), keep_failure=keep_failure)
        self._say(self.task.message_type, f"{local.examples} examples {_metrics_text(local)}{again}", started)
        return local

    async def _run_app(self, model: ModelState | None) -> LocalAnswer:
        local = await self._run_on(model.path if model else None)
        if local.trained != self.task.trains:
            raise AppError("the worker returned a model that was not requested, or none although one was")
        return local

    async def _run_on(self, sent: Path | None) -> LocalAnswer:
        """Run the app on the model, or on a plain message; raises NotEligible once the machine may not train."""
        counted = self._aggregated.last(self.task.run)

        async def work() -> LocalAnswer:
            async with self.client.pending.ranks:
                return await self.client.work.run(self.task, sent, self.client.results.model, counted=counted)

        return await guarded(work(), self.client.eligibility.lost())

    async def _encode(self, encoding: AnyEncoding, model: ModelState | None, local: LocalAnswer) -> Vector:
        """The encoded update, clipped and rounded, ready to be masked."""
        made = self.client.pending.local if self.task.buffer is not None else self.client.results.model
        state = ModelState.open(made) if local.trained else None
        (factor,) = self.task.updates_of([self.client.kit.client_id]).values()
        started = self.client.clock()
        fill = partial(
            encode,
            encoding,
            base=model if self.task.trains else None,
            local=state,
            examples=local.examples,
            metrics=local.metrics,
            threads=self.client.threads,
            factor=factor,
        )
        encoded = await in_thread(self._encoder.encode, fill, encoding.words)
        notes = [f"{encoding.field_bits}-bit fields"] + ["on the device"] * self._encoder.on_device
        too_large = "too large for the scales, so the sum stays closed" if encoded.overflowed else "clipped"
        notes += [f"{encoded.clipped} elements {too_large}"] if encoded.clipped else []
        notes += ["shrunk to the L2 bound"] if encoded.shrunk else []
        self._say("encode", ", ".join(notes), started)
        return encoded.words

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

        if news := await self.client.transcript.follow(self.task, fetch):
            self._say("transcript", news, started)

    async def _exchange_keys(self, session: ClientSession, account: PrivacySpending) -> None:
        """R0 and R1: nothing in them depends on the update."""
        started = self.client.clock()
        cohort = self.task.cohort
        keys = secagg_codec.advertisement_to_wire(session.advertise())
        listed = await self._step("advertisement", keys, "cohort", CohortOut)
        dealt = await in_thread(session.share_keys, secagg_codec.cohort_from_wire(listed, cohort))
        await in_thread(account.confirm, session.heard)
        answer = secagg_codec.key_shares_to_wire(dealt)
        delivered = await self._step("key-shares", answer, "key-shares", DeliveryOut)
        delivery = secagg_codec.delivery_from_wire(delivered, cohort)
        try:
            await in_thread(session.receive_shares, delivery)
        except ProtocolViolation as refusal:
            if refusal.check not in _COMPLAINTS or refusal.peer is None:
                raise
            complaint = await self._complain(session, delivery, refusal.peer)
            raise BadDealing(refusal, complaint) from refusal
        self._say("keys", f"exchanged with {len(delivery.shares)} of {len(delivery.sharers)} clients", started)

    async def _complain(self, session: ClientSession, delivery: ShareDelivery, dealer: int) -> ComplaintIn:
        """The proof against a neighbour that signed what was delivered in its name; else ProtocolViolation."""
        answer = await self._poll(f"key-shares/{dealer}", DealingOut)
        dealing = secagg_codec.dealing_from_wire(dealer, answer)
        return secagg_codec.complaint_to_wire(await in_thread(session.complain, delivery, dealing))

    async def _upload(self, session: ClientSession, vector: Vector) -> None:
        """R2: mask in place and send, part by part; then end the upload."""
        parts = await in_thread(
            session.mask_parts,
            vector,
            part_words=PART_BYTES // vector.itemsize,
            threads=self.client.threads,
            masker=self._encoder.apply_masks,
        )
        digest = await self._send(parts, vector.nbytes, "masked and sent")
        self._encoder.close()
        # Masked in place: a server that lost parts of it gets the same bytes again.
        await self._end_upload(ManifestIn(digest=digest, size=vector.nbytes), lambda: cut_parts(vector))

    async def _unmask(self, session: ClientSession, admitted: AdmittedSum) -> None:
        """R3 and R4: agree on who survived, then release one share for each, once."""
        answer, started = await self._poll("survivors", SurvivorsOut), self.client.clock()
        survivors = secagg_codec.survivors_from_wire(answer, self.task.cohort)
        agreed = secagg_codec.consistency_to_wire(session.sign_survivors(survivors))
        ledger, transcript = self.client.ledger, self.client.transcript
        await in_thread(admitted.agree, self.client.kit.client_id, survivors.survivors, present=session.heard)
        outcome = session.outcome
        # On disk before the signature is on the wire: from then on the transcript has to contain this exchange.
        record = await in_thread(transcript.sign, self.task, outcome, self.client.kit.roster)
        collected = await self._step("consistency", agreed, "consistency", SignaturesOut)
        signatures = secagg_codec.signatures_from_wire(collected)
        released = await in_thread(session.unmask, signatures)
        await in_thread(transcript.complete, record, outcome, signatures)
        # On disk before it is on the wire: no restart can make these shares leave twice.
        await in_thread(ledger.unmask, self.task.run, self.task.exchange)
        if self._contributes:
            self._aggregated.add(self._trained_for)
        if self.task.buffer is not None:
            await in_thread(self.client.pending.mark_spent)
        await self._put("unmask", secagg_codec.unmask_to_wire(released))
        self._trace("unmask", started)
        self._say("done", f"in the sum of {len(survivors.survivors)} clients", self._started)

    # --- the wire -----------------------------------------------------------------------------------------------

    def _path(self, route: str) -> str:
        return f"{exchange_path(self.task.run, self.task.exchange)}/{route}"

    async def _put(self, route: str, message: Message) -> None:
        await self.client.transport.send("PUT", self._path(route), message)

    async def _step(self, route: str, message: Message, following: str, answer: type[Out]) -> Out:
        """Send a message and get the result of its stage, in the same request if that comes soon."""
        result = await self.client.transport.put(self._path(route), message, answer, wait=LONG_POLL_SECONDS)
        return result if result is not None else await self._poll(following, answer)

    async def _poll(self, route: str, answer: type[Out]) -> Out:
        """Ask until the server has an answer; `take_part` bounds how long."""
        while True:
            result = await self.client.transport.get(self._path(route), answer, wait=LONG_POLL_SECONDS)
            if result is not None:
                return result
            await asyncio.sleep(POLL_PAUSE)

    async def _send(self, parts: Parts, size: int, done: str) -> str:
        """The update, part by part; returns the digest for its manifest."""
        started = self.client.clock()
        form: Literal["masked", "readable"] = "masked" if self.task.aggregation == "secure" else "readable"
        await in_thread(self.client.ledger.send, self.task.run, self.task.exchange, form, size)
        digest = await send_parts(self.client.transport, self._path("update/parts"), parts, size=size)
        self._say("upload", f"{done} {formatting.size(size)}", started)
        return digest

    async def _end_upload(self, manifest: ManifestIn, parts: Callable[[], Parts]) -> None:
        """End the upload; if the server restarted meanwhile, send again what it lost."""
        while True:
            started = self.client.clock()
            try:
                return await self._put("manifest", manifest)
            except Refused as refused:
                if refused.kind != ProblemKind.PARTS_MISSING:
                    raise
            path = self._path("update/parts")
            count = await send_missing_parts(self.client.transport, path, parts(), size=manifest.size)
            self._say("upload", f"sent {count} parts again, which the server had lost", started)
            await asyncio.sleep(POLL_PAUSE)

    def _say(self, stage: str, text: str, since: float) -> None:
        now = self.client.clock()
        self.client.output.info(stage, text, seconds=round(now - since, 3))
        self._trace(_SPANS.get(stage, stage), since)

    def _trace(self, name: str, since: float) -> None:
        self.client.traces.record(name, self.task.run, self.task.exchange, began=since, ended=self.client.clock())


def prepare_state_dir(folder: Path) -> Path:
    """Create the agent's folder, readable by its owner alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / MODELS_FOLDER).mkdir(mode=0o700, exist_ok=True)
    return folder


def _without_file(error: ReplyError) -> ManifestIn:
    """The reply of a client that has an error in place of records."""
    return ManifestIn(digest=update_digest(0, ()).hex(), size=0, error=error)


def _metrics_text(local: LocalAnswer) -> str:
    """The client's metrics for its own log: they leave the machine inside the sum only."""
    return " ".join(f"{name}={value:.4g}" for name, value in local.metrics.items() if isinstance(value, int | float))
