"""Faults to plant: sessions and rules that lack one check, to show that the schedules would find it.

A fault is a subclass of the session, or a patch of the code it calls. `verdict` is what a strict schedule says of it
first; `costs_an_update` marks those with which the server really gets something that it must not have, which the solver
finds alone, without any of the promises that a strict schedule looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import ConflictingMessage, ProtocolViolation
from fedcore.secagg import (
    AdvertisedCohort,
    Check,
    ClientSession,
    ClientState,
    Complaint,
    ConsistencySignature,
    KeyShares,
    RoundParameters,
    ServerRound,
    ServerStage,
    ShareDelivery,
    SignatureSet,
    Survivors,
    UnmaskShares,
    Verdict,
    client,
    dealing,
    inspection,
)
from fedcore.secagg.checks import Fault as Blame
from fedcore.secagg.crypto.keys import KEY_BYTES
from fedcore.secagg.transitions import ServerEvent

from .hostile_machine import FULL, RING
from .stories import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One check that is missing. `patches` are (object, name of its attribute, replacement)."""

    verdicts: frozenset[str]
    costs_an_update: bool = False
    session: type[ClientSession] = ClientSession
    patches: tuple[tuple[Any, str, Any], ...] = ()
    settings: tuple[Setting, ...] = (*FULL, *RING)

    @contextmanager
    def planted(self) -> Iterator[None]:
        """With the patches in place."""
        with ExitStack() as stack:
            for where, name, new in self.patches:
                stack.enter_context(mock.patch.object(where, name, new))
            yield


def _nothing(*_: Any, **__: Any) -> None:
    """In place of a check that raises."""


def _only_opens(text: bytes | None, *_: Any) -> Check | None:
    """What is wrong with an opened parcel, commitments aside."""
    return Check.SHARE_UNSEALING if text is None else None


class _IgnoresTheQuorum(ClientSession):
    def _check_signatures(self, message: SignatureSet) -> None:
        """Whatever anybody signed."""


class _ReleasesBoth(ClientSession):
    def unmask(self, message: SignatureSet) -> UnmaskShares:
        held = dict(self._secrets.shares)
        answer = super().unmask(message)
        if not held:
            return answer
        return UnmaskShares(
            answer.client_id,
            {owner: shares.of_self for owner, shares in held.items()},
            {owner: shares.of_key for owner, shares in held.items()},
        )


class _ChangesItsMind(ClientSession):
    def sign_survivors(self, message: Survivors) -> ConsistencySignature:
        if self._state is ClientState.SIGNED:
            self._state = ClientState.MASKED
        return super().sign_survivors(message)


class _ReleasesAgain(_ChangesItsMind):
    """Keeps what it holds, and starts the last two steps over."""

    def sign_survivors(self, message: Survivors) -> ConsistencySignature:
        if self._state is ClientState.RELEASED:
            self._state = ClientState.MASKED
        return super().sign_survivors(message)

    def unmask(self, message: SignatureSet) -> UnmaskShares:
        held = dict(self._secrets.shares)
        if self._state is ClientState.RELEASED:
            self._state = ClientState.SIGNED
        answer = super().unmask(message)
        self._secrets.shares = held
        return answer


class _HasNoFloor(ClientSession):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._floor = 1


class _TrustsKeys(ClientSession):
    """Skips the signatures of its neighbours' keys, and only those."""

    def share_keys(self, message: AdvertisedCohort) -> KeyShares:
        verify, self._verify = self._verify, lambda *_: True
        try:
            return super().share_keys(message)
        finally:
            self._verify = verify


class _DrawsOneSelfSecret(ClientSession):
    """The same b in every round, as after a restart with a generator of a fixed seed."""

    def share_keys(self, message: AdvertisedCohort) -> KeyShares:
        fresh, constant = self._randomness, self._client_id.to_bytes(KEY_BYTES, "big")
        self._randomness = lambda size: constant if size == KEY_BYTES else fresh(size)
        try:
            return super().share_keys(message)
        finally:
            self._randomness = fresh


class _MasksTwice(ClientSession):
    def mask(self, words: NDArray[np.uint64], *, threads: int = 1) -> None:
        own, peers = self._secrets.self_secret, self._secrets.pair_secrets
        state = self._state
        if self._state is ClientState.MASKED:
            self._state = ClientState.READY
        try:
            super().mask(words, threads=threads)
        except BaseException:
            self._state = state
            raise
        self._secrets.self_secret, self._secrets.pair_secrets = own, peers


class _LeavesTraces(ClientSession):
    """Takes over the sharers before it has opened what they sealed."""

    def receive_shares(self, message: ShareDelivery) -> None:
        if self._state is ClientState.SHARED and isinstance(message.sharers, tuple):
            self._sharers = message.sharers
        super().receive_shares(message)


def _first_answer(given: Any, message: Any, check: Any) -> Any:
    """Repeats the answer whatever the message."""
    return given.answer


_NO_FULL_RULE: tuple[tuple[Any, str, Callable[..., None]], ...] = (
    (RoundParameters, "_check_quorum", _nothing),
    (RoundParameters, "_check_full_graph", _nothing),
)

