"""Complaints about a key that its sender cannot use: each discloses what the complainant and the key's owner agree on.

A corrupt client advertises client 1's key, a multiple of it, or the sum of it and a point of small order, and signs
garbage. Honest clients do not complain of one that does not prove that it has its keys (unsigned-dealing), and a copy
they refuse before (duplicate-key). Without these checks the server opens what client 1 dealt, and has its vector.
"""

from __future__ import annotations

import dataclasses
import functools

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from nacl import bindings
from support import curve

from fedcore.errors import ProtocolViolation
from fedcore.secagg import Advertisement, Agreement, KeyShares, Secret, ShareDelivery, dealing, inspection
from fedcore.secagg.crypto import edwards, schedule
from fedcore.secagg.crypto.agreement import KeyPair
from fedcore.secagg.crypto.keys import KEY_BYTES, sign
from fedcore.secagg.crypto.possession import PROOF_BYTES, PairName, holds, prove
from tests.support import adversary
from tests.support.ablation_attacks import FULL
from tests.support.ablation_removals import DISCLOSED, complain_of_any_key, open_what_was_disclosed
from tests.support.ablation_script import Refused, Script, stopped
from tests.support.hostile import Broken
from tests.support.stories import Actor, Drbg, Setting, Story, identity

SIX = Setting(n=6, quorum=4, degree=5, threshold=4, corrupt=1)
CORRUPT = 6
FACTOR = X25519PrivateKey.from_private_bytes(bytes(range(32)))


# What it advertises, made of client 1's key: and from the X of a complaint to what that client and its sender agree on


def _the_key(public):
    return public, lambda shared: shared


def _a_multiple(public):
    scalar, _ = edwards.scalar_and_point(FACTOR.private_bytes_raw())
    inverse = bindings.crypto_core_ed25519_scalar_invert(scalar)
    return FACTOR.exchange(X25519PublicKey.from_public_bytes(public)), functools.partial(edwards.multiply, inverse)


def _with_small_order(public, order):
    return curve.to_u(curve.added(curve.lifted(public), curve.of_order(order))), lambda shared: shared


KEYS = {"multiple": _a_multiple} | {
    f"order {order} more": functools.partial(_with_small_order, order=order) for order in (2, 4, 8)
}


# What it shows for a proof that it has that key: client 1's own, or one that it made with another private half


def _copied(story, _):
    return story.dealt[1].possession[:PROOF_BYTES]


def _made_up(story, actor):
    own = story.adverts[actor.client_id].c_public
    pair = dataclasses.replace(actor.seal_pair, public=own)
    return prove(pair, story.transcript.context, actor.client_id, PairName.SEAL)


def _of_either_sign(story, actor):
    """With its own private half or the negative of that: a point of small order may change which of them fits."""
    proof, scalar_of = _made_up(story, actor), edwards.scalar_of
    if not holds(story.adverts[actor.client_id].c_public, proof, story.transcript.context, CORRUPT, PairName.SEAL):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(edwards, "scalar_of", lambda private: edwards.negate_scalar(scalar_of(private)))
            proof = _made_up(story, actor)
    return proof


PROOFS = {"copied": _copied, "made up": _made_up}


def _advertised(actor, parameters, c_public):
    """The corrupt client's advertisement, with this key in place of its own."""
    c_public += actor.seal_pair.public[KEY_BYTES:]
    signed = schedule.advertisement_statement(parameters.ctx(), actor.client_id, c_public, actor.mask_pair.public)
    signature = sign(identity(actor.client_id), signed)
    return Advertisement(actor.client_id, c_public, actor.mask_pair.public, signature)


