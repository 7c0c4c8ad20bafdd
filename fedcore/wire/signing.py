"""Signed requests: HTTP Message Signatures (RFC 9421) with Ed25519 over a Content-Digest (RFC 9530).

A client signs the method, the path, the query if there is one, and the SHA-256 of the body; the
signature's parameters add the time, a nonce, the key's name and the tag "fedcore". The server
accepts a signature that covers exactly these components and no others, is fresh, and comes once.

The digest in the header is authentic once `verify_headers` returns; whether the body has it is checked by
the reader of the body, as it streams past. `@authority` is left out because a proxy may rewrite it;
what a signature is good for is bound to the federation by the key and to the run by the path.

The three fields are read by one grammar each, that of their canonical serialisation (RFC 8941) without escapes. What a
general parser would read otherwise is refused, so the text that came is the text that was signed
(docs/adr/0032-rate-limits.md).
"""

from __future__ import annotations

import base64
import functools
import heapq
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedcore.errors import Unauthorized, UsageError, WrongClock
from fedcore.secagg import Signer

TAG: Final = "fedcore"
LABEL: Final = "fedcore"
CLOCK_SKEW_S: Final = 5
DEFAULT_MAX_AGE_S: Final = 300
MAX_NONCE_LENGTH: Final = 128
_LONGEST: Final = {"signature": 256, "signature-input": 1024, "content-digest": 128}
"""Characters of what is parsed before anybody is known; honest ones have about 100, 250 and 55."""
_NAMES: Final = {"signature": "Signature", "signature-input": "Signature-Input", "content-digest": "Content-Digest"}
_CACHED_KEYS: Final = 16_384

