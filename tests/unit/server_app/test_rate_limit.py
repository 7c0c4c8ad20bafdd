"""What nobody who is known asks for: it waits, at the pace of its address; who is known does not wait there."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.serverside import Site, hold_pace, site, until

from fedcore.federation import FederationFolder
from fedcore.system.concurrency import end
from server_app.http import guard
from server_app.http import rate_limit as strangers
from server_app.http.rate_limit import LONGEST_WAIT, MOST_ADDRESSES, TokenBucket, is_within, networks


class Hands:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Hands:
    return Hands()


def test_a_burst_is_free_and_the_rest_waits_its_turn(clock: Hands) -> None:
    pace = TokenBucket(rate=10.0, burst=5.0, clock=clock)
    assert [pace.wait("a") for _ in range(5)] == pytest.approx([0.0] * 5)
    assert [pace.wait("a") for _ in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    assert pace.wait("b") == 0.0, "another address has a pace of its own"
    clock.now += 0.8
    assert [pace.wait("a") for _ in range(6)] == pytest.approx([0.0] * 5 + [0.1])


def test_nobody_waits_longer_than_that(clock: Hands) -> None:
    """So an address that is flooded from is not locked out for an hour afterwards."""
    pace = TokenBucket(rate=10.0, burst=5.0, clock=clock)
    assert max(pace.wait("a") for _ in range(10_000)) == pytest.approx(LONGEST_WAIT)
    clock.now += LONGEST_WAIT
    assert pace.wait("a") == pytest.approx(0.1)


def test_what_was_no_strangers_does_not_count(clock: Hands) -> None:
    pace = TokenBucket(rate=10.0, burst=5.0, clock=clock)
    for _ in range(100):
        assert pace.wait("a") == pytest.approx(0.0)
        pace.forgive("a")


def test_addresses_without_end_fill_no_memory(clock: Hands) -> None:
    pace = TokenBucket(rate=10.0, burst=5.0, clock=clock)
    for number in range(2 * MOST_ADDRESSES):
        pace.wait(f"address {number}")
    assert pace.addresses <= MOST_ADDRESSES


def test_which_addresses_are_a_proxys() -> None:
    trusted = networks(["10.0.0.2", "fd00::/8"])
    assert is_within("10.0.0.2", trusted)
    assert is_within("fd12::1%eth0", trusted)
    assert not is_within("10.0.0.3", trusted)
    assert not is_within("a path", trusted)


FORGER = Ed25519PrivateKey.from_private_bytes(bytes(32))


async def ask(here: Site, *, key: Ed25519PrivateKey | None = None) -> httpx.Response:
    path = "/v1/heartbeat"
    signed = here.members[1].signed("POST", path, b"{}", key=key)
    return await here.http.post(path, content=b"{}", headers={"Content-Type": "application/json", **signed})


async def test_a_member_does_not_wait_where_forgers_of_its_address_do(
    federation: FederationFolder, tmp_path: Path
) -> None:
    async with site(federation, tmp_path, strangers_a_second=0.1) as here:
        hold_pace(here)
        first = await ask(here, key=FORGER)
        assert first.status_code == 401
        forged = asyncio.create_task(ask(here, key=FORGER))
        for _ in range(3):
            assert (await ask(here)).status_code == 204
        assert not forged.done()
        await end(forged)


async def test_open_addresses_are_paced_as_well(
    federation: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "LONGEST_WAIT", 0.2)
    async with site(federation, tmp_path, strangers_a_second=0.1) as here:
        assert (await here.http.get("/healthz")).status_code == 200
        started = time.monotonic()
        assert (await here.http.get("/healthz")).status_code == 200
        assert (await here.http.get("/nowhere")).status_code == 404
        assert time.monotonic() - started >= 0.4


async def test_a_sender_has_so_many_open_requests(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "IN_FLIGHT", 2)
    member, path = here.members[1], "/v1/task?wait=30"
    open_ones = [asyncio.create_task(here.http.get(path, headers=member.signed("GET", path))) for _ in range(2)]
    await until(lambda: sum(here.application.guard.under_way.values()) == 2)
    refused = await here.http.get(path, headers=member.signed("GET", path))
    assert (refused.status_code, refused.json()["type"]) == (429, "urn:fedcore:problem:busy")
    assert refused.headers["retry-after"]
    assert (await here.operator("GET", "/v1/clients")).status_code == 200, "others are not concerned"
    here.services.client_bell.stop()
    assert [(await answer).status_code for answer in open_ones] == [204, 204]
    assert here.application.guard.under_way == {}
