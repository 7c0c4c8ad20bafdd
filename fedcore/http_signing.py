"""Signed requests: HTTP Message Signatures (RFC 9421) with Ed25519 over a Content-Digest (RFC 9530).

A client signs the method, the path, the query if there is one, and the SHA-256 of the body; the
signature's parameters add the time, a nonce, the key's name and the tag "fedcore". The server
accepts a signature that covers exactly these components and no others, is fresh, and comes once.

The digest in the header is authentic once `verify_headers` returns; whether the body has it is for
whoever reads the body, as it streams past. `@authority` is left out because a proxy may rewrite it;
what a signature is good for is bound to the federation by the key and to the run by the path.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import http_sf
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from http_message_signatures import (
    HTTPMessageSignaturesException,
    HTTPMessageSigner,
    HTTPMessageVerifier,
    HTTPSignatureKeyResolver,
    VerifyResult,
)
from http_message_signatures.algorithms import ED25519

from fedcore.errors import Unauthorized, UsageError
from fedcore.secagg import Signer

TAG: Final = "fedcore"
LABEL: Final = "fedcore"
CLOCK_SKEW_S: Final = 5
DEFAULT_MAX_AGE_S: Final = 300
MAX_NONCE_LENGTH: Final = 128
_LONGEST: Final = {"signature": 256, "signature-input": 1024, "content-digest": 128}
"""Characters of what is parsed before anybody is known; honest ones have about 100, 250 and 55."""
_PARAMETERS: Final = frozenset({"created", "nonce", "keyid", "tag"})
# The library wants absolute URLs; the host is never signed, and `.invalid` belongs to nobody (RFC 2606).
_ORIGIN: Final = "https://fedcore.invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Who signed a request, and the SHA-256 (32 bytes) that its body must have."""

    key_id: str
    content_sha256: bytes


class NonceCache:
    """Remembers the nonces of verified requests until those requests are too old to be accepted.

    Bounded in time by the age that `verify_headers` allows, and in size by `per_key` nonces for each
    key, so that one client cannot crowd out another. When a key's memory is full the oldest nonce
    is forgotten, and from then on nothing as old as it is accepted: memory runs out at the price of
    a shorter window, never of a replay. Safe for use by several threads.

    not_before: requests signed earlier (seconds since 1970) are refused. A server that restarts may
    set it to the time of its start, since nonces do not outlive the process.
    """

    def __init__(self, *, per_key: int = 4096, not_before: int = 0) -> None:
        if per_key < 1:
            raise UsageError("a nonce cache needs room for at least one nonce a key")
        self._per_key = per_key
        self._not_before = not_before
        self._keys: dict[str, _Seen] = {}
        self._lock = threading.Lock()

    def add(self, key_id: str, nonce: str, *, created: int, oldest: int) -> None:
        """Record a nonce; Unauthorized if it was seen or is older than what is remembered.

        oldest: the earliest creation time that is still accepted, in seconds since 1970.
        """
        with self._lock:
            seen = self._keys.setdefault(key_id, _Seen(floor=self._not_before))
            seen.forget_before(oldest)
            if created < seen.floor:
                raise Unauthorized("the signature is older than the requests that are remembered")
            if nonce in seen.nonces:
                raise Unauthorized("the same signed request came before; sign each attempt again")
            seen.remember(nonce, created, self._per_key)

    def __len__(self) -> int:
        with self._lock:
            return sum(len(seen.nonces) for seen in self._keys.values())


@dataclass(slots=True, kw_only=True)
class _Seen:
    """The nonces of one key, as a set and as a heap by creation time."""

    floor: int
    nonces: set[str] = field(default_factory=set)
    by_age: list[tuple[int, str]] = field(default_factory=list)

    def forget_before(self, oldest: int) -> None:
        while self.by_age and self.by_age[0][0] < oldest:
            self.nonces.discard(heapq.heappop(self.by_age)[1])

    def remember(self, nonce: str, created: int, limit: int) -> None:
        self.nonces.add(nonce)
        heapq.heappush(self.by_age, (created, nonce))
        if len(self.by_age) > limit:
            forgotten, name = heapq.heappop(self.by_age)
            self.nonces.discard(name)
            self.floor = max(self.floor, forgotten + 1)


def sign_headers(
    method: str,
    path_and_query: str,
    content_sha256: bytes,
    *,
    key_id: str,
    key: Signer,
    now: datetime | int,
    nonce: str,
) -> dict[str, str]:
    """The headers Content-Digest, Signature-Input and Signature for a request.

    path_and_query: as it goes over the wire, percent-encoded, from the "/" on.
    content_sha256: SHA-256 of the body, 32 bytes; of nothing when there is no body.
    now: seconds since 1970, or an aware datetime. nonce: unique for each request, printable ASCII.
    """
    if len(content_sha256) != 32:
        raise UsageError(f"a SHA-256 has 32 bytes, not {len(content_sha256)}")
    if not _is_target(path_and_query):
        raise UsageError(f"sign the path from its '/' on, without a fragment, not {path_and_query!r}")
    request = _Request(
        method=method,
        url=_ORIGIN + path_and_query,
        headers={"Content-Digest": http_sf.ser({"sha-256": content_sha256})},
    )
    signer = HTTPMessageSigner(signature_algorithm=ED25519)
    prepared = signer.prepare(
        request,
        key_id=key_id,
        created=datetime.fromtimestamp(_seconds(now), UTC),
        nonce=nonce,
        label=LABEL,
        tag=TAG,
        use_existing_digest=True,
        include_alg=False,  # RFC 9421, 3.3.7: the key says which algorithm, so the peer cannot
        covered_component_ids=_components(path_and_query),
    )
    signer.apply(request, prepared, key.sign(prepared.signature_base))
    return dict(request.headers)


