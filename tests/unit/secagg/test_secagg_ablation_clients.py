"""Attacks of proofs/maude that break another promise than that of the sum, told to real sessions by a server that lies.

The check stops each of them; without it the promise is broken that the table in proofs/ablation.py names.
"""

from __future__ import annotations

import dataclasses

import pytest

from fedcore.errors import ProtocolViolation
from fedcore.secagg import (
    AdvertisedCohort,
    ClientSession,
    Fault,
    RoundParameters,
    SignatureSet,
    complaint,
    dealing,
    inspection,
    messages,
)
from fedcore.secagg.client_memory import ClientSecrets
from fedcore.secagg.crypto.keys import sign
from fedcore.secagg.crypto.tree import Tree
from tests.support import adversary
from tests.support.ablation_attacks import FULL
from tests.support.ablation_script import Script, stopped
from tests.support.hostile import Broken
from tests.support.stories import Actor, Setting, Story, identity

SIX = Setting(n=6, quorum=4, degree=5, threshold=4, corrupt=1)
CORRUPT = 6
GUEST = 5


def _lenient(patch, function, check):
    """The inspection's function, whose last check is this one, without it."""
    strict = getattr(inspection, function)

    def lenient(*args, **keywords):
        try:
            strict(*args, **keywords)
        except ProtocolViolation as refusal:
            if refusal.check != check:
                raise

    patch.setattr(inspection, function, lenient)


# own-entry-altered: a client that lost its ledger in a crash advertises again in the same exchange


def _shown_its_earlier_keys():
    script, earlier = Script(FULL, (4,)), Script(FULL, (4,), take=2)
    told = script.game.tell()
    old = earlier.game.players[1].advertisement
    story = Story(script.game.parameters, {**told.adverts, 1: old}, told.actors)
    return stopped(lambda attack: attack.list_keys(story), script), story


def test_a_client_that_sees_keys_of_an_earlier_session_leaves():
    script, _ = _shown_its_earlier_keys()
    assert script.refusals == {"own-entry-altered"}


def test_without_the_check_it_is_convicted_of_a_false_complaint(monkeypatch):
    strict = inspection.check_cohort

    def trusting(message, *, own, **keywords):
        listed = next(member for member in message.members if member.client_id == own.client_id)
        strict(message, own=listed, **keywords)

    monkeypatch.setattr(inspection, "check_cohort", trusting)
    script, story = _shown_its_earlier_keys()
    session, delivery = script.game.players[1].session, story.delivery(1, story.ids)
    assert not script.game.attempt(script.game.players[1], "receive_shares", delivery)
    said = session.complain(delivery, dealing.dealing_for(story.dealt[2], story.graph, 1))
    case = complaint.Case(
        transcript=story.transcript,
        agreement=FULL.agreement,
        complainant=story.adverts[1],
        accused=story.adverts[2],
        parcel=delivery.shares[2],
        pair_secret=delivery.pair_secrets.get(2),
    )
    assert complaint.judge(said, case) == complaint.Verdict(1, Fault.FALSE_COMPLAINT)


# second-unmask: who would answer R4 again could not erase the shares that it holds


def _seized_after_r4():
    """All survive and release; then the server asks again, and gets all machines."""

    def attack(script):
        story = script.game.tell()
        script.list_keys(story)
        script.deliver({}, story)
        script.name({})
        script.collect()
        for player in script.players():
            signatures = dict(script.game.signature_set(player).signatures)
            del signatures[player.client_id]
            script.send(player, "unmask", SignatureSet(signatures))

    return stopped(attack, Script(FULL, (4,)))


def _seize(script, patch):
    """The server reads the memory of every session."""
    shares = adversary._shares

    def with_the_seized(game):
        of_key, of_self = shares(game)
        for player in game.players.values():
            for owner, held in player.session._secrets.shares.items():
                point = player.story.graph.point(owner, player.client_id)
                of_key[player.story, owner][point] = held.of_key
                of_self[player.story, owner][point] = held.of_self
        return of_key, of_self

    patch.setattr(adversary, "_shares", with_the_seized)
    return adversary.recover(script.games)


def test_a_client_that_has_released_its_shares_has_none(monkeypatch):
    script = _seized_after_r4()
    assert script.refusals == {"second-unmask"}
    assert {found.clients for found in _seize(script, monkeypatch)} == {frozenset({1, 2, 3})}


def test_without_the_check_whoever_takes_its_machine_has(monkeypatch):
    unmask = ClientSession.unmask

    def again(session, message):
        secrets, state = session._secrets, session.state
        if state == "released":
            session._state = type(state).SIGNED
        answer = unmask(session, message)
        session._secrets = dataclasses.replace(ClientSecrets(), shares=secrets.shares)
        return answer

    monkeypatch.setattr(ClientSession, "unmask", again)
    script = _seized_after_r4()
    assert not script.refusals
    with pytest.raises(Broken):
        _seize(script, monkeypatch)


# own-id-missing: a client helps to open a sum that it is not in


