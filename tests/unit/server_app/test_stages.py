"""How the stages of an exchange succeed each other, and how its clients stand."""

from __future__ import annotations

import itertools

import pytest

from fedcore.errors import IllegalTransition
from fedcore.wire.uploads import WithdrawalReason, WithdrawIn
from server_app.exchanges.stages import (
    PARTICIPANT_TRANSITIONS,
    ClientChange,
    Participants,
    ParticipantState,
    StageEvent,
    Stages,
)

CHANGES = {
    ClientChange.ADMIT: Participants.admit,
    ClientChange.TAKE: Participants.take,
    ClientChange.REFUSE: Participants.refuse,
    ClientChange.DROP: lambda clients, client: clients.drop(client, "gone"),
}
WAYS = {
    ParticipantState.ASKED: (),
    ParticipantState.ADMITTED: (ClientChange.ADMIT,),
    ParticipantState.TAKEN: (ClientChange.ADMIT, ClientChange.TAKE),
    ParticipantState.DROPPED: (ClientChange.DROP,),
    ParticipantState.LEAVING: (ClientChange.ADMIT, ClientChange.DROP),
    ParticipantState.LEFT: (ClientChange.ADMIT, ClientChange.DROP, ClientChange.TAKE),
}


def brought_to(standing: ParticipantState) -> Participants:
    clients = Participants([1, 2])
    for change in WAYS[standing]:
        CHANGES[change](clients, 1)
    assert clients.state(1) is standing
    return clients


def seen(clients: Participants) -> tuple[object, ...]:
    return clients.state(1), clients.done, clients.missing, clients.contributors, clients.incoming, {**clients.reasons}


@pytest.mark.parametrize(("standing", "change"), list(itertools.product(ParticipantState, ClientChange)))
def test_every_change_follows_the_table_or_is_refused(standing: ParticipantState, change: ClientChange) -> None:
    clients = brought_to(standing)
    before = seen(clients)
    if target := PARTICIPANT_TRANSITIONS.get((standing, change)):
        CHANGES[change](clients, 1)
        assert clients.state(1) is target
    else:
        with pytest.raises(IllegalTransition):
            CHANGES[change](clients, 1)
        assert seen(clients) == before
    assert clients.state(2) is ParticipantState.ASKED


@pytest.mark.parametrize("standing", ParticipantState)
def test_a_stage_waits_for_whoever_is_there_or_being_taken(standing: ParticipantState) -> None:
    clients = brought_to(standing)
    waits = standing in (ParticipantState.ASKED, ParticipantState.ADMITTED, ParticipantState.LEAVING)
    assert clients.missing == ({1, 2} if waits else {2})
    assert clients.done == ({1} if standing in (ParticipantState.TAKEN, ParticipantState.LEFT) else set())
    clients.begin_stage()
    assert clients.done == set()
    stays = standing not in (ParticipantState.DROPPED, ParticipantState.LEFT)
    assert clients.missing == ({1, 2} if stays else {2})


def test_an_answer_of_a_client_that_left_counts_no_more_but_its_update_does() -> None:
    clients = Participants([1, 2])
    clients.answer(1)
    clients.answer(2)
    assert clients.done == {1, 2}
    clients.drop(1, "silent")
    assert (clients.done, clients.missing, clients.reasons) == ({2}, set(), {1: "silent"})
    clients.begin_stage()
    clients.admit(2)
    clients.drop(2, "left")
    assert (clients.missing, clients.incoming) == ({2}, {2}), "it is in the sum, or will be"
    clients.take(2)
    assert (clients.done, clients.contributors, clients.missing) == ({2}, {2}, set())


def test_a_reason_that_all_gave_is_told_from_one_that_some_gave() -> None:
    clients = Participants([1, 2])
    broken = WithdrawIn(reason=WithdrawalReason.APP_FAILED)
    clients.drop(1, "withdrew", broken)
    assert (clients.lasting_reason(), clients.common_reason()) == (WithdrawalReason.APP_FAILED, None)
    clients.drop(2, "withdrew", broken)
    assert clients.common_reason() is WithdrawalReason.APP_FAILED
    for others in (
        (broken, WithdrawIn(reason=WithdrawalReason.POLICY)),
        (WithdrawIn(reason=WithdrawalReason.STOPPED),),
    ):
        clients = Participants(range(len(others)))
        for client, withdrawal in enumerate(others):
            clients.drop(client, "withdrew", withdrawal)
        assert clients.common_reason() is None


def test_stages_follow_each_other_to_an_end() -> None:
    stages = Stages(["input", "unmask"])
    assert (stages.current, stages.takes_messages, stages.is_ahead("unmask")) == ("input", True, True)
    for illegal in (StageEvent.NEXT_STAGE, StageEvent.FINISH):
        with pytest.raises(IllegalTransition):
            stages.move(illegal)
    stages.move(StageEvent.CLOSE)
    assert not stages.takes_messages
    assert stages.move(StageEvent.NEXT_STAGE) == "unmask"
    assert stages.is_past("input")
    assert stages.takes_messages
    stages.move(StageEvent.CLOSE)
    with pytest.raises(IllegalTransition):
        stages.move(StageEvent.NEXT_STAGE)
    assert stages.move(StageEvent.FINISH) == "done"
    assert stages.over
    for event in StageEvent:
        with pytest.raises(IllegalTransition):
            stages.move(event)


def test_an_exchange_fails_from_an_open_and_from_a_closing_stage() -> None:
    for before in ((), (StageEvent.CLOSE,)):
        stages = Stages(["input"])
        for event in before:
            stages.move(event)
        assert stages.move(StageEvent.FAIL) == "failed"
        assert not stages.takes_messages
