"""The roster: what is signed, and what is refused."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import KitError, ProtocolViolation
from fedcore.federation import Member, Roster, name_after
from fedcore.federation.roster import check_name
from tests.support.raising import raises

AUTHORITY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = AUTHORITY.public_key().public_bytes_raw()


def member(number: int, *, name: str | None = None, key: bytes | None = None) -> Member:
    return Member(
        id=number,
        name=name or f"site-{number}",
        public_key=key or hashlib.sha256(bytes([number])).digest(),
    )


@pytest.fixture
def roster():
    return Roster.sign("pilot", [member(2), member(1), member(7)], AUTHORITY)


@pytest.fixture
def path(roster, tmp_path):
    path = tmp_path / "roster.json"
    path.write_text(roster.to_json())
    return path


def rewrite(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_round_trip(roster, path):
    loaded = Roster.load(path, PUBLIC)
    assert loaded == roster
    assert list(loaded.keys) == [1, 2, 7]
    assert loaded.keys[7] == member(7).public_key
    assert loaded.names[2] == "site-2"
    with pytest.raises(TypeError):
        loaded.keys[3] = bytes(32)


def test_canonical_encoding_is_as_documented(roster):
    def prefixed(field: bytes) -> bytes:
        return len(field).to_bytes(8, "big") + field

    expected = prefixed(b"fedcore/roster/v2") + prefixed(b"pilot") + prefixed(bytes(7) + b"\1") + prefixed(bytes(32))
    expected += prefixed(bytes(7) + b"\3")
    for number in (1, 2, 7):
        expected += prefixed(bytes(7) + bytes([number])) + prefixed(b"site-%d" % number)
        expected += prefixed(member(number).public_key)
    expected += prefixed(bytes(8))
    assert roster.canonical() == expected
    assert roster.hash() == hashlib.sha256(expected).digest()
    Ed25519PublicKey.from_public_bytes(PUBLIC).verify(roster.signature, expected)


@given(st.data())
def test_other_content_has_another_hash(data):
    names = st.text("abc", min_size=1, max_size=3)
    keys = st.sampled_from([bytes([n]) * 32 for n in range(1, 4)])
    members = st.builds(Member, id=st.integers(1, 3), name=names, public_key=keys)
    unique = st.lists(
        members,
        min_size=1,
        max_size=3,
        unique_by=tuple(lambda item, what=what: getattr(item, what) for what in ("id", "name", "public_key")),
    )
    first, second = (Roster.sign(data.draw(names), data.draw(unique), AUTHORITY) for _ in range(2))
    same = (first.federation, first.members) == (second.federation, second.members)
    assert (first.hash() == second.hash()) is same


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(federation="other"),
        lambda document: document["members"][0].update(id=3),
        lambda document: document["members"][0].update(name="site-9"),
        lambda document: document["members"][0].update(public_key="A" * 43 + "="),
        lambda document: document["members"].pop(),
        lambda document: document["members"].clear(),
        lambda document: document["revoked"].append(document["members"].pop()),
        lambda document: document.update(version=2, previous="A" * 42 + "E="),
        lambda document: document["members"].append({"id": 9, "name": "extra", "public_key": "A" * 43 + "="}),
        lambda document: document.update(signature="A" * 86 + "=="),
        lambda document: document.update(signature=""),
    ],
)
def test_any_change_breaks_the_signature(path, change):
    rewrite(path, change)
    with pytest.raises(KitError, match=r"roster\.json") as refused:
        Roster.load(path, PUBLIC)
    assert refused.value.check in {"roster-unsigned", "order"}


def test_another_authority_is_refused(path):
    other = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
    with raises(KitError, check="roster-unsigned"):
        Roster.load(path, other)


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("signature"),
        lambda document: document.update(extra=1),
        lambda document: document.update(members={}),
        lambda document: document.update(version=0),
        lambda document: document.update(version=2),
        lambda document: document.update(previous="AAAA"),
        lambda document: document.pop("revoked"),
        lambda document: document["members"].append("text"),
        lambda document: document["members"][0].update(id="1"),
        lambda document: document["members"][0].update(id=True),
        lambda document: document["members"][0].update(id=0),
        lambda document: document["members"][0].update(id=2**31),
        lambda document: document["members"][0].update(name=""),
        lambda document: document["members"][0].update(name='a"b'),
        lambda document: document["members"][0].update(public_key="AAAA"),
        lambda document: document["members"][0].update(public_key="!"),
        lambda document: document["members"][0].pop("name"),
        lambda document: document["members"][0].update(url="https://example.org"),
    ],
)
def test_malformed_documents_are_refused_with_the_file_and_a_remedy(path, change):
    rewrite(path, change)
    with pytest.raises(KitError, match=r"roster\.json: "):
        Roster.load(path, PUBLIC)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "\x00", "[" * 100_000])
def test_text_that_is_no_roster_is_refused(path, text):
    path.write_text(text)
    with pytest.raises(KitError, match=r"roster\.json"):
        Roster.load(path, PUBLIC)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_has_32_bytes(size):
    with pytest.raises(KitError, match=rf"\b{size}\b"):
        Member(id=1, name="site", public_key=bytes(size))


def test_members_stand_in_the_order_of_their_ids(roster):
    with raises(KitError, check="order"):
        replace(roster, members=roster.members[::-1])


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (member(1, name="other", key=b"k" * 32), "id"),
        (member(3, name="site-1"), "name"),
        (member(3, key=member(1).public_key), "public-key"),
    ],
)
def test_nobody_is_on_the_roster_twice(other, what):
    with raises(KitError, check=f"same-{what}"):
        Roster.sign("pilot", [member(1), other], AUTHORITY)


def test_a_version_beyond_all_counting_is_no_roster(roster):
    """Its canonical form could not be made, not even to find that nobody signed it."""
    document = {**roster.to_plain(), "version": 2**64, "previous": "A" * 42 + "E="}
    with pytest.raises(ProtocolViolation, match="roster-malformed"):
        Roster.received(json.dumps(document), bytes(32))


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("fed", "fed"),
        ("/srv/St. Anna (pilot)", "St.-Anna-pilot"),
        ("a/../b_2", "b_2"),
        ("Köln", "K-ln"),
        ("/", "federation"),
        ("x" * 99, "x" * 64),
    ],
)
def test_a_federation_without_a_name_has_that_of_its_folder(folder: str, name: str) -> None:
    assert name_after(Path(folder)) == check_name(name, "federation")