def _left_out():
    def attack(script):
        story = script.game.tell()
        script.list_keys(story)
        script.deliver({}, story)
        script.name(dict.fromkeys((1, 2, 3), (2, 3, 4)))
        script.collect()

    return stopped(attack, Script(FULL, (4,)))


def test_a_client_that_is_left_out_does_not_sign():
    assert _left_out().refusals == {"own-id-missing"}


def test_without_the_check_it_opens_a_sum_without_itself(monkeypatch):
    strict = inspection.check_survivors
    monkeypatch.setattr(
        inspection, "check_survivors", lambda named, _, sharers, floor: strict(named, named[0], sharers, floor)
    )
    script = _left_out()
    assert not script.refusals
    assert script.game.players[1].released


# sharers-not-advertised, survivors-not-sharers: a corrupt client of the roster that was not asked signs for two halves


def _with_a_guest(*, among_sharers):
    def attack(script):
        story = script.game.tell()
        script.list_keys(story)
        told = {i: story.delivery(i, script.everybody) for i in script.everybody}
        if among_sharers:
            told = {i: dataclasses.replace(one, sharers=(*one.sharers, GUEST)) for i, one in told.items()}
        script.deliver(told, story)
        script.name(dict.fromkeys((1, 2), (1, 2, GUEST)) | dict.fromkeys((3, 4), (3, 4, GUEST)))
        for player in script.players():
            signatures = dict(script.game.signature_set(player).signatures)
            signatures[GUEST] = sign(identity(GUEST), player.statement())
            script.send(player, "unmask", SignatureSet(signatures))

    return stopped(attack, Script(FULL))


def _released_for(script):
    return {player.survivors for player in script.players() if player.released}


def test_a_guest_among_the_sharers_is_refused():
    assert _with_a_guest(among_sharers=True).refusals == {"sharers-not-advertised"}


def test_without_the_check_it_makes_two_sets_of_survivors(monkeypatch):
    strict = inspection.check_sharers
    monkeypatch.setattr(inspection, "check_sharers", lambda named, own, _, floor: strict(named, own, named, floor))
    script = _with_a_guest(among_sharers=True)
    assert not script.refusals
    assert _released_for(script) == {(1, 2, GUEST), (3, 4, GUEST)}


def test_a_guest_among_the_survivors_is_refused():
    assert _with_a_guest(among_sharers=False).refusals == {"survivors-not-sharers"}


def test_without_the_check_there_are_two_sets_of_survivors(monkeypatch):
    strict = inspection.check_survivors
    monkeypatch.setattr(inspection, "check_survivors", lambda named, own, _, floor: strict(named, own, named, floor))
    script = _with_a_guest(among_sharers=False)
    assert not script.refusals
    assert _released_for(script) == {(1, 2, GUEST), (3, 4, GUEST)}


# duplicate-id: one client is counted as three


def _thrice():
    """Client 1 is shown itself, and client 4 three times."""

    def attack(script):
        adverts = script.game.tell().adverts
        leaves = [adverts[1].digest(), *[adverts[4].digest()] * 3]
        script.send(
            script.game.players[1],
            "share_keys",
            AdvertisedCohort((1, 4, 4, 4), (adverts[1], adverts[4]), Tree(leaves).prove([0, 1])),
        )

    return stopped(attack, Script(FULL, (4,)))


def test_a_client_that_is_listed_thrice_is_refused():
    assert _thrice().refusals == {"duplicate-id"}


def test_without_the_check_a_client_deals_its_secrets_to_too_few(monkeypatch):
    strict = messages._check_ids
    monkeypatch.setattr(messages, "_check_ids", lambda ids: strict(tuple(sorted(set(ids)))))
    script = _thrice()
    assert not script.refusals
    _, dealt = script.game.players[1].heard["share_keys"]
    assert len({1, *dealt.shares}) < FULL.quorum


# exchange-in-ctx: keys that were signed for an exchange in which the server played their owners


def _keys_of_another_exchange():
    """Clients 2 and 3 were corrupt in exchange 7, each at its time, and are repaired."""

    def attack(script):
        game = script.game
        actors = {i: Actor(i, FULL.parameters(7), variant=0, signs=True) for i in (2, 3)}
        actors[4] = Actor(4, game.parameters, variant=0, signs=True)
        adverts = {1: game.players[1].advertisement} | {i: actor.advertisement for i, actor in actors.items()}
        story = Story(game.parameters, adverts, actors)
        game.stories.append(story)
        script.list_keys(story, (1,))
        script.deliver({}, story, (1,))

    return stopped(attack, Script(FULL, (4,)))


def test_keys_that_were_signed_for_another_exchange_are_refused():
    script = _keys_of_another_exchange()
    assert script.refusals == {"key-substitution"}
    adversary.recover(script.games)


def test_if_ctx_lacked_the_exchange_they_would_count(monkeypatch):
    ctx = RoundParameters.ctx
    monkeypatch.setattr(RoundParameters, "ctx", lambda parameters: ctx(dataclasses.replace(parameters, round=1)))
    script = _keys_of_another_exchange()
    assert not script.refusals
    with pytest.raises(Broken) as caught:
        adversary.recover(script.games)
    assert caught.value.verdict == "recovered"
