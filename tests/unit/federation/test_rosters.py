"""Rosters that follow each other: which one is a successor, what a chain must be, and how a client follows it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.authority import signed

from fedcore.errors import KitError, ProtocolViolation
from fedcore.federation import ClientKit, Member, Roster
from fedcore.federation.authority import Authority
from fedcore.federation.chain import chain_text, load_chain, successors
from fedcore.federation.enrolment import rotate
from fedcore.federation.kits.identity import NEXT_IDENTITY_FILE, public_bytes
from fedcore.federation.membership import follow
from fedcore.federation.requests import JoinRequest
from tests.support.raising import raises

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(32))


def member(number: int, *, name: str = "", key: bytes = b"") -> Member:
    return Member(id=number, name=name or f"site-{number}", public_key=key or hashlib.sha256(bytes([number])).digest())


FIRST = Roster.sign("pilot", map(member, (1, 2, 3)), KEY)
SECOND = FIRST.followed_by(map(member, (1, 2, 3, 4)), (), KEY)
THIRD = SECOND.followed_by(map(member, (1, 3, 4)), [member(2)], KEY)
CHAIN = (FIRST, SECOND, THIRD)


def after(known: Roster, members: list[Member], revoked: list[Member]) -> Roster:
    """The next roster as an authority would sign it that checks nothing."""
    listed = {"members": tuple(members), "revoked": tuple(revoked)}
    return signed(replace(known, version=known.version + 1, previous=known.hash(), **listed), KEY)


def test_a_chain_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "rosters.json"
    path.write_text(chain_text(CHAIN))
    assert load_chain(path, PUBLIC) == CHAIN
    assert [roster.version for roster in CHAIN] == [1, 2, 3]
    assert THIRD.names == {1: "site-1", 2: "site-2", 3: "site-3", 4: "site-4"}
    assert list(THIRD.keys) == [1, 3, 4]
    assert successors(FIRST, [SECOND.to_json(), THIRD.to_json()], PUBLIC) == (SECOND, THIRD)
    assert successors(THIRD, [], PUBLIC) == ()


def test_a_federation_may_begin_without_members() -> None:
    empty = Roster.sign("pilot", (), KEY)
    assert empty.followed_by([member(1)], (), KEY).keys.keys() == {1}


@pytest.mark.parametrize(
    ("known", "offered", "check"),
    [
        (THIRD, FIRST, "roster-rollback"),
        (THIRD, SECOND, "roster-rollback"),
        (FIRST, THIRD, "roster-gap"),
        (SECOND, SECOND, "roster-fork"),
        (SECOND, FIRST.followed_by(map(member, (1, 2, 3, 5)), (), KEY), "roster-fork"),
        (SECOND, after(FIRST.followed_by(map(member, (1, 2, 3, 5)), (), KEY), [member(1)], []), "roster-fork"),
        # An id or a name in another hand, a member who is gone without a trace, one who is back, an id from the past.
        (SECOND, after(SECOND, [*map(member, (1, 2, 3)), member(4, name="other")], []), "roster-history"),
        (SECOND, after(SECOND, list(map(member, (1, 2, 3))), []), "roster-history"),
        (THIRD, after(THIRD, list(map(member, (1, 2, 3, 4))), []), "roster-history"),
        (THIRD, after(THIRD, list(map(member, (1, 3, 4))), [member(2, key=b"k" * 32)]), "roster-history"),
        (after(FIRST, [member(9)], []), after(after(FIRST, [member(9)], []), [member(8), member(9)], []),
         "roster-history"),
    ],
)  # fmt: skip
def test_only_a_successor_is_accepted(known: Roster, offered: Roster, check: str, tmp_path: Path) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        successors(known, [offered.to_json()], PUBLIC)
    assert caught.value.check == check
    path = tmp_path / "rosters.json"
    path.write_text(chain_text([*CHAIN[: known.version], offered]))
    with pytest.raises(KitError, match=r"rosters\.json: roster-"):
        load_chain(path, PUBLIC)


def test_another_federation_is_no_successor() -> None:
    other = Roster.sign("other", map(member, (1, 2, 3)), KEY)
    offered = signed(replace(other, version=2, previous=FIRST.hash()), KEY)
    with pytest.raises(ProtocolViolation, match="roster-history"):
        FIRST.check_successor(offered)


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, json.dumps({**FIRST.to_plain(), "version": "secret"})])
def test_what_is_no_roster_is_refused_without_a_word_of_it(text: str) -> None:
    with raises(ProtocolViolation, check="roster-malformed") as refused:
        successors(FIRST, [text], PUBLIC)
    assert "secret" not in str(refused.value)


def test_a_stranger_signs_no_successor() -> None:
    forged = FIRST.followed_by([*FIRST.members, member(4)], (), STRANGER)
    for offered in (forged, replace(SECOND, members=SECOND.members[:3])):
        with pytest.raises(ProtocolViolation, match="roster-unsigned"):
            successors(FIRST, [offered.to_json()], PUBLIC)


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "null", "[1]", "[" * 100_000, chain_text(CHAIN[1:]), chain_text([FIRST, THIRD])]
)
def test_a_broken_chain_is_named_with_its_file(content: str, tmp_path: Path) -> None:
    path = tmp_path / "rosters.json"
    path.write_text(content)
    with pytest.raises(KitError, match=r"rosters\.json: "):
        load_chain(path, PUBLIC)


def test_the_authority_signs_nothing_that_would_be_refused() -> None:
    for members, revoked in ((map(member, (1, 2)), ()), ([*FIRST.members, member(4, key=FIRST.keys[1])], ())):
        with pytest.raises(KitError):
            FIRST.followed_by(members, revoked, KEY)


# --- a client -------------------------------------------------------------------------------------------------


@pytest.fixture
def authority(federation: Path) -> Authority:
    return Authority.load(federation)


def texts(authority: Authority, after: int = 1) -> list[str]:
    return [roster.to_json() for roster in authority.rosters if roster.version > after]


def joining(name: str) -> JoinRequest:
    return JoinRequest.make(name, Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest()))


def test_a_client_follows_and_never_goes_back(client: Path, authority: Authority) -> None:
    kit = ClientKit.load(client)
    authority = authority.approve([joining("new")]).revoke(["client-1"])
    verified: list[int] = []
    followed = follow(kit, texts(authority), note=lambda roster: verified.append(roster.version))
    assert verified == [2, 3]
    assert followed.roster == authority.roster == ClientKit.load(client).roster
    for offered, check in ((texts(authority, 0)[:1], "roster-rollback"), (texts(authority, 2), "roster-fork")):
        with pytest.raises(ProtocolViolation, match=check):
            follow(followed, offered)
    assert ClientKit.load(client).roster == authority.roster
    assert follow(followed, []) is followed


def test_a_revoked_client_is_told_so_by_its_own_kit(client: Path, authority: Authority) -> None:
    kit = ClientKit.load(client)
    revoked = texts(authority.revoke([kit.name]))
    with raises(ProtocolViolation, check="revoked", match="client-2"):
        follow(kit, revoked)
    (client / "roster.json").write_text(revoked[0])
    with raises(KitError, check="revoked"):
        ClientKit.load(client)


def test_a_key_is_replaced_when_the_roster_names_the_new_one(client: Path, authority: Authority) -> None:
    kit = ClientKit.load(client)
    _, request = rotate(client)
    assert rotate(client)[1].public_key == request.public_key, "asked again, it is the same key"
    assert follow(kit, texts(authority.approve([joining("new")]))).identity is kit.identity
    kit = ClientKit.load(client)
    followed = follow(kit, texts(Authority.load(authority.folder).approve([request]), 2))
    assert public_bytes(followed.identity) == request.public_key
    assert public_bytes(ClientKit.load(client).identity) == request.public_key
    assert not (client / NEXT_IDENTITY_FILE).exists()


def test_a_crash_between_the_roster_and_the_key_costs_nothing(client: Path, authority: Authority) -> None:
    _, request = rotate(client)
    (client / "roster.json").write_text(authority.approve([request]).roster.to_json())
    kit = ClientKit.load(client)
    assert public_bytes(kit.identity) == request.public_key


def test_a_key_that_the_client_never_made_is_refused(client: Path, authority: Authority) -> None:
    kit = ClientKit.load(client)
    other = Ed25519PrivateKey.from_private_bytes(b"x" * 32)
    with pytest.raises(ProtocolViolation, match="roster-other-key"):
        follow(kit, texts(authority.approve([JoinRequest.make(kit.name, other, kit.identity)])))
    assert ClientKit.load(client).roster == kit.roster
