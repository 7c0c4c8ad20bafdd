"""Joining a federation: what a client asks, what the authority grants, and what either refuses."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.errors import KitError
from fedcore.federation import ClientKit, FederationFolder, OperatorKit, ServerKit, create, provision
from fedcore.federation.authority import Authority
from fedcore.federation.enrolment import accept, ask, rotate
from fedcore.federation.files import read_certificate
from fedcore.federation.fingerprint import check_fingerprint, fingerprint
from fedcore.federation.requests import Admission, JoinRequest
from fedcore.flower.node.keys import node_keys
from tests.support.raising import raises
from tests.unit.federation.conftest import NOW, fixed_randomness


@pytest.fixture
def made(tmp_path: Path) -> FederationFolder:
    return create(tmp_path / "fed", name="pilot", now=NOW, hosts=["fl.example.org", "10.0.0.1"])


def admit(made: FederationFolder, folder: Path, name: str) -> ClientKit:
    """All of it, as three people would do it."""
    path, _ = ask(folder, name)
    request = JoinRequest.load(path)
    authority = Authority.load(made.folder).approve([request])
    ids = {member.name: member.id for member in authority.roster.members}
    admission = folder / "admission.json"
    admission.write_text(authority.admission(ids[name]).to_json())
    return accept(folder, admission, fingerprint(authority.public_key))


def test_a_federation_is_made_without_any_clients_key(made: FederationFolder) -> None:
    assert sorted(path.name for path in made.folder.iterdir()) == ["authority", "operator", "server"]
    assert not list(made.folder.rglob("identity*"))
    assert ServerKit.load(made.folder).roster.members == ()
    assert ServerKit.load(made.folder).min_cohort == 3
    assert OperatorKit.load(made.folder).servers == ("https://fl.example.org:8443",)


def test_clients_enrol_one_after_the_other(made: FederationFolder, tmp_path: Path) -> None:
    kits = [admit(made, tmp_path / name, name) for name in ("north", "south", "east")]
    assert [(kit.client_id, kit.name, kit.roster.version) for kit in kits] == [
        (1, "north", 2), (2, "south", 3), (3, "east", 4)
    ]  # fmt: skip
    assert ClientKit.load(tmp_path / "south").servers == (made.server_url,)
    assert kits[2].policy.min_cohort == 3
    assert stat.S_IMODE((tmp_path / "south" / "identity.key").stat().st_mode) == 0o600
    secret = (tmp_path / "south" / "identity.key").read_bytes().splitlines()[1]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and secret in path.read_bytes()] == [
        "identity.key"
    ]


def test_ids_and_names_are_never_given_twice(made: FederationFolder, tmp_path: Path) -> None:
    for name in ("north", "south"):
        admit(made, tmp_path / name, name)
    Authority.load(made.folder).revoke(["south"])
    assert admit(made, tmp_path / "third", "west").client_id == 3
    with raises(KitError, check="revoked", match="south"):
        admit(made, tmp_path / "again", "south")


def test_an_admission_can_be_written_again(made: FederationFolder, tmp_path: Path) -> None:
    path, request = ask(tmp_path / "north", "north")
    authority = Authority.load(made.folder).approve([request])
    assert authority.approve([JoinRequest.load(path)]) is authority
    assert authority.admission(1).roster == authority.roster


def test_several_are_admitted_with_one_roster(made: FederationFolder, tmp_path: Path) -> None:
    requests = [ask(tmp_path / name, name)[1] for name in ("b", "a")]
    roster = Authority.load(made.folder).approve(requests).roster
    assert roster.version == 2
    assert roster.names == {1: "b", 2: "a"}
    with raises(KitError, check="same-name"):
        Authority.load(made.folder).approve([ask(tmp_path / f"{n}", "c")[1] for n in range(2)])


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("north", "other-key"),
        ("gone", "revoked"),
    ],
)
def test_a_name_is_not_taken_over(made: FederationFolder, tmp_path: Path, name: str, check: str) -> None:
    for known in ("north", "gone"):
        admit(made, tmp_path / known, known)
    Authority.load(made.folder).revoke(["gone"])
    with raises(KitError, check=check, match=name):
        Authority.load(made.folder).approve([ask(tmp_path / "other", name)[1]])
    stranger, new = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
    with raises(KitError, check=check, match=name):
        Authority.load(made.folder).approve([JoinRequest.make(name, new, stranger)])


def test_a_key_is_replaced_by_who_has_the_old_one(made: FederationFolder, tmp_path: Path) -> None:
    kit = admit(made, tmp_path / "north", "north")
    path, request = rotate(tmp_path / "north")
    authority = Authority.load(made.folder).approve([JoinRequest.load(path)])
    assert authority.roster.keys == {1: request.public_key}
    assert request.replaces == kit.roster.keys[1]
    with raises(KitError, check="other-key", match="north"):
        authority.approve([JoinRequest.make("north", Ed25519PrivateKey.generate(), kit.identity)])


def test_nobody_is_revoked_who_is_no_member(made: FederationFolder, tmp_path: Path) -> None:
    admit(made, tmp_path / "north", "north")
    with raises(KitError, check="no-member", match="south"):
        Authority.load(made.folder).revoke(["south"])


def test_two_rosters_of_one_version_are_never_signed(made: FederationFolder, tmp_path: Path) -> None:
    first, second = (ask(tmp_path / name, name)[1] for name in ("a", "b"))
    stale = Authority.load(made.folder)
    stale.approve([first])
    with raises(KitError, check="superseded"):
        stale.approve([second])


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(name="other"),
        lambda document: document.update(public_key=document["proof"][:43] + "="),
        lambda document: document.update(proof=document["proof"][::-1]),
        lambda document: document.update(replaces=document["public_key"]),
        lambda document: document.update(more=1),
        lambda document: document.pop("consent"),
        lambda document: document.update(name='a"b'),
    ],
)
def test_a_request_that_was_altered_is_refused(change: Callable[[dict[str, Any]], Any], tmp_path: Path) -> None:
    path, _ = ask(tmp_path / "kit", "north")
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(KitError, match=r"north\.request\.json: "):
        JoinRequest.load(path)


def test_an_admission_that_was_altered_is_refused(made: FederationFolder, tmp_path: Path) -> None:
    """Not by a single byte: whoever carries it could send the client to a server of their own."""
    _, request = ask(tmp_path / "kit", "north")
    authority = Authority.load(made.folder).approve([request])
    admission = authority.admission(1)
    path = tmp_path / "admission.json"
    for altered in (
        replace(admission, server_url="https://evil.example"),
        replace(admission, ca=admission.ca + "\n"),
        replace(admission, name="other"),
        replace(admission, client_id=2),
        replace(admission, client_id=2**64),
        replace(admission, roster=Authority.load(made.folder).rosters[0]),
    ):
        path.write_text(altered.to_json())
        with raises(KitError, check="unsigned"):
            accept(tmp_path / "kit", path, fingerprint(authority.public_key))
    path.write_text(admission.to_json().replace('"ca": "', '"ca": "\\ud800'))  # half a character
    with raises(KitError, check="unsigned"):
        accept(tmp_path / "kit", path, fingerprint(authority.public_key))
    path.write_text(admission.to_json())
    with raises(KitError, check="other-fingerprint"):
        accept(tmp_path / "kit", path, fingerprint(bytes(32)))
    assert not (tmp_path / "kit" / "client.toml").exists()


def test_a_kit_has_what_its_app_asks_for(made: FederationFolder, tmp_path: Path) -> None:
    authority = Authority.load(made.folder)
    authority = authority.approve([ask(tmp_path / "a", "a")[1]])
    path = tmp_path / "admission.json"
    path.write_text(authority.admission(1).to_json())
    keys = node_keys({name: {"type": "string", "help": "a word"} for name in ("ward", "city")}, tmp_path)
    told = fingerprint(authority.public_key)
    kit = accept(tmp_path / "a", path, told, node_config={"ward": 'of "mice"'}, node_keys=keys)
    assert kit.node_config == {"ward": 'of "mice"'}
    assert "# city = " in (tmp_path / "a" / "client.toml").read_text()


def test_an_admission_fits_one_kit_once(made: FederationFolder, tmp_path: Path) -> None:
    authority = Authority.load(made.folder)
    told = fingerprint(authority.public_key)
    path = tmp_path / "admission.json"
    authority = authority.approve([ask(tmp_path / "a", "a")[1], ask(tmp_path / "b", "b")[1]])
    path.write_text(authority.admission(1).to_json())
    with raises(KitError, check="other-key"):
        accept(tmp_path / "b", path, told)
    with raises(KitError, check="no-identity"):
        accept(tmp_path / "nowhere", path, told)
    (tmp_path / "a" / "policy.toml").write_text("min-cohort = 4\nmin-threshold = 3\n")
    assert accept(tmp_path / "a", path, told.upper().replace("-", " ")).policy.min_cohort == 4
    with raises(KitError, check="kit-complete"):
        accept(tmp_path / "a", path, told)
    assert Admission.load(path) == authority.admission(1)


def test_fingerprints_are_compared_as_people_write_them() -> None:
    told = fingerprint(b"k" * 32)
    assert len(told) == 64 + 15
    check_fingerprint(b"k" * 32, ["wrong", told.replace("-", ":").upper()], "it")
    with raises(KitError, check="other-fingerprint"):
        check_fingerprint(b"k" * 32, [told[:-1]], "it")


def test_a_certificate_is_renewed_for_the_same_key(made: FederationFolder, tmp_path: Path) -> None:
    path = made.server / "server.crt"
    old = read_certificate(path)
    later = NOW + timedelta(days=300)
    authority = Authority.load(made.folder)
    authority.renew(path, [], now=later)
    new = ServerKit.load(made.folder) and read_certificate(path)
    assert new.public_key() == old.public_key()
    assert new.not_valid_after_utc - old.not_valid_after_utc == timedelta(days=300)
    assert new.extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    ) == old.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    new.verify_directly_issued_by(read_certificate(made.server / "ca.crt"))
    stranger = provision(tmp_path / "x", name="pilot", clients=2, now=NOW, randomness=fixed_randomness(b"other"))
    with raises(KitError, check="other-certificate", match=r"server\.crt"):
        authority.renew(stranger.server / "server.crt", [], now=later)
