"""What a client's own rules say of draws and groups, and what its ledger remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.draws import answers, draw_task, group_tasks
from support.records import Notary, make_task

from client_app.records.ledger import Ledger
from fedcore.errors import ProtocolViolation
from fedcore.federation import Policy
from fedcore.federation.admission.draws import answer_draw, check_draw
from fedcore.federation.admission.owner import AgreedSum
from fedcore.federation.admission.simulated import SimulatedMember
from fedcore.run.groups import MOST_DRAWS, TOO_MANY_DRAWS, WRONG_GROUP
from fedcore.run.settings import JobSettings
from fedcore.wire.tasks import DrawTicket, Task

GROUPED = JobSettings(groups=3)


@pytest.fixture(scope="module")
def notary() -> Notary:
    return Notary.of(9)


def member(notary: Notary, client: int = 1) -> SimulatedMember:
    return SimulatedMember(client_id=client, roster=notary.roster, policy=Policy.own(9))


def refused(task: Task, settings: JobSettings, owner: SimulatedMember, ledger: Ledger, check: str) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        check_draw(task, settings, owner, ledger)
    assert caught.value.check == check


def answer(notary: Notary, task: Task, ledger: Ledger) -> DrawTicket:
    place = answer_draw(task, member(notary), ledger, notary.keys[1])
    return DrawTicket(client_id=1, nonce=place.nonce, signature=place.signature)


def test_a_client_knows_its_answer_after_a_restart_and_takes_part_in_no_earlier_draw(
    notary: Notary, tmp_path: Path
) -> None:
    first, second = (draw_task(notary, groups=3, exchange=number) for number in (1, 2))
    with Ledger(tmp_path) as ledger:
        for draw in (first, second):
            check_draw(draw, GROUPED, member(notary), ledger)
        places = {draw.exchange: answer(notary, draw, ledger) for draw in (first, second)}
    with Ledger(tmp_path) as ledger:
        for draw in (second, first):
            shown = [places[draw.exchange], *answers(notary, draw, range(2, 10))]
            task = next(task for task in group_tasks(draw, shown) if 1 in task.cohort)
            if draw is second:
                check_draw(task, GROUPED, member(notary), ledger)
            else:
                refused(task, GROUPED, member(notary), ledger, WRONG_GROUP)
        assert ledger.draws("train", first.subject_model) == 2


def test_a_client_stops_after_some_draws_of_which_no_sum_came(notary: Notary, tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        for number in range(1, MOST_DRAWS + 1):
            draw = draw_task(notary, groups=3, exchange=number)
            check_draw(draw, GROUPED, member(notary), ledger)
            answer(notary, draw, ledger)
        another = draw_task(notary, groups=3, exchange=MOST_DRAWS + 1)
        refused(another, GROUPED, member(notary), ledger, TOO_MANY_DRAWS)
        told: dict[str, Any] = {"survivors": "1-3", "scales": (), "bounds": ""}
        ledger.release(AgreedSum(run="run", exchange=3, purpose="train", model=another.subject_model, **told))
        check_draw(another, GROUPED, member(notary), ledger)


def test_groups_are_what_the_settings_say(notary: Notary, tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        owner = member(notary)
        check_draw(make_task(1), JobSettings(), owner, ledger)
        check_draw(make_task(1, message_type="evaluate"), GROUPED, owner, ledger)
        refused(make_task(1), GROUPED, owner, ledger, WRONG_GROUP)
        refused(draw_task(notary, groups=3), JobSettings(), owner, ledger, WRONG_GROUP)
        refused(draw_task(notary, groups=2), GROUPED, owner, ledger, WRONG_GROUP)
        evaluation = draw_task(notary, groups=3, message_type="evaluate")
        refused(evaluation, GROUPED, owner, ledger, WRONG_GROUP)
