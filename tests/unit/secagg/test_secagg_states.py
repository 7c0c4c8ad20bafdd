"""Every state against every message, derived from the one table of transitions."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest

from fedcore.errors import CohortTooSmall, IllegalTransition, ProtocolViolation, UsageError
from fedcore.secagg import ClientState, ServerStage, Survivors, render_diagram
from fedcore.secagg.transitions import CLIENT, SERVER, ClientEvent, ServerEvent

CLIENT_STEPS = dict(
    zip(
        ["new", "advertised", "shared", "ready", "masked", "signed", "released"],
        ["advertise", "share", "deliver", "upload", "sign", "unmask", "end"],
        strict=True,
    )
)
SERVER_STEPS = {
    "advertise": "advertise",
    "share": "share",
    "input": "upload",
    "consistency": "sign",
    "unmask": "unmask",
    "done": "end",
}


class Script:
    """All messages of one finished round, to be thrown at another rig that ran with the same randomness."""

    def __init__(self, rig):
        self.rig = rig.until("end")
        server, session = rig.server, rig.clients[1]
        signatures = server.signatures()
        self.to_client = {
            ClientEvent.ADVERTISE: (),
            ClientEvent.SHARE_KEYS: (server.advertised(1),),
            ClientEvent.RECEIVE_SHARES: (server.delivery(1),),
            ClientEvent.COMPLAIN: (server.delivery(1), server.dealing(1, 2)),
            ClientEvent.SIGN_SURVIVORS: (server.survivors(),),
            ClientEvent.UNMASK: (signatures,),
            ClientEvent.ABANDON: (),
        }
        self.to_server = {
            ServerEvent.ADVERTISEMENT: (session.advertise(),),
            ServerEvent.KEY_SHARES: (session.share_keys(server.advertised(1)),),
            ServerEvent.INPUT: (1, hashlib.sha256(rig.uploads[1].tobytes()).digest()),
            ServerEvent.CONSISTENCY: (session.sign_survivors(server.survivors()),),
            ServerEvent.UNMASK_SHARES: (session.unmask(signatures),),
            ServerEvent.DROP: (1,),
            ServerEvent.CLOSE: (),
        }


@pytest.fixture
def script(make_rig):
    return Script(make_rig(3))


def _client_in(make_rig, state):
    rig = make_rig(3)
    if state is ClientState.ABANDONED:
        rig.clients[1].abandon()
    else:
        rig.until(CLIENT_STEPS[state])
    assert rig.clients[1].state is state
    return rig.clients[1]


def _server_in(make_rig, stage):
    rig = make_rig(3)
    if stage is ServerStage.FAILED:
        with pytest.raises(CohortTooSmall):
            rig.server.close_stage()
    else:
        rig.until(SERVER_STEPS[stage])
    assert rig.server.stage is stage
    return rig.server


@pytest.mark.parametrize("event", ClientEvent)
@pytest.mark.parametrize("state", ClientState)
def test_client_state_against_event(make_rig, script, freeze, state, event):
    session = _client_in(make_rig, state)
    arguments = (np.zeros(37, np.uint64),) if event is ClientEvent.MASK else script.to_client[event]
    rule, before = CLIENT.get((state, event)), freeze(session)
    if (state, event) == (ClientState.SHARED, ClientEvent.COMPLAIN):
        pytest.skip("there is nothing to complain of; test_secagg_complaint.py has the rest")
    if rule is None:
        with pytest.raises(IllegalTransition) as caught:
            getattr(session, event)(*arguments)
        assert (caught.value.state, caught.value.event) == (state, event)
        assert freeze(session) == before
        return
    first = getattr(session, event)(*arguments)
    assert session.state is rule.target
    if rule.repeat:
        assert freeze(session) == before
    if event is not ClientEvent.MASK:
        assert getattr(session, event)(*arguments) == first


@pytest.mark.parametrize("event", [event for event in ServerEvent if event is not ServerEvent.FALL_SHORT])
@pytest.mark.parametrize("stage", ServerStage)
def test_server_stage_against_event(make_rig, script, freeze, stage, event):
    server = _server_in(make_rig, stage)
    rule, before = SERVER.get((stage, event)), freeze(server)
    call = getattr(server, event)
    if rule is None:
        expected = IllegalTransition if event in {ServerEvent.DROP, ServerEvent.CLOSE} else ProtocolViolation
        with pytest.raises(expected) as caught:
            call(*script.to_server[event])
        assert expected is IllegalTransition or caught.value.check == "out-of-order"
        assert freeze(server) == before
    elif event is ServerEvent.CLOSE:
        with pytest.raises(CohortTooSmall):
            call()
        assert server.stage is SERVER[stage, ServerEvent.FALL_SHORT].target
    else:
        call(*script.to_server[event])
        assert server.stage is rule.target
        if rule.repeat:
            assert freeze(server) == before
        once = freeze(server)
        call(*script.to_server[event])
        assert freeze(server) == once


@pytest.mark.parametrize(("stage", "event"), [key for key in SERVER if key[1] is ServerEvent.CLOSE])
def test_a_full_stage_closes_into_its_target(make_rig, stage, event):
    rig = make_rig(3).until(SERVER_STEPS[stage])
    following = [*SERVER_STEPS.values()][[*SERVER_STEPS].index(stage) + 1]
    rig = make_rig(3).until(following)
    assert rig.server.stage is SERVER[stage, event].target


@pytest.mark.parametrize("question", ["advertised", "delivery", "survivors", "signatures", "mask_terms"])
@pytest.mark.parametrize("stage", ServerStage)
def test_answers_of_the_server_before_they_exist(make_rig, stage, question):
    first = {"advertised": 1, "delivery": 2, "survivors": 3, "signatures": 4, "mask_terms": 5}[question]
    server = _server_in(make_rig, stage)
    arguments = (1,) if question in {"advertised", "delivery"} else ()
    if stage is ServerStage.FAILED or [*ServerStage].index(stage) < first:
        with pytest.raises(IllegalTransition):
            getattr(server, question)(*arguments)
    else:
        assert getattr(server, question)(*arguments)


HELD_IN = {
    "new": set(),
    "advertised": {"seal_pair", "mask_pair"},
    "shared": {"seal_pair", "mask_pair", "self_secret", "shares"},
    "ready": {"self_secret", "pair_secrets", "shares"},
    "masked": {"shares"},
    "signed": {"shares"},
    "released": set(),
    "abandoned": set(),
}


@pytest.mark.parametrize("state", ClientState)
def test_a_client_holds_the_secrets_that_it_still_needs_and_no_others(make_rig, state):
    secrets = _client_in(make_rig, state)._secrets
    held = {field.name for field in dataclasses.fields(secrets) if getattr(secrets, field.name)}
    assert held == HELD_IN[state]
    if "shares" in held:
        # Its own share alone, until the others have sent theirs.
        assert set(secrets.shares) == ({1} if state is ClientState.SHARED else {1, 2, 3})


@pytest.mark.parametrize("state", [state for state in ClientState if state is not ClientState.ABANDONED])
def test_abandoning_erases_secrets_and_answers(make_rig, freeze, state):
    session = _client_in(make_rig, state)
    session.abandon()
    for left in (freeze(session._secrets), freeze(session._answers)):
        assert not any(left.values())
    with pytest.raises(IllegalTransition):
        session.sign_survivors(Survivors((1, 2, 3)))


def test_dropping_a_stranger_is_our_own_mistake(make_rig):
    with pytest.raises(UsageError, match="client 9"):
        make_rig(3).server.drop(9)


def test_the_diagram_shows_every_transition_that_is_no_repetition():
    diagram = render_diagram()
    assert diagram.startswith("stateDiagram-v2\n")
    for prefix, table in (("client", CLIENT), ("server", SERVER)):
        for (source, event), row in table.items():
            line = f"{prefix}_{source} --> {prefix}_{row.target} : {event}\n"
            assert (line in diagram) is (not row.repeat)
