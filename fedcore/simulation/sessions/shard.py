"""The sessions of some of a simulated round's clients, as one of several processes holds them.

What is asked of it is an `Order`: one of its methods with arguments.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

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
from fedcore.simulation.sessions.sessions import Members, encoded, masked
from fedcore.state import ModelState
from fedcore.wire.control import MetricValue

Order: TypeAlias = Callable[["SessionShard"], Any]


@dataclass(frozen=True, slots=True)
class Raised:
    """The answer to an order that came to nothing: an exception, taken apart, since not all can be pickled whole."""

    kind: type[Exception]
    args: tuple[Any, ...]
    values: Mapping[str, Any]
    trace: str

    @classmethod
    def by(cls, error: Exception) -> Raised:
        """Of the exception that is being handled."""
        return cls(type(error), error.args, dict(vars(error)), traceback.format_exc())

    def error(self) -> Exception:
        """The exception as it was, and as a note where it was raised."""
        error = self.kind.__new__(self.kind)
        error.args = self.args
        vars(error).update(self.values)
        error.add_note(f"in a process that holds sessions:\n{self.trace}")
        return error


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
        shown: Sequence[tuple[int, Sequence[int], tuple[bytes, ...]]],
    ) -> list[KeyShares]:
        """R1: each client of `shown` with those whose keys it is shown, and the proof of the others' of `ids`.

        fresh: advertisements that were not shown to any client here before; most are shown to hundreds.
        """
        self._advertised.update((one.client_id, one) for one in fresh)
        return [
            self._sessions[client].share_keys(
                AdvertisedCohort(ids, tuple(self._advertised[one] for one in members), proof)
            )
            for client, members, proof in shown
        ]

    def receive_shares(self, deliveries: Sequence[tuple[int, ShareDelivery]]) -> list[tuple[int, frozenset[int]]]:
        """R1: what is delivered to each client; whose keys each has verified."""
        for client, delivery in deliveries:
            self._sessions[client].receive_shares(delivery)
        return [(client, self._sessions[client].heard) for client, _ in deliveries]

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
    ) -> tuple[int, bytes]:
        """R2: mask what a client's app gave and add it to the sum; the client, and the SHA-256 of what it sends.

        model: what the update began from, and file: the client's new model, safetensors; None where there is none.
        """
        assert self._encoding is not None  # noqa: S101 - the sum has begun
        local = None if file is None else ModelState.open(file)
        words = encoded(self._encoding, self._model(model), local, examples, metrics, factor=factor)
        digest = masked(self._sessions[client], words)
        np.add(self._sum, words, out=self._sum)
        return client, digest

    def end_sum(self) -> NDArray[np.uint64]:
        """R2 is over: the sum of these clients' masked vectors."""
        found, self._sum = self._sum, np.zeros(0, np.uint64)
        return found

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
