"""Makes a federation: the authority's keys, the roster, a private CA, and kits.

    FOLDER/
        authority/          federation.toml, authority.key, ca.key: offline material, move it to a safe place;
                            authority.pub, ca.crt, rosters.json
        server/             server.toml, server.crt, server.key, operator_token.sha256,
                            authority.pub, ca.crt, rosters.json; the server makes data/ next to them
        operator/           operator.toml, token, ca.crt
        clients/client-1/   client.toml, policy.toml, identity.key,
                            authority.pub, ca.crt, roster.json

`create` makes it without clients, who then enrol with keys that never leave them (`enrolment`, `authority`).
`provision` makes their kits too, for trying things out: everybody's private keys are then made in one place.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.errors import KitError
from fedcore.federation.approval import ANY, LISTED
from fedcore.federation.chain import chain_text
from fedcore.federation.files import new_folder, private_pem, public_pem, write_file
from fedcore.federation.kits import certificates as tls
from fedcore.federation.kits.identity import IDENTITY_FILE
from fedcore.federation.kits.kit_text import authority_text, client_text, operator_text, server_text
from fedcore.federation.kits.kits import (
    AUTHORITY_FILE,
    AUTHORITY_KEY,
    AUTHORITY_SETTINGS,
    CA_FILE,
    CA_KEY,
    CERTIFICATE_FILE,
    CLIENT_FILE,
    OPERATOR_FILE,
    POLICY_FILE,
    ROSTER_FILE,
    ROSTERS_FILE,
    SERVER_FILE,
    TOKEN_FILE,
)
from fedcore.federation.kits.policy_text import policy_text
from fedcore.federation.kits.token_keys import key_in_token
from fedcore.federation.policy import Policy
from fedcore.federation.roster import Member, Roster, check_name
from fedcore.flower.node.config import share_of_client
from fedcore.secagg import Signer

DEFAULT_HOSTS: Final = ("localhost", "127.0.0.1")
DEFAULT_PORT: Final = 8443
MAX_CLIENTS: Final = 10_000
FEWEST_CLIENTS: Final = 3
"""Of a federation that clients enrol in: its least cohort and its stock policies are never those of fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationFolder:
    """The folders that `provision` made, and the address that its kits name."""

    folder: Path
    name: str
    server_url: str
    server: Path
    operator: Path
    clients: tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Material:
    """Everything that is written, before it is written."""

    name: str
    server_url: str
    bind: str
    port: int
    policy: Policy
    roster: Roster
    authority: Signer = field(repr=False)
    authority_file: bytes = field(repr=False)
    identities: tuple[Ed25519PrivateKey, ...] = field(repr=False)
    ca_key: bytes = field(repr=False)
    ca: bytes
    tls_key: bytes = field(repr=False)
    tls_certificate: bytes
    token: str = field(repr=False)


def provision(
    folder: Path,
    *,
    name: str,
    clients: int,
    now: datetime,
    hosts: Sequence[str] = DEFAULT_HOSTS,
    port: int = DEFAULT_PORT,
    bind: str | None = None,
    policy: Policy | None = None,
    randomness: tls.Randomness = os.urandom,
) -> FederationFolder:
    """Make a federation of `clients` clients in `folder`. After a failure nothing of it is left.

    Raises KitError for bad arguments and for a `folder` that exists with something in it, which
    stays as it is; StorageFull or EnvironmentFailure when it cannot be written.

    Args:
        folder: the new folder.
        name: of the federation.
        clients: how many.
        now: aware time from which the certificates count.
        hosts: names and addresses of the server for its TLS certificate; the kits' URL has the first.
        port: that of the server.
        bind: the address that the server listens on; by default the loopback if `hosts` mean nothing
            else, otherwise every IPv4 address.
        policy: what every client's policy.toml says; by default `Policy.default(clients)`.
        randomness: makes all keys.
    """
    if not 1 <= clients <= MAX_CLIENTS:
        raise KitError(f"a federation with ready kits has 1 to {MAX_CLIENTS} clients, not {clients}", check="clients")
    _check(name, hosts, port, bind)
    made = policy or Policy.default(clients)
    material = _make_material(name, clients, now, tuple(hosts), port, bind, made, randomness)
    return _write(folder, material)


def create(
    folder: Path,
    *,
    name: str,
    now: datetime,
    hosts: Sequence[str] = DEFAULT_HOSTS,
    port: int = DEFAULT_PORT,
    bind: str | None = None,
    authority_key: str = "",
    randomness: tls.Randomness = os.urandom,
) -> FederationFolder:
    """Make a federation without clients in `folder`: its authority, server and operator. Clients enrol.

    Arguments and errors are those of `provision`; `authority_key` is the URI of the authority's key in a token, "" for
    one in a file.
    """
    _check(name, hosts, port, bind)
    least = Policy.default(FEWEST_CLIENTS)
    return _write(folder, _make_material(name, 0, now, tuple(hosts), port, bind, least, randomness, authority_key))


