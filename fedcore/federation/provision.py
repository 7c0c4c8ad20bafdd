"""Makes a federation: the authority's keys, the roster, a private CA, and a kit for everybody.

    FOLDER/
        authority/          authority.key, ca.key: offline material, move it to a safe place;
                            authority.pub, ca.crt, roster.json
        server/             server.toml, server.crt, server.key, operator_token.sha256,
                            authority.pub, ca.crt, roster.json; the server makes data/ beside them
        operator/           operator.toml, token, ca.crt
        clients/client-1/   client.toml, policy.toml, identity.key,
                            authority.pub, ca.crt, roster.json

Each kit is self-contained: send clients/client-1 to the first site over a channel that you trust.
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
from fedcore.federation import certificates as tls
from fedcore.federation.eligibility import EligibilityRules
from fedcore.federation.files import new_folder, private_pem, public_pem, write_file
from fedcore.federation.kits import (
    AUTHORITY_FILE,
    CA_FILE,
    CLIENT_FILE,
    IDENTITY_FILE,
    OPERATOR_FILE,
    POLICY_FILE,
    ROSTER_FILE,
    SERVER_FILE,
    TOKEN_FILE,
    Policy,
)
from fedcore.federation.roster import Member, Roster, check_name

DEFAULT_HOSTS: Final = ("localhost", "127.0.0.1")
DEFAULT_PORT: Final = 8443
MAX_CLIENTS: Final = 10_000


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
    authority: Ed25519PrivateKey = field(repr=False)
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

    hosts: names and addresses of the server for its TLS certificate; the kits' URL has the first.
    bind: the address that the server listens on; by default the loopback if `hosts` mean nothing
        else, otherwise every IPv4 address.
    policy: what every client's policy.toml says; by default `Policy.default(clients)`.
    now: aware time from which the certificates count. All keys come from `randomness`.

    Raises KitError for bad arguments and for a `folder` that exists with something in it, which
    stays as it is; StorageFull or EnvironmentFailure when it cannot be written.
    """
    _check(name, clients, hosts, port, bind)
    material = _make_material(name, clients, now, tuple(hosts), port, bind, policy, randomness)
    with new_folder(folder) as staging:
        _write_authority(staging / "authority", material)
        _write_server(staging / "server", material)
        _write_operator(staging / "operator", material)
        (staging / "clients").mkdir(mode=0o700)
        for member, identity in zip(material.roster.members, material.identities, strict=True):
            _write_client(staging / "clients" / member.name, material, member, identity)
    folder = folder.absolute()
    return FederationFolder(
        folder=folder,
        name=name,
        server_url=material.server_url,
        server=folder / "server",
        operator=folder / "operator",
        clients=tuple(folder / "clients" / member.name for member in material.roster.members),
    )


def _check(name: str, clients: int, hosts: Sequence[str], port: int, bind: str | None) -> None:
    check_name(name, "the federation's name")
    if not 1 <= clients <= MAX_CLIENTS:
        raise KitError(f"a federation has 1 to {MAX_CLIENTS} clients, not {clients}")
    if not 1 <= port <= 65535:
        raise KitError(f"the port must be between 1 and 65535, not {port}")
    if not hosts:
        raise KitError("name at least one host name or address under which clients reach the server")
    for host in (*hosts, *([bind] if bind else [])):
        tls.check_host(host)


def _make_material(
    name: str,
    clients: int,
    now: datetime,
    hosts: tuple[str, ...],
    port: int,
    bind: str | None,
    policy: Policy | None,
    randomness: tls.Randomness,
) -> _Material:
    authority, *identities = (Ed25519PrivateKey.from_private_bytes(randomness(32)) for _ in range(clients + 1))
    members = [
        Member(id=number, name=f"client-{number}", public_key=identity.public_key().public_bytes_raw())
        for number, identity in enumerate(identities, start=1)
    ]
    ca_key, tls_key = tls.make_key(randomness), tls.make_key(randomness)
    ca = tls.make_ca(name, ca_key, now=now, randomness=randomness)
    certificate = tls.make_server_certificate(hosts, tls_key, ca=ca, ca_key=ca_key, now=now, randomness=randomness)
    return _Material(
        name=name,
        server_url=f"https://{tls.url_host(hosts[0])}:{port}",
        bind=bind or ("127.0.0.1" if all(map(tls.is_loopback, hosts)) else "0.0.0.0"),  # noqa: S104 - asked for
        port=port,
        policy=policy or Policy.default(clients),
        roster=Roster.sign(name, members, authority),
        authority=authority,
        identities=tuple(identities),
        ca_key=private_pem(ca_key),
        ca=tls.certificate_pem(ca),
        tls_key=private_pem(tls_key),
        tls_certificate=tls.certificate_pem(certificate),
        token=base64.urlsafe_b64encode(randomness(32)).rstrip(b"=").decode("ascii"),
    )


def _write_authority(folder: Path, material: _Material) -> None:
    write_file(folder / "authority.key", private_pem(material.authority), secret=True)
    write_file(folder / "ca.key", material.ca_key, secret=True)
    _write_trust(folder, material)


