"""A session without one of its checks, for the attacks of ablation_attacks: it does as it is told."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fedcore.secagg import (
    AdvertisedCohort,
    ClientSession,
    ConsistencySignature,
    KeyShares,
    RoundParameters,
    Secret,
    ShareDelivery,
    Survivors,
)
from fedcore.secagg.crypto import schedule
from fedcore.secagg.crypto.agreement import KeyPair
from fedcore.secagg.crypto.domain import Usage
from fedcore.secagg.dealing import split_parcel
from fedcore.secagg.graph import Graph

from . import adversary
from .stories import Story

Patch = pytest.MonkeyPatch
Removal = Callable[[Patch], None]


def without(name: str) -> Removal:
    """Do not call this function of the inspection."""
    return lambda patch: patch.setattr(f"fedcore.secagg.inspection.{name}", lambda *_args, **_keywords: None)


def sign_again(patch: Patch) -> None:
    """A session that forgets what it signed."""
    once = ClientSession.sign_survivors

    def sign_survivors(session: ClientSession, message: Survivors) -> ConsistencySignature:
        if session.state == "signed":
            session._state = type(session.state).MASKED
        return once(session, message)

    patch.setattr(ClientSession, "sign_survivors", sign_survivors)


def take_another_delivery(patch: Patch) -> None:
    """A session that takes a second delivery as it took the first, and so has to keep its keys."""
    receive_shares = ClientSession.receive_shares
    pairs: dict[ClientSession, tuple[Any, Any]] = {}

    def receive_again(session: ClientSession, message: ShareDelivery) -> None:
        secrets, state = session._secrets, session.state
        if session in pairs:
            session._state = type(state).SHARED
            secrets.seal_pair, secrets.mask_pair = pairs[session]
            receive_shares(session, message)
            session._state = state
        else:
            pairs[session] = secrets.seal_pair, secrets.mask_pair
            receive_shares(session, message)

    patch.setattr(ClientSession, "receive_shares", receive_again)


def share_again(patch: Patch) -> None:
    """A session that begins again with each list of keys, and a server that knows that a root is the same in all."""
    share_keys = ClientSession.share_keys
    pairs: dict[ClientSession, tuple[Any, Any]] = {}

    def begin(session: ClientSession, message: AdvertisedCohort) -> KeyShares:
        pairs.setdefault(session, (session._secrets.seal_pair, session._secrets.mask_pair))
        session._secrets.seal_pair, session._secrets.mask_pair = pairs[session]
        session._state = type(session.state).ADVERTISED
        return share_keys(session, message)

    def pair_in_any(knowledge: adversary.Knowledge, story: Story, client_id: int) -> KeyPair | None:
        actor = story.actors.get(client_id)
        known = (pair for (_, owner), pair in knowledge._pairs.items() if owner == client_id)
        return actor.mask_pair if actor else next(known, None)

    patch.setattr(ClientSession, "share_keys", begin)
    patch.setattr(adversary.Knowledge, "_pair", pair_in_any)


def believe_what_is_shown(patch: Patch) -> None:
    """A session that takes those for its neighbours whose keys it is shown."""
    share_keys = ClientSession.share_keys

    def trusting(session: ClientSession, message: AdvertisedCohort) -> KeyShares:
        members = tuple(member.client_id for member in message.members)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(
                "fedcore.secagg.client.graph_over", lambda _, *, degree, seed: Graph(members, degree=degree, seed=seed)
            )
            return share_keys(session, message)

    patch.setattr(ClientSession, "share_keys", trusting)


CHOSEN = bytes(range(48))
"""What the server seals in others' names: no seal at all."""


def take_unopened(patch: Patch) -> None:
    """A session that takes what does not open as it is, and a server that knows what that was."""
    opened, seeds = schedule.open_pair_secret, adversary.Knowledge._seeds

    def open_pair_secret(*args: Any, sealed: bytes, **keywords: Any) -> Secret:
        return opened(*args, sealed=sealed, **keywords) or Secret(sealed[:32])

    def with_the_chosen(knowledge: adversary.Knowledge, story: Story) -> Iterator[bytes]:
        yield from seeds(knowledge, story)
        for owner, peer in itertools.permutations(story.dealt, 2):
            yield schedule.pair_mask(story.transcript, Secret(CHOSEN[:32]), owner=owner, peer=peer).seed.reveal()

    patch.setattr("fedcore.secagg.crypto.schedule.open_pair_secret", open_pair_secret)
    patch.setattr(adversary.Knowledge, "_seeds", with_the_chosen)


def accept_any_parameters(patch: Patch) -> None:
    """Parameters that may contradict each other."""
    for name in ("_check_quorum", "_check_full_graph"):
        patch.setattr(RoundParameters, name, lambda _: None)


DISCLOSED: dict[tuple[Story, int, int], Secret] = {}
"""Story, dealer and complainant: what a complaint has told."""


def complain_of_anything(patch: Patch) -> None:
    """A session that complains without the dealer's signature, and a server that opens what it then can."""
    open_what_was_disclosed(patch)
    without("check_dealing")(patch)


def complain_of_any_key(patch: Patch) -> None:
    """A session that complains of whoever signed its dealing, and a server that opens what it then can."""
    open_what_was_disclosed(patch)
    patch.setattr("fedcore.secagg.dealing.is_possessed", lambda *_: True)


def open_what_was_disclosed(patch: Patch) -> None:
    """A server that opens what complaints have told it."""
    opened = adversary._opened

    def with_the_disclosed(story: Story, owner: int, receiver: int, sealed: bytes) -> bytes | None:
        agreed = DISCLOSED.get((story, owner, receiver))
        if agreed is None:
            return opened(story, owner, receiver, sealed)
        ends = {"sender": owner, "receiver": receiver, "sealed": split_parcel(sealed)[1]}
        return schedule.open_with(Usage.SHARE_SEAL, story.transcript, story.agreement, agreed, **ends)

    patch.setattr(adversary, "_opened", with_the_disclosed)