def _deal_garbage(story, actor, proof):
    """The corrupt client signs what nobody can open, of the sizes of what an honest client has dealt."""
    graph, cheat, agreement = story.graph, actor.client_id, actor.seal_pair.agreement
    honest = next(iter(story.dealt.values()))
    sizes, secret = {len(parcel) for parcel in honest.shares.values()}, agreement.ciphertext_bytes + 48
    dealt = KeyShares(
        cheat,
        bytes(32),
        bytes(32),
        {i: bytes(*sizes) for i in graph.neighbours(cheat)},
        {i: bytes(secret) for i in graph.neighbours(cheat) if graph.chooses(cheat, i)},
        bytes(64),
        proof + prove(actor.mask_pair, story.transcript.context, cheat, PairName.MASK),
    )
    root = dealing.dealing_tree(dealt, graph).root
    signed = dealing.dealing_statement(story.transcript, cheat, dealt.commitment, root)
    story.dealt[cheat] = dataclasses.replace(dealt, signature=sign(identity(cheat), signed))


def _complaint(script, story, client_id, cheat):
    """The client's complaint; None if it leaves without one."""
    session, delivery = script.game.players[client_id].session, story.delivery(client_id, story.ids)
    with pytest.raises(ProtocolViolation, match="share-unsealing"):
        session.receive_shares(delivery)
    try:
        return session.complain(delivery, dealing.dealing_for(story.dealt[cheat], story.graph, client_id))
    except ProtocolViolation as refusal:
        script.tally.refusals[refusal.check] += 1
        return None


def _four_complaints(key, proof, agreement=Agreement.X25519):
    """Clients 2 to 5 are to complain of client 6, and client 1 masks its vector for a cohort without that one."""

    def attack(script):
        game, setting = script.game, script.game.setting
        actor = Actor(CORRUPT, game.parameters, variant=0, signs=True)
        public, agreed_with_1 = key(game.players[1].advertisement.c_public[:KEY_BYTES])
        advert = _advertised(actor, game.parameters, public)
        story = Story(game.parameters, {**game.tell().adverts, CORRUPT: advert}, {})
        game.stories[:] = [story]
        script.list_keys(story)
        honest = tuple(game.players)
        delivered = {i: story.delivery(i, honest) for i in honest}
        _deal_garbage(story, actor, proof(story, actor))
        for i in honest[1:]:
            if said := _complaint(script, story, i, CORRUPT):
                ciphertext = dealing.split_parcel(story.sealed(1, i)[0])[1][: setting.agreement.ciphertext_bytes]
                agreed = edwards.to_u(agreed_with_1(said.shared))
                own = story.adverts[i].c_public
                DISCLOSED[story, 1, i] = setting.agreement.disclosed(own, agreed, said.mlkem_seed, ciphertext)
        del story.dealt[CORRUPT]
        script.deliver(delivered, story, (1,))

    return stopped(attack, Script(dataclasses.replace(SIX, agreement=agreement), (CORRUPT,)))


def _is_won(script):
    with pytest.raises(Broken) as caught:
        adversary.recover(script.games)
    return caught.value.verdict == "recovered"


# duplicate-key, and behind it the proof


def test_a_copied_key_is_refused():
    script = _four_complaints(_the_key, _copied)
    assert script.refusals == {"duplicate-key"}
    adversary.recover(script.games)


def _accept_copies(patch):
    strict = inspection.check_cohort

    def lenient(*args, **keywords):
        try:
            strict(*args, **keywords)
        except ProtocolViolation as refusal:
            if refusal.check != "duplicate-key":
                raise

    patch.setattr(inspection, "check_cohort", lenient)


@pytest.mark.parametrize("proof", PROOFS)
def test_without_the_check_nobody_complains_about_it(proof, monkeypatch):
    _accept_copies(monkeypatch)
    open_what_was_disclosed(monkeypatch)
    script = _four_complaints(_the_key, PROOFS[proof])
    assert script.tally.refusals == {"unsigned-dealing": 4}
    adversary.recover(script.games)


def test_without_both_checks_complaints_about_it_open_what_client_1_dealt(monkeypatch):
    _accept_copies(monkeypatch)
    complain_of_any_key(monkeypatch)
    script = _four_complaints(_the_key, _copied)
    assert not script.refusals
    assert _is_won(script)


# The proof alone: keys that are no copies