def _write_server(folder: Path, material: _Material) -> None:
    write_file(
        folder / SERVER_FILE,
        f"""\
# The server of the federation {material.name}. Paths are relative to this file.
federation = "{material.name}"
# The address and port to listen on; "0.0.0.0" is every IPv4 address of this machine.
host = "{material.bind}"
port = {material.port}
tls-certificate = "server.crt"
tls-key = "server.key"
roster = "{ROSTER_FILE}"
authority = "{AUTHORITY_FILE}"
# The SHA-256 of the token in the operator's folder; the token itself is not kept here.
operator-token-sha256 = "operator_token.sha256"
# The fewest clients that a secure sum may be made of, as policy.toml says at every client: a run waits for so many.
# Where an owner asks for more, say so here.
min-cohort = {material.policy.min_cohort}
# Uploads in progress, models and the journal of runs.
data-dir = "data"
""",
    )
    write_file(folder / "server.crt", material.tls_certificate)
    write_file(folder / "server.key", material.tls_key, secret=True)
    # 256 random bits need no slow hash: nobody can try them all.
    write_file(folder / "operator_token.sha256", hashlib.sha256(material.token.encode()).hexdigest() + "\n")
    _write_trust(folder, material)


def _write_operator(folder: Path, material: _Material) -> None:
    write_file(
        folder / OPERATOR_FILE,
        f"""\
# The operator of the federation {material.name}: submits runs and follows them.
# The file token is a secret.
federation = "{material.name}"
server-url = "{material.server_url}"
""",
    )
    write_file(folder / TOKEN_FILE, material.token + "\n", secret=True)
    write_file(folder / CA_FILE, material.ca)


def _write_client(folder: Path, material: _Material, member: Member, identity: Ed25519PrivateKey) -> None:
    write_file(
        folder / CLIENT_FILE,
        f"""\
# Client {member.id} of the federation {material.name}. Only identity.key is a secret.
federation = "{material.name}"
client-id = {member.id}
name = "{member.name}"
server-url = "{material.server_url}"

# What the app sees as context.node_config. Add keys of your own, such as the folder of your data.
[node-config]
partition-id = {member.id - 1}
num-partitions = {len(material.roster.members)}
""",
    )
    write_file(folder / POLICY_FILE, _policy_text(material.policy))
    write_file(folder / IDENTITY_FILE, private_pem(identity), secret=True)
    _write_trust(folder, material)


def _policy_text(policy: Policy) -> str:
    return f"""\
# What this client insists on: it refuses a round that asks for less, whatever the server says.

# The fewest clients, this one included, that a sum may be made of. From 3 on, no single member can
# subtract its own update from the sum and read another's; with 2 it can.
min-cohort = {policy.min_cohort}

# The fewest clients that must work together to remove a mask. A server with fewer of them on its
# side learns nothing but the sum. At most min-cohort; the usual threshold for n clients is 2n/3,
# rounded down, plus 1.
min-threshold = {policy.min_threshold}

# The SHA-256 of the only app that this client agrees to run, as `fedcore client` prints it when it
# starts. Empty: the app that its owner installed and named on the command line, as it stands.
app-sha256 = "{policy.app_sha256 or ""}"

# Whether the server may read this client's updates one by one, without secure aggregation
# (aggregation = "plain").
allow-plain = {str(policy.allow_plain).lower()}

# The fraction of a round's clients that must be able to help the server without it learning more
# than the sum.
min-corrupt = {float(policy.min_corrupt)}

# Whether keys may be agreed with X25519 alone. If not, ML-KEM-768 comes on top, so that uploads
# that somebody records today stay closed to a later quantum computer.
allow-x25519 = {str(policy.allow_x25519).lower()}

# How much all sums with this client in them may reveal about it, all runs together: the epsilon of
# (epsilon, delta)-differential privacy. 0: its owner does not insist on noise. With another value a
# run without enough noise is refused, and so is every exchange that would go over it. What has been
# spent is kept in the ledger of the state folder.
max-epsilon = {policy.max_epsilon}
delta = {policy.delta}
{_eligibility_text(policy.eligibility)}"""


def _eligibility_text(rules: EligibilityRules) -> str:
    hours = ", ".join(f'"{hours}"' for hours in rules.train_hours)
    return f"""
# When this machine may train, by its local time; ["22:00-06:00"] spans midnight, [] is the whole day.
# A client that may not train stays connected, is not asked, and leaves a round that it trains in.
train-hours = [{hours}]

# Whether it trains only while it is plugged in, and only while it is idle: other processes then use
# at most idle-load of all cores together.
on-power-only = {str(rules.on_power_only).lower()}
idle-only = {str(rules.idle_only).lower()}
idle-load = {float(rules.idle_load)}
"""


def _write_trust(folder: Path, material: _Material) -> None:
    """What everybody may know, and needs to check everybody else."""
    write_file(folder / ROSTER_FILE, material.roster.to_json())
    write_file(folder / AUTHORITY_FILE, public_pem(material.authority.public_key()))
    write_file(folder / CA_FILE, material.ca)