FAULTS: Mapping[str, Fault] = {
    "ignores-the-quorum": Fault(
        verdicts=frozenset({"no-quorum", "lie-accepted"}),
        costs_an_update=True,
        session=_IgnoresTheQuorum,
        settings=RING[:1],
    ),
    "releases-both-shares": Fault(verdicts=frozenset({"both-shares"}), costs_an_update=True, session=_ReleasesBoth),
    "signs-two-survivor-sets": Fault(verdicts=frozenset({"answered-twice", "lie-accepted"}), session=_ChangesItsMind),
    "releases-again": Fault(
        verdicts=frozenset({"answered-twice", "lie-accepted"}), costs_an_update=True, session=_ReleasesAgain
    ),
    "has-no-floor": Fault(verdicts=frozenset({"below-policy", "lie-accepted", "unnamed-failure"}), session=_HasNoFloor),
    "skips-neighbours-signatures": Fault(
        verdicts=frozenset({"lie-accepted", "recovered"}), costs_an_update=True, session=_TrustsKeys
    ),
    "draws-one-self-secret": Fault(
        verdicts=frozenset({"recovered"}), costs_an_update=True, session=_DrawsOneSelfSecret, settings=FULL
    ),
    "masks-twice": Fault(verdicts=frozenset({"mask-reused"}), costs_an_update=True, session=_MasksTwice),
    "leaves-traces": Fault(verdicts=frozenset({"refusal-left-traces"}), session=_LeavesTraces),
    "repeats-for-another-message": Fault(
        verdicts=frozenset({"answered-twice", "lie-accepted"}), patches=((client, "repeated", _first_answer),)
    ),
    "accepts-sharers-far-away": Fault(
        verdicts=frozenset({"lie-accepted", "recovered"}),
        costs_an_update=True,
        patches=((inspection, "check_holders", _nothing),),
        settings=RING,
    ),
    "takes-uncommitted-shares": Fault(
        verdicts=frozenset({"lie-accepted"}),
        patches=((dealing, "fault_in", _only_opens),),
    ),
    "accuses-without-a-signature": Fault(
        verdicts=frozenset({"honest-accused"}),
        patches=((inspection, "check_dealing", _nothing),),
    ),
    "promises-nobody-else-knows": Fault(
        verdicts=frozenset({"policy-undercut", "below-policy"}),
        patches=((inspection, "check_proposal", _nothing),),
        settings=FULL[1:2],
    ),
    "no-majority-on-the-full-graph": Fault(
        verdicts=frozenset({"recovered"}),
        costs_an_update=True,
        patches=_NO_FULL_RULE,
        settings=(
            Setting(n=4, quorum=2, degree=3, threshold=2, corrupt=0),
            Setting(n=5, quorum=3, degree=4, threshold=3, corrupt=1),
            Setting(n=6, quorum=3, degree=5, threshold=3, corrupt=0),
        ),
    ),
    "no-share-for-the-corrupt-on-the-ring": Fault(
        verdicts=frozenset({"recovered"}),
        costs_an_update=True,
        patches=((RoundParameters, "_check_sparse_graph", _nothing),),
        settings=(replace(RING[2], threshold=RING[2].degree // 2 + 2),),
    ),
    "half-window-alone-on-the-ring": Fault(
        verdicts=frozenset({"recovered"}),
        costs_an_update=True,
        patches=((RoundParameters, "_check_sparse_graph", _nothing),),
        settings=(replace(RING[0], threshold=3),),
    ),
}


class _KeepsWhatTheDroppedSent(ServerRound):
    def drop(self, client_id: int) -> None:
        kept, self._sent = self._sent, {stage: {} for stage in ServerStage}
        try:
            super().drop(client_id)
        finally:
            self._sent = kept


class _TakesBackTheDropped(ServerRound):
    def _is_new(self, event: ServerEvent, message: Any) -> bool:
        try:
            return super()._is_new(event, message)
        except ProtocolViolation as refusal:
            if refusal.check not in {Check.DROPPED_CLIENT, Check.LATE_INPUT}:
                raise
            return True


class _BelievesTheLastWord(ServerRound):
    def _is_new(self, event: ServerEvent, message: Any) -> bool:
        try:
            return super()._is_new(event, message)
        except ConflictingMessage:
            return True


class _NamesNobody(ServerRound):
    @property
    def blamed(self) -> dict[int, Blame]:
        return {}


class _BelievesWhoComplains(ServerRound):
    def judge(self, message: Complaint) -> Verdict:
        verdict = Verdict(message.accused, Blame.SEALED_GARBAGE)
        self._blamed.setdefault(verdict.client_id, verdict.fault)
        return verdict


class _BelievesWhoIsAccused(ServerRound):
    def judge(self, message: Complaint) -> Verdict:
        verdict = Verdict(message.client_id, Blame.FALSE_COMPLAINT)
        self._blamed.setdefault(verdict.client_id, verdict.fault)
        return verdict


SERVER_FAULTS: Mapping[str, tuple[type[ServerRound], frozenset[str]]] = {
    "keeps-what-the-dropped-sent": (_KeepsWhatTheDroppedSent, frozenset({"honest-refused"})),
    "takes-back-the-dropped": (
        _TakesBackTheDropped,
        frozenset({"lie-accepted", "repetition-left-traces", "unnamed-failure"}),
    ),
    "believes-the-last-word": (_BelievesTheLastWord, frozenset({"lie-accepted"})),
    "names-nobody": (_NamesNobody, frozenset({"wrong-names"})),
    "believes-who-complains": (_BelievesWhoComplains, frozenset({"wrong-names"})),
    "believes-who-is-accused": (_BelievesWhoIsAccused, frozenset({"wrong-names"})),
}
"""A server without one of its checks, and the verdicts of `HonestServer` on it."""