@pytest.mark.parametrize("agreement", Agreement)
@pytest.mark.parametrize("proof", PROOFS)
@pytest.mark.parametrize("key", KEYS)
def test_nobody_complains_about_a_key_that_its_sender_cannot_use(key, proof, agreement, monkeypatch):
    open_what_was_disclosed(monkeypatch)
    script = _four_complaints(KEYS[key], PROOFS[proof], agreement)
    assert script.tally.refusals == {"unsigned-dealing": 4}
    adversary.recover(script.games)


@pytest.mark.parametrize("agreement", Agreement)
@pytest.mark.parametrize("key", KEYS)
def test_if_nobody_asked_for_a_proof_complaints_would_open_what_client_1_dealt(key, agreement, monkeypatch):
    complain_of_any_key(monkeypatch)
    script = _four_complaints(KEYS[key], _copied, agreement)
    assert not script.refusals
    assert _is_won(script)


@pytest.mark.parametrize("order", [1, 2, 4, 8])
def test_complaints_about_a_key_that_its_sender_has_open_nothing(order, monkeypatch):
    """Whatever point of small order it added."""
    open_what_was_disclosed(monkeypatch)
    own = Actor(CORRUPT, Script(SIX).game.parameters, variant=0, signs=True).seal_pair.public
    script = _four_complaints(lambda _: _with_small_order(own, order), _of_either_sign)
    assert not script.refusals
    assert {i for story, _, i in DISCLOSED if story in script.game.stories} == {2, 3, 4, 5}
    adversary.recover(script.games)


# The proof alone: the key itself, in a list without its owner


def _two_complaints(proof):
    """Clients 2 and 3 are shown client 1's key as that of client 4, and client 1 a list in which all is right."""

    def attack(script):
        game = script.game
        mine = next(story for story in (game.tell(variant=variant) for variant in range(50)) if _chooses_all(story, 1))
        copied, actor = game.players[1].advertisement.c_public, mine.actors[4]
        advert = _advertised(actor, game.parameters, copied)
        theirs = Story(game.parameters, {2: mine.adverts[2], 3: mine.adverts[3], 4: advert}, {})
        game.stories[:] = [mine, theirs]
        script.list_keys(mine, (1,))
        script.list_keys(theirs, (2, 3))
        _deal_garbage(theirs, actor, proof(mine if proof is _copied else theirs, actor))
        said = {i: _complaint(script, theirs, i, 4) for i in (2, 3)}
        del theirs.dealt[4]
        if not all(said.values()):
            raise Refused
        forged = {}
        for i, one in said.items():
            agreed = edwards.to_u(one.shared)
            DISCLOSED[mine, 1, i] = Secret(agreed)
            pair = KeyPair.draw(FULL.agreement, Drbg("any"))
            pair._agreed[copied] = agreed
            sealed = schedule.seal_shares(mine.transcript, pair, copied, sender=i, receiver=1, text=bytes(66))
            forged[i] = dealing.commit(game.parameters.ctx(), i, 1, bytes(66)) + sealed
        parcel, pair_secret = mine.sealed(4, 1)
        secrets = {} if pair_secret is None else {4: pair_secret}
        script.deliver({1: ShareDelivery((1, 2, 3, 4), forged | {4: parcel}, secrets)}, mine, (1,))

    return stopped(attack, Script(FULL, (4,)))


def _chooses_all(story, client):
    return all(story.graph.chooses(client, v) for v in (2, 3))


@pytest.mark.parametrize("proof", PROOFS)
def test_of_four_clients_none_complains_about_anothers_key(proof, monkeypatch):
    open_what_was_disclosed(monkeypatch)
    script = _two_complaints(PROOFS[proof])
    assert script.tally.refusals == {"unsigned-dealing": 2}
    adversary.recover(script.games)


def test_if_nobody_asked_for_a_proof_two_complaints_would_be_enough(monkeypatch):
    complain_of_any_key(monkeypatch)
    script = _two_complaints(_copied)
    assert not script.refusals
    assert _is_won(script)
