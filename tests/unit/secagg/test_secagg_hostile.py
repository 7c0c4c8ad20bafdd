"""What generated schedules of lies have found, and the parts that they are made of.

A few schedules run here, hundreds in `tests/thorough/secagg`, and thousands in `benchmarks/hostile.py`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from support.adversary import recover, relations
from support.honest_machine import HonestServer
from support.hostile import JUNK, Game, Tally, snapshot
from support.hostile_machine import FULL, HYBRID, RING, STEP_OF, LyingServer
from support.schedules import run_schedules
from support.stories import Setting

from fedcore.errors import ConfigurationError, ConflictingMessage, IllegalTransition, ProtocolViolation
from fedcore.secagg import (
    Advertisement,
    ClientState,
    ConsistencySignature,
    KeyShares,
    ServerRound,
    ServerStage,
    SignatureSet,
    Survivors,
    UnmaskShares,
)


@pytest.fixture
def new_game():
    """A round with nobody corrupt; changes are those of the first full graph, or of another setting."""

    def make(setting: Setting = FULL[1], corrupt: frozenset[int] = frozenset(), **options) -> Game:
        return Game(setting, number=1, take=0, corrupt=corrupt, tally=Tally(), **options)

    return make


def _advance(game: Game, until: ClientState, survivors: set[int] | None = None) -> None:
    """All honest players together, up to a state, as an honest server would lead them."""
    story = game.stories[0] if game.stories else game.tell()
    ids = set(survivors or story.ids)
    for state in [*STEP_OF][: [*ClientState].index(until) - 1]:
        for i, player in game.players.items():
            assert player.session.state is state
            if state is ClientState.ADVERTISED:
                assert game.attempt(player, "share_keys", story.cohort_for(i), story)
            elif state is ClientState.SHARED:
                assert game.attempt(player, "receive_shares", story.delivery(i, story.ids))
            elif state is ClientState.READY:
                assert game.mask(player)
            elif state is ClientState.MASKED:
                assert game.attempt(player, "sign_survivors", Survivors(tuple(sorted(ids))))
            else:
                assert game.attempt(player, "unmask", game.signature_set(player))


# A few schedules


@pytest.mark.parametrize("machine", [LyingServer, HonestServer])
def test_a_few_schedules_break_no_promise(machine):
    assert run_schedules(machine, schedules=8, start=1).schedules >= 8


# The solver


@pytest.mark.parametrize("setting", [FULL[0], FULL[3], *RING, HYBRID[1]])
def test_the_server_gets_the_one_sum_that_it_may_have(new_game, setting):
    game = new_game(setting, frozenset(setting.ids[: setting.corrupt]))
    _advance(game, ClientState.RELEASED)
    assert [one.clients for one in recover([game])] == [frozenset(game.players)]


def test_before_the_shares_are_out_the_server_has_nothing(new_game):
    game = new_game(FULL[4], frozenset({2, 5}))
    _advance(game, ClientState.SIGNED)
    assert recover([game]) == []


def test_relations_are_the_smallest_sums_whose_masks_cancel():
    a, b, c, d = (bytes([i]) for i in range(4))
    rows = [{a: 1, b: 1}, {a: -1}, {c: 1}, {b: -1}, {c: -1}, {d: 1}, {}]
    assert relations(rows) == [{0: 1, 1: 1, 3: 1}, {2: 1, 4: 1}, {6: 1}]
    assert relations([{a: 1, b: 1}, {a: -1}]) == []
    assert relations([{a: 2, b: 1}, {a: 1, b: 2}]) == []


# What the schedules have found


def test_sharers_far_away_cannot_leave_a_vector_to_its_self_mask(new_game):
    """The server shows one client sharers without its neighbours, and everybody else the truth.

    Without the check its vector has no pairwise mask, and its neighbours release its self mask in good faith.
    """
    game = new_game(RING[0])
    story = game.tell()
    _advance(game, ClientState.SHARED)
    victim = game.players[5]
    near = story.graph.neighbours(5)
    for gone in (near, near[1:]):
        message = story.delivery(5, set(story.ids) - set(gone))
        before = snapshot(victim.session)
        with pytest.raises(ProtocolViolation) as caught:
            victim.session.receive_shares(message)
        assert caught.value.check == "holders-below-threshold"
        assert snapshot(victim.session) == before
    assert game.attempt(victim, "receive_shares", story.delivery(5, set(story.ids) - {near[0]}))


def test_a_round_that_may_go_on_with_fewer_than_the_owner_allows_is_refused(new_game):
    """The other clients decide who survives, and know nothing of this one's minimum: only the quorum binds them."""
    assert set(new_game(FULL[1], min_cohorts={1: 3}).players) == {1, 2, 3, 4, 5}
    game = new_game(FULL[1], min_cohorts={1: 4})
    assert set(game.players) == {2, 3, 4, 5}
    assert game.tally.refusals == {"cohort-below-minimum": 1}


