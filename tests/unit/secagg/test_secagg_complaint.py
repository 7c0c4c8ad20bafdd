"""Complaints: who sealed garbage is convicted by anybody, who complains of what is right convicts itself."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from nacl import bindings
from support import curve

from fedcore.errors import IllegalTransition, ProtocolViolation, UsageError
from fedcore.secagg import Agreement, ClientState, Complaint, ComplaintSubject, Fault, Secret, complaint, dealing
from fedcore.secagg.crypto import edwards, schedule
from fedcore.secagg.crypto.agreement import KeyPair
from fedcore.secagg.crypto.domain import Usage
from fedcore.secagg.crypto.keys import seal
from tests.support.raising import raises

PARTS = {ComplaintSubject.SHARES: "shares", ComplaintSubject.PAIR_SECRET: "pair_secrets"}


def _share(rig, cheat, change):
    """R1, in which `cheat` deals and signs what `change` makes of its message."""
    session = rig.clients[cheat]
    honest = session.share_keys(rig.server.advertised(cheat))
    rig.server.receive_shares(session._signed(change(honest), session._transcript, session._graph))
    rig.share(set(rig.ids) - {cheat})


def _pair(rig):
    """A client that chooses for another: (chooser, receiver)."""
    graph = rig.graph()
    return next((i, v) for i in rig.ids for v in graph.neighbours(i) if graph.chooses(i, v))


def _garbled(message, part, receiver):
    field = PARTS[part]
    entries = getattr(message, field)
    raw = entries[receiver]
    return dataclasses.replace(message, **{field: {**entries, receiver: raw[:-1] + bytes([raw[-1] ^ 1])}})


def _complain(rig, receiver, cheat):
    """As the client's agent does it: the delivery is refused, the evidence fetched, the complaint made."""
    session, delivery = rig.clients[receiver], rig.server.delivery(receiver)
    with pytest.raises(ProtocolViolation) as refused:
        session.receive_shares(delivery)
    assert refused.value.peer == cheat
    return refused.value.check, session.complain(delivery, rig.server.dealing(receiver, cheat))


@pytest.mark.parametrize("part", ComplaintSubject)
def test_a_dealer_that_seals_garbage_is_convicted(any_rig, part):
    rig = any_rig().until("share")
    cheat, receiver = _pair(rig)
    _share(rig, cheat, lambda message: _garbled(message, part, receiver))
    check, said = _complain(rig, receiver, cheat)
    assert (check, said.part) == ("share-unsealing", part)
    verdict = rig.server.judge(said)
    assert (verdict.client_id, verdict.fault) == (cheat, Fault.SEALED_GARBAGE)
    assert rig.server.blamed == {cheat: Fault.SEALED_GARBAGE}


@pytest.mark.parametrize("place", [0, 16], ids=["of the mask root", "of the self secret"])
def test_a_dealer_that_commits_to_other_shares_is_convicted(any_rig, place):
    rig = any_rig().until("share")
    cheat, receiver = _pair(rig)

    def change(message):
        parcel = bytearray(message.shares[receiver])
        parcel[place] ^= 1
        return dataclasses.replace(message, shares={**message.shares, receiver: bytes(parcel)})

    _share(rig, cheat, change)
    check, said = _complain(rig, receiver, cheat)
    assert check == "uncommitted-share"
    assert rig.server.judge(said).fault is Fault.INCONSISTENT_DEALING
    assert set(rig.server.blamed) == {cheat}


def test_the_others_go_on_without_either(make_rig):
    """Seven, of whom one cheats one: a quorum of five is left."""
    rig = make_rig(7).until("share")
    cheat, receiver = _pair(rig)
    _share(rig, cheat, lambda message: _garbled(message, ComplaintSubject.SHARES, receiver))
    rig.server.judge(_complain(rig, receiver, cheat)[1])
    left = set(rig.ids) - {cheat, receiver}
    rig.deliver(left)
    rig.upload(left)
    rig.sign()
    rig.unmask()
    rig.assert_sum(left)
    assert set(rig.server.blamed) == {cheat}


def test_a_session_that_complains_is_over_and_erased(make_rig):
    rig = make_rig(4).until("share")
    cheat, receiver = _pair(rig)
    _share(rig, cheat, lambda message: _garbled(message, ComplaintSubject.SHARES, receiver))
    _complain(rig, receiver, cheat)
    session = rig.clients[receiver]
    assert session.state is ClientState.ABANDONED
    assert session._secrets.seal_pair is None
    assert session._secrets.mask_pair is None
    with pytest.raises(IllegalTransition):
        session.complain(rig.server.delivery(receiver), rig.server.dealing(receiver, cheat))


