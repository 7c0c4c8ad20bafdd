"""The attacks that the model in proofs/maude finds, told to real sessions.

Each script leads to a state like the one that `proofs/ablation.py --trace CHECK` prints, which is the first of many,
and stops at the first message that a client refuses. With the check on, the refusal has its name. With the check off,
the server, which here is the solver of tests/support/adversary, has a sum of fewer clients than the round and their
owners allow.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable

from fedcore.errors import ProtocolViolation
from fedcore.secagg import (
    ClientSession,
    RoundParameters,
    Secret,
    ShareDelivery,
    SignatureSet,
)
from fedcore.secagg.crypto import edwards, schedule
from fedcore.secagg.crypto.keys import sign
from fedcore.secagg.dealing import dealing_for
from fedcore.secagg.graph import Graph

from .ablation_removals import (
    CHOSEN,
    DISCLOSED,
    Removal,
    accept_any_parameters,
    believe_what_is_shown,
    complain_of_anything,
    share_again,
    sign_again,
    take_another_delivery,
    take_unopened,
    without,
)
from .ablation_script import Refused, Script, stopped
from .stories import ROSTER, Actor, Setting, Story, identity

FULL = Setting(n=4, quorum=3, degree=3, threshold=3, corrupt=1)
RING = Setting(n=5, quorum=4, degree=2, threshold=3, corrupt=1)
WIDE = Setting(n=10, quorum=6, degree=4, threshold=4, corrupt=0)

Attack = Callable[[], Script]
CASES: dict[str, tuple[Attack, Removal]] = {}


def _case(check: str, removal: Removal) -> Callable[[Attack], Attack]:
    def register(attack: Attack) -> Attack:
        CASES[check] = attack, removal
        return attack

    return register


@_case("key-substitution", without("check_advertisement"))
def _keys_of_the_servers_own() -> Script:
    """Client 1 shares its secrets among three clients that are all the server."""

    def attack(script: Script) -> None:
        story = script.game.tell(puppets=(2, 3))
        script.list_keys(story, (1,))
        script.deliver({}, story, (1,))

    return stopped(attack, Script(FULL, (4,)))


@_case("wrong-recipients", without("check_delivery"))
def _parcels_left_out() -> Script:
    """Client 1 gets nothing from the honest ones, and so masks for the corrupt one alone."""

    def attack(script: Script) -> None:
        story = script.game.tell()
        script.list_keys(story)
        honest = story.delivery(1, script.everybody)
        parts = [{4: sealed[4]} if 4 in sealed else {} for sealed in (honest.shares, honest.pair_secrets)]
        script.deliver({1: ShareDelivery(honest.sharers, *parts)}, story)
        script.name({})
        script.collect()

    return stopped(attack, Script(FULL, (4,)))


@_case("holders-below-threshold", without("check_holders"))
def _sharers_far_away() -> Script:
    """Client 1 hears of sharers none of whom is its neighbour; its neighbours release its self secret."""

    def attack(script: Script) -> None:
        story = script.game.tell()
        one, *_ = story.ring
        script.list_keys(story)
        script.deliver({one: story.delivery(one, _lone(story))}, story)
        script.name({one: _lone(story)})
        script.collect()

    return stopped(attack, Script(WIDE))


def _lone(story: Story, *also: int) -> tuple[int, ...]:
    """The first client of the ring and the five that are far from it, and some of its neighbours."""
    return (story.ring[0], *story.ring[3:8], *also)


def _split_survivors(script: Script, *, in_turn: bool) -> None:
    """Every neighbour of the first client hears that the other three dropped out, all others that the four did."""
    story = script.game.tell()
    script.list_keys(story)
    script.deliver({}, story)
    near = (*story.ring[1:3], *story.ring[8:])
    script.name({v: _lone(story, v) for v in near}, near)
    far = _lone(story)
    if in_turn:
        for v in near:
            script.name(dict.fromkeys(far, _lone(story, v)), far)
    script.name(dict.fromkeys(far, far), far)
    script.collect()


@_case("inconsistent-survivors", lambda patch: patch.setattr(ClientSession, "_check_signatures", lambda *_: None))
def _survivors_for_each() -> Script:
    return stopped(lambda script: _split_survivors(script, in_turn=False), Script(WIDE))


@_case("second-survivor-set", sign_again)
def _survivors_in_turn() -> Script:
    return stopped(lambda script: _split_survivors(script, in_turn=True), Script(WIDE))


@_case("second-delivery", take_another_delivery)
def _sharers_in_turn() -> Script:
    """Client 1 masks for client 2 and the corrupt one, then signs what all see, in which client 2 drops out."""

    def attack(script: Script) -> None:
        story = script.game.tell()
        script.list_keys(story)
        script.deliver({1: story.delivery(1, (1, 2, 4))}, story)
        script.send(script.game.players[1], "receive_shares", story.delivery(1, script.everybody))
        script.name(dict.fromkeys((1, 3), (1, 3, 4)), (1, 3))
        for player in script.players((1, 3)):
            script.send(player, "unmask", script.game.signature_set(player))

    return stopped(attack, Script(FULL, (4,)))


@_case("second-cohort", share_again)
def _lists_in_turn() -> Script:
    """All survive with the first list of keys, and client 1 drops out with the second."""

    def attack(script: Script) -> None:
        _as_usual(script)
        other, story = script.again(variant=1)
        other.list_keys(story)
        other.deliver({}, story)
        other.name(dict.fromkeys((2, 3), (2, 3, 4)), (2, 3))
        for player in other.players((2, 3)):
            other.send(player, "unmask", other.game.signature_set(player))

    return stopped(attack, Script(FULL, (4,)))


@_case("wrong-neighbours", believe_what_is_shown)
def _two_cliques() -> Script:
    """Two pairs of honest clients, each with the corrupt one for a ring of its own."""

    def attack(script: Script) -> None:
        story = script.game.tell()
        cliques = [_clique(story, (1, 2, 5)), _clique(story, (3, 4, 5))]
        script.game.stories[:] = cliques
        for clique in cliques:
            script.list_keys(clique, clique.graph._ring)
        for clique in cliques:
            script.deliver({}, clique, clique.graph._ring)
        script.name({})
        script.collect()

    return stopped(attack, Script(RING, (5,)))


def _clique(story: Story, members: tuple[int, ...]) -> Story:
    """The same list, of which these are shown to each other."""
    clique = copy.copy(story)
    clique.graph = Graph(members, degree=RING.degree, seed=schedule.ring_seed(story.transcript))
    clique.dealt, clique._sealed = {}, {}
    return clique


@_case("share-unsealing", take_unopened)
def _pair_secrets_of_the_servers_own() -> Script:
    """A client for which both honest neighbours choose gets the server's choices in their place."""

    def attack(script: Script) -> None:
        story = script.game.tell()
        script.list_keys(story)
        victim = _chosen_for(story)
        honest = story.delivery(victim, script.everybody)
        secrets = {i: sealed if i == 4 else CHOSEN for i, sealed in honest.pair_secrets.items()}
        script.deliver({victim: dataclasses.replace(honest, pair_secrets=secrets)}, story)
        script.name({})
        script.collect()

    for take in itertools.count():
        script = Script(FULL, (4,), take=take)
        story = script.game.tell()
        script.game.stories.clear()
        if _chosen_for(story):
            return stopped(attack, script)
    raise AssertionError


