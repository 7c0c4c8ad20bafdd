"""Our reading of a signature beside a library's: what ours accepts the library accepts, and it means the same.

The other way round, what the library accepts ours accepts if it is the canonical text of one signature (RFC 8941, 4.1).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping

import http_sf
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import example, given
from hypothesis import strategies as st
from support.rfc9421 import verified_by_library

from fedcore.errors import Unauthorized, UsageError
from fedcore.wire.signing import NonceCache, Verified, sign_headers, verify_headers

NOW = 1_800_000_000
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
KEYS = {"client-1": KEY.public_key().public_bytes_raw()}
BODY = hashlib.sha256(b"body").digest()
TARGETS = ("/", "/v1/task?wait=25&run=&after=0", "/v1//a%2Fb;x=1?", "/v1/runs/7/exchanges/1/update/parts/0")
FIELDS = ("Content-Digest", "Signature-Input", "Signature")


def ours(method: str, target: str, headers: Mapping[str, str]) -> Verified | None:
    try:
        return verify_headers(method, target, headers, resolve_key=KEYS.__getitem__, now=NOW, nonces=NonceCache())
    except Unauthorized:
        return None


def library(method: str, target: str, headers: Mapping[str, str]) -> Verified | None:
    return verified_by_library(method, target, headers, KEYS, NOW)


def signed_by_hand(target: str, digest: str, components: list[str], parameters: list[str], label: str) -> dict:
    """Headers as any other client would make them, in its own order, properly signed."""
    path, mark, query = target.partition("?")
    values = {"@method": "GET", "@path": path, "@query": mark + query, "content-digest": digest}
    names = [f'"{name}"' for name in components]
    covered = f"({' '.join(names)}){''.join(parameters)}"
    lines = [f'"{name}": {values.get(name, "")}' for name in components]
    base = "\n".join([*lines, f'"@signature-params": {covered}'])
    signature = base64.b64encode(KEY.sign(base.encode("latin-1"))).decode()
    return {
        "Content-Digest": digest,
        "Signature-Input": f"{label}={covered}",
        "Signature": f"{label}=:{signature}:",
    }


def is_canonical(headers: Mapping[str, str]) -> bool:
    """Whether a serialiser would write these fields so, one signature and no escape among them."""
    for name in FIELDS:
        text = headers[name]
        parsed = http_sf.parse(text.encode("ascii"), tltype="dictionary")
        if http_sf.ser(parsed) != text or len(parsed) != 1 or "\\" in text:
            return False
    return True


PARAMETERS = [f";created={NOW}", ';keyid="client-1"', ';nonce="n 1!~"', ';tag="fedcore"']
STRANGE = [
    f";created={NOW}.0",
    ";created=00",
    ";keyid=client-1",
    ';nonce="a\\"b"',
    ';alg="ed25519"',
    ";tag",
    ";x=:AA==:",
]


@given(
    target=st.sampled_from(TARGETS),
    components=st.permutations(["@method", "@path", "content-digest"]),
    place_of_query=st.integers(0, 3),
    parameters=st.permutations(PARAMETERS),
    label=st.from_regex(r"[a-z*][a-z0-9_.*-]{0,9}", fullmatch=True),
)
def test_the_order_is_the_clients_to_choose(target, components, place_of_query, parameters, label):
    if "?" in target:
        components.insert(place_of_query, "@query")
    digest = f"sha-256=:{base64.b64encode(BODY).decode()}:"
    headers = signed_by_hand(target, digest, components, parameters, label)
    assert (
        ours("GET", target, headers)
        == library("GET", target, headers)
        == Verified(key_id="client-1", content_sha256=BODY, created=NOW)
    )


@given(
    target=st.sampled_from(TARGETS),
    components=st.lists(
        st.sampled_from(["@method", "@path", "@query", "content-digest", "@authority", "@path;x"]), max_size=6
    ),
    parameters=st.lists(st.sampled_from(PARAMETERS + STRANGE), max_size=6),
    digest=st.sampled_from(
        [
            f"sha-256=:{base64.b64encode(BODY).decode()}:",
            f"sha-256=:{base64.b64encode(BODY).decode().rstrip('=')}:",
            f"sha-256=:{base64.b64encode(BODY).decode()}:;a",
            f"sha-512=:AA==:, sha-256=:{base64.b64encode(BODY).decode()}:",
            "sha-256=:AAAA:",
        ]
    ),
)
@example(
    target="/",
    components=["@method", "@path", "content-digest"],
    parameters=[*PARAMETERS, PARAMETERS[0]],
    digest=f"sha-256=:{base64.b64encode(BODY).decode()}:",
)
def test_what_a_member_signs_otherwise(target, components, parameters, digest):
    """Whoever has the key may sign anything; both say alike what is good."""
    compare("GET", target, signed_by_hand(target, digest, components, parameters, "fedcore"))


@st.composite
def mutations(draw: st.DrawFn) -> tuple[str, str, dict[str, str]]:
    """An honest request of which one text has changed: bytes replaced, put in, cut out, or taken from elsewhere."""
    target = draw(st.sampled_from(TARGETS))
    parts = {"target": target, "method": "GET"} | sign_headers(
        "GET", target, BODY, key_id="client-1", key=KEY, now=NOW, nonce="n-1"
    )
    name = draw(st.sampled_from(list(parts)))
    start = draw(st.integers(0, len(parts[name])))
    end = draw(st.integers(start, min(start + 4, len(parts[name]))))
    pieces = st.sampled_from(
        ["", " ", "\t", ",", ";", "=", ":", '"', "\\", "()", "0", "%", "%2f", "A", "\x00", "é", "#"]
    )
    new = draw(pieces | st.text(max_size=4))
    parts[name] = parts[name][:start] + new + parts[name][end:]
    return parts.pop("method"), parts.pop("target"), parts


@given(mutations())
@example(("GET", "/", sign_headers("GET", "/", BODY, key_id="client-1", key=KEY, now=NOW, nonce="n-1")))
@example(("GET", ",/", sign_headers("GET", "/", BODY, key_id="client-1", key=KEY, now=NOW, nonce="n-1")))
def test_what_was_changed_on_the_way(mutation):
    compare(*mutation)


def compare(method: str, target: str, headers: Mapping[str, str]) -> None:
    mine, theirs = ours(method, target, headers), library(method, target, headers)
    if mine is not None:
        assert mine == theirs
    elif theirs is not None:
        assert not is_canonical(headers), "the library accepts it, and it has the form that ours accepts"


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_comes_twice_is_refused(name):
    headers = sign_headers("GET", "/", BODY, key_id="client-1", key=KEY, now=NOW, nonce="n-1")
    headers[name.lower()] = headers[name]
    assert ours("GET", "/", headers) is None


@pytest.mark.parametrize("text", ['a"b', "a\\b", "é", "a\n"])
def test_what_cannot_be_read_is_not_signed(text):
    with pytest.raises(UsageError, match="ASCII"):
        sign_headers("GET", "/", BODY, key_id="client-1", key=KEY, now=NOW, nonce=text)
