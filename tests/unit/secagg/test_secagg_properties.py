"""What holds in every state: the server forgets shares, names nobody early, and has no answer for an open stage."""

from __future__ import annotations

import pytest

from fedcore.errors import CohortTooSmall, IllegalTransition, UnmaskFailed
from fedcore.secagg import ServerStage, UnmaskShares
from fedcore.secagg.crypto import schedule
from fedcore.secagg.transitions import CLIENT, SERVER, STAGE_OF, ClientEvent, ClientState, ServerEvent

STEPS = ["advertise", "share", "upload", "sign", "unmask"]


def _bytes_in(frozen):
    """All bytes in what a state machine holds."""
    if isinstance(frozen, bytes):
        return {frozen}
    parts = [*frozen, *frozen.values()] if isinstance(frozen, dict) else frozen if isinstance(frozen, list) else []
    return set().union(*map(_bytes_in, parts))


def _released(rig, liars=()):
    """Every client's answer in the last stage, with the shares of `liars` all wrong; and every share that came."""
    shares = set()
    for i in sorted(rig.server.expected):
        message = rig.clients[i].unmask(rig.server.signatures())
        if i in liars:
            made_up = {owner: bytes([0, i]).ljust(33, bytes([owner])) for owner in message.self_shares}
            message = UnmaskShares(i, made_up, message.key_shares)
        rig.server.receive_unmask(message)
        shares |= {*message.self_shares.values(), *message.key_shares.values()}
    return shares


def test_the_server_forgets_all_shares_with_the_result(any_rig, freeze):
    rig = any_rig().until("upload")
    rig.upload(rig.ids[:-1])
    rig.sign()
    shares = _released(rig)
    assert shares <= _bytes_in(freeze(rig.server))
    rig.server.close_stage()
    assert not shares & _bytes_in(freeze(rig.server))
    rig.assert_sum(rig.ids[:-1])


def test_the_server_forgets_all_shares_when_a_secret_is_lost(make_rig, freeze):
    rig = make_rig(5).until("unmask")
    shares = _released(rig, liars={1, 2})
    with pytest.raises(UnmaskFailed):
        rig.server.close_stage()
    assert not shares & _bytes_in(freeze(rig.server))


def test_the_server_forgets_all_shares_when_too_few_came(make_rig, freeze):
    rig = make_rig(5).until("unmask")
    message = rig.clients[1].unmask(rig.server.signatures())
    rig.server.receive_unmask(message)
    assert set(message.self_shares.values()) <= _bytes_in(freeze(rig.server))
    with pytest.raises(CohortTooSmall):
        rig.server.close_stage()
    assert not set(message.self_shares.values()) & _bytes_in(freeze(rig.server))


@pytest.mark.parametrize(
    ("step", "question"),
    [
        ("advertise", lambda server: server.advertised(1)),
        ("advertise", lambda server: server.receivers(1)),
        ("share", lambda server: server.delivery(1)),
        ("upload", lambda server: server.survivors()),
        ("upload", lambda server: server.owners(1)),
        ("sign", lambda server: server.signatures()),
        ("unmask", lambda server: server.mask_terms()),
    ],
)
def test_a_stage_that_failed_has_no_result(make_rig, step, question):
    """Not even that of the few who did answer: they would go on in a cohort that is too small."""
    rig = make_rig(5).until(step)
    with pytest.raises(CohortTooSmall):
        getattr(rig, step)([1, 2, 3])
    with pytest.raises(IllegalTransition):
        question(rig.server)


@pytest.mark.parametrize("step", STEPS)
def test_nobody_is_named_before_the_result(make_rig, step):
    rig = make_rig(5).until(step)
    assert rig.server.blamed == {}
    with pytest.raises(CohortTooSmall):
        rig.server.close_stage()
    assert rig.server.blamed == {}


def test_the_server_takes_a_message_in_its_own_stage_and_its_repetition_ever_after():
    """Said again without the loop that makes the table."""
    order = [stage for stage in ServerStage if stage is not ServerStage.FAILED]
    for stage in ServerStage:
        for event, first in STAGE_OF.items():
            row = SERVER.get((stage, event))
            if stage is ServerStage.FAILED or order.index(stage) < order.index(first):
                assert row is None
            else:
                assert row.target is stage
                assert row.repeat is (stage is not first)
        for event in (ServerEvent.DROP, ServerEvent.CLOSE, ServerEvent.FALL_SHORT):
            row = SERVER.get((stage, event))
            assert (row is None) is (stage in {ServerStage.DONE, ServerStage.FAILED})
            assert row is None or not row.repeat


def test_the_client_takes_each_step_once_and_repeats_all_but_the_mask():
    order = list(ClientState)
    steps = [event for event in ClientEvent if event not in {ClientEvent.ABANDON, ClientEvent.COMPLAIN}]
    for (state, event), row in CLIENT.items():
        if event is ClientEvent.ABANDON:
            assert row.target is ClientState.ABANDONED
            continue
        if event is ClientEvent.COMPLAIN:
            assert (state, row.target) == (ClientState.SHARED, ClientState.ABANDONED)
            continue
        due = order[steps.index(event)]
        assert row.repeat is (state is not due)
        if row.repeat:
            assert row.target is state
            assert order.index(state) > order.index(due)
            assert event is not ClientEvent.MASK
        else:
            assert row.target is order[order.index(due) + 1]
    assert {event for (_, event), row in CLIENT.items() if not row.repeat} == set(ClientEvent)
    assert {key for key in CLIENT if key[0] is ClientState.RELEASED} == {
        (ClientState.RELEASED, event) for event in {*steps, ClientEvent.ABANDON} - {ClientEvent.MASK}
    }


@pytest.mark.parametrize("step", ["seal_shares", "seal_pair_secret"])
def test_a_step_that_breaks_off_changes_nothing_and_can_be_taken_again(make_rig, freeze, monkeypatch, step):
    rig = make_rig(5).until("share")
    session, cohort = rig.clients[1], rig.server.advertised(1)
    before = freeze(session)

    def out_of_memory(*_given, **_named):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(schedule, step, out_of_memory)
        with pytest.raises(MemoryError):
            session.share_keys(cohort)
    assert freeze(session) == before
    rig.go_on("share")
