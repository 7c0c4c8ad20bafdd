"""The sessions of some of a simulated round's clients, which one of several processes has.

The simulation calls its public methods through `CALLS`, whose messages have the arguments and results by these types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from fedcore.codec import AnyEncoding
from fedcore.secagg import (
    AdvertisedCohort,
    Advertisement,
    ClientSession,
    ConsistencySignature,
    KeyShares,
    Outcome,
    RoundParameters,
    ShareDelivery,
    SignatureSet,
    Survivors,
    UnmaskShares,
    verifies,
)
from fedcore.simulation.sessions.sessions import Members, encoded, masked, or_nothing
from fedcore.state import ModelState
from fedcore.system.workers.calls import Calls
from fedcore.system.workers.failures import RaisedError
from fedcore.wire.base import MetricValue


class SessionShard:
    """The sessions of one round after the other; every method is a step of some of its clients."""

    def __init__(self) -> None:
        self._sessions: dict[int, ClientSession] = {}
        self._advertised: dict[int, Advertisement] = {}
        self._encoding: AnyEncoding | None = None
        self._sum: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._start: tuple[Path, ModelState] | None = None

    def begin(
        self,
        parameters: RoundParameters,
        identities: Mapping[int, bytes],
        roster: Mapping[int, bytes],
        min_cohort: int,
        min_threshold: int,
    ) -> None:
        """Hold these sessions in place of all others. identities: client -> private Ed25519 key, 32 bytes."""
        members = Members(
            parameters=parameters,
            identities={i: Ed25519PrivateKey.from_private_bytes(key) for i, key in identities.items()},
            roster=roster,
            min_cohort=min_cohort,
            min_threshold=min_threshold,
        )
        self._sessions, self._advertised = members.sessions(cache(verifies)), {}

    def advertise(self, clients: Sequence[int]) -> list[Advertisement]:
        """R0."""
        return [self._sessions[client].advertise() for client in clients]

    def share_keys(
        self,
        ids: tuple[int, ...],
        fresh: Sequence[Advertisement],
        cohorts: Sequence[tuple[int, Sequence[int], tuple[bytes, ...]]],
    ) -> list[KeyShares]:
        """R1: each client of `cohorts` with those whose keys it is shown, and the proof of the others' of `ids`.

        fresh: advertisements that were not shown to any client here before; most are shown to hundreds.
        """
        self._advertised.update((one.client_id, one) for one in fresh)
        return [
            self._sessions[client].share_keys(
                AdvertisedCohort(ids, tuple(self._advertised[one] for one in members), proof)
            )
            for client, members, proof in cohorts
        ]

    def receive_shares(
        self, sharers: tuple[int, ...], deliveries: Sequence[tuple[int, Mapping[int, bytes], Mapping[int, bytes]]]
    ) -> list[tuple[int, frozenset[int]]]:
        """R1: each client with the shares and pair secrets for it, from the `sharers`; whose keys each has verified."""
        for client, shares, pair_secrets in deliveries:
            self._sessions[client].receive_shares(ShareDelivery(sharers, shares, pair_secrets))
        return [(client, self._sessions[client].verified_clients) for client, _, _ in deliveries]

    def begin_sum(self, encoding: AnyEncoding) -> None:
        """R2 begins."""
        self._encoding, self._sum, self._start = encoding, np.zeros(encoding.words, np.uint64), None

    def add_masked(
        self,
        client: int,
        *,
        model: Path | None,
        file: Path | None,
        examples: int,
        metrics: Mapping[str, MetricValue],
        factor: float,
    ) -> tuple[int, bytes, RaisedError | None]:
        """R2: mask what a client's app gave and add it to the sum; the parts of a `MaskedUpdate`.

        model: what the update began from, and file: the client's new model, safetensors; None if there is none.
        """
        assert self._encoding is not None  # noqa: S101 - the sum has begun
        local = None if file is None else ModelState.open(file)
        make = partial(encoded, self._encoding, self._model(model), local, examples, metrics, factor=factor)
        words, error = or_nothing(self._encoding, make)
        digest = masked(self._sessions[client], words)
        np.add(self._sum, words, out=self._sum)
        return client, digest, None if error is None else RaisedError.of(error)

    def end_sum(self, file: Path) -> Path:
        """R2 is over: write the sum of these clients' masked vectors, 64-bit words as they are in memory."""
        self._sum.tofile(file)
        self._sum = np.zeros(0, np.uint64)
        return file

    def sign_survivors(self, clients: Sequence[int], survivors: Survivors) -> list[ConsistencySignature]:
        """R3."""
        return [self._sessions[client].sign_survivors(survivors) for client in clients]

    def outcome(self, client: int) -> Outcome:
        """What a client has signed in R3."""
        return self._sessions[client].outcome

    def unmask(self, clients: Sequence[int], signatures: SignatureSet) -> list[UnmaskShares]:
        """R4."""
        return [self._sessions[client].unmask(signatures) for client in clients]

    def _model(self, path: Path | None) -> ModelState | None:
        """Mapped; most updates began from the one before's."""
        if path is None:
            return None
        if self._start is None or self._start[0] != path:
            self._start = path, ModelState.open(path)
        return self._start[1]


CALLS: Final = Calls(SessionShard)
"""The messages between the simulation and a process with sessions."""
