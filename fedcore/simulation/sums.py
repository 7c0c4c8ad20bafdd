"""What a simulated sum gave, and what is told of groups and of refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedcore.codec import AnyEncoding, Decoded
from fedcore.errors import ProtocolViolation, RunFailed
from fedcore.federation.admission.refusals import refused_by_all
from fedcore.wire.control import Group
from fedcore.wire.events import EventSink, ExchangeFailed, GroupEnded


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """A sum: of a cohort, or of one group of it. seconds: all attempts at it. staleness: as `ExchangeDone` has it."""

    encoding: AnyEncoding
    decoded: Decoded
    survivors: Sequence[int]
    staleness: Mapping[int, int] = field(default_factory=dict)
    seconds: float = 0.0


def group_failed(
    group: Group, exchange: int, server_round: int, survivors: list[str], reason: str, again: bool
) -> GroupEnded:
    """An attempt at the sum of a group has failed; again: whether another one follows."""
    return GroupEnded(
        exchange=exchange,
        drawn=group.exchange,
        server_round=server_round,
        group=group.number,
        groups=group.of,
        survivors=survivors,
        seconds=0.0,
        reason=reason,
        retry=again,
    )


def refused_run(refusal: ProtocolViolation, emit: EventSink, *, exchange: int, server_round: int) -> RunFailed:
    """What ends a run that the owners do not take part in."""
    reason = refused_by_all([refusal])
    emit(ExchangeFailed(exchange=exchange, server_round=server_round, reason=reason, retry=False))
    return RunFailed(reason)