_STRING: Final = r'"([ !#-\[\]-~]*)"'
"""An sf-string without escapes: printable ASCII but for the quote and the backslash."""
_LABEL: Final = r"([a-z*][a-z0-9_.*-]*)"
_PARAMETER: Final = re.compile(rf";([a-z]+)=(?:(0|[1-9][0-9]{{0,14}})|{_STRING})")
_SIGNATURE_INPUT: Final = re.compile(rf"{_LABEL}=(\(([^()]*)\)((?:{_PARAMETER.pattern})*))")
_SIGNATURE: Final = re.compile(rf"{_LABEL}=:([A-Za-z0-9+/]{{86}}==):")
_CONTENT_DIGEST: Final = re.compile(r"sha-256=:([A-Za-z0-9+/]{43}=):")
_METHOD: Final = re.compile(r"[A-Z-]+")
_PCHAR: Final = r"[A-Za-z0-9._~\-!$&'()*+,;=:@/]"
_TARGET: Final = re.compile(rf"/(?:{_PCHAR}|%[0-9A-Fa-f]{{2}})*(?:\?(?:{_PCHAR}|\?|%[0-9A-Fa-f]{{2}})*)?")
"""Path and query as RFC 3986 has them; a fragment is never sent, and everything else is percent-encoded."""
_PLAIN: Final = re.compile(_STRING[1:-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Who signed a request and when (seconds since 1970), and the SHA-256 (32 bytes) that its body must have."""

    key_id: str
    content_sha256: bytes
    created: int


class NonceCache:
    """Remembers the nonces of verified requests until those requests are too old to be accepted.

    Bounded in time by the age that `verify_headers` allows, and in size by `per_key` nonces for each
    key, so that one client cannot crowd out another. When a key's memory is full the oldest nonce
    is forgotten, and from then on nothing as old as it is accepted: memory runs out at the price of
    a shorter window, never of a replay. Safe for use by several threads.

    not_before: requests signed earlier (seconds since 1970) are refused. A server that restarts may set it to the time
        of its start, since nonces do not outlive the process.
    """

    def __init__(self, *, per_key: int = 4096, not_before: int = 0) -> None:
        if per_key < 1:
            raise UsageError("a nonce cache needs room for at least one nonce a key")
        self._per_key = per_key
        self._not_before = not_before
        self._keys: dict[str, _NonceWindow] = {}
        self._lock = threading.Lock()

    def add(self, key_id: str, nonce: str, *, created: int, oldest: int) -> None:
        """Record a nonce; Unauthorized if it was seen or is older than what is remembered.

        Args:
            oldest: the earliest creation time that is still accepted, in seconds since 1970.
        """
        with self._lock:
            window = self._keys.setdefault(key_id, _NonceWindow(floor=self._not_before))
            window.forget_before(oldest)
            if created < window.floor:
                raise Unauthorized("the signature is older than the requests that are remembered", check="older")
            if nonce in window.nonces:
                raise Unauthorized("the same signed request came before; sign each attempt again", check="replayed")
            window.remember(nonce, created, self._per_key)

    def __len__(self) -> int:
        with self._lock:
            return sum(len(cache.nonces) for cache in self._keys.values())


@dataclass(slots=True, kw_only=True)
class _NonceWindow:
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

    Raises UsageError for what cannot be signed so.

    Args:
        path_and_query: as it goes over the wire, percent-encoded, from the "/" on.
        content_sha256: SHA-256 of the body, 32 bytes; of nothing when there is no body.
        now: seconds since 1970, or an aware datetime.
        nonce: unique for each request, printable ASCII.
    """
    if len(content_sha256) != 32:
        raise UsageError(f"a SHA-256 has 32 bytes, not {len(content_sha256)}")
    if not _METHOD.fullmatch(method) or not _TARGET.fullmatch(path_and_query):
        raise UsageError(f"sign the path from its '/' on, percent-encoded, without a fragment, not {path_and_query!r}")
    if not (_PLAIN.fullmatch(key_id) and _PLAIN.fullmatch(nonce)):
        raise UsageError("a key's name and a nonce are printable ASCII without quotes and backslashes")
    digest = f"sha-256=:{_to_base64(content_sha256)}:"
    components = _components(path_and_query)
    covered = f'({" ".join(components)});created={_seconds(now)};keyid="{key_id}";nonce="{nonce}";tag="{TAG}"'
    signature = key.sign(_signature_base(components, method, path_and_query, digest, covered))
    return {
        "Content-Digest": digest,
        "Signature-Input": f"{LABEL}={covered}",
        "Signature": f"{LABEL}=:{_to_base64(signature)}:",
    }


def verify_headers(
    method: str,
    path_and_query: str,
    headers: Mapping[str, str],
    *,
    resolve_key: Callable[[str], bytes],
    now: datetime | int,
    nonces: NonceCache,
    max_age_s: int = DEFAULT_MAX_AGE_S,
) -> Verified:
    """Check a request's signature; Unauthorized, with the reason, unless everything holds.

    WrongClock if nothing is wrong but the time.

    Args:
        path_and_query: as it came over the wire, percent-encoded.
        headers: header fields by name in any case; of a field that came several times, `items()` may give each line.
        resolve_key: from a key's name to the raw Ed25519 public key (32 bytes); KeyError if unknown.
        now: seconds since 1970, or an aware datetime.
    """
    digest, signature_input, signature = _fields(headers)
    matched = _CONTENT_DIGEST.fullmatch(digest)
    if matched is None:
        raise Unauthorized("the Content-Digest must be one sha-256", check="digest-form")
    if not _METHOD.fullmatch(method) or not _TARGET.fullmatch(path_and_query):
        raise Unauthorized("the request's target must be a path")
    claim = _Claim.read(signature_input, signature)
    if sorted(claim.components) != sorted(_components(path_and_query)):
        raise Unauthorized(
            f"the signature must cover exactly {' '.join(_components(path_and_query))}", check="not-covered"
        )
    base = _signature_base(claim.components, method, path_and_query, digest, claim.covered)
    _check_signature(claim, base, resolve_key)
    _check_age(claim, _seconds(now), max_age_s)  # now it is known whose clock is off
    # Last, so that nobody without a key can fill the memory.
    nonces.add(claim.key_id, claim.nonce, created=claim.created, oldest=_seconds(now) - max_age_s - CLOCK_SKEW_S)
    return Verified(key_id=claim.key_id, content_sha256=base64.b64decode(matched[1]), created=claim.created)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """What the fields of a signature say, before it is verified.

    components: names in quotes, in the order in which they are signed.
    covered: these and the parameters, as they came.
    """

    components: tuple[str, ...]
    covered: str
    created: int
    key_id: str
    nonce: str
    signature: bytes

    @classmethod
    def read(cls, signature_input: str, signature: str) -> _Claim:
        """Unauthorized unless there is one signature of the form that `sign_headers` gives it, in any order."""
        described, signed = _SIGNATURE_INPUT.fullmatch(signature_input), _SIGNATURE.fullmatch(signature)
        if described is None or signed is None or described[1] != signed[1]:
            raise Unauthorized("the request must carry one signature, in its canonical form")
        parameters = [parameter.groups() for parameter in _PARAMETER.finditer(described[4])]
        numbers = {name: number for name, number, _ in parameters if number is not None}
        texts = {name: text for name, _, text in parameters if text is not None}
        if len(parameters) != 4 or numbers.keys() != {"created"} or texts.keys() != {"keyid", "nonce", "tag"}:
            raise Unauthorized("the signature must have exactly the parameters created, keyid, nonce and tag")
        if texts["tag"] != TAG:
            raise Unauthorized(f'the tag of the signature must be "{TAG}"')
        if not 1 <= len(texts["nonce"]) <= MAX_NONCE_LENGTH:
            raise Unauthorized(f"the nonce must have 1 to {MAX_NONCE_LENGTH} characters")
        return cls(
            components=tuple(described[3].split(" ")),
            covered=described[2],
            created=int(numbers["created"]),
            key_id=texts["keyid"],
            nonce=texts["nonce"],
            signature=base64.b64decode(signed[2]),
        )


def _check_signature(claim: _Claim, base: bytes, resolve_key: Callable[[str], bytes]) -> None:
    try:
        _public_key(resolve_key(claim.key_id)).verify(claim.signature, base)
    except (KeyError, InvalidSignature):
        # None of the peer's bytes may go into the reason.
        raise Unauthorized("the request is not signed by a key of this federation", check="unknown-signer") from None


_public_key = functools.lru_cache(_CACHED_KEYS)(Ed25519PublicKey.from_public_bytes)


def _signature_base(components: Sequence[str], method: str, path_and_query: str, digest: str, covered: str) -> bytes:
    """What is signed (RFC 9421, 2.5).

    Args:
        components: names in quotes, all of `_components`.
        covered: their list and the parameters, in canonical form.
    """
    path, _, query = path_and_query.partition("?")
    values = {'"@method"': method, '"@path"': path, '"@query"': f"?{query}", '"content-digest"': digest}
    lines = [f"{name}: {values[name]}" for name in components]
    return "\n".join([*lines, f'"@signature-params": {covered}']).encode("ascii")


def clock_difference(seconds: float) -> str:
    """By how much a clock is off, for a person: "7 s ahead of" for 7 seconds, "7 s behind" for -7."""
    return f"{abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'}"


def _check_age(claim: _Claim, now: int, max_age_s: int) -> None:
    offset = claim.created - now
    if -max_age_s - CLOCK_SKEW_S <= offset <= CLOCK_SKEW_S:
        return
    when = "from the future" if offset > 0 else "too old"
    raise WrongClock(
        f"the signature is {when}, by {abs(offset)} s; set the clock of this machine, or the server's",
        key_id=claim.key_id,
        seconds=offset,
    )


def _fields(headers: Mapping[str, str]) -> tuple[str, str, str]:
    """The values of Content-Digest, Signature-Input and Signature; Unauthorized unless each is there once, and short.

    Reading a long one would cost more than everything else that a stranger can ask for.
    """
    fields: dict[str, list[str]] = {name: [] for name in _LONGEST}
    for line, value in headers.items():
        if (name := line.lower()) in fields:
            fields[name].append(value.strip(" \t"))
    for name, values in fields.items():
        if sum(map(len, values)) > _LONGEST[name]:
            raise Unauthorized(f"the field {name} is longer than {_LONGEST[name]} characters", check="field-length")
        if len(values) != 1:
            raise Unauthorized(f"the request must carry one {_NAMES[name]}", check="field-count")
    return fields["content-digest"][0], fields["signature-input"][0], fields["signature"][0]


def _components(path_and_query: str) -> tuple[str, ...]:
    query = ('"@query"',) if "?" in path_and_query else ()
    return ('"@method"', '"@path"', *query, '"content-digest"')


def _to_base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _seconds(now: datetime | int) -> int:
    return int(now.timestamp()) if isinstance(now, datetime) else now
