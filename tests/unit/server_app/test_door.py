"""Who may hold a connection: strangers few and for a short time, members within a limit of each."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterable

import pytest

from server_app.http.connection_limiter import EACH, Door, Visit
from server_app.http.rate_limit import Pace, networks


@pytest.fixture
def door() -> Door:
    """16 connections: 8 of strangers, 2 of one address."""
    return Door(most=16, seconds=1.0)


class Line(socket.socket):
    """A connection that notes whether the door has ended it."""

    ended = False

    def shutdown(self, how: int) -> None:
        self.ended = True


def come(door: Door, address: str) -> Visit | None:
    with Line() as connection:  # closed at once: the door only counts
        return door.admit(connection, address)


def ended(visits: Iterable[Visit | None]) -> list[bool]:
    """Which of these connections had to make room."""
    return [visit is not None and isinstance(visit.connection, Line) and visit.connection.ended for visit in visits]


def test_an_address_has_few_places(door: Door) -> None:
    first = come(door, "192.0.2.1")
    assert first
    assert come(door, "192.0.2.1")
    assert come(door, "192.0.2.1") is None
    assert come(door, "192.0.2.2")
    door.leave(first)
    door.leave(first)
    assert come(door, "192.0.2.1")


def test_many_addresses_of_one_peer_are_one(door: Door) -> None:
    come(door, "2001:db8::1")
    come(door, "2001:db8::ffff:2")
    assert come(door, "2001:db8::3") is None
    assert come(door, "2001:db8:0:1::1")
    assert come(door, "fe80::1%eth0")


def test_where_all_places_are_taken_the_busiest_address_gives_one_up(door: Door) -> None:
    alone = [come(door, f"192.0.2.{number}") for number in range(1, 7)]
    busy = [come(door, "192.0.2.200"), come(door, "192.0.2.200")]
    assert door.strangers == door.for_strangers == 8
    newcomer = come(door, "192.0.2.9")
    assert newcomer
    assert door.strangers == 8
    assert ended([*alone, *busy, newcomer]) == [*[False] * 6, True, False, False]


def test_strangers_take_no_place_of_those_who_are_known(door: Door) -> None:
    members = [come(door, f"192.0.2.{number}") for number in range(1, 9)]
    for number, member in enumerate(members, start=1):
        assert member
        door.know(member, f"client-{number}")
    strangers = [come(door, f"198.51.100.{number}") for number in range(1, 60)]
    assert not any(ended(members))
    assert door.strangers == 8
    assert ended(strangers) == [True] * 51 + [False] * 8
    for number, visit in enumerate(strangers[-8:], start=1):
        assert visit
        door.know(visit, f"client-{number}")
    assert come(door, "203.0.113.1") is None, "all places are taken by those who are known"


def test_one_who_is_known_has_places_for_itself() -> None:
    door = Door(most=10_000, seconds=1.0)
    visits = [come(door, "192.0.2.1") for _ in range(EACH + 2)]
    for visit in visits:
        assert visit
        door.know(visit, "client-1")
    assert ended(visits) == [True] * 2 + [False] * EACH


def test_a_proxy_has_as_many_places_as_there_are() -> None:
    door = Door(most=16, seconds=1.0, proxies=networks(["192.0.2.0/30"]))
    visits = [come(door, "192.0.2.1") for _ in range(16)]
    assert all(visit is not None and visit.is_proxy for visit in visits)
    assert come(door, "192.0.2.1") is None
    assert door.strangers == 0
    assert visits[0]
    door.know(visits[0], "client-1")
    assert visits[0].who == "proxy 192.0.2.1", "others are behind it"
    door.leave(visits[0])
    assert come(door, "198.51.100.1")


def test_only_strangers_are_greeted_at_a_pace() -> None:
    door = Door(most=10_000, seconds=1.0, pace=Pace(rate=10.0, burst=5.0, clock=lambda: 0.0))
    for _ in range(20):
        assert door.pace.wait("192.0.2.1") == pytest.approx(0.0)
        visit = come(door, "192.0.2.1")
        assert visit
        door.know(visit, "client-1")
    waits = [door.pace.wait("192.0.2.1") for _ in range(7)]
    assert waits == pytest.approx([0.0] * 5 + [0.1, 0.2])


def test_a_process_opens_as_many_files_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    assert Door.of_process(1.0).most == 3072
    assert set_to == [(4096, 4096)]