def _chosen_for(story: Story) -> int:
    """A client for which all other honest ones choose; 0 if the ring has none."""
    honest = set(story.ids) - {4}
    return next((i for i in honest if all(story.graph.chooses(v, i) for v in honest - {i})), 0)


@_case("bad-parameters", accept_any_parameters)
def _quorum_of_two() -> Script:
    """Each honest client is told of survivors that suit the server, with the corrupt one as the second signer."""
    honest = FULL.parameters(1)
    fields = {field.name: getattr(honest, field.name) for field in dataclasses.fields(honest)}
    RoundParameters.from_peer(**fields | {"quorum": 2, "corrupt": 0})

    def attack(script: Script) -> None:
        story = script.game.tell()
        script.list_keys(story)
        script.deliver({}, story)
        script.name({1: (1, 4), 2: (1, 2, 4), 3: (1, 3, 4)})
        script.collect()

    return stopped(attack, Script(dataclasses.replace(FULL, quorum=2, corrupt=0), (4,)))


def _propose(setting: Setting, **policy: int) -> None:
    """Ask client 1, whose owner has this policy, to take part."""
    ClientSession(
        parameters=setting.parameters(1),
        client_id=1,
        identity=identity(1),
        roster=ROSTER,
        **{"min_cohort": 2, "min_threshold": 2} | policy,
    )


