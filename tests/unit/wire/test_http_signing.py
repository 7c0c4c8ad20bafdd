"""Signed requests: what a signature covers, how long it is good, and that it is good once."""

from __future__ import annotations

import base64
import hashlib
import sys
import threading
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from http_message_signatures import HTTPMessageSigner, HTTPSignatureKeyResolver
from http_message_signatures.algorithms import ED25519

from fedcore.errors import Unauthorized, UsageError, WrongClock
from fedcore.wire.signing import NonceCache, sign_headers, verify_headers
from tests.support.raising import raises

NOW = 1_800_000_000
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
KEYS = {"client-1": KEY.public_key().public_bytes_raw()}
BODY = hashlib.sha256(b"body").digest()
TARGET = "/v1/runs/7/input?part=2&of=%203"


def sign(target: str = TARGET, *, method: str = "PUT", **changes) -> dict[str, str]:
    arguments = {"key_id": "client-1", "key": KEY, "now": NOW, "nonce": "n-1"} | changes
    return sign_headers(method, target, BODY, **arguments)


def verify(headers, target: str = TARGET, *, method: str = "PUT", **changes):
    arguments = {"resolve_key": KEYS.__getitem__, "now": NOW, "nonces": NonceCache()} | changes
    return verify_headers(method, target, headers, **arguments)


@pytest.mark.parametrize("target", ["/", "/v1/poll", TARGET, "/v1/a?", "//v1//a%2Fb"])
def test_round_trip(target):
    verified = verify(sign(target), target)
    assert verified.key_id == "client-1"
    assert verified.content_sha256 == BODY


@pytest.mark.parametrize("field", ["Signature", "Signature-Input", "Content-Digest"])
def test_a_long_field_is_refused_before_it_is_parsed(field):
    headers = sign()
    headers[field] += f", other=:{'A' * 48_000}:"
    with raises(Unauthorized, check="field-length", match=field.lower()):
        verify(headers)


def test_the_longest_honest_fields_are_not():
    headers = sign("/v1/a?" + "q" * 2000, nonce="n" * 128)
    assert verify(headers, "/v1/a?" + "q" * 2000).key_id == "client-1"


def test_headers_follow_the_standards():
    headers = sign("/v1/poll", method="GET")
    assert headers["Content-Digest"] == f"sha-256=:{base64.b64encode(BODY).decode()}:"
    parameters = f'created={NOW};keyid="client-1";nonce="n-1";tag="fedcore"'
    covered = f'("@method" "@path" "content-digest");{parameters}'
    assert headers["Signature-Input"] == f"fedcore={covered}"
    # RFC 9421, 2.5, written out by hand
    base = (
        '"@method": GET\n'
        '"@path": /v1/poll\n'
        f'"content-digest": {headers["Content-Digest"]}\n'
        f'"@signature-params": {covered}'
    )
    expected = base64.b64encode(KEY.sign(base.encode())).decode()
    assert headers["Signature"] == f"fedcore=:{expected}:"


def test_headers_are_found_in_any_case():
    assert verify({name.lower(): value for name, value in sign().items()}).key_id == "client-1"


def test_clock_may_be_a_datetime():
    now = datetime.fromtimestamp(NOW, UTC)
    assert sign(now=now) == sign(now=NOW)
    assert verify(sign(now=now), now=now).key_id == "client-1"


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", TARGET),
        ("put", TARGET),
        ("PUT", "/v1/runs/8/input?part=2&of=%203"),
        ("PUT", "/v1/runs/7/input"),
        ("PUT", "/v1/runs/7/input?part=1&of=%203"),
        ("PUT", TARGET + "&more=1"),
        ("PUT", TARGET + "#fragment"),
        ("PUT", "*"),
        ("PUT", ""),
    ],
)
def test_another_request_is_refused(method, target):
    with pytest.raises(Unauthorized):
        verify(sign(), target, method=method)


def test_a_query_that_was_not_signed_is_refused():
    with raises(Unauthorized, check="not-covered"):
        verify(sign("/v1/poll"), "/v1/poll?admin=1")