# A server that lies gets no complaint, for that would lay open what two honest clients sealed for each other


@pytest.mark.parametrize("part", ComplaintSubject)
def test_what_the_server_altered_accuses_nobody(any_rig, part):
    rig = any_rig().until("deliver")
    sender, receiver = _pair(rig)
    session, delivery = rig.clients[receiver], rig.server.delivery(receiver)
    raw = getattr(delivery, PARTS[part])[sender]
    told = dataclasses.replace(
        delivery, **{PARTS[part]: {**getattr(delivery, PARTS[part]), sender: raw[:-1] + bytes([raw[-1] ^ 1])}}
    )
    with pytest.raises(ProtocolViolation, match="share-unsealing"):
        session.receive_shares(told)
    shown = rig.server.dealing(receiver, sender)
    refused = rig.refused("unsigned-dealing", session, lambda: session.complain(told, shown))
    assert refused.peer is None
    rig.go_on("deliver")


def test_evidence_that_is_another_one(any_rig):
    """Of another round, with another way to the root, cut short, or with another commitment to b."""
    rig, other = any_rig().until("share"), any_rig(round=2).until("deliver")
    cheat, receiver = _pair(rig)
    _share(rig, cheat, lambda message: _garbled(message, ComplaintSubject.SHARES, receiver))
    session, delivery = rig.clients[receiver], rig.server.delivery(receiver)
    shown = rig.server.dealing(receiver, cheat)
    neighbour = other.graph().neighbours(cheat)[0]
    for bad in (
        dataclasses.replace(shown, proof=(bytes(32), *shown.proof[1:])),
        dataclasses.replace(shown, signature=other.server.dealing(neighbour, cheat).signature),
        dataclasses.replace(shown, commitment=bytes(32)),
        dataclasses.replace(shown, signature=bytes(64)),
        dataclasses.replace(shown, possession=bytes(128)),
        dataclasses.replace(shown, possession=shown.possession[64:] + shown.possession[:64]),
    ):
        rig.refused("unsigned-dealing", session, lambda bad=bad: session.complain(delivery, bad))
    for proof in (shown.proof[1:], (*shown.proof, bytes(32))):
        bad = dataclasses.replace(shown, proof=proof)
        rig.refused("malformed", session, lambda bad=bad: session.complain(delivery, bad))
    session.complain(delivery, shown)


def test_there_is_no_complaint_of_what_is_right(make_rig, freeze):
    rig = make_rig(4).until("deliver")
    session, before = rig.clients[1], freeze(rig.clients[1])
    with raises(UsageError, check="no-fault"):
        session.complain(rig.server.delivery(1), rig.server.dealing(1, 2))
    assert freeze(session) == before
    rig.go_on("deliver")


# Who complains falsely


def _case(rig, receiver, accused):
    return rig.server._case(receiver, accused)


def _pair_of(rig, client_id, part):
    secrets = rig.clients[client_id]._secrets
    return secrets.seal_pair if part is ComplaintSubject.SHARES else secrets.mask_pair


@pytest.mark.parametrize("part", ComplaintSubject)
def test_a_complaint_of_what_is_right_convicts_its_sender(any_rig, drbg, part):
    """With a true proof: the sealed text opens and is what it should be."""
    rig = any_rig().until("deliver")
    honest, liar = _pair(rig)
    said = complaint.complain(_case(rig, liar, honest), part, _pair_of(rig, liar, part), drbg("liar"))
    verdict = rig.server.judge(said)
    assert (verdict.client_id, verdict.fault) == (liar, Fault.FALSE_COMPLAINT)
    assert rig.server.blamed == {liar: Fault.FALSE_COMPLAINT}


def _altered(said, field, place):
    raw = bytearray(getattr(said, field))
    raw[place] ^= 1
    return dataclasses.replace(said, **{field: bytes(raw)})


