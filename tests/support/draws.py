"""Draws of a federation that never was, answered with real signatures."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from fedcore.run.exchange import make_draw
from fedcore.run.groups import GroupAssignmentRecord, groups_of, make_ticket
from fedcore.wire.tasks import DrawTicket, GroupSpec, Task

from .records import FEDERATION, Notary, make_task


def draw_task(notary: Notary, *, groups: int = 2, least: int = 2, exchange: int = 1, **changes: Any) -> Task:
    """The announcement of a draw among all members."""
    cohort = sorted(notary.keys)
    return make_draw(
        make_task(exchange, **{"cohort": cohort, **changes}), GroupSpec(groups=groups, least=least), needed=len(cohort)
    )


def answers(notary: Notary, draw: Task, clients: Iterable[int]) -> list[DrawTicket]:
    """What these clients answer, each with a nonce of its own that is the same in every test."""

    def answer(client: int) -> DrawTicket:
        def nonce(size: int) -> bytes:
            return hashlib.sha256(b"nonce of %d" % client).digest()[:size]

        place = make_ticket(FEDERATION, draw.digest(), notary.keys[client], randomness=nonce)
        return DrawTicket(client_id=client, nonce=place.nonce, signature=place.signature)

    return [answer(client) for client in sorted(clients)]


def group_tasks(draw: Task, places: Sequence[DrawTicket]) -> list[Task]:
    """The tasks of all groups that follow from the answers."""
    return [
        make_task(
            draw.exchange + part.group.number,
            cohort=list(part.members),
            cut=part.cut,
            group=part.group,
            places=list(places),
            quorum=len(part.members),
            model=draw.model,
        )
        for part in groups_of(draw, places)
    ]


def remembered(draw: Task, places: Sequence[DrawTicket], client: int) -> GroupAssignmentRecord:
    """What a client keeps of the draw that it answered."""
    (own,) = (place for place in places if place.client_id == client)
    return GroupAssignmentRecord.of(draw, own)
