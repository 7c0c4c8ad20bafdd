"""Sums of large vectors, whose segments take the place of what they hold; segments have 100 words here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.dying import Life
from support.mortal import RUN, Rig, rig
from support.serverside import until

from fedcore.errors import LeaseLost, UsageError
from fedcore.federation import FederationFolder
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.run.exchange import encoding_of
from server_app.exchanges.sums.saved_sum import SavedSum, Segment, nothing_saved, segment_digests
from server_app.exchanges.sums.sum_file import fold_file
from server_app.storage.store import Store

WORDS = 100
LIVES = [(None, False), (1, False), (2, True), (3, True), (5, True)]
"""After how many writes each process dies; True if objects count as well."""


@pytest.fixture(params=[1, 1 << 30], ids=["a sum after two vectors", "one sum"])
def segments(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, and how many bytes of vectors wait."""
    monkeypatch.setattr("server_app.exchanges.sums.saved_sum.SEGMENT_WORDS", WORDS)
    monkeypatch.setattr("server_app.exchanges.sums.masked_sum.LEAST_BYTES", request.param)
    monkeypatch.setattr("server_app.exchanges.sums.masked_sum.LEAST_VECTORS", 2)


async def play(here: Rig, writes: int | None, *, puts: bool = False, leaves: str = "") -> ExchangeOutcome:
    """One exchange, which client 4 leaves before a step."""
    leading = asyncio.create_task(here.lead(writes, puts=puts))
    await until(lambda: bool(here.lives))
    working = asyncio.gather(*(here.client(number, leaves if number == 4 else "") for number in here.kits))
    end = await leading
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return end


async def mean_of(here: Rig, end: ExchangeOutcome) -> bytes:
    assert end.total is not None, end.failure
    assert end.total.mean is not None
    return await asyncio.to_thread((await here.services.objects.fetch(end.total.mean)).read_bytes)


