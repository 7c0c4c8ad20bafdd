"""Groups: a cohort is cut into parts, each part makes a secure sum of its own, and nobody chooses who is with whom.

A server that chose the groups could put one honest client among colluders. So it *draws* them. It announces what it
draws for (the draw's task: run, model, cohort, how many groups); each client answers with 32 fresh random bytes and a
signature over them and the announcement. A client's *place* on a ring of hashes follows from the announcement, its
number and its own bytes, so nobody else can move it. In the order of their places the answers are cut into parts of
nearly equal size, and each part is an ordinary secure exchange whose task shows all answers: every client cuts them
again (`check_group`).

What the server can still do: leave answers out, at most as many as a quorum of the cohort allows; throw a whole draw
away, which each client lets it do `MOST_DRAWS` times for one model; leave members out of their group, as it can out of
any cohort. Clients that collude with it choose their places, after they have seen those of all others. That is why a
group's quorum counts all of the roster that may collude, on top of `min-cohort`: they may all be in one group.

Means of groups instead of single updates let robust aggregation work on sums: it is bucketing with random buckets
(Karimireddy, He and Jaggi 2022, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing", section 5). One
poisoner spoils the mean of its group, so of G groups at most as many are bad as there are poisoners.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pydantic import BaseModel, ConfigDict

from fedcore.errors import ProtocolViolation, RoundFailed
from fedcore.secagg import Randomness, Signer, Verify, default_quorum, verifies
from fedcore.secagg.crypto.domain import pack
from fedcore.wire.base import Sha256
from fedcore.wire.tasks import DrawTicket, DrawTicketIn, Group, GroupSpec, Task

WRONG_GROUP: Final = "wrong-group"
TOO_MANY_DRAWS: Final = "too-many-draws"
MOST_DRAWS: Final = 8
"""Draws for one model and purpose, beyond the sums that came of them, that a client answers in all runs together."""

NONCE_BYTES: Final = 32
_MOST_REASONS: Final = 3
"""How many reasons a failure of groups names."""
PLACE_TAG: Final = "fedcore/draw/v1/place"
RING_TAG: Final = "fedcore/draw/v1/ring"
PLACES_TAG: Final = "fedcore/draw/v1/places"


class GroupAssignmentRecord(BaseModel):
    """What a client remembers of a draw that it answered.

    digest
        Of the draw's task, hex.
    purpose, model
        As the task has them.
    asked
        How many clients were.
    nonce
        Its own, hex.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    exchange: int
    digest: Sha256
    purpose: str
    model: str
    asked: int
    cut: GroupSpec
    nonce: Sha256

    @classmethod
    def of(cls, task: Task, ticket: DrawTicketIn) -> GroupAssignmentRecord:
        """What is kept of a draw's task and the answer to it."""
        assert task.cut is not None  # noqa: S101 - the caller knows that it is a draw
        return cls(
            run=task.run,
            exchange=task.exchange,
            digest=task.digest().hex(),
            purpose=task.purpose,
            model=task.subject_model,
            asked=len(task.cohort),
            cut=task.cut,
            nonce=ticket.nonce.hex(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMembership:
    """A group of a draw.

    tickets
        All answers to the draw.
    members
        Who is in the group.
    """

    group: Group
    cut: GroupSpec
    tickets: Sequence[DrawTicket]
    members: Sequence[int]


def is_draw(task: Task) -> bool:
    """Whether a task asks for a place, and not for work."""
    return task.cut is not None and task.group is None


def groups_in(task: Task) -> int:
    """Into how many groups the cohort of a training is cut, or is to be; 1 where it is not."""
    if task.group is not None:
        return task.group.of
    return task.cut.groups if task.cut is not None else 1


def statement(federation: str, draw: bytes, nonce: bytes) -> bytes:
    """What a client signs to answer the draw whose task has the digest `draw`, 32 bytes; `nonce` has as many."""
    return pack(PLACE_TAG, federation, draw, nonce)


def make_ticket(federation: str, draw: bytes, identity: Signer, *, randomness: Randomness = os.urandom) -> DrawTicketIn:
    """A client's answer to a draw."""
    nonce = randomness(NONCE_BYTES)
    return DrawTicketIn(nonce=nonce, signature=identity.sign(statement(federation, draw, nonce)))


def check_ticket(
    federation: str, draw: bytes, ticket: DrawTicket, keys: Mapping[int, bytes], verify: Verify = verifies
) -> None:
    """Raise ProtocolViolation("wrong-group") unless the client signed this answer to this draw.

    keys
        Client id -> raw Ed25519 public key.
    """
    key = keys.get(ticket.client_id)
    if key is None or not verify(key, ticket.signature, statement(federation, draw, ticket.nonce)):
        raise _wrong(f"the answer of client {ticket.client_id} is not signed for this draw", "unsigned")


def tickets_digest(tickets: Sequence[DrawTicket]) -> str:
    """SHA-256 over all answers to a draw, hex; `tickets` in the order of their clients."""
    fields = [part for ticket in tickets for part in (ticket.client_id, ticket.nonce, ticket.signature)]
    return hashlib.sha256(pack(PLACES_TAG, *fields)).hexdigest()


def cut_ring(draw: bytes, tickets: Collection[DrawTicket], cut: GroupSpec) -> list[list[int]]:
    """The groups, each in ascending order of its clients: the answers in the order of their places, cut into parts.

    As many as `cut.groups`, or fewer, so that each has `cut.least` members; the first ones have one more where the
    answers do not divide evenly. Raises RoundFailed if there are too few for one.
    """
    count = min(cut.groups, len(tickets) // cut.least)
    if count < 1:
        raise RoundFailed(f"{len(tickets)} clients answered the draw, a group needs {cut.least}")
    ring = [ticket.client_id for ticket in sorted(tickets, key=lambda ticket: _on_ring(draw, ticket))]
    size, larger = divmod(len(ring), count)
    starts = [number * size + min(number, larger) for number in range(count + 1)]
    return [sorted(ring[start:end]) for start, end in pairwise(starts)]


def too_few_groups(groups: int, least: int, failed: Mapping[int, str]) -> str:
    """Why an exchange failed of which `least` groups had to give a sum.

    failed
        Number of a group -> why it did not.
    """
    reasons: dict[str, list[int]] = {}
    for number, reason in sorted(failed.items()):
        reasons.setdefault(reason, []).append(number)
    named = [f"{_numbers(numbers)}: {reason}" for reason, numbers in reasons.items()]
    more = [f"and {len(named) - _MOST_REASONS} more reasons"] if len(named) > _MOST_REASONS else []
    why = "; ".join([*named[:_MOST_REASONS], *more])
    return f"{groups - len(failed)} of {groups} groups gave a sum, {least} are needed (min-groups). {why}"


def _numbers(numbers: Sequence[int]) -> str:
    return f"group{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def needed_tickets(cohort: int) -> int:
    """How many of a draw's cohort have to answer, as every client insists: more than two thirds."""
    return default_quorum(cohort)


def groups_of(draw: Task, tickets: Sequence[DrawTicket]) -> list[GroupMembership]:
    """The groups that follow from the answers to a draw, each with its members. Raises RoundFailed."""
    assert draw.cut is not None  # noqa: S101 - the caller knows that it is a draw
    ordered = sorted(tickets, key=lambda ticket: ticket.client_id)
    digest = draw.digest()
    parts = cut_ring(digest, ordered, draw.cut)
    of_draw = Group(draw=digest.hex(), exchange=draw.exchange, places=tickets_digest(ordered), number=1, of=len(parts))
    return [
        GroupMembership(
            group=of_draw.model_copy(update={"number": number}), cut=draw.cut, tickets=ordered, members=members
        )
        for number, members in enumerate(parts, start=1)
    ]


def check_group(
    task: Task,
    drawn: GroupAssignmentRecord | None,
    *,
    federation: str,
    client_id: int,
    keys: Mapping[int, bytes],
    verify: Verify = verifies,
) -> None:
    """Refuse an exchange that is no group of a draw that this client answered; raises ProtocolViolation("wrong-group").

    The cohort may lack members of the group, which a server could as well give up later, but not more than leave
    `cut.least`.

    drawn
        What it remembers of the draw that the task names; None if it remembers none.
    """
    group, tickets = task.group, task.places
    if group is None or tickets is None:
        raise _wrong("the run is cut into groups, and the task shows no draw", "no-draw")
    if drawn is None or (drawn.run, drawn.exchange, drawn.digest) != (task.run, group.exchange, group.draw):
        raise _wrong(
            f"this client did not answer the draw {group.draw[:12]}… of exchange {group.exchange}", "not-answered"
        )
    if (drawn.purpose, drawn.model, drawn.cut) != (task.purpose, task.subject_model, task.cut):
        raise _wrong("the groups were drawn for another model, or for other groups", "other-draw")
    ids = [ticket.client_id for ticket in tickets]
    if ids != sorted(set(ids)) or len(ids) > drawn.asked:
        raise _wrong("the answers to the draw are not those of its cohort, each once", "answers")
    if tickets_digest(tickets) != group.places:
        raise _wrong("the answers to the draw are not those whose hash the task has", "answers-hash")
    if len(tickets) < needed_tickets(drawn.asked):
        raise _wrong(
            f"the task shows {len(tickets)} answers to a draw of {drawn.asked} clients, "
            f"{needed_tickets(drawn.asked)} are needed",
            "too-few-answers",
        )
    if not any(ticket.client_id == client_id and ticket.nonce.hex() == drawn.nonce for ticket in tickets):
        raise _wrong("this client's own answer to the draw is left out, or another one is in its place", "own-answer")
    draw = bytes.fromhex(group.draw)
    for ticket in tickets:
        check_ticket(federation, draw, ticket, keys, verify)
    _check_part(task, group, cut_ring(draw, tickets, drawn.cut), drawn.cut)


def _check_part(task: Task, group: Group, parts: Sequence[Sequence[int]], cut: GroupSpec) -> None:
    if group.of != len(parts) or group.number > len(parts):
        raise _wrong(f"the task is of group {group.number} of {group.of}, the answers make {len(parts)}", "numbers")
    if strangers := sorted(set(task.cohort) - set(parts[group.number - 1])):
        raise _wrong(f"client {strangers[0]} of the cohort is not in group {group.number} of {group.of}", "stranger")
    if len(task.cohort) < cut.least:
        raise _wrong(f"{len(task.cohort)} members of the group are asked, at least {cut.least} have to be", "too-small")


def _on_ring(draw: bytes, ticket: DrawTicket) -> bytes:
    return hashlib.sha256(pack(RING_TAG, draw, ticket.client_id, ticket.nonce)).digest()


def _wrong(text: str, reason: str) -> ProtocolViolation:
    return ProtocolViolation(WRONG_GROUP, text, reason=reason)