@_case("cohort-below-minimum", without("check_proposal"))
def _cohort_of_two() -> Script:
    """One honest client and a corrupt one, where the owner asked for three that do not collude."""
    setting = Setting(n=2, quorum=2, degree=1, threshold=2, corrupt=1)
    _propose(setting, min_cohort=3)
    return stopped(_as_usual, Script(setting, (2,), min_cohorts={1: 3}))


def _as_usual(script: Script) -> None:
    story = script.game.tell()
    script.list_keys(story)
    script.deliver({}, story)
    script.name({})
    script.collect()


@_case("threshold-below-minimum", without("check_proposal"))
def _two_that_collude() -> Script:
    """The round allows for one corrupt client, but there are two: an owner that feared so asked for all four."""
    _propose(FULL, min_threshold=4)

    def attack(script: Script) -> None:
        story = script.game.tell()
        script.list_keys(story)
        script.deliver({1: story.delivery(1, (1, 3, 4))}, story)
        script.name({1: (1, 3, 4)})
        script.collect()

    return stopped(attack, Script(FULL, (3, 4)))


@_case("off-roster", without("check_listed"))
def _keys_of_clients_that_were_not_asked() -> Script:
    """Client 1 shares its secrets with the corrupt one of the cohort and two more that the server brings along."""

    def attack(script: Script) -> None:
        parameters = script.game.parameters
        actors = {i: Actor(i, parameters, variant=0, signs=True) for i in (4, 11, 12)}
        own = script.game.players[1].advertisement
        assert own is not None
        story = Story(parameters, {1: own} | {i: actor.advertisement for i, actor in actors.items()}, actors)
        script.game.stories.append(story)
        script.list_keys(story, (1,))
        script.deliver({1: story.delivery(1, story.ids)}, story, (1,))

    return stopped(attack, Script(FULL, (4,)))


@_case("unsigned-dealing", complain_of_anything)
def _garbage_in_anothers_name() -> Script:
    """Clients 2 and 3 get garbage in the name of client 1, and what they tell of it opens what client 1 dealt them."""

    def attack(script: Script) -> None:
        story = script.game.tell()
        script.list_keys(story)
        for player in script.players((2, 3)):
            own = player.client_id
            honest = story.delivery(own, script.everybody)
            garbage = dataclasses.replace(honest, shares={**honest.shares, 1: bytes(len(honest.shares[1]))})
            try:
                complaint = player.session.complain(garbage, dealing_for(story.dealt[1], story.graph, own))
            except ProtocolViolation as refusal:
                script.tally.refusals[refusal.check] += 1
                raise Refused from refusal
            DISCLOSED[story, 1, own] = Secret(edwards.to_u(complaint.shared))
        script.deliver({}, story, (1,))

    return stopped(attack, Script(FULL, (4,)))


def signed_by_a_guest() -> Script:
    """Two halves of the clients, and a corrupt one of the roster that was not asked signs for both."""
    script = Script(FULL)
    story = script.game.tell()
    script.list_keys(story)
    script.deliver({}, story)
    script.name({1: (1, 2, 3), 2: (1, 2, 3), 3: (1, 3, 4), 4: (1, 3, 4)})
    for player in script.players():
        signatures = dict(script.game.signature_set(player).signatures)
        signatures[5] = sign(identity(5), player.statement())
        script.game.attempt(player, "unmask", SignatureSet(signatures))
    return script
