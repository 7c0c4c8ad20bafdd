"""The checks of a draw and of the groups that it makes (`fedcore.run.groups`), and a client's answer to a draw."""

from __future__ import annotations

import os

from fedcore.errors import ProtocolViolation
from fedcore.federation.admission.owner import ClientHistory, Owner
from fedcore.run.groups import (
    MOST_DRAWS,
    TOO_MANY_DRAWS,
    WRONG_GROUP,
    GroupAssignmentRecord,
    check_group,
    is_draw,
    make_ticket,
)
from fedcore.run.settings import JobSettings
from fedcore.secagg import Randomness, Signer, Verify, verifies
from fedcore.wire.tasks import DrawTicketIn, Task


def check_draw(
    task: Task, settings: JobSettings, owner: Owner, ledger: ClientHistory, *, verify: Verify = verifies
) -> None:
    """Refuse one draw too many, and an exchange with a group that no draw made; raises ProtocolViolation.

    Args:
        settings: the run's, which say whether trainings are cut into groups.
    """
    grouped = settings.groups > 1 and task.trains and task.aggregation == "secure"
    if not grouped and task.cut is None and task.group is None:
        return
    if not grouped:
        raise ProtocolViolation(WRONG_GROUP, "the task is of groups, into which the run's settings cut nothing")
    if task.cut is None or task.cut.groups != settings.groups:
        raise ProtocolViolation(WRONG_GROUP, f"a training is cut into {settings.groups} groups, the task is not")
    if is_draw(task):
        _check_frequency(task, ledger)
        return
    check_group(
        task,
        ledger.drawn(task.run),
        federation=owner.federation,
        client_id=owner.client_id,
        keys=owner.roster.keys,
        verify=verify,
    )


def answer_draw(
    task: Task, owner: Owner, ledger: ClientHistory, identity: Signer, randomness: Randomness = os.urandom
) -> DrawTicketIn:
    """This client's answer to a draw, noted before it leaves: another one to the same draw is never made."""
    ticket = make_ticket(owner.federation, task.digest(), identity, randomness=randomness)
    ledger.draw(GroupAssignmentRecord.of(task, ticket))
    return ticket


def _check_frequency(task: Task, ledger: ClientHistory) -> None:
    """With every draw that is thrown away the server may choose among one grouping more."""
    idle = ledger.draws(task.purpose, task.subject_model) - len(ledger.released(task.purpose, task.subject_model))
    if idle >= MOST_DRAWS:
        raise ProtocolViolation(
            TOO_MANY_DRAWS,
            f"this client answered {idle} draws for this model of which no sum came, {MOST_DRAWS} are the most; start "
            "from another model",
        )