def _write(folder: Path, material: _Material) -> FederationFolder:
    with new_folder(folder) as staging:
        _write_authority(staging / "authority", material)
        _write_server(staging / "server", material)
        _write_operator(staging / "operator", material)
        if material.identities:
            (staging / "clients").mkdir(mode=0o700)
        for member, identity in zip(material.roster.members, material.identities, strict=True):
            _write_client(staging / "clients" / member.name, material, member, identity)
    folder = folder.absolute()
    return FederationFolder(
        folder=folder,
        name=material.name,
        server_url=material.server_url,
        server=folder / "server",
        operator=folder / "operator",
        clients=tuple(folder / "clients" / member.name for member in material.roster.members),
    )


def _check(name: str, hosts: Sequence[str], port: int, bind: str | None) -> None:
    check_name(name, "the federation's name")
    if not 1 <= port <= 65535:
        raise KitError(f"the port must be between 1 and 65535, not {port}", check="port")
    if not hosts:
        raise KitError("name at least one host name or address under which clients reach the server", check="no-host")
    for host in (*hosts, *([bind] if bind else [])):
        tls.check_host(host)


def _listening_address(hosts: Sequence[str]) -> str:
    """What the server listens on to be reached by `hosts`; "::" is IPv4, too."""
    of_ipv6 = [":" in host for host in hosts]
    if all(map(tls.is_loopback, hosts)):
        return "::1" if all(of_ipv6) else "127.0.0.1"
    return "::" if any(of_ipv6) else "0.0.0.0"  # noqa: S104 - asked for


def _make_material(
    name: str,
    clients: int,
    now: datetime,
    hosts: tuple[str, ...],
    port: int,
    bind: str | None,
    policy: Policy,
    randomness: tls.Randomness,
    authority_key: str = "",
) -> _Material:
    authority, *identities = (Ed25519PrivateKey.from_private_bytes(randomness(32)) for _ in range(clients + 1))
    in_token = key_in_token(authority_key) if authority_key else None
    signer = in_token or authority
    members = [
        Member(id=number, name=f"client-{number}", public_key=identity.public_key().public_bytes_raw())
        for number, identity in enumerate(identities, start=1)
    ]
    ca_key, tls_key = tls.make_key(randomness), tls.make_key(randomness)
    ca = tls.make_ca(name, ca_key, now=now, randomness=randomness)
    certificate = tls.make_server_certificate(
        hosts, tls_key.public_key(), ca=ca, ca_key=ca_key, now=now, randomness=randomness
    )
    return _Material(
        name=name,
        server_url=f"https://{tls.url_host(hosts[0])}:{port}",
        bind=bind or _listening_address(hosts),
        port=port,
        policy=policy,
        roster=Roster.sign(name, members, signer),
        authority=signer,
        authority_file=f"{in_token.uri.text}\n".encode() if in_token is not None else private_pem(authority),
        identities=tuple(identities),
        ca_key=private_pem(ca_key),
        ca=tls.certificate_pem(ca),
        tls_key=private_pem(tls_key),
        tls_certificate=tls.certificate_pem(certificate),
        token=base64.urlsafe_b64encode(randomness(32)).rstrip(b"=").decode("ascii"),
    )


def _write_authority(folder: Path, material: _Material) -> None:
    write_file(folder / AUTHORITY_SETTINGS, authority_text(material.name, material.server_url))
    write_file(folder / AUTHORITY_KEY, material.authority_file, secret=True)
    write_file(folder / CA_KEY, material.ca_key, secret=True)
    write_file(folder / ROSTERS_FILE, chain_text([material.roster]))
    _write_trust(folder, material)


def _write_server(folder: Path, material: _Material) -> None:
    least = material.policy.min_cohort
    # Ready kits are for trying things out, and then every app is one's own.
    approve = ANY if material.identities else LISTED
    text = server_text(material.name, bind=material.bind, port=material.port, min_cohort=least, approve_apps=approve)
    write_file(folder / SERVER_FILE, text)
    write_file(folder / CERTIFICATE_FILE, material.tls_certificate)
    write_file(folder / "server.key", material.tls_key, secret=True)
    # 256 random bits need no slow hash: nobody can try them all.
    write_file(folder / "operator_token.sha256", hashlib.sha256(material.token.encode()).hexdigest() + "\n")
    write_file(folder / ROSTERS_FILE, chain_text([material.roster]))
    _write_trust(folder, material)


def _write_operator(folder: Path, material: _Material) -> None:
    write_file(folder / OPERATOR_FILE, operator_text(material.name, material.server_url))
    write_file(folder / TOKEN_FILE, material.token + "\n", secret=True)
    _write_trust(folder, material)


def _write_client(folder: Path, material: _Material, member: Member, identity: Ed25519PrivateKey) -> None:
    share = share_of_client(member.id, len(material.roster.members))
    write_file(folder / CLIENT_FILE, client_text(material.name, member.id, member.name, material.server_url, share))
    write_file(folder / POLICY_FILE, policy_text(material.policy))
    write_file(folder / IDENTITY_FILE, private_pem(identity), secret=True)
    write_file(folder / ROSTER_FILE, material.roster.to_json())
    _write_trust(folder, material)


def _write_trust(folder: Path, material: _Material) -> None:
    """What everybody may know, and needs to check everybody else."""
    write_file(folder / AUTHORITY_FILE, public_pem(material.authority.public_key()))
    write_file(folder / CA_FILE, material.ca)