@pytest.mark.parametrize("setting", [FULL[0], FULL[1]])
def test_a_list_longer_than_the_cohort_is_the_servers_fault(new_game, setting):
    """On an even and on an odd degree: there is no graph over such a list."""
    game = new_game(setting)
    honest = game.tell().cohort_for(1)
    longer = replace(honest, ids=(*honest.ids, 90, 91, 92), proof=(bytes(32),))
    with pytest.raises(ProtocolViolation) as caught:
        game.players[1].session.share_keys(longer)
    assert caught.value.check == "off-roster"


@pytest.mark.parametrize("name", ["federation", "run"])
def test_a_name_without_an_encoding_is_refused(name):
    parameters = FULL[0].parameters(1)
    with pytest.raises(ConfigurationError, match=name):
        replace(parameters, **{name: "half \ud83d of a pair"})


# Every state against every message, with every field malformed


@pytest.mark.parametrize("state", [state for state in ClientState if state is not ClientState.ABANDONED])
def test_a_session_refuses_junk_in_every_field_by_name(new_game, state):
    game, donor = new_game(), new_game()
    _advance(donor, ClientState.RELEASED)
    if state is not ClientState.NEW:
        _advance(game, state)
    session = game.players[1].session
    honest = {step: heard for step, (heard, _) in donor.players[1].heard.items()}
    assert len(honest) == 4
    before = snapshot(session)
    for step, message in honest.items():
        for malformed in _malformed(message):
            with pytest.raises((ProtocolViolation, IllegalTransition)):
                getattr(session, step)(malformed)
            assert snapshot(session) == before


@pytest.mark.parametrize("stage", ServerStage)
def test_a_round_refuses_junk_in_every_field_by_name(stage):
    server = _server_in(stage)
    messages = {
        "receive_advertisement": Advertisement(1, bytes(32), bytes(32), bytes(64)),
        "receive_shares": KeyShares(1, bytes(32), bytes(32), {2: bytes(114)}, {2: bytes(48)}, bytes(64), bytes(128)),
        "receive_consistency": ConsistencySignature(1, bytes(64)),
        "receive_unmask": UnmaskShares(1, {1: bytes(33)}, {2: bytes(33)}),
    }
    before = snapshot(server)
    for name, message in messages.items():
        for malformed in _malformed(message):
            with pytest.raises((ProtocolViolation, ConflictingMessage)):
                getattr(server, name)(malformed)
            assert snapshot(server) == before


def _malformed(message):
    for part in dataclasses.fields(message):
        for junk in JUNK:
            if getattr(message, part.name) != junk:
                yield replace(message, **{part.name: junk})


def _server_in(stage: ServerStage) -> ServerRound:
    machine = HonestServer()
    machine.begin(pick=0, keen=True, lies=[], many=False)
    if stage is ServerStage.FAILED:
        machine.keen = False
        machine.close(hurry=True, lost=0)
    while machine.server.stage is not stage:
        machine.close(hurry=False, lost=0)
    return machine.server


def test_a_session_that_has_released_holds_no_share_to_release_again(new_game):
    game = new_game()
    _advance(game, ClientState.RELEASED)
    player = game.players[1]
    signatures = dict(game.signature_set(player).signatures)
    del signatures[5]
    assert not game.attempt(player, "unmask", SignatureSet(signatures))
    assert not player.session._secrets.shares