@pytest.mark.parametrize("leaves", ["", "upload", "sign"])
async def test_killed_after_any_write_it_is_the_sum_that_a_small_one_is(
    federation: FederationFolder, tmp_path: Path, leaves: str, segments: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for number, (writes, puts) in enumerate(LIVES):
        (folder := tmp_path / str(number)).mkdir()
        async with rig(federation, folder) as here:
            end = await play(here, writes, puts=puts, leaves=leaves)
            found.append((await mean_of(here, end), end.survivors))
            assert here.witness.equivocations == []
            assert writes is None or len(here.lives) >= 5
            objects = folder / "data" / "runs" / "run" / "exchanges" / "1"
            assert [path.name for path in objects.iterdir()] == ["mean"] or writes
    monkeypatch.setattr("server_app.exchanges.sums.saved_sum.SEGMENT_WORDS", 1 << 20)
    async with rig(federation, tmp_path) as here:
        small = await mean_of(here, end := await play(here, None, leaves=leaves)), end.survivors
    assert found == [small] * len(LIVES)


async def test_a_sum_takes_the_place_of_its_vectors(
    federation: FederationFolder, tmp_path: Path, segments: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every commit of a segment: the vectors, and one segment."""
    sizes: list[int] = []
    real = Store.save_partial_sum

    async def looks(self: Store, run: str, exchange: int, folded: Mapping[str, Any]) -> None:
        files = [*(tmp_path / "data" / "runs").rglob("*"), *here.services.spool.folder.iterdir()]
        sizes.append(sum(path.stat().st_size for path in files if path.is_file()))
        await real(self, run, exchange, folded)

    monkeypatch.setattr(Store, "save_partial_sum", looks)
    async with rig(federation, tmp_path) as here:
        end = await play(here, None)
        assert end.total is not None, end.failure
        vector = encoding_of(here.task).words * 8
    assert len(sizes) >= vector // (WORDS * 8)
    assert max(sizes) <= 4 * vector + WORDS * 8
    assert min(sizes) <= vector + 3 * WORDS * 8 * 2


class Gate:
    """Where a server is frozen: before its second call of a method for the sum, until the gate is opened."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.reached, self.opened = asyncio.Event(), asyncio.Event()
        self._count = 0

    async def passes(self, method: str, arguments: tuple[Any, ...]) -> None:
        if method == self.method and (method != "put" or "/sums/" in arguments[1]):
            self._count += 1
            if self._count == 2:
                self.reached.set()
                await self.opened.wait()


class Gated:
    """A store, or objects, behind a gate."""

    def __init__(self, inner: Any, gate: Gate) -> None:
        self._inner, self._gate = inner, gate

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name != self._gate.method:
            return method

        async def passes(*arguments: Any) -> Any:
            await self._gate.passes(name, arguments)
            return await method(*arguments)

        return passes


async def leads(here: Rig, store: Store, holder: str) -> None:
    """The one server whose writes count, as another whose lease has run out does not know."""
    await store.give_all("first")
    lease = await store.take_lease("leader", holder=holder, url="", seconds=60.0)
    assert lease is not None
    store.fence(lease)


@pytest.mark.parametrize("wakes", ["at once", "at the end"])
@pytest.mark.parametrize("method", ["put", "save_partial_sum", "cut"])
async def test_a_server_that_was_frozen_between_segments_takes_nothing_from_the_one_that_leads(
    federation: FederationFolder, tmp_path: Path, method: str, wakes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server_app.exchanges.sums.saved_sum.SEGMENT_WORDS", WORDS)
    (alone := tmp_path / "alone").mkdir()
    async with rig(federation, alone) as here:
        expected = await mean_of(here, await play(here, None))
    async with rig(federation, tmp_path) as here, AsyncExitStack() as stack:
        stores = [await Store.open(here.services.settings.database_file) for _ in range(2)]
        for store in stores:
            stack.push_async_callback(store.close)
        gate, frozen, leader = Gate(method), Life(None, puts=False), Life(None, puts=False)
        await leads(here, stores[0], "first")
        frozen.exchange = here.exchange_over(Gated(stores[0], gate), Gated(here.services.objects, gate))
        here.lives.append(frozen)
        first = asyncio.create_task(frozen.exchange.run())
        working = asyncio.gather(*(here.client(number) for number in here.kits))
        await gate.reached.wait()
        await leads(here, stores[1], "second")
        leader.exchange = here.exchange_over(stores[1], here.services.objects)
        await leader.exchange.restore(await stores[1].history(RUN, 1))
        here.lives.append(leader)
        frozen.dead.set()
        second = asyncio.create_task(leader.exchange.run())
        if wakes == "at the end":
            await second
        gate.opened.set()
        with pytest.raises(LeaseLost):
            await first
        await asyncio.gather(second, working)
        assert await mean_of(here, leader.exchange.end) == expected
        objects = tmp_path / "data" / "runs" / RUN / "exchanges" / "1"
        left = [path.name for path in [*objects.rglob("*"), *here.services.spool.folder.iterdir()] if path.is_file()]
        assert left == ["mean"]


async def test_what_is_left_of_a_vector_is_looked_at_after_a_restart(
    federation: FederationFolder, tmp_path: Path, segments: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_middle, real = asyncio.Event(), Store.save_partial_sum

    async def tells(self: Store, run: str, exchange: int, folded: Mapping[str, Any]) -> None:
        await real(self, run, exchange, folded)
        if folded.get("left", 0) == 2:
            in_the_middle.set()

    monkeypatch.setattr(Store, "save_partial_sum", tells)
    async with rig(federation, tmp_path) as here:
        leading = asyncio.create_task(here.lead(None))
        await until(lambda: bool(here.lives))
        working = asyncio.gather(*(here.client(number) for number in here.kits))
        await in_the_middle.wait()
        here.lives[-1].dead.set()
        await here.lives[-1].settle()
        vectors = tmp_path / "data" / "runs" / "run" / "exchanges" / "1" / "updates"
        for path in vectors.iterdir():
            content = bytearray(path.read_bytes())
            content[0] ^= 1
            path.write_bytes(content)
        end = await leading
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        assert end.failure is not None
        assert "changed on the server's disk" in end.failure.reason


def test_a_saved_sum_is_described_and_read_again() -> None:
    one = SavedSum(clients=frozenset({1, 2}), segments=(Segment(key="k", sha256="ab"),))
    assert one.to_json() == {"clients": [1, 2], "key": "k", "sha256": "ab"}
    begun = nothing_saved(8 << 21).begin({3: ("a", "b")}).add_last(Segment(key="s", sha256="cd"))
    assert (begun.left, begun.clients, begun.segments[0]) == (1, frozenset(), None)
    whole = begun.add_last(Segment(key="t", sha256="ef"))
    assert (whole.clients, dict(whole.adding)) == (frozenset({3}), {})
    for saved in (one, begun, whole):
        assert SavedSum.from_json(saved.to_json()) == saved
    assert SavedSum.from_json({"key": "k", "clients": [1]}).segments == (Segment(key="k", sha256=""),)


@pytest.mark.parametrize("words", [1, 100, 250])
def test_segments_of_a_vector_are_added_one_by_one(tmp_path: Path, words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vector, total = (np.random.default_rng(words + one).integers(0, 2**64, words, dtype="<u8") for one in range(2))
    vector.tofile(tmp_path / "vector")
    pieces = []
    for start in range(0, words, WORDS):
        total[start : start + WORDS].tofile(tmp_path / "piece")
        fold_file(tmp_path / "vector", tmp_path / "piece", threads=2, start=start)
        pieces.append(np.fromfile(tmp_path / "piece", "<u8"))
    np.testing.assert_array_equal(np.concatenate(pieces), total + vector)
    np.zeros(words, "<u8").tofile(tmp_path / "whole")
    for number, piece in enumerate(pieces):
        piece.tofile(tmp_path / "piece")
        fold_file(tmp_path / "piece", tmp_path / "whole", threads=2, start=number * WORDS)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "whole", "<u8"), total + vector)
    with pytest.raises(UsageError):
        fold_file(tmp_path / "vector", tmp_path / "piece", threads=2, start=words)
    monkeypatch.setattr("server_app.exchanges.sums.saved_sum.SEGMENT_WORDS", WORDS)
    assert len(segment_digests(tmp_path / "vector")) == len(pieces)