@pytest.mark.parametrize("guilty", [True, False], ids=["of garbage", "of what is right"])
def test_a_proof_with_any_part_altered_convicts_its_sender(make_rig, drbg, guilty):
    """Also where it would be right to complain: what is not proved is not believed."""
    rig = make_rig(3).until("share")
    accused, receiver = _pair(rig)
    _share(rig, accused, lambda message: _garbled(message, ComplaintSubject.SHARES, receiver) if guilty else message)
    case = _case(rig, receiver, accused)
    said = complaint.complain(
        case, ComplaintSubject.SHARES, _pair_of(rig, receiver, ComplaintSubject.SHARES), drbg("complaint")
    )
    other = complaint.complain(
        case, ComplaintSubject.SHARES, _pair_of(rig, receiver, ComplaintSubject.PAIR_SECRET), drbg("other key")
    )
    bad = [
        *(_altered(said, "shared", place) for place in (0, 31)),
        *(_altered(said, "proof", place) for place in (0, 31, 32, 63)),
        dataclasses.replace(said, shared=edwards.subtract(edwards.IDENTITY, said.shared)),
        dataclasses.replace(said, proof=said.proof[:32] + _plus_order(said.proof[32:])),
        dataclasses.replace(said, part=ComplaintSubject.PAIR_SECRET),
        dataclasses.replace(said, shared=bytes(32), proof=bytes(64)),
        dataclasses.replace(said, mlkem_seed=bytes(64)),
        other,
    ]
    for one in bad:
        verdict = complaint.judge(one, case)
        assert (verdict.client_id, verdict.fault) == (receiver, Fault.FALSE_COMPLAINT)
    assert complaint.judge(said, case).client_id == (accused if guilty else receiver)


def test_the_seed_of_another_mlkem_pair_convicts_its_sender(make_rig, drbg):
    rig = make_rig(3, agreement=Agreement.HYBRID).until("share")
    accused, receiver = _pair(rig)
    _share(rig, accused, lambda message: _garbled(message, ComplaintSubject.SHARES, receiver))
    case = _case(rig, receiver, accused)
    said = complaint.complain(
        case, ComplaintSubject.SHARES, _pair_of(rig, receiver, ComplaintSubject.SHARES), drbg("complaint")
    )
    for bad in (_altered(said, "mlkem_seed", 0), dataclasses.replace(said, mlkem_seed=b"")):
        assert complaint.judge(bad, case) == complaint.Verdict(receiver, Fault.FALSE_COMPLAINT)


def _plus_order(response):
    """The same number modulo the order: accepted, a proof could be sent in two forms."""
    return (int.from_bytes(response, "little") + curve.CURVE_ORDER).to_bytes(32, "little")


def test_a_complaint_of_a_stranger_or_of_what_was_never_sealed(make_rig):
    rig = make_rig.ring().until("deliver")
    graph = rig.graph()
    stranger = next(i for i in rig.ids if i != 1 and i not in graph.neighbours(1))
    for accused in (stranger, rig.ids[-1] + 5, 2**63 - 1, 1):
        said = Complaint(1, accused, ComplaintSubject.SHARES, bytes(32), bytes(64), b"")
        assert rig.server.judge(said).client_id == 1
    unchosen = next(i for i in graph.neighbours(2) if graph.chooses(2, i))
    assert (
        rig.server.judge(Complaint(2, unchosen, ComplaintSubject.PAIR_SECRET, bytes(32), bytes(64), b"")).client_id == 2
    )
    assert rig.server.blamed == dict.fromkeys((1, 2), Fault.FALSE_COMPLAINT)


# When, and by whom


def test_complaints_before_the_delivery_and_of_the_dropped(make_rig):
    rig = make_rig(4).until("share")
    said = Complaint(1, 2, ComplaintSubject.SHARES, bytes(32), bytes(64), b"")
    for question in (lambda: rig.server.judge(said), lambda: rig.server.dealing(1, 2)):
        with pytest.raises(IllegalTransition):
            question()
    rig.share()
    rig.server.drop(1)
    assert rig.refused("dropped-client", rig.server, lambda: rig.server.judge(said)).peer == 1
    stranger = dataclasses.replace(said, client_id=9)
    assert rig.refused("dropped-client", rig.server, lambda: rig.server.judge(stranger)).peer == 9
    assert rig.refused("wrong-recipients", rig.server, lambda: rig.server.dealing(9, 2)).peer == 9


@pytest.mark.parametrize(
    "change",
    [
        {"client_id": 0}, {"client_id": 1.0}, {"accused": True}, {"accused": 2**63}, {"part": "shares?"},
        {"shared": bytes(31)}, {"proof": bytes(63)}, {"mlkem_seed": bytes(63)}, {"mlkem_seed": None},
    ],
)  # fmt: skip
def test_complaints_that_are_none(make_rig, change):
    rig = make_rig(3).until("deliver")
    said = dataclasses.replace(Complaint(1, 2, ComplaintSubject.SHARES, bytes(32), bytes(64), b""), **change)
    rig.refused("malformed", rig.server, lambda: rig.server.judge(said))


