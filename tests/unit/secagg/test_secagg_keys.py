"""Domain separation, key pairs, sealing, and secrets that stay out of every text."""

from __future__ import annotations

import hmac
import logging
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import UsageError
from fedcore.secagg import Agreement, Secret
from fedcore.secagg.client_memory import ClientSecrets, DealtShares, PastAnswer
from fedcore.secagg.crypto.agreement import KeyPair
from fedcore.secagg.crypto.domain import Usage, derive, pack, pack_ids, statement, tagged_hash
from fedcore.secagg.crypto.keys import seal, unseal

FIELDS = st.lists(st.binary(max_size=12), max_size=5)


@given(FIELDS, FIELDS)
def test_packing_is_injective(one, two):
    assert (pack(*one) == pack(*two)) == (one == two)


def test_packing_has_the_length_in_front():
    assert pack(b"ab", "c", 5) == bytes(7) + b"\x02ab" + bytes(7) + b"\x01c" + bytes(7) + b"\x08" + bytes(7) + b"\x05"


def test_packed_ids_are_eight_bytes_each():
    assert pack_ids((1, 2**63 - 1)) == bytes(7) + b"\x01" + b"\x7f" + b"\xff" * 7
    assert pack_ids(()) == b""


def test_usages_are_distinct_versioned_and_separate():
    values = [usage.value for usage in Usage]
    assert len(set(values)) == len(values)
    assert all(value.startswith("fedcore/secagg/v3") for value in values)
    assert len({tagged_hash(usage, b"same") for usage in Usage}) == len(values)
    assert len({derive(bytes(32), bytes(32), usage, b"same") for usage in Usage}) == len(values)


def test_derive_is_hkdf_over_the_statement():
    """RFC 5869 written out: extract with the salt, expand one block of 32 bytes."""
    secret, salt = b"s" * 32, b"t" * 32
    prk = hmac.digest(salt, secret, "sha256")
    expected = hmac.digest(prk, statement(Usage.PAIR_MASK, b"L1", 1, 2) + b"\x01", "sha256")
    assert derive(secret, salt, Usage.PAIR_MASK, b"L1", 1, 2) == expected


def test_the_context_hash_depends_on_every_parameter(make_rig):
    base = make_rig(5).parameters
    changed = [
        {"federation": "x"}, {"run": "x"}, {"round": 2}, {"cohort": (1, 2, 3, 4, 6)}, {"threshold": 3}, {"words": 38},
        {"encoding": b"x"}, {"roster_hash": bytes(32)}, {"model_hash": bytes(32)}, {"task_hash": bytes(32)},
        {"corrupt": 1}, {"quorum": 5}, {"degree": 2, "threshold": 3}, {"agreement": Agreement.HYBRID},
    ]  # fmt: skip
    assert {name for change in changed for name in change} == set(base.__dataclass_fields__)
    contexts = {_with(base, change).ctx() for change in changed} | {base.ctx()}
    assert len(contexts) == len(changed) + 1
    # Neighbouring texts do not run into each other.
    assert _with(base, {"federation": "ab", "run": "c"}).ctx() != _with(base, {"federation": "a", "run": "bc"}).ctx()


def _with(parameters, change):
    fields = {name: getattr(parameters, name) for name in parameters.__dataclass_fields__}
    return type(parameters)(**(fields | change))


def test_sealing_binds_key_text_and_context():
    sealed = seal(b"k" * 32, b"text", b"context")
    assert unseal(b"k" * 32, sealed, b"context") == b"text"
    assert unseal(b"x" * 32, sealed, b"context") is None
    assert unseal(b"k" * 32, sealed, b"other") is None
    for i in range(len(sealed)):
        assert unseal(b"k" * 32, sealed[:i] + bytes([sealed[i] ^ 1]) + sealed[i + 1 :], b"context") is None


@pytest.mark.parametrize(
    "source", [lambda _: b"", lambda size: bytes(size - 1), lambda size: bytes(size + 1), bytearray]
)
def test_a_source_that_gives_other_than_it_was_asked_for(source):
    with pytest.raises(UsageError, match="randomness"):
        KeyPair.draw(Agreement.X25519, source)


def test_secrets_are_redacted_compared_and_never_pickled():
    secret = Secret(b"\xa5" * 32)
    assert repr(secret) == str(secret) == f"{secret}" == "Secret(<32 bytes redacted>)"
    assert secret == Secret(b"\xa5" * 32)
    assert secret != Secret(b"\xa5" * 31 + b"\0")
    assert secret != b"\xa5" * 32
    with pytest.raises(TypeError, match="Secret"):
        hash(secret)
    with pytest.raises(UsageError):
        pickle.dumps(secret)


def test_what_bears_secrets_shows_none_of_their_fields(drbg):
    """Not even a field whose own repr is redacted: that is for another class, or another library, to keep up."""
    pair, peer = (KeyPair.draw(Agreement.HYBRID, drbg(name)) for name in ("own", "peer"))
    pair.encapsulate(peer.public)  # from now on the pair remembers what X25519 agreed on
    assert repr(pair) == f"KeyPair(agreement={Agreement.HYBRID!r}, public={pair.public!r})"
    held = DealtShares(b"k" * 33, b"s" * 33)
    secrets = ClientSecrets(seal_pair=pair, mask_pair=pair, self_secret=Secret(b"b" * 32), shares={1: held})
    assert (repr(held), repr(secrets)) == ("DealtShares()", "ClientSecrets()")
    assert repr(PastAnswer(b"d" * 32, held)) == f"PastAnswer(digest={b'd' * 32!r})"


def _texts_of(secret: bytes) -> list[str]:
    """How a secret could show: as a literal, in hex, as a number. Short enough a piece to find a truncated one."""
    return [repr(secret)[2:14], secret.hex()[:12], str(int.from_bytes(secret, "big"))[:12]]


@pytest.mark.parametrize("agreement", Agreement)
def test_no_secret_shows_in_any_repr(make_rig, caplog, agreement):
    caplog.set_level(logging.DEBUG)
    rig = make_rig(4, agreement=agreement).until("upload")
    rig.lose("upload", [4])
    session, server = rig.clients[1], rig.server
    secrets = [term.seed.reveal() for term in server.mask_terms()]
    released = session._answers.released.answer
    secrets += [*released.self_shares.values(), *released.key_shares.values()]
    sharing = make_rig(4, agreement=agreement).until("deliver").clients[1]._secrets
    secrets += [sharing.seal_pair.root.reveal(), sharing.mask_pair.root.reveal()]
    live = make_rig(4, agreement=agreement).until("upload").clients[1]
    held = live._secrets
    secrets += [held.self_secret.reveal(), *(secret.reveal() for secret in held.pair_secrets.values())]
    secrets += [part for shares in held.shares.values() for part in (shares.of_key, shares.of_self)]
    assert len(secrets) > 15
    holders = [session, live, held, held.shares, held.pair_secrets, sharing, sharing.mask_pair, server]
    told = [live._answers, session._answers, released, server.signatures(), server.delivery(1)]
    rebuilt = [server.mask_terms(), server._terms]
    shown = " ".join(map(repr, (*holders, *told, *rebuilt))) + caplog.text
    for secret in secrets:
        for text in _texts_of(secret):
            assert text not in shown
