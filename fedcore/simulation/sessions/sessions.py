"""The client sessions of one simulated secure round, step by step; `InlineSessions` has all of them in this process.

`processes` spreads them over several processes, so that the sessions of thousands of clients use all cores.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from fedcore.codec import AnyEncoding, encode, encode_nothing
from fedcore.errors import AppError, EncodingError
from fedcore.secagg import (
    AdvertisedCohort,
    Advertisement,
    BothEnds,
    ClientSession,
    ConsistencySignature,
    KeyShares,
    Outcome,
    RoundParameters,
    ShareDelivery,
    SignatureSet,
    Survivors,
    UnmaskShares,
    Verify,
)
from fedcore.state import ModelState
from fedcore.wire.base import MetricValue

if TYPE_CHECKING:
    from fedcore.flower.apps.tensor_app import LocalResult  # a process that holds sessions alone needs no Flower


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """Whose sessions a round has, and what all of them were told.

    identities: client -> its key, of the round's cohort. roster, min_cohort, min_threshold: as `ClientSession`.
    """

    parameters: RoundParameters
    identities: Mapping[int, Ed25519PrivateKey]
    roster: Mapping[int, bytes]
    min_cohort: int
    min_threshold: int

    def sessions(self, verify: Verify) -> dict[int, ClientSession]:
        """A session for each; they check a signature once, and agree on a key once where both ends are here."""
        agree = BothEnds()
        return {
            client: ClientSession(
                parameters=self.parameters,
                client_id=client,
                identity=identity,
                roster=self.roster,
                min_cohort=self.min_cohort,
                min_threshold=self.min_threshold,
                verify=verify,
                agree=agree,
            )
            for client, identity in self.identities.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStart:
    """The model that a client trained from, and what its update is multiplied by, from 0 to 1."""

    model: ModelState | None
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What a client's app gave, and what it began from."""

    client: int
    start: TrainingStart
    result: LocalResult


class MaskedUpdate(NamedTuple):
    """What a client has sent in R2.

    digest
        SHA-256 of its masked vector.
    error
        Why that is one that adds nothing to the sum, if its update could not be encoded.
    """

    client: int
    digest: bytes
    error: Exception | None = None


LARGE_WORDS: Final = 1 << 22
"""Vectors of 32 MiB and more are made one after the other: the work on one of them keeps all processors busy."""


def is_large(encoding: AnyEncoding) -> bool:
    """Whether the vectors of a round are."""
    return encoding.words >= LARGE_WORDS


def threads_for(encoding: AnyEncoding) -> int:
    """Threads that work on one vector: all on a large one, which is the only one at a time."""
    return (os.cpu_count() or 1) if is_large(encoding) else 1


class SecureSessions(Protocol):
    """Each method is a step of `ClientSession`, for several of them; what they answer comes in any order."""

    def advertise(self, clients: Sequence[int]) -> Iterator[Advertisement]:
        """R0."""
        ...

    def share_keys(self, clients: Sequence[int], advertised: Callable[[int], AdvertisedCohort]) -> Iterator[KeyShares]:
        """R1. advertised: what the server shows each."""
        ...

    def receive_shares(self, clients: Sequence[int], delivery: Callable[[int], ShareDelivery]) -> None:
        """R1. delivery: what the server delivers to each."""
        ...

    def verified_peers(self, client: int) -> frozenset[int]:
        """Whose keys a client has verified; after `receive_shares`."""
        ...

    def masked(
        self, encoding: AnyEncoding, updates: Iterable[Update], total: NDArray[np.uint64]
    ) -> Iterator[MaskedUpdate]:
        """R2: each client's; when it ends, all vectors were added to `total`."""
        ...

    def sign_survivors(self, clients: Sequence[int], survivors: Survivors) -> Iterator[ConsistencySignature]:
        """R3."""
        ...

    def outcome(self, client: int) -> Outcome:
        """What a client has signed in R3."""
        ...

    def unmask(self, clients: Sequence[int], signatures: SignatureSet) -> Iterator[UnmaskShares]:
        """R4."""
        ...