def test_a_dealer_that_did_not_sign_is_to_blame_and_nobody_complains(make_rig):
    rig = make_rig(4).until("share")
    honest = rig.clients[2].share_keys(rig.server.advertised(2))
    rig.server.receive_shares(dataclasses.replace(_garbled(honest, ComplaintSubject.SHARES, 1), signature=bytes(64)))
    rig.share({1, 3, 4})
    session, delivery = rig.clients[1], rig.server.delivery(1)
    with pytest.raises(ProtocolViolation, match="share-unsealing"):
        session.receive_shares(delivery)
    shown = rig.server.dealing(1, 2)
    assert rig.server.blamed == {2: Fault.UNSIGNED_DEALING}
    rig.refused("unsigned-dealing", session, lambda: session.complain(delivery, shown))
    verdict = rig.server.judge(Complaint(1, 2, ComplaintSubject.SHARES, bytes(32), bytes(64), b""))
    assert (verdict.client_id, verdict.fault) == (2, Fault.UNSIGNED_DEALING)


@pytest.mark.parametrize("half", [0, 1], ids=["of c", "of s"])
def test_a_dealer_without_a_proof_that_it_has_its_keys_is_to_blame_and_nobody_complains(any_rig, half):
    """It shows another client's."""
    rig = any_rig().until("share")
    cheat, receiver = _pair(rig)
    other = next(i for i in rig.ids if i not in (cheat, receiver))
    copied = rig.clients[other].share_keys(rig.server.advertised(other))
    rig.server.receive_shares(copied)

    def change(message):
        halves = [message.possession[:64], message.possession[64:]]
        halves[half] = copied.possession[64 * half :][:64]
        garbled = _garbled(message, ComplaintSubject.SHARES, receiver)
        return dataclasses.replace(garbled, possession=b"".join(halves))

    session = rig.clients[cheat]
    honest = session.share_keys(rig.server.advertised(cheat))
    rig.server.receive_shares(session._signed(change(honest), session._transcript, session._graph))
    rig.share(set(rig.ids) - {cheat, other})
    session, delivery = rig.clients[receiver], rig.server.delivery(receiver)
    with pytest.raises(ProtocolViolation, match="share-unsealing"):
        session.receive_shares(delivery)
    shown = rig.server.dealing(receiver, cheat)
    assert rig.server.blamed == {cheat: Fault.UNSIGNED_DEALING}
    rig.refused("unsigned-dealing", session, lambda: session.complain(delivery, shown))
    said = Complaint(receiver, cheat, ComplaintSubject.SHARES, bytes(32), bytes(64), b"")
    assert rig.server.judge(said) == complaint.Verdict(cheat, Fault.UNSIGNED_DEALING)


# Points that no honest client makes


class _Two:
    """A dealer and a receiver with keys of a test's choice; `key_of` gives a public key from its private one."""

    def __init__(self, rig, *, dealer_adds=None, receiver_adds=None):
        self.rig = rig
        self.dealer = X25519PrivateKey.from_private_bytes(hashlib.sha256(b"dealer").digest())
        self.receiver = X25519PrivateKey.from_private_bytes(hashlib.sha256(b"receiver").digest())
        self.transcript = schedule.Transcript(context=bytes(32), cohort=bytes(32))
        self.publics = (_public(self.dealer, dealer_adds), _public(self.receiver, receiver_adds))
        root = Secret(bytes(32))
        self.pair = KeyPair(
            agreement=Agreement.X25519, public=self.publics[1], root=root, _x25519=self.receiver, _mlkem=None
        )

    def case(self, text, agreed):
        """What the dealer sealed with this agreed secret."""
        commitments = dealing.commit(bytes(32), 2, 1, text)
        key = schedule._sealing_key(Usage.SHARE_SEAL, self.transcript, Secret(agreed), b"", 2, 1)
        sealed = seal(key, text, schedule._sealing_context(Usage.SHARE_SEAL, self.transcript, sender=2, receiver=1))
        accused, complainant = (self.rig.signed(i, key, key) for i, key in zip((2, 1), self.publics, strict=True))
        return complaint.Case(
            transcript=self.transcript, agreement=Agreement.X25519, complainant=complainant, accused=accused,
            parcel=commitments + sealed, pair_secret=None,
        )  # fmt: skip


def _public(private, adds):
    raw = private.public_key().public_bytes_raw()
    return raw if adds is None else curve.to_u(curve.added(curve.lifted(raw), adds))


def _exchange(private, public):
    return private.exchange(X25519PublicKey.from_public_bytes(public))


