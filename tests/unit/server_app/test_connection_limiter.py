"""Who may hold a connection: strangers few and for a short time, members within a limit of each."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterable

import pytest

from server_app.http.connection_limiter import CONNECTIONS_PER_PEER, Connection, ConnectionLimiter
from server_app.http.rate_limit import TokenBucket, networks


@pytest.fixture
def limiter() -> ConnectionLimiter:
    """16 connections: 8 of strangers, 2 of one address."""
    return ConnectionLimiter(most=16, seconds=1.0)


class Line(socket.socket):
    """A connection that notes whether the door has ended it."""

    ended = False

    def shutdown(self, how: int) -> None:
        self.ended = True


def come(limiter: ConnectionLimiter, address: str) -> Connection | None:
    with Line() as connection:  # closed at once: the door only counts
        return limiter.admit(connection, address)


def ended(connections: Iterable[Connection | None]) -> list[bool]:
    """Which of these connections had to make room."""
    return [
        connection is not None and isinstance(connection.sock, Line) and connection.sock.ended
        for connection in connections
    ]


def test_an_address_has_few_places(limiter: ConnectionLimiter) -> None:
    first = come(limiter, "192.0.2.1")
    assert first
    assert come(limiter, "192.0.2.1")
    assert come(limiter, "192.0.2.1") is None
    assert come(limiter, "192.0.2.2")
    limiter.leave(first)
    limiter.leave(first)
    assert come(limiter, "192.0.2.1")


def test_many_addresses_of_one_peer_are_one(limiter: ConnectionLimiter) -> None:
    come(limiter, "2001:db8::1")
    come(limiter, "2001:db8::ffff:2")
    assert come(limiter, "2001:db8::3") is None
    assert come(limiter, "2001:db8:0:1::1")
    assert come(limiter, "fe80::1%eth0")


def test_addresses_of_ipv4_are_many_on_a_socket_for_both_kinds(limiter: ConnectionLimiter) -> None:
    assert come(limiter, "::ffff:192.0.2.1")
    assert come(limiter, "192.0.2.1")
    assert come(limiter, "::ffff:192.0.2.1") is None
    assert come(limiter, "::ffff:192.0.2.2")


def test_where_all_places_are_taken_the_busiest_address_gives_one_up(limiter: ConnectionLimiter) -> None:
    alone = [come(limiter, f"192.0.2.{number}") for number in range(1, 7)]
    busy = [come(limiter, "192.0.2.200"), come(limiter, "192.0.2.200")]
    assert limiter.strangers == limiter.for_strangers == 8
    newcomer = come(limiter, "192.0.2.9")
    assert newcomer
    assert limiter.strangers == 8
    assert ended([*alone, *busy, newcomer]) == [*[False] * 6, True, False, False]


def test_strangers_take_no_place_of_those_who_are_known(limiter: ConnectionLimiter) -> None:
    members = [come(limiter, f"192.0.2.{number}") for number in range(1, 9)]
    for number, member in enumerate(members, start=1):
        assert member
        limiter.mark_authenticated(member, f"client-{number}")
    strangers = [come(limiter, f"198.51.100.{number}") for number in range(1, 60)]
    assert not any(ended(members))
    assert limiter.strangers == 8
    assert ended(strangers) == [True] * 51 + [False] * 8
    for number, connection in enumerate(strangers[-8:], start=1):
        assert connection
        limiter.mark_authenticated(connection, f"client-{number}")
    assert come(limiter, "203.0.113.1") is None, "all places are taken by those who are known"


def test_one_who_is_known_has_places_for_itself() -> None:
    limiter = ConnectionLimiter(most=10_000, seconds=1.0)
    connections = [come(limiter, "192.0.2.1") for _ in range(CONNECTIONS_PER_PEER + 2)]
    for connection in connections:
        assert connection
        limiter.mark_authenticated(connection, "client-1")
    assert ended(connections) == [True] * 2 + [False] * CONNECTIONS_PER_PEER


def test_a_proxy_has_as_many_places_as_there_are() -> None:
    limiter = ConnectionLimiter(most=16, seconds=1.0, proxies=networks(["192.0.2.0/30"]))
    connections = [come(limiter, "192.0.2.1") for _ in range(16)]
    assert all(connection is not None and connection.is_proxy for connection in connections)
    assert come(limiter, "192.0.2.1") is None
    assert limiter.strangers == 0
    assert connections[0]
    limiter.mark_authenticated(connections[0], "client-1")
    assert connections[0].who == "proxy 192.0.2.1", "others are behind it"
    limiter.leave(connections[0])
    assert come(limiter, "198.51.100.1")


def test_only_strangers_are_greeted_at_a_pace() -> None:
    limit = TokenBucket(rate=10.0, burst=5.0, clock=lambda: 0.0)
    limiter = ConnectionLimiter(most=10_000, seconds=1.0, handshake_limit=limit)
    for _ in range(20):
        assert limit.wait("192.0.2.1") == pytest.approx(0.0)
        connection = come(limiter, "192.0.2.1")
        assert connection
        limiter.mark_authenticated(connection, "client-1")
    waits = [limit.wait("192.0.2.1") for _ in range(7)]
    assert waits == pytest.approx([0.0] * 5 + [0.1, 0.2])


def test_a_process_opens_as_many_files_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    assert ConnectionLimiter.of_process(1.0).most == 3072
    assert set_to == [(4096, 4096)]