class InlineSessions:
    """`SecureSessions` in this process; masks are made in threads. verify: as `ClientSession` has it."""

    def __init__(self, members: Members, verify: Verify) -> None:
        self._sessions = members.sessions(verify)

    def advertise(self, clients: Sequence[int]) -> Iterator[Advertisement]:
        """R0."""
        for client in clients:
            yield self._sessions[client].advertise()

    def share_keys(self, clients: Sequence[int], advertised: Callable[[int], AdvertisedCohort]) -> Iterator[KeyShares]:
        """R1."""
        for client in clients:
            yield self._sessions[client].share_keys(advertised(client))

    def receive_shares(self, clients: Sequence[int], delivery: Callable[[int], ShareDelivery]) -> None:
        """R1."""
        for client in clients:
            self._sessions[client].receive_shares(delivery(client))

    def verified_peers(self, client: int) -> frozenset[int]:
        """Whose keys a client has verified."""
        return self._sessions[client].verified_clients

    def masked(
        self, encoding: AnyEncoding, updates: Iterable[Update], total: NDArray[np.uint64]
    ) -> Iterator[MaskedUpdate]:
        """R2; in the order of the updates."""
        threads, of_one = os.cpu_count() or 1, threads_for(encoding)
        most = 0 if is_large(encoding) else threads
        waiting: deque[tuple[int, NDArray[np.uint64], Future[bytes], Exception | None]] = deque()

        def first() -> MaskedUpdate:
            client, words, digest, error = waiting.popleft()
            entry = MaskedUpdate(client, digest.result(), error)
            np.add(total, words, out=total)
            return entry

        with ThreadPoolExecutor(threads, thread_name_prefix="mask") as pool:
            for update in updates:
                result, start = update.result, update.start
                encode_it = partial(encoded, encoding, start.model, result.state(), result.examples, result.metrics)
                words, error = or_nothing(encoding, partial(encode_it, factor=start.factor, threads=of_one))
                digest = pool.submit(masked, self._sessions[update.client], words, of_one)
                waiting.append((update.client, words, digest, error))
                del words
                while len(waiting) > most:
                    yield first()
            while waiting:
                yield first()

    def sign_survivors(self, clients: Sequence[int], survivors: Survivors) -> Iterator[ConsistencySignature]:
        """R3."""
        for client in clients:
            yield self._sessions[client].sign_survivors(survivors)

    def outcome(self, client: int) -> Outcome:
        """What a client has signed in R3."""
        return self._sessions[client].outcome

    def unmask(self, clients: Sequence[int], signatures: SignatureSet) -> Iterator[UnmaskShares]:
        """R4."""
        for client in clients:
            yield self._sessions[client].unmask(signatures)


def encoded(
    encoding: AnyEncoding,
    model: ModelState | None,
    local: ModelState | None,
    examples: int,
    metrics: Mapping[str, MetricValue],
    *,
    factor: float = 1.0,
    threads: int = 1,
) -> NDArray[np.uint64]:
    """What a client sends before it is masked, uint64 [words]. local: its new model; `factor` as in `encode`.

    Without examples that is nothing: a sum in which all weights but one were zero would be one client's update. The
    answer to a query counts as one example.
    """
    if not examples:
        return encode_nothing(encoding, randomness=os.urandom).words
    return encode(
        encoding,
        base=model if encoding.layout else None,
        local=local,
        examples=examples,
        metrics=metrics,
        randomness=os.urandom,
        factor=factor,
        threads=threads,
    ).words


def or_nothing(
    encoding: AnyEncoding, make: Callable[[], NDArray[np.uint64]]
) -> tuple[NDArray[np.uint64], Exception | None]:
    """What `make` encodes, or nothing if it cannot, and why; that is the client's own failure in a federation."""
    try:
        return make(), None
    except (EncodingError, AppError) as error:
        return encode_nothing(encoding, randomness=os.urandom).words, error


def masked(session: ClientSession, words: NDArray[np.uint64], threads: int = 1) -> bytes:
    """Mask a vector in place, most of which holds no lock of Python's; SHA-256 of what is sent."""
    session.mask(words, threads=threads)
    return hashlib.sha256(words.data).digest()
