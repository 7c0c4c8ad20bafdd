"""Who is there, also for a server that was away itself."""

import asyncio

from support.services import Clock

from server_app.members.presence import Presence, Uptime

SECONDS = 15.0
"""How long a client may be silent."""


def test_a_server_that_was_stopped_does_not_take_its_clients_for_gone() -> None:
    clock = Clock()
    uptime = Uptime(clock)
    presence = Presence(clock=uptime)
    presence.touch(1)
    clock.advance(1000.0)
    uptime.step()
    assert presence.online(SECONDS) == {1}, "its heartbeats lie in the socket, and are read next"


def test_a_client_that_is_silent_is_gone() -> None:
    clock = Clock()
    uptime = Uptime(clock)
    presence = Presence(clock=uptime)
    presence.touch(1)
    for _ in range(61):
        clock.advance(0.25)
        uptime.step()
    presence.touch(2)
    assert presence.online(SECONDS) == {2}
    assert 15.0 < presence.silent_for(1) < 15.5


def test_a_client_that_stops_is_gone_until_it_joins_again() -> None:
    presence = Presence(clock=Clock())
    presence.join(1, "app", eligible=True)
    presence.touch(1)
    presence.stop(1)
    presence.touch(1)
    assert presence.online(SECONDS) == frozenset(), "a request that was on its way changes nothing"
    presence.join(1, "app", eligible=True)
    assert presence.eligible("app", SECONDS) == {1}


def test_a_client_that_is_refused_is_gone_for_that_reason() -> None:
    presence = Presence(clock=Clock())
    presence.touch(1)
    assert presence.refuse(1, "another version")
    assert not presence.refuse(1, "another version"), "no news"
    assert presence.online(SECONDS) == frozenset()
    assert "another version" in presence.absence_reason(1, ("run", 1), SECONDS)
    presence.join(1, "app", eligible=True)
    assert not presence.refusals


def test_what_a_busy_server_was_too_late_to_hear_is_no_silence() -> None:
    """Each turn of its loop takes nearly a second, and a request needs a dozen until it is known whose it is."""
    clock = Clock()
    uptime = Uptime(clock)
    presence = Presence(clock=uptime)
    presence.touch(1)
    for _ in range(20):
        clock.advance(0.9)
        uptime.step()
    assert presence.absence_reason(1, ("run", 1), SECONDS) == ""
    for _ in range(60):
        clock.advance(0.25)
        uptime.step()
    assert presence.absence_reason(1, ("run", 1), SECONDS), (
        "who is silent while the server listens is gone all the same"
    )


async def test_time_is_counted_while_the_loop_runs() -> None:
    clock = Clock()
    async with Uptime.measure(clock) as uptime:
        clock.advance(0.5)
        while not uptime():  # noqa: ASYNC110 - what it waits for is the clock
            await asyncio.sleep(0.01)
        assert uptime() == 0.25, "more was not due"
