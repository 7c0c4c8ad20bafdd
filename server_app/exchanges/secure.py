"""The secure exchange: the protocol's server over the common stages, and the masked sum."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcore import conversions
from fedcore.codec import AnyEncoding, Decoded, decode
from fedcore.errors import FedcoreError, RoundFailed
from fedcore.exchange import ExchangeReply, encoding_of, round_parameters
from fedcore.secagg import Randomness, ServerRound, ServerStage, apply_masks
from fedcore.state import ModelState
from fedcore.wire import (
    AdvertisementIn,
    CohortOut,
    ConsistencyIn,
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
        self._sum: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._fold_lock = asyncio.Lock()

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
            await asyncio.to_thread(self._round.close_stage)
        else:
            self._round.close_stage()

    def release(self) -> None:
        """Let go of the sum."""
        self._sum = np.zeros(0, np.uint64)

    async def finish(self) -> ExchangeResult:
        """Take the masks off the sum, and decode it."""
        survivors = frozenset(self._round.survivors().survivors)
        decoded = await asyncio.to_thread(self._decode, len(survivors))
        return ExchangeResult(
            replies=(ExchangeReply.of_cohort(decoded),),
            survivors=survivors,
            examples=decoded.examples,
            metrics=decoded.metrics,
            clipped=sum(decoded.statistics.clipped),
            statistics=decoded.statistics,
        )

    def _decode(self, survivors: int) -> Decoded:
        apply_masks(self._sum, self._round.mask_terms(), threads=self.services.threads)
        manifest = self.manifests[min(self.clients.taken)]
        has_model = self.encoding.layout is not None and self.context.model is not None
        return decode(
            self.encoding,
            self._sum,
            survivors=survivors,
            base=ModelState.open(self.context.model) if has_model and self.context.model else None,
            metric_names=tuple((slot.name, slot.length or None) for slot in manifest.metrics),
            out_path=self.context.folder / "mean.safetensors" if has_model else None,
            threads=self.services.threads,
        )

    # --- the protocol's steps -------------------------------------------------------------------

    async def take_advertisement(self, client: int, body: AdvertisementIn, digest: bytes) -> None:
        """R0."""
        message = conversions.advertisement_from_wire(client, body)
        receive = self._round.receive_advertisement
        await self.take(client, "advertisement", digest, lambda: receive(message))

    def cohort_for(self, client: int) -> CohortOut | None:
        """U1, once it is known."""
        if not self._has_passed(client, ADVERTISE):
            return None
        return conversions.cohort_to_wire(self._round.advertised(client), self.task.cohort)

    async def take_key_shares(self, client: int, body: KeySharesIn, digest: bytes) -> None:
        """R1."""
        await self.take(client, "key-shares", digest, lambda: self._receive_shares(client, body))

    def _receive_shares(self, client: int, body: KeySharesIn) -> None:
        self._round.receive_shares(conversions.key_shares_from_wire(client, body, *self._round.receivers(client)))

    def delivery_for(self, client: int) -> DeliveryOut | None:
        """U2 and the shares for this client, once they are there."""
        if not self._has_passed(client, SHARE):
            return None
        return conversions.delivery_to_wire(self._round.delivery(client), self.task.cohort)

    def survivors_for(self, client: int) -> SurvivorsOut | None:
        """U3, once it is known."""
        if not self._has_passed(client, INPUT):
            return None
        return conversions.survivors_to_wire(self._round.survivors(), self.task.cohort)

    async def take_consistency(self, client: int, body: ConsistencyIn, digest: bytes) -> None:
        """R3."""
        message = conversions.consistency_from_wire(client, body)
        receive = self._round.receive_consistency
        await self.take(client, "consistency", digest, lambda: receive(message))

    def signatures_for(self, client: int) -> SignaturesOut | None:
        """The signatures over U3, once they are there."""
        if not self._has_passed(client, CONSISTENCY):
            return None
        return conversions.signatures_to_wire(self._round.signatures())

    async def take_unmask(self, client: int, body: UnmaskIn, digest: bytes) -> None:
        """R4."""
        await self.take(client, "unmask", digest, lambda: self._receive_unmask(client, body))

    def _receive_unmask(self, client: int, body: UnmaskIn) -> None:
        self._round.receive_unmask(conversions.unmask_from_wire(client, body, *self._round.owners(client)))

    def _has_passed(self, client: int, stage: str) -> bool:
        self.require(client)
        return self.stages.is_past(stage)

    # --- uploads --------------------------------------------------------------------------------

    def check_manifest(self, manifest: ManifestIn) -> None:
        """Raise Rejection where the manifest tells what must stay hidden, or more metrics than there are slots."""
        if manifest.examples is not None or manifest.values is not None:
            raise Rejection(ProblemKind.MALFORMED, "in secure mode examples and metrics travel in the sum only")
        slots = sum(max(slot.length, 1) for slot in manifest.metrics)
        if slots > self.encoding.settings.max_metrics:
            raise Rejection(
                ProblemKind.MALFORMED,
                f"there are {self.encoding.settings.max_metrics} slots for metrics, not {slots}",
            )

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