@pytest.mark.parametrize("name", ["Content-Digest", "Signature-Input", "Signature"])
def test_a_missing_header_is_refused(name):
    headers = sign()
    del headers[name]
    with pytest.raises(Unauthorized):
        verify(headers)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("Content-Digest", "sha-256=:", "sha-256=:A"),
        ("Content-Digest", "sha-256", "sha-512"),
        ("Content-Digest", "sha-256=:", "sha-512=:AA==:, sha-256=:"),
        ("Content-Digest", "sha-256=", "sha-256=é"),
        ("Signature-Input", f"created={NOW}", f"created={NOW + 1}"),
        ("Signature-Input", 'nonce="n-1"', 'nonce="n-2"'),
        ("Signature-Input", 'tag="fedcore"', 'tag="other"'),
        ("Signature-Input", ' "content-digest"', ""),
        ("Signature-Input", ";keyid", ';alg="hmac-sha256";keyid'),
        ("Signature-Input", "fedcore=", "fedcore=("),
        ("Signature", "fedcore=:", "fedcore=:AAAA"),
        ("Signature", "fedcore", "other"),
    ],
)
def test_an_altered_header_is_refused(name, old, new):
    headers = sign()
    assert old in headers[name]
    headers[name] = headers[name].replace(old, new)
    with pytest.raises(Unauthorized):
        verify(headers)


def test_two_digests_are_refused():
    headers = sign()
    with raises(Unauthorized, check="field-count", match="Content-Digest"):
        verify(headers | {"content-digest": headers["Content-Digest"]})


@pytest.mark.parametrize(
    "changes", [{"key": OTHER_KEY}, {"key_id": "client-2"}, {"key": OTHER_KEY, "key_id": "client-2"}]
)
def test_a_foreign_key_is_refused(changes):
    with raises(Unauthorized, check="unknown-signer"):
        verify(sign(**changes))


class _Holder(HTTPSignatureKeyResolver):
    def resolve_private_key(self, key_id):
        return KEY


@pytest.mark.parametrize(
    ("components", "changes"),
    [
        (("@method", "@path", "content-digest"), {}),
        (("@method", "@query", "content-digest"), {}),
        (("@path", "@query", "content-digest"), {}),
        (("@method", "@path", "@query"), {}),
        (("@method", "@path", "@query", "content-digest", "@scheme"), {}),
        (("@method", "@path", "@query", '"content-digest";sf'), {}),
        (("@method", "@path", "@query", "content-digest"), {"nonce": None}),
        (("@method", "@path", "@query", "content-digest"), {"include_alg": True}),
        (("@method", "@path", "@query", "content-digest"), {"nonce": ""}),
        (("@method", "@path", "@query", "content-digest"), {"nonce": "n" * 129}),
    ],
)
def test_a_valid_signature_over_something_else_is_refused(components, changes):
    """The client's own key signed it, but not what the server asks for."""
    message = type("Message", (), {})()
    message.method, message.url = "PUT", "https://fedcore.invalid" + TARGET
    message.headers = {"Content-Digest": sign()["Content-Digest"]}
    arguments = {
        "key_id": "client-1",
        "created": datetime.fromtimestamp(NOW, UTC),
        "nonce": "n-1",
        "tag": "fedcore",
        "include_alg": False,
    } | changes
    signer = HTTPMessageSigner(signature_algorithm=ED25519, key_resolver=_Holder())
    signer.sign(message, covered_component_ids=components, use_existing_digest=True, **arguments)
    with pytest.raises(Unauthorized):
        verify(message.headers)


@pytest.mark.parametrize("digest", ["sha-256=:AAAA:", "sha-256=1", "sha-256", "sha-256=(:AAAA:)"])
def test_a_valid_signature_over_no_sha256_is_refused(digest):
    """Signed by hand, since the library refuses to sign some of these."""
    covered = f'("@method" "@path" "content-digest");created={NOW};keyid="client-1";nonce="n";tag="fedcore"'
    base = f'"@method": GET\n"@path": /\n"content-digest": {digest}\n"@signature-params": {covered}'
    headers = {
        "Content-Digest": digest,
        "Signature-Input": f"fedcore={covered}",
        "Signature": f"fedcore=:{base64.b64encode(KEY.sign(base.encode())).decode()}:",
    }
    with raises(Unauthorized, check="digest-form"):
        verify(headers, "/", method="GET")