def verify_headers(
    method: str,
    path_and_query: str,
    headers: Mapping[str, str],
    *,
    resolve_key: Callable[[str], bytes],
    now: datetime | int,
    seen: NonceCache,
    max_age_s: int = DEFAULT_MAX_AGE_S,
) -> Verified:
    """Check a request's signature; Unauthorized, with the reason, unless everything holds.

    path_and_query: as it came over the wire, percent-encoded.
    headers: header fields by name in any case; of a field that came several times, `items()` may
        give each line.
    resolve_key: from a key's name to the raw Ed25519 public key (32 bytes); KeyError if unknown.
    now: seconds since 1970, or an aware datetime.
    """
    _check_lengths(headers)
    content_sha256 = _content_sha256(headers)
    if not _is_target(path_and_query):
        raise Unauthorized("the request's target must be a path")
    url = _ORIGIN + path_and_query
    request = _Request(method=method, url=url, headers=dict(headers.items()))
    result = _verify(request, resolve_key)
    _check_coverage(result, _components(path_and_query))
    parameters = result.parameters
    created = _check_age(parameters, _seconds(now), max_age_s)
    key_id, nonce = str(parameters["keyid"]), str(parameters["nonce"])
    if not 1 <= len(nonce) <= MAX_NONCE_LENGTH:
        raise Unauthorized(f"the nonce must have 1 to {MAX_NONCE_LENGTH} characters")
    # Last, so that nobody without a key can fill the memory.
    seen.add(key_id, nonce, created=created, oldest=_seconds(now) - max_age_s - CLOCK_SKEW_S)
    return Verified(key_id=key_id, content_sha256=content_sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """The message interface that the library asks for."""

    method: str
    url: str
    headers: MutableMapping[str, str]


class _Verifier(HTTPMessageVerifier):
    """Leaves the age to us: the library reads the machine's clock, ours is an argument."""

    def validate_created_and_expires(self, sig_input: Any, max_age: timedelta | None = None) -> None:
        del sig_input, max_age


class _Verifying(HTTPSignatureKeyResolver):
    def __init__(self, resolve_key: Callable[[str], bytes]) -> None:
        self._resolve_key = resolve_key

    def resolve_public_key(self, key_id: str) -> Ed25519PublicKey | None:
        try:
            return Ed25519PublicKey.from_public_bytes(self._resolve_key(key_id))
        except KeyError:
            return None


def _verify(request: _Request, resolve_key: Callable[[str], bytes]) -> VerifyResult:
    verifier = _Verifier(signature_algorithm=ED25519, key_resolver=_Verifying(resolve_key))
    try:
        results = verifier.verify(request, max_age=None, expect_tag=TAG)
    except HTTPMessageSignaturesException:
        # The library's reasons quote the request; none of the peer's bytes may go into ours.
        raise Unauthorized("the request is not signed by a key of this federation") from None
    if len(results) != 1:
        raise Unauthorized(f"the request must carry one signature, not {len(results)}")
    return results[0]


def _check_coverage(result: VerifyResult, components: tuple[str, ...]) -> None:
    covered = set(result.covered_components) - {'"@signature-params"'}
    if covered != {f'"{component}"' for component in components}:
        raise Unauthorized(f"the signature must cover exactly {', '.join(components)}")
    if result.parameters.keys() != _PARAMETERS:
        raise Unauthorized(f"the signature must have exactly the parameters {sorted(_PARAMETERS)}")


def _check_age(parameters: Mapping[str, int | str], now: int, max_age_s: int) -> int:
    created = int(parameters["created"])
    if created > now + CLOCK_SKEW_S:
        raise Unauthorized("the signature is from the future; set the clocks of both machines")
    if created < now - max_age_s - CLOCK_SKEW_S:
        raise Unauthorized("the signature is too old; set the clocks of both machines")
    return created


def _check_lengths(headers: Mapping[str, str]) -> None:
    """All lines of a field together; parsing a long one costs more than everything else that a stranger can ask for."""
    lengths = dict.fromkeys(_LONGEST, 0)
    for name, value in headers.items():
        if name.lower() in lengths:
            lengths[name.lower()] += len(value)
    for name, length in lengths.items():
        if length > _LONGEST[name]:
            raise Unauthorized(f"the field {name} is longer than {_LONGEST[name]} characters")


def _content_sha256(headers: Mapping[str, str]) -> bytes:
    lines = [value for name, value in headers.items() if name.lower() == "content-digest"]
    if len(lines) != 1:
        raise Unauthorized("the request must carry one Content-Digest")
    try:
        parsed = http_sf.parse(lines[0].encode("ascii"), tltype="dictionary")
    except ValueError:
        raise Unauthorized("the Content-Digest is malformed") from None
    members = cast(dict[str, Any], parsed)  # from name to (value, parameters)
    digest = members["sha-256"][0] if members.keys() == {"sha-256"} else None
    if not isinstance(digest, bytes) or len(digest) != 32:
        raise Unauthorized("the Content-Digest must be one sha-256")
    return digest


def _components(path_and_query: str) -> tuple[str, ...]:
    query = ("@query",) if "?" in path_and_query else ()
    return ("@method", "@path", *query, "content-digest")


def _is_target(path_and_query: str) -> bool:
    # A fragment is never sent, and the library would drop it from what is signed.
    return path_and_query.startswith("/") and "#" not in path_and_query


def _seconds(now: datetime | int) -> int:
    return int(now.timestamp()) if isinstance(now, datetime) else now
