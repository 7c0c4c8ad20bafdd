"""The secure exchange: the protocol's server over the common stages, and the masked sum."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedcore.codec import AnyEncoding, BoundedEncoding, Decoded, Encoding, decode, write_change
from fedcore.codec.bounded.proofs import NormProofs, proof_bytes
from fedcore.errors import PeerError, ProtocolViolation, RoundFailed, StorageFull
from fedcore.federation.transcript import ExchangeRecord
from fedcore.run import room
from fedcore.run.buffer import staleness_metrics
from fedcore.run.engine.outcome import AggregateResult, ExchangeOutcome
from fedcore.run.exchange import encoding_of, round_parameters
from fedcore.secagg import Check, Fault, Randomness, ServerRound, ServerStage
from fedcore.state import ModelState, sha256_file
from fedcore.system.concurrency import in_thread
from fedcore.wire import secagg_codec
from fedcore.wire.base import Message
from fedcore.wire.problems import ProblemKind
from fedcore.wire.secagg import (
    AdvertisementIn,
    CohortOut,
    ConsistencyIn,
    DealingOut,
    DeliveryOut,
    KeySharesIn,
    SignaturesOut,
    SurvivorsOut,
    UnmaskIn,
)
from fedcore.wire.uploads import ComplaintIn, ManifestIn
from fedcore.wire.watch import ServerViewOut
from server_app.exchanges.context import ExchangeContext
from server_app.exchanges.exchange import Exchange
from server_app.exchanges.receipts import retry_until_stored
from server_app.exchanges.sums.masked_sum import UPDATES, MaskedSum
from server_app.exchanges.sums.sum_file import WORD_BYTES, SumFile
from server_app.exchanges.transfers import UpdateLimits
from server_app.operation.server_view import fields, first_values
from server_app.rejection import Rejection
from server_app.storage.blobs import discard, link
from server_app.storage.database import Change
from server_app.storage.transcript_tables import record_completed, record_opened

ADVERTISE, SHARE, INPUT, CONSISTENCY, UNMASK = (
    ServerStage.ADVERTISE.value,
    ServerStage.SHARE.value,
    ServerStage.INPUT.value,
    ServerStage.CONSISTENCY.value,
    ServerStage.UNMASK.value,
)

LEAST_MODEL: Final = room.LEAST_MODEL
"""Bytes of a model whose sum is kept."""
MOST_WORDS: Final = 0.75
"""Of the bytes of the model: a sum that is hardly smaller saves no room."""
_PROOF_SECONDS: Final = 120.0
"""More time for R3 with norm proofs, of which a client makes one in some ten seconds."""

_NEVER_HONEST: Final = frozenset(
    {
        Check.MALFORMED,
        Check.LOW_ORDER_POINT,
        Check.DUPLICATE_KEY,
        Check.WRONG_RECIPIENTS,
        Check.SHARES_FOR_BOTH,
        Check.INCONSISTENT_SURVIVORS,
    }
)
"""Checks at the server that only a message of a client's own making fails. Another roster or model, of which an honest
client may know no better, fails the signature of its keys before any of these."""

_MESSAGES: Final[Mapping[str, type[Message]]] = {
    "advertisement": AdvertisementIn,
    "key-shares": KeySharesIn,
    "manifest": ManifestIn,
    "consistency": ConsistencyIn,
    "unmask": UnmaskIn,
}


class SecureExchange(Exchange):
    """Drives one `ServerRound`. The server holds one sum, in a file, and nothing for each client.

    roster: client id -> raw Ed25519 key.
    """

    stage_names = (ADVERTISE, SHARE, INPUT, CONSISTENCY, UNMASK)
    steps: Mapping[str, str] = {
        "advertisement": ADVERTISE,
        "key-shares": SHARE,
        "part": INPUT,
        "manifest": INPUT,
        "consistency": CONSISTENCY,
        "unmask": UNMASK,
    }
    updates_folder = UPDATES

    def __init__(
        self,
        context: ExchangeContext,
        *,
        federation: str,
        roster: Mapping[int, bytes],
        roster_hash: bytes,
        randomness: Randomness = os.urandom,
    ) -> None:
        self.encoding: AnyEncoding = encoding_of(context.task)
        self._norms = NormProofs(self.encoding) if isinstance(self.encoding, BoundedEncoding) else None
        super().__init__(context, UpdateLimits(longest=self.encoding.words * WORD_BYTES, exact=True))
        model = context.task.model
        self._round = ServerRound(
            parameters=round_parameters(
                context.task,
                federation=federation,
                roster_hash=roster_hash,
                model_hash=bytes.fromhex(model.sha256) if model else None,
            ),
            roster=roster,
            randomness=randomness,
        )
        self._federation = federation
        self._roster_hash = roster_hash
        task = context.task
        self._sum = MaskedSum(self.services, task.run, task.exchange, key=context.key, words=self.encoding.words)

    @property
    def survivors(self) -> frozenset[int]:
        """Whose updates are in the sum, once that is decided."""
        return frozenset(self._round.survivors().survivors) if self.stages.is_past(INPUT) else frozenset()

    # --- leading --------------------------------------------------------------------------------

    def seconds_for(self, stage: str) -> float:
        """Masking and the upload come on top of the time for the local work, and a norm proof on that of its step."""
        settings = self.context.settings
        more = {INPUT: self.task.seconds, CONSISTENCY: _PROOF_SECONDS if self._norms is not None else 0.0}
        return settings.step_seconds + more.get(stage, 0.0)

    def deadline_of(self, client: int, end: float) -> float:
        """The model may still come while the keys are exchanged; the local work follows it."""
        if self.stages.current == INPUT:
            return self.deadline_with_work(client, end)
        return super().deadline_of(client, end)

    def begin(self, stage: str) -> None:
        """Make room for the sum."""
        if stage == INPUT:
            self._sum.open()

    def has_enough(self, stage: str) -> bool:
        """With over-selection, once as many updates are here as the strategy wanted, and a quorum."""
        enough = self.context.enough
        return stage == INPUT and enough > 0 and len(self.clients.done) >= max(enough, self.task.quorum)

    async def persist_stage(self, stage: str) -> None:
        """Write down the sum before its survivors are named.

        Before any share is asked for, have no vector of a single client left, and all norms checked.
        """
        if stage == INPUT:
            await self._sum.save()
        elif stage == CONSISTENCY:
            await self._sum.delete_vectors()
            if self._norms is not None:
                await self._check_norms(self._norms)

    async def _check_norms(self, norms: NormProofs) -> None:
        """Raise RoundFailed if an update in the sum is not proved to be within the bound.

        Its vector cannot be taken out of the sum any more. Nobody has released a share, so the sum stays closed, and
        the next attempt asks the others for what they have trained already.
        """
        outcome = self._round.outcome()
        refused = await in_thread(norms.refused, outcome, self.services.threads)
        for client in refused:
            self.blame(client, Fault.NORM_PROOF)
        if refused:
            raise RoundFailed("the norm of an update is not proved to be within clip-norm")
        if missing := norms.missing(outcome.survivors):
            names = ", ".join(self.services.names[client] for client in missing)
            raise RoundFailed(f"{names} left before it proved the norm of its update")

    def finish_stage(self, stage: str) -> Sequence[Change]:
        """Tell the protocol which clients have left, and end its stage.

        Clients may sign the survivors as soon as they are named, and release shares once they are shown signatures. So
        the transcript's record is opened, and completed, in the transactions before that.
        """
        self._drop_all()
        self._round.close_stage()
        if stage == INPUT:
            outcome = self._round.outcome()
            record = ExchangeRecord.of(
                self.task, federation=self._federation, roster_hash=self._roster_hash, outcome=outcome
            )
            return (record_opened(record, outcome),)
        if stage == CONSISTENCY:
            return (record_completed(self._round.outcome(), self._round.signatures().signatures),)
        return ()

    def _drop_all(self) -> None:
        """Drop clients that the exchange has dropped, and those whose message was applied but could not be stored."""
        for client in self.clients.reasons.keys() | (self._round.answered - self.clients.done):
            self._round.drop(client)

    async def cleanup_stage(self, stage: str) -> None:
        """While clients sign, the vectors go."""
        if stage == INPUT:
            self._sum.prepare_unmasking()

    def free_memory(self) -> None:
        """Free the sum's room in the spool."""
        self._sum.free()

    async def delete_files(self) -> None:
        """Delete the files of the sum."""
        await self._sum.delete()

    async def restore_updates(
        self, folded: Mapping[str, Any] | None, waiting: frozenset[int], manifests: Mapping[int, ManifestIn]
    ) -> None:
        """The sum as it was kept, and the vectors that are not in it."""
        clients = self.survivors if self.stages.is_past(INPUT) else waiting
        if self.stages.current == INPUT or self.stages.is_past(INPUT):
            await self._sum.restore(folded, {client: manifests[client].digest for client in clients})
        if self.stages.is_past(INPUT):
            await self._sum.delete_vectors()

    def replay(self, client: int, step: str, body: bytes) -> None:
        """Tell the protocol what was accepted before a restart."""
        self._receive(client, _MESSAGES[step].model_validate_json(body))

    def make_outcome(self, **fields: Any) -> ExchangeOutcome:
        """Clients may have sent shares once the last stage has begun, here or by the database's word."""
        unmasked = self.stages.is_past(CONSISTENCY) or self._stored_stage == UNMASK
        if unmasked:
            self.usage.updates = dict.fromkeys(sorted(self.survivors), self.encoding.words * WORD_BYTES)
        return super().make_outcome(**{"unmasked": unmasked, **fields})

    async def finish(self) -> ExchangeOutcome:
        """Rebuild the secrets, take the masks off the sum, and decode it."""
        self._drop_all()
        try:
            await in_thread(self._round.close_stage)  # seconds for large cohorts
        finally:
            self._blame_at_fault()
        total = await retry_until_stored(self._total, f"the result of exchange {self.task.exchange}")
        return self.make_outcome(total=total)

    async def _total(self) -> AggregateResult:
        file = await self._sum.for_unmasking()
        masked = await in_thread(file.beginning)
        has_model = self.encoding.layout is not None and self.context.model is not None
        path = self.services.spool.create() if has_model else None
        try:
            with self.services.traces.span("decode", self.task.run, self.task.exchange):
                decoded = await in_thread(self._decode, file, path)
                ages = self.task.staleness_of(self.survivors).values()
                decoded = replace(decoded, metrics={**decoded.metrics, **staleness_metrics(ages)})
            self._note_view(masked, decoded)
            key = f"{self.context.key}/mean" if path is not None else None
            sha256 = await in_thread(sha256_file, path) if path is not None else ""
            if path is not None and key is not None:
                await retry_until_stored(lambda: self.services.objects.put(path, key), "the new model")
            words = await self._keep_words(file, decoded)
        except PeerError as error:
            raise RoundFailed(f"{error}; the sum cannot tell which one") from error
        finally:
            if path is not None:
                discard(path)
        return AggregateResult.of(decoded, key, sha256, words)

    async def _keep_words(self, file: SumFile, decoded: Decoded) -> str | None:
        """The key under which the decoded sum stays, for the time when the model goes; None if that saves little."""
        model = decoded.state.layout.nbytes if decoded.state is not None else 0
        if model < LEAST_MODEL or self.encoding.words * WORD_BYTES > MOST_WORDS * model:
            return None
        key, draft = f"{self.context.key}/words", self.services.spool.unused()
        try:
            await in_thread(link, file.path, draft)
            await retry_until_stored(lambda: self.services.objects.put(draft, key), "the sum")
        finally:
            discard(draft)
        return key

    def _note_view(self, masked: NDArray[np.uint64], decoded: Decoded) -> None:
        """Record what the server can see, if there is a model and this process received the updates."""
        if self._sum.first is None or decoded.state is None:
            return
        client, update = self._sum.first
        bits, words = fields(update, self.encoding.field_bits)
        view = ServerViewOut(
            exchange=self.task.exchange,
            client=self.services.names[client],
            bits=bits,
            words=words,
            sum=fields(masked, self.encoding.field_bits)[1],
            mean=first_values(decoded.state),
        )
        self.services.server_view.note(self.task.run, view)

    def _decode(self, file: SumFile, path: Path | None) -> Decoded:
        file.apply_masks(self._round.mask_terms(), threads=self.services.threads)
        base, mapped = self.context.base or self.context.model, file.mapped()
        if self._norms is not None and not self._norms.agree_with(self._round.outcome(), mapped.words):
            raise PeerError("the sum is not that of the updates whose norms were proved", check="norm-proof-sum")
        decoded = decode(
            self.encoding,
            mapped.words,
            survivors=len(self.survivors),
            base=ModelState.open(base) if path is not None and base is not None else None,
            out_path=path,
            threads=self.services.threads,
            sums=self.task.queries,
            release=mapped.free_memory,
        )
        self._write_change(mapped.words, decoded)
        return decoded

    def _write_change(self, words: NDArray[np.uint64], decoded: Decoded) -> None:
        """What clients with slow lines get in place of the mean, if it is the next model; not without room for it."""
        encoding, path, mean = self.encoding, self.context.change, decoded.state
        if path is None or mean is None or decoded.failures or not isinstance(encoding, Encoding):
            return
        with suppress(StorageFull):
            write_change(encoding, words, mean, path, survivors=len(self.survivors), examples=decoded.examples)

    # --- the protocol's steps -------------------------------------------------------------------

    async def take_step(self, client: int, step: str, body: Message, digest: bytes) -> None:
        """R0, R1, R3 or R4; a client that sends what no honest client sends is blamed."""
        if isinstance(body, ConsistencyIn) and len(body.proof or b"") != (size := proof_bytes(self.encoding)):
            raise Rejection(ProblemKind.MALFORMED, f"a norm proof has {size} bytes in this exchange")
        try:
            await self.take(client, step, digest, body, lambda: self._receive(client, body))
        except ProtocolViolation as violation:
            if violation.check in _NEVER_HONEST:
                self.blame(client, Fault.MALFORMED_MESSAGE)
            raise

    def _receive(self, client: int, body: Message) -> None:
        match body:
            case AdvertisementIn():
                self._round.receive_advertisement(secagg_codec.advertisement_from_wire(client, body))
            case KeySharesIn():
                receivers = self._round.receivers(client)
                self._round.receive_shares(secagg_codec.key_shares_from_wire(client, body, *receivers))
            case ManifestIn():
                self._round.receive_input(client, bytes.fromhex(body.digest), body.pads or b"")
                if self._norms is not None and body.pads is not None:
                    self._norms.commitments[client] = body.pads
            case ConsistencyIn():
                self._round.receive_consistency(secagg_codec.consistency_from_wire(client, body))
                if self._norms is not None and body.proof is not None:
                    self._norms.proofs[client] = body.proof
            case UnmaskIn():
                owners = self._round.owners(client)
                self._round.receive_unmask(secagg_codec.unmask_from_wire(client, body, *owners))

    def cohort_for(self, client: int) -> CohortOut | None:
        """U1, once it is known."""
        if not self._has_passed(client, ADVERTISE):
            return None
        return secagg_codec.cohort_to_wire(self._round.advertised(client), self.task.cohort)

    def delivery_for(self, client: int) -> DeliveryOut | None:
        """U2 and the shares for this client, once they are there."""
        if not self._has_passed(client, SHARE):
            return None
        return secagg_codec.delivery_to_wire(self._round.delivery(client), self.task.cohort)

    def dealing_for(self, client: int, dealer: int) -> DealingOut:
        """What `dealer` signed about the shares that it dealt, for a client that could not open its own."""
        if not self._has_passed(client, SHARE):
            raise Rejection(ProblemKind.PROTOCOL_VIOLATION, "out-of-order: nothing was dealt yet", check="out-of-order")
        dealing = self._round.dealing(client, dealer)
        self._blame_at_fault()
        return secagg_codec.dealing_to_wire(dealing)

    def judge_complaint(self, client: int, complaint: ComplaintIn) -> None:
        """Judge a complaint. Complaints about a client that is blamed already are skipped, so few are judged."""
        if not self.stages.is_past(SHARE):
            raise Rejection(ProblemKind.PROTOCOL_VIOLATION, "out-of-order: nothing was dealt yet", check="out-of-order")
        if complaint.accused not in self.blamed:
            self._round.judge(secagg_codec.complaint_from_wire(client, complaint))
            self._blame_at_fault()

    def survivors_for(self, client: int) -> SurvivorsOut | None:
        """U3, once it is known."""
        if not self._has_passed(client, INPUT):
            return None
        return secagg_codec.survivors_to_wire(self._round.survivors(), self.task.cohort)

    def signatures_for(self, client: int) -> SignaturesOut | None:
        """The signatures over U3, once they are there."""
        if not self._has_passed(client, CONSISTENCY):
            return None
        return secagg_codec.signatures_to_wire(self._round.signatures())

    def _blame_at_fault(self) -> None:
        for client, fault in self._round.blamed.items():
            self.blame(client, fault)

    def _has_passed(self, client: int, stage: str) -> bool:
        self.require(client)
        return self.stages.is_past(stage)

    # --- uploads --------------------------------------------------------------------------------

    def check_manifest(self, manifest: ManifestIn) -> None:
        """Raise Rejection if the manifest reveals what must stay hidden."""
        if manifest.examples is not None or manifest.values or manifest.error is not None:
            raise Rejection(
                ProblemKind.MALFORMED, "in secure mode examples, metrics and their names travel in the sum only"
            )
        if (manifest.pads is None) != (self._norms is None):
            raise Rejection(ProblemKind.MALFORMED, "a commitment to pads belongs to norm proofs, and only to them")
        self.uploads.limits.check_size(manifest.size)

    async def add_update(self, client: int, manifest: ManifestIn) -> None:
        """R2: into the sum; if that fails half way the sum is spoilt, and the exchange with it."""
        await self._sum.add(client)
        self._receive(client, manifest)