@pytest.mark.parametrize(("age", "good"), [(0, True), (305, True), (306, False), (-5, True), (-6, False)])
def test_age(age, good):
    headers = sign(now=NOW - age)
    if good:
        assert verify(headers).key_id == "client-1"
    else:
        with raises(WrongClock, numbers=(abs(age),), key_id="client-1", seconds=-age):
            verify(headers)


def test_only_who_signed_is_told_of_clocks():
    with raises(Unauthorized, check="unknown-signer"):
        verify(sign(now=NOW - 7200, key=OTHER_KEY))


def test_a_request_is_good_once():
    seen = NonceCache()
    verify(sign(), nonces=seen)
    with raises(Unauthorized, check="replayed"):
        verify(sign(), nonces=seen, now=NOW + 300)
    verify(sign(nonce="n-2"), nonces=seen)


def test_a_forged_request_does_not_use_up_the_nonce():
    seen = NonceCache()
    with pytest.raises(Unauthorized):
        verify(sign(key=OTHER_KEY), nonces=seen)
    assert len(seen) == 0
    verify(sign(), nonces=seen)


def test_reasons_quote_nothing_of_the_request():
    headers = sign()
    headers["Signature-Input"] = headers["Signature-Input"].replace("client-1", "marker-7")
    with pytest.raises(Unauthorized) as caught:
        verify(headers)
    assert "marker-7" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("target", ["", "v1/poll", "https://host/v1", "/v1#top"])
def test_only_targets_can_be_signed(target):
    with pytest.raises(UsageError):
        sign(target)


def test_only_digests_can_be_signed():
    with raises(UsageError, numbers=(32,)):
        sign_headers("GET", "/", b"short", key_id="client-1", key=KEY, now=NOW, nonce="n")


# --- the nonce cache


def test_nonces_are_forgotten_when_they_are_too_old():
    seen = NonceCache()
    for second in range(1000):
        seen.add("client-1", f"n-{second}", created=NOW + second, oldest=NOW + second - 9)
    assert len(seen) == 10


def test_a_full_cache_never_admits_a_replay():
    seen = NonceCache(per_key=10)
    for second in range(20):
        seen.add("client-1", f"n-{second}", created=NOW + second, oldest=NOW - 300)
    assert len(seen) == 10
    for second in range(20):
        with pytest.raises(Unauthorized):
            seen.add("client-1", f"n-{second}", created=NOW + second, oldest=NOW - 300)
    seen.add("client-1", "new", created=NOW + 20, oldest=NOW - 300)


def test_a_full_cache_of_one_key_leaves_the_others_alone():
    seen = NonceCache(per_key=2)
    for number in range(5):
        seen.add("client-1", f"n-{number}", created=NOW + number, oldest=NOW)
    seen.add("client-2", "n-0", created=NOW, oldest=NOW)


def test_requests_from_before_the_start_are_refused():
    seen = NonceCache(not_before=NOW)
    verify(sign(now=NOW, nonce="a"), nonces=seen)
    with raises(Unauthorized, check="older"):
        verify(sign(now=NOW - 1, nonce="b"), nonces=seen)


def test_one_of_many_threads_wins():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # lets a missing lock show
    seen = NonceCache(per_key=20_000)
    barrier = threading.Barrier(8)
    outcomes: list[bool] = []

    def attempt():
        barrier.wait()
        for number in range(20_000):
            try:
                seen.add("client-1", f"n-{number}", created=NOW, oldest=NOW)
                outcomes.append(True)
            except Unauthorized:
                outcomes.append(False)

    try:
        _run_together(attempt)
    finally:
        sys.setswitchinterval(interval)
    assert len(outcomes) == 160_000
    assert sum(outcomes) == 20_000


def _run_together(attempt):
    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_cache_needs_room():
    with pytest.raises(UsageError):
        NonceCache(per_key=0)
