"""The federation's authority: admits, revokes and renews, with keys that may stay offline.

Its folder keeps all rosters. Each change signs the next one; a server is handed it later, by anybody with the
operator's token, since what counts is the signature.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from fedcore.errors import EnvironmentFailure, KitError, ProtocolViolation
from fedcore.federation.chain import chain_text, load_chain
from fedcore.federation.files import (
    broken,
    read_authority,
    read_ca_key,
    read_certificate,
    read_text,
    read_toml,
    replace_file,
)
from fedcore.federation.kits import certificates as tls
from fedcore.federation.kits.kits import (
    AUTHORITY_FILE,
    AUTHORITY_KEY,
    AUTHORITY_SETTINGS,
    CA_FILE,
    CA_KEY,
    ROSTERS_FILE,
    kit_folder,
)
from fedcore.federation.kits.token_keys import read_signer
from fedcore.federation.requests import Admission, JoinRequest
from fedcore.federation.roster import Member, Roster
from fedcore.secagg import Signer
from fedcore.system.files import Lock

Randomness = Callable[[int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """The folder of a federation's authority.

    public_key: raw Ed25519, 32 bytes.
    rosters: all versions, in order. Its private keys are read when they sign.
    """

    folder: Path
    federation: str
    server_url: str
    public_key: bytes
    rosters: tuple[Roster, ...] = field(repr=False)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read and check the authority's folder, or the federation's folder around it; raises KitError."""
        folder = kit_folder(folder, AUTHORITY_SETTINGS, "authority")
        values = read_toml(folder / AUTHORITY_SETTINGS, {"federation": str, "server-url": str})
        public_key = read_authority(folder / AUTHORITY_FILE)
        rosters = load_chain(folder / ROSTERS_FILE, public_key)
        if rosters[-1].federation != values["federation"]:
            raise broken(folder / AUTHORITY_SETTINGS, "the rosters are of another federation", "mend the line")
        return cls(
            folder=folder,
            federation=values["federation"],
            server_url=values["server-url"],
            public_key=public_key,
            rosters=rosters,
        )

    @property
    def roster(self) -> Roster:
        """The newest roster."""
        return self.rosters[-1]

    def known(self, request: JoinRequest) -> Member | None:
        """The member that asks, None if a new one does; KitError for a request that cannot be granted.

        One that is a member with this very key already is no error, so that its admission can be written again.
        """
        member = next((member for member in self.roster.members if member.name == request.name), None)
        if member is not None and member.public_key not in (request.public_key, request.replaces):
            raise KitError(
                f"{request.name} is a member with another key; its owner has to ask with that one: "
                "fedcore client enroll KIT --rotate",
                check="other-key",
            )
        if member is None and request.name in self.roster.names.values():
            raise KitError(
                f"{request.name} was revoked, and names are never reused; enrol under another one", check="revoked"
            )
        if member is None and request.replaces:
            raise KitError(f"{request.name} is no member whose key could be replaced")
        return member

    def approve(self, requests: Sequence[JoinRequest]) -> Authority:
        """Sign the roster that grants these requests, and keep it; new members get the next ids, in this order.

        With nothing to change all stays as it is.
        """
        members = {member.id: member for member in self.roster.members}
        highest = max(self.roster.names, default=0)
        for request in requests:
            member = self.known(request)
            if member is None:
                highest += 1
                member = Member(id=highest, name=request.name, public_key=request.public_key)
            members[member.id] = replace(member, public_key=request.public_key)
        if tuple(members.values()) == self.roster.members:
            return self
        return self._keep(self.roster.followed_by(members.values(), self.roster.revoked, self._key()))

    def revoke(self, names: Sequence[str]) -> Authority:
        """Sign the roster without these members, and keep it; KitError for a name that no member has."""
        known = {member.name: member for member in self.roster.members}
        if unknown := [name for name in names if name not in known]:
            raise KitError(f"there is no member {unknown[0]}; members: {', '.join(known) or 'none'}", check="no-member")
        leaving = {known[name] for name in names}
        remaining = [member for member in self.roster.members if member not in leaving]
        return self._keep(self.roster.followed_by(remaining, {*self.roster.revoked, *leaving}, self._key()))

    def admission(self, client_id: int) -> Admission:
        """What the client with this id completes its kit with."""
        ca = read_text(self.folder / CA_FILE)
        return Admission.sign(client_id, self.roster, server_url=self.server_url, ca=ca, authority=self._key())

    def renew(
        self, certificate: Path, hosts: Sequence[str], *, now: datetime, randomness: Randomness = os.urandom
    ) -> x509.Certificate:
        """Replace the server's certificate by a new one for the same key; its private key is not needed for that.

        Raises KitError if the certificate is not of this federation.

        Args:
            hosts: names and addresses of the server; empty for those of the certificate so far.
            now: aware time from which it counts.
        """
        ca = read_certificate(self.folder / CA_FILE)
        old = read_certificate(certificate)
        key: object = old.public_key()
        try:
            old.verify_directly_issued_by(ca)
        except (InvalidSignature, TypeError, ValueError):
            key = None
        if not isinstance(key, EllipticCurvePublicKey):
            raise broken(
                certificate,
                "not a certificate of this federation",
                "name the server's own certificate",
                check="other-certificate",
            )
        renewed = tls.make_server_certificate(
            hosts or tls.hosts_of(old),
            key,
            ca=ca,
            ca_key=read_ca_key(self.folder / CA_KEY),
            now=now,
            randomness=randomness,
        )
        replace_file(certificate, tls.certificate_pem(renewed))
        return renewed

    def leave_at_server(self) -> Path | None:
        """Put the rosters into the server's folder next to this one, as `create` makes them, for its next start.

        Returns that folder. None if there is none, if it belongs to another federation, or if it cannot be written: the
        running server then has to receive them.
        """
        folder = self.folder.parent / "server"
        try:
            there = load_chain(folder / ROSTERS_FILE, self.public_key)
            if there != self.rosters[: len(there)]:
                return None
            if len(there) < len(self.rosters):
                replace_file(folder / ROSTERS_FILE, chain_text(self.rosters))
        except (KitError, EnvironmentFailure):
            return None
        return folder

    def _keep(self, roster: Roster) -> Authority:
        """Write the chain with `roster` at its end; KitError if another one was signed meanwhile."""
        with Lock(self.folder, in_use=f"another command is changing {self.folder}; wait for its end"):
            chain = load_chain(self.folder / ROSTERS_FILE, self.public_key)
            try:
                chain[-1].check_successor(roster)
            except ProtocolViolation as error:
                raise KitError(
                    f"another roster was signed meanwhile ({error}); try again", check="superseded"
                ) from None
            replace_file(self.folder / ROSTERS_FILE, chain_text((*chain, roster)))
        return replace(self, rosters=(*chain, roster))

    def _key(self) -> Signer:
        key = read_signer(self.folder / AUTHORITY_KEY)
        if key.public_key().public_bytes_raw() != self.public_key:
            raise broken(self.folder / AUTHORITY_KEY, f"not the key of {AUTHORITY_FILE}")
        return key