@pytest.mark.parametrize("order", [2, 4, 8])
def test_a_small_order_added_to_the_dealers_key_saves_nobody(make_rig, drbg, order):
    """The receiver's key is a multiple of eight, so that the point of small order falls out of what is agreed."""
    two = _Two(make_rig(3), dealer_adds=curve.of_order(order))
    agreed = _exchange(two.receiver, two.publics[0])
    for text, fault in ((bytes(66), Fault.FALSE_COMPLAINT), (b"\xff" * 66, Fault.INCONSISTENT_DEALING)):
        case = two.case(text, agreed)
        said = complaint.complain(case, ComplaintSubject.SHARES, two.pair, drbg("proof"))
        assert complaint.judge(said, case).fault is fault
    case = two.case(bytes(66), bytes(32))
    assert (
        complaint.judge(complaint.complain(case, ComplaintSubject.SHARES, two.pair, drbg("proof")), case).client_id == 2
    )


@pytest.mark.parametrize("order", [2, 4, 8])
def test_with_a_dealers_key_of_small_order_the_agreed_secret_is_zero(make_rig, drbg, order):
    """Such keys are refused before anything is sealed; a judge that sees one all the same convicts by the text."""
    two = _Two(make_rig(3))
    two.publics = (curve.to_u(curve.of_order(order)), two.publics[1])
    for text, fault in ((bytes(66), Fault.FALSE_COMPLAINT), (b"\xff" * 66, Fault.INCONSISTENT_DEALING)):
        case = two.case(text, bytes(32))
        said = complaint.complain(case, ComplaintSubject.SHARES, two.pair, drbg("proof"))
        assert said.shared == edwards.IDENTITY
        assert complaint.judge(said, case).fault is fault


@pytest.mark.parametrize("order", [2, 4, 8])
def test_a_small_order_added_by_the_complainant_convicts_no_dealer(make_rig, drbg, order):
    """To its public key, or to what it discloses: another point gives another key, under which nothing opens."""
    torsion = curve.of_order(order)
    for adds in (None, torsion):
        two = _Two(make_rig(3), receiver_adds=adds)
        case = two.case(bytes(66), _exchange(two.dealer, two.publics[1]))
        for point in (None, torsion):
            said = _proof_with(case, two, point, drbg)
            assert complaint.judge(said, case).client_id == 1


def _proof_with(case, two, adds, drbg):
    """A proof by somebody who adds a point to what it discloses, and tries both signs."""
    scalar, _ = edwards.scalar_and_point(two.receiver.private_bytes_raw())
    own, peer = (edwards.clear_cofactor(edwards.lift(public[:32])) for public in reversed(two.publics))
    base = edwards.clear_cofactor(edwards.BASE)
    if edwards.multiply(scalar, base) != own:
        scalar = edwards.negate_scalar(scalar)
    raw = edwards.agree(scalar, edwards.lift(two.publics[0]))
    if adds is not None:
        raw = bindings.crypto_core_ed25519_add(raw, curve.encoded(adds))
    nonce = edwards.reduce(drbg("nonce")(64))
    commitments = [edwards.multiply(nonce, point) for point in (base, peer)]
    challenge = complaint._challenge(case, ComplaintSubject.SHARES, raw, commitments)
    response = edwards.multiply_add(edwards.reduce(challenge), scalar, nonce)
    return Complaint(1, 2, ComplaintSubject.SHARES, raw, challenge + response, b"")


def test_a_key_on_the_twist_convicts_its_owner_whoever_is_asked(make_rig, drbg):
    two = _Two(make_rig(3))
    twist = next(u for u in (bytes([i]).ljust(32, b"\0") for i in range(2, 40)) if edwards.lift(u) is None)
    case = two.case(bytes(66), bytes(32))
    off = dataclasses.replace(case, accused=make_rig(3).signed(2, twist, twist))
    said = complaint.complain(off, ComplaintSubject.SHARES, two.pair, drbg("proof"))
    assert complaint.judge(said, off) == complaint.Verdict(2, Fault.KEY_OFF_CURVE)
    own = dataclasses.replace(case, complainant=make_rig(3).signed(1, twist, twist))
    true = complaint.complain(case, ComplaintSubject.SHARES, two.pair, drbg("proof"))
    assert complaint.judge(true, own) == complaint.Verdict(1, Fault.FALSE_COMPLAINT)


def test_nothing_that_is_disclosed_shows_in_a_repr():
    said = Complaint(1, 2, ComplaintSubject.SHARES, b"X" * 32, b"P" * 64, b"S" * 64)
    assert repr(said) == f"Complaint(client_id=1, accused=2, part={ComplaintSubject.SHARES!r})"
