"""The secure exchange: the protocol's server over the common stages, and the masked sum."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedcore import conversions
from fedcore.codec import AnyEncoding, Decoded, decode
from fedcore.errors import FedcoreError, PeerError, ProtocolViolation, RoundFailed
from fedcore.exchange import ExchangeReply, encoding_of, round_parameters
from fedcore.secagg import Check, Fault, Randomness, ServerRound, ServerStage, apply_masks
from fedcore.state import ModelState
from fedcore.transcript import ExchangeRecord
from fedcore.wire import (
    AdvertisementIn,
    CohortOut,
    ComplaintIn,
    ConsistencyIn,
    DealingOut,
    DeliveryOut,
    KeySharesIn,
    ManifestIn,
    ProblemKind,
    SignaturesOut,
    SurvivorsOut,
    UnmaskIn,
)
from server_app.exchanges.context import ExchangeContext, ExchangeResult
from server_app.exchanges.exchange import Exchange
from server_app.exchanges.fold import WORD_BYTES, fold_file
from server_app.exchanges.uploads import UpdateLimits
from server_app.http.problems import Rejection
from server_app.storage.blobs import discard

ADVERTISE, SHARE, INPUT, CONSISTENCY, UNMASK = (
    ServerStage.ADVERTISE.value,
    ServerStage.SHARE.value,
    ServerStage.INPUT.value,
    ServerStage.CONSISTENCY.value,
    ServerStage.UNMASK.value,
)

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


class SecureExchange(Exchange):
    """Drives one `ServerRound`. The server holds one sum, and nothing for each client.

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
        self._sum: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._fold_lock = asyncio.Lock()

    @property
    def survivors(self) -> frozenset[int]:
        """Whose updates are in the sum, once that is decided."""
        return frozenset(self._round.survivors().survivors) if self.stages.is_past(INPUT) else frozenset()

    # --- leading --------------------------------------------------------------------------------

    def seconds_for(self, stage: str) -> float:
        """Masking and the upload come on top of the time for the local work."""
        settings = self.context.settings
        return settings.step_seconds + (self.task.seconds if stage == INPUT else 0.0)

    def begin(self, stage: str) -> None:
        """Make room for the updates and their sum."""
        if stage == INPUT:
            self.uploads.open()
            self._sum = np.zeros(self.encoding.words, np.uint64)

    async def close(self, stage: str) -> None:
        """Tell the protocol who has left, which is all that it ever hears of that, and end its stage."""
        for client in self.clients.reasons:
            self._round.drop(client)
        if stage == UNMASK:  # rebuilds the secrets: seconds for large cohorts
            try:
                await asyncio.to_thread(self._round.close_stage)
            finally:
                self._blame_who_was_found()
        else:
            self._round.close_stage()
        if stage == INPUT:
            await self._open_record()
        elif stage == CONSISTENCY:
            signatures = self._round.signatures().signatures
            await self.services.store.complete_record(self._round.outcome(), signatures)

    async def _open_record(self) -> None:
        """From here on clients may sign the survivors, so the transcript has to contain this exchange."""
        outcome = self._round.outcome()
        record = ExchangeRecord.of(
            self.task, federation=self._federation, roster_hash=self._roster_hash, outcome=outcome
        )
        await self.services.store.open_record(record, outcome)

    def release(self) -> None:
        """Let go of the sum."""
        self._sum = np.zeros(0, np.uint64)

    async def finish(self) -> ExchangeResult:
        """Take the masks off the sum, and decode it."""
        survivors = self.survivors
        try:
            decoded = await asyncio.to_thread(self._decode, len(survivors))
        except PeerError as error:
            raise RoundFailed(f"{error}; the sum cannot tell which one") from error
        return ExchangeResult(
            replies=(ExchangeReply.of_cohort(decoded),),
            survivors=survivors,
            examples=decoded.examples,
            metrics=decoded.metrics,
            decoded=decoded,
        )

    def _decode(self, survivors: int) -> Decoded:
        apply_masks(self._sum, self._round.mask_terms(), threads=self.services.threads)
        has_model = self.encoding.layout is not None and self.context.model is not None
        return decode(
            self.encoding,
            self._sum,
            survivors=survivors,
            base=ModelState.open(self.context.model) if has_model and self.context.model else None,
            out_path=self.context.folder / "mean.safetensors" if has_model else None,
            threads=self.services.threads,
            sums=self.task.queries,
        )

    # --- the protocol's steps -------------------------------------------------------------------

    async def take_advertisement(self, client: int, body: AdvertisementIn, digest: bytes) -> None:
        """R0."""
        message = conversions.advertisement_from_wire(client, body)
        receive = self._round.receive_advertisement
        await self._take(client, "advertisement", digest, lambda: receive(message))

    def cohort_for(self, client: int) -> CohortOut | None:
        """U1, once it is known."""
        if not self._has_passed(client, ADVERTISE):
            return None
        return conversions.cohort_to_wire(self._round.advertised(client), self.task.cohort)

    async def take_key_shares(self, client: int, body: KeySharesIn, digest: bytes) -> None:
        """R1."""
        await self._take(client, "key-shares", digest, lambda: self._receive_shares(client, body))

    def _receive_shares(self, client: int, body: KeySharesIn) -> None:
        self._round.receive_shares(conversions.key_shares_from_wire(client, body, *self._round.receivers(client)))

    def delivery_for(self, client: int) -> DeliveryOut | None:
        """U2 and the shares for this client, once they are there."""
        if not self._has_passed(client, SHARE):
            return None
        return conversions.delivery_to_wire(self._round.delivery(client), self.task.cohort)

    def dealing_for(self, client: int, dealer: int) -> DealingOut:
        """What `dealer` signed about the shares that it dealt, for a client that could not open its own."""
        if not self._has_passed(client, SHARE):
            raise Rejection(ProblemKind.PROTOCOL_VIOLATION, "out-of-order: nothing was dealt yet", check="out-of-order")
        dealing = self._round.dealing(client, dealer)
        self._blame_who_was_found()
        return conversions.dealing_to_wire(dealing)

    def hear(self, client: int, complaint: ComplaintIn) -> None:
        """Judge a complaint. Of a client that is blamed already nothing more is heard, so few are ever judged."""
        if not self.stages.is_past(SHARE):
            raise Rejection(ProblemKind.PROTOCOL_VIOLATION, "out-of-order: nothing was dealt yet", check="out-of-order")
        if complaint.accused not in self.blamed:
            self._round.judge(conversions.complaint_from_wire(client, complaint))
            self._blame_who_was_found()

    def survivors_for(self, client: int) -> SurvivorsOut | None:
        """U3, once it is known."""
        if not self._has_passed(client, INPUT):
            return None
        return conversions.survivors_to_wire(self._round.survivors(), self.task.cohort)

    async def take_consistency(self, client: int, body: ConsistencyIn, digest: bytes) -> None:
        """R3."""
        message = conversions.consistency_from_wire(client, body)
        receive = self._round.receive_consistency
        await self._take(client, "consistency", digest, lambda: receive(message))

    def signatures_for(self, client: int) -> SignaturesOut | None:
        """The signatures over U3, once they are there."""
        if not self._has_passed(client, CONSISTENCY):
            return None
        return conversions.signatures_to_wire(self._round.signatures())

    async def take_unmask(self, client: int, body: UnmaskIn, digest: bytes) -> None:
        """R4."""
        await self._take(client, "unmask", digest, lambda: self._receive_unmask(client, body))

    def _receive_unmask(self, client: int, body: UnmaskIn) -> None:
        self._round.receive_unmask(conversions.unmask_from_wire(client, body, *self._round.owners(client)))

    async def _take(self, client: int, step: str, digest: bytes, apply: Callable[[], None]) -> None:
        """A step of the protocol; who sends what no honest client sends is blamed."""
        try:
            await self.take(client, step, digest, apply)
        except ProtocolViolation as violation:
            if violation.check in _NEVER_HONEST:
                self.blame(client, Fault.MALFORMED_MESSAGE)
            raise

    def _blame_who_was_found(self) -> None:
        for client, fault in self._round.blamed.items():
            self.blame(client, fault)

    def _has_passed(self, client: int, stage: str) -> bool:
        self.require(client)
        return self.stages.is_past(stage)

    # --- uploads --------------------------------------------------------------------------------

    def check_manifest(self, manifest: ManifestIn) -> None:
        """Raise Rejection where the manifest tells what must stay hidden."""
        if manifest.examples is not None or manifest.values or manifest.error is not None:
            raise Rejection(
                ProblemKind.MALFORMED, "in secure mode examples, metrics and their names travel in the sum only"
            )
        self.uploads.limits.check_size(manifest.size)

    async def add_update(self, client: int, manifest: ManifestIn, path: Path | None) -> None:
        """R2: into the sum, one at a time; the vector is not kept."""
        assert path is not None  # noqa: S101 - a masked vector is never empty
        async with self._fold_lock:
            await asyncio.to_thread(self._fold, path)
            self._round.receive_input(client, bytes.fromhex(manifest.digest))
        discard(path)

    def _fold(self, path: Path) -> None:
        """Add the vector; if that fails half way the sum is spoilt, and the exchange with it."""
        try:
            fold_file(path, self._sum, threads=self.services.threads)
        except (OSError, FedcoreError) as error:
            failure = RoundFailed(f"a vector could not be added to the sum: {error}")
            self.spoil(failure)
            raise failure from error
