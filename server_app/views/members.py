"""The members of the federation as operators and viewers see them."""

from __future__ import annotations

import math
from typing import Final

from fedcore.system.version import fedcore_version
from fedcore.wire.operator import ClientOut, ServerOut
from fedcore.wire.watch import CrowdOut
from server_app.operation.clocks import is_off
from server_app.services import Services
from server_app.views.client_status import ONLINE_SECONDS

SLOW_SPEED: Final = 1e6
"""Bytes a second from which on a line is no news."""
MOST_NAMED: Final = 200
"""Members that a stream names one by one."""


def members_out(services: Services) -> ServerOut:
    """The roster, and who of it is connected."""
    presence, lines = services.presence, services.lines
    resting = lines.why_not_asked(services.clock())
    listed = []
    clocks = services.clocks.clients
    for member in services.roster.members:
        silent, speed = presence.silent_for(member.id), lines.speed(member.id)
        listed.append(
            ClientOut(
                id=member.id,
                name=member.name,
                online=silent <= ONLINE_SECONDS,
                eligible=not presence.is_ineligible(member.id),
                reports_failures=member.id in presence.reporting,
                app_sha256=presence.installed.get(member.id, ""),
                last_seen_seconds=None if math.isinf(silent) else round(silent, 3),
                clock_seconds=clocks[member.id] if is_off(clocks.get(member.id)) else None,
                up_speed=_if_slow(speed.up),
                down_speed=_if_slow(speed.down),
                rests=resting.get(member.id, ""),
            )
        )
    return ServerOut(
        federation=services.roster.federation,
        version=fedcore_version(),
        roster=services.roster.newest.version,
        clients=listed,
    )


def _if_slow(speed: float | None) -> float | None:
    return speed if speed is not None and speed < SLOW_SPEED else None


def members_streamed(services: Services) -> ServerOut | CrowdOut:
    """The members if they are few; of many only how many there are."""
    members = services.roster.members
    if len(members) <= MOST_NAMED:
        return members_out(services)
    online = sum(services.presence.silent_for(member.id) <= ONLINE_SECONDS for member in members)
    return CrowdOut(online=online, members=len(members))
