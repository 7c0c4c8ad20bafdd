"""Prints what a commit signs for those who join a federation, as JSON: PYTHONPATH=COMMIT python make_signed.py."""

from __future__ import annotations

import json
import sys

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.federation import requests
from fedcore.federation.requests import Admission
from fedcore.federation.roster import Member, Roster

AUTHORITY, *IDENTITIES = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in range(1, 5))


def main() -> None:
    members = [
        Member(id=number, name=name, public_key=key.public_key().public_bytes_raw())
        for number, (name, key) in enumerate(
            zip(("client-1", "zurich", "site-3.example"), IDENTITIES, strict=True), start=1
        )
    ]
    first = Roster.sign("federation", members, AUTHORITY)
    second = first.followed_by(members[:2], members[2:], AUTHORITY)
    join_request = getattr(requests, "JoinRequest", None) or requests.Request
    server = {"server_url": "https://server.example.org:8443", "ca": "-----BEGIN CERTIFICATE-----\n..."}
    signed = {
        "rosters": [first, second],
        "requests": [
            join_request.make("client-1", IDENTITIES[0]),
            join_request.make("client-1", IDENTITIES[1], replaces=IDENTITIES[0]),
        ],
        "admissions": [Admission.sign(2, second, authority=AUTHORITY, **server)],
    }
    texts = {kind: [json.loads(one.to_json()) for one in documents] for kind, documents in signed.items()}
    json.dump(texts, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
