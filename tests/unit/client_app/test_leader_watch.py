"""When a client leaves a server that is silent for another one that leads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from client_app.http.leader_watch import LeaderWatch

A, B, C = "https://a", "https://b", "https://c"


@dataclass
class Client:
    """A client that uses one address, and the servers around it."""

    leaders: tuple[str, ...] = ()
    current: str = A
    waiting: tuple[str, ...] = (A,)
    asks: list[str] = field(default_factory=list)
    changes: list[tuple[str, list[str]]] = field(default_factory=list)
    moves: dict[str, str] = field(default_factory=dict)
    """The address that it uses from the moment on in which another one is asked."""

    async def leads(self, url: str) -> bool:
        self.asks.append(url)
        self.current = self.moves.get(url, self.current)
        return url in self.leaders

    def switch(self, url: str, silent: Sequence[str]) -> None:
        self.changes.append((url, sorted(silent)))

    async def look(self) -> list[tuple[str, list[str]]]:
        await LeaderWatch(
            urls=(A, B, C),
            current=lambda: self.current,
            waiting=lambda: self.waiting,
            leads=self.leads,
            switch=self.switch,
        ).look()
        return self.changes


async def test_the_leader_that_a_client_uses_is_not_asked() -> None:
    client = Client(leaders=(A,))
    assert await client.look() == []
    assert client.asks == [B, C]


async def test_a_client_goes_over_to_the_one_that_leads() -> None:
    assert await Client(leaders=(C,)).look() == [(C, [A])]


async def test_two_addresses_of_one_server_are_no_reason_to_go_over() -> None:
    assert await Client(leaders=(A, B)).look() == []


@pytest.mark.parametrize(("leaders", "changes"), [((B,), [(B, [A])]), ((C,), [(C, [A, B])]), ((), [])])
async def test_requests_that_wait_on_an_earlier_address_are_not_forgotten(
    leaders: tuple[str, ...], changes: list[tuple[str, list[str]]]
) -> None:
    """One request failed, and the client uses the next address since; another one still waits."""
    client = Client(leaders=leaders, current=B, waiting=(A,))
    assert await client.look() == changes
    assert (A in client.asks) == bool(leaders), "a silent one costs seconds: it is asked if there is another"


@pytest.mark.parametrize(("now", "changes"), [(C, [(C, [A])]), (B, [(C, [A, B])])])
async def test_a_request_that_fails_meanwhile_does_not_hide_the_leader(
    now: str, changes: list[tuple[str, list[str]]]
) -> None:
    """Heartbeats fail every few seconds, and each takes the client to its next address."""
    assert await Client(leaders=(C,), moves={A: now}).look() == changes


async def test_an_earlier_address_that_leads_after_all_is_not_left() -> None:
    client = Client(leaders=(A, C), current=B, waiting=(A,))
    assert await client.look() == [(C, [B])]


async def test_of_two_that_lead_the_present_one_stays() -> None:
    """One address more may lead to the same server."""
    client = Client(leaders=(B, C), current=C, waiting=(A,))
    assert await client.look() == [(C, [A])]
