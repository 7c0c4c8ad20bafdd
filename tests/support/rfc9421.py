"""Request signatures as http-message-signatures reads them: another implementation, to hold ours against."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import http_sf
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from http_message_signatures import HTTPMessageSignaturesException, HTTPMessageVerifier, HTTPSignatureKeyResolver
from http_message_signatures.algorithms import ED25519

from fedcore.wire.signing import CLOCK_SKEW_S, DEFAULT_MAX_AGE_S, MAX_NONCE_LENGTH, TAG, Verified

PARAMETERS = {"created", "keyid", "nonce", "tag"}


class _Verifier(HTTPMessageVerifier):
    """Leaves the age to us: the library reads the machine's clock."""

    def validate_created_and_expires(self, sig_input: Any, max_age: timedelta | None = None) -> None:
        del sig_input, max_age


class _Keys(HTTPSignatureKeyResolver):
    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = keys

    def resolve_public_key(self, key_id: str) -> Ed25519PublicKey | None:
        found = self._keys.get(key_id)
        return None if found is None else Ed25519PublicKey.from_public_bytes(found)


def verified_by_library(
    method: str, target: str, headers: Mapping[str, str], keys: Mapping[str, bytes], now: int
) -> Verified | None:
    """What a signature says, where our rules accept it: these components, these parameters, fresh, one of ours."""
    if not target.startswith("/"):  # it would become part of the host in what the library reads
        return None
    try:
        (digest,) = [value for name, value in headers.items() if name.lower() == "content-digest"]
        members: Any = http_sf.parse(digest.encode("ascii"), tltype="dictionary")
        request = SimpleNamespace(method=method, url="https://fedcore.invalid" + target, headers=dict(headers))
        verifier = _Verifier(signature_algorithm=ED25519, key_resolver=_Keys(keys))
        (result,) = verifier.verify(request, max_age=None, expect_tag=TAG)
    except (HTTPMessageSignaturesException, ValueError):
        return None
    query = {'"@query"'} if "?" in target else set()
    covered = {'"@method"', '"@path"', '"content-digest"', '"@signature-params"', *query}
    if set(result.covered_components) != covered or result.parameters.keys() != PARAMETERS or "#" in target:
        return None
    created, nonce = int(result.parameters["created"]), str(result.parameters["nonce"])
    if not now - DEFAULT_MAX_AGE_S - CLOCK_SKEW_S <= created <= now + CLOCK_SKEW_S:
        return None
    sha256 = members["sha-256"][0] if members.keys() == {"sha-256"} else None
    if not 1 <= len(nonce) <= MAX_NONCE_LENGTH or not isinstance(sha256, bytes) or len(sha256) != 32:
        return None
    return Verified(key_id=str(result.parameters["keyid"]), content_sha256=sha256, created=created)
