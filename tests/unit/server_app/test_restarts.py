"""An exchange whose server dies after any of its writes ends as if it had not, and nobody is told two things."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import dying, mortal
from support.hostile import sign_again
from support.mortal import Rig, rig
from support.serverside import until

from fedcore.errors import DamagedAtRest, ProtocolViolation, RoundFailed, StorageUnavailable
from fedcore.federation import FederationFolder
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.secagg import Fault
from fedcore.wire import secagg_codec
from fedcore.wire.problems import ProblemKind
from fedcore.wire.uploads import ManifestIn, WithdrawalReason, WithdrawIn
from server_app.exchanges.outcome import result_of
from server_app.exchanges.receiver import MessageReceiver
from server_app.exchanges.secure import SecureExchange
from server_app.rejection import Rejection
from server_app.storage.store import Store

STEPS = ["", "share", "upload", "sign", "unmask"]
LIVES = [(1, False), (2, True)]
"""After how many writes each process dies; with objects, two at least, since a client has to get one further."""


async def play(here: Rig, writes: int | None, *, puts: bool = False, leaves: str = "") -> ExchangeOutcome:
    """One exchange, which client 4 leaves before a step."""
    leading = asyncio.create_task(here.lead(writes, puts=puts))
    await until(lambda: bool(here.lives))
    if here.aggregation == "plain":
        clients = [here.plain_client(number) for number in here.kits]
    else:
        clients = [here.client(number, leaves if number == 4 else "") for number in here.kits]
    working = asyncio.gather(*clients)
    end = await leading
    working.cancel()  # whose last acknowledgement was lost with the last process
    await asyncio.gather(working, return_exceptions=True)
    return end


async def mean_of(here: Rig, end: ExchangeOutcome) -> str:
    assert end.total is not None, end.failure
    assert end.total.mean is not None
    content = await asyncio.to_thread((await here.services.objects.fetch(end.total.mean)).read_bytes)
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("leaves", STEPS)
async def test_killed_after_every_write_it_ends_with_the_same_bits(
    federation: FederationFolder, tmp_path: Path, leaves: str
) -> None:
    found = []
    for number, (writes, puts) in enumerate([(None, False), *LIVES]):
        (folder := tmp_path / str(number)).mkdir()
        async with rig(federation, folder) as here:
            end = await play(here, writes, puts=puts, leaves=leaves)
            assert end.total is not None, end.failure
            assert end.total.examples == 1 + 4 + 16 + (64 if leaves in ("", "sign", "unmask") else 0)
            assert here.witness.equivocations == []
            assert writes is None or len(here.lives) >= 5
            objects = tmp_path / str(number) / "data" / "runs" / "run" / "exchanges" / "1"
            assert [path.name for path in objects.iterdir()] == ["mean"] or writes
            found.append((await mean_of(here, end), end.survivors, end.total.metrics, end.unmasked))
    assert found[1:] == [found[0]] * len(LIVES)


@pytest.mark.parametrize(("writes", "puts"), LIVES)
async def test_plain_replies_survive_as_they_came(
    federation: FederationFolder, tmp_path: Path, writes: int, puts: bool
) -> None:
    async with rig(federation, tmp_path, aggregation="plain") as here:
        result = await result_of(await play(here, writes, puts=puts), here.services.objects.fetch)
        assert len(here.lives) >= 2
        assert [reply.examples for reply in result.plain] == [1, 4, 16, 64]
        assert [reply.content.read_bytes() for reply in result.plain if reply.content] == [
            bytes([number]) * 1000 for number in here.kits
        ]


async def test_a_sum_that_is_folded_before_its_receipt_is_found(
    federation: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: what the tests above are for."""

    async def folds_first(self: MessageReceiver, client: int, manifest: ManifestIn, digest: bytes) -> None:
        await self.add_update(client, manifest)
        await self.receipts.keep(client, "manifest", digest, manifest)
        self.clients.take(client)

    monkeypatch.setattr(MessageReceiver, "use_update", folds_first)
    monkeypatch.setattr("server_app.exchanges.sums.masked_sum.LEAST_BYTES", 1)
    monkeypatch.setattr("server_app.exchanges.sums.masked_sum.LEAST_VECTORS", 0)
    async with rig(federation, tmp_path) as here:
        end = await play(here, 1)
        assert end.failure is not None
        assert "holds vectors of clients that have sent none" in end.failure.reason


@pytest.mark.parametrize("least", [1, 1 << 30], ids=["a sum after each vector", "one sum"])
async def test_sums_in_between_lose_nothing(
    federation: FederationFolder, tmp_path: Path, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server_app.exchanges.sums.masked_sum.LEAST_BYTES", least)
    monkeypatch.setattr("server_app.exchanges.sums.masked_sum.LEAST_VECTORS", 0)
    async with rig(federation, tmp_path) as here:
        end = await play(here, 3)
        assert end.total is not None, end.failure
        assert end.total.examples == 85


async def begun(here: Rig) -> tuple[asyncio.Task[Any], SecureExchange]:
    """One process that never dies, and its exchange."""
    leading = asyncio.create_task(here.lead(None))
    await until(lambda: bool(here.lives) and here.lives[-1].exchange is not None)
    exchange = here.lives[-1].exchange
    await until(lambda: exchange.is_led)
    return leading, exchange


async def test_nothing_shows_before_its_closing_is_committed(
    federation: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that dies there may close the stage otherwise."""
    held: list[str] = []
    go_on, real = asyncio.Event(), Store.close_stage

    async def slowly(self: Store, run: str, exchange: int, before: str, *rest: Any, **named: Any) -> None:
        held.append(before)
        await go_on.wait()
        go_on.clear()
        await real(self, run, exchange, before, *rest, **named)

    monkeypatch.setattr(Store, "close_stage", slowly)
    async with rig(federation, tmp_path) as here:
        leading, exchange = await begun(here)
        working = asyncio.gather(*(here.client(number) for number in here.kits))
        for stage, question in zip(exchange.stage_names, dying.ANSWERS, strict=False):
            await until(lambda stage=stage: held[-1:] == [stage])  # type: ignore[misc]
            assert [getattr(exchange, question)(client) for client in here.kits] == [None] * 4
            go_on.set()
            await until(lambda question=question: getattr(exchange, question)(1) is not None)  # type: ignore[misc]
        end = await leading
        await working
        assert end.total is not None
        assert end.total.examples == 85


async def test_a_message_that_could_not_be_kept_does_not_count(
    federation: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken over in memory; a server that comes back would know nothing of it."""
    real = Store.add_receipt

    async def refuses(self: Store, run: str, exchange: int, step: str, client: int, *rest: Any) -> None:
        if (step, client) == ("consistency", 4):
            raise StorageUnavailable("away")
        await real(self, run, exchange, step, client, *rest)

    monkeypatch.setattr(Store, "add_receipt", refuses)
    async with rig(federation, tmp_path) as here:
        leading, exchange = await begun(here)
        others = asyncio.gather(*(here.client(number) for number in (1, 2, 3)))
        with pytest.raises(StorageUnavailable):
            await here.client(4)
        await until(lambda: exchange.clients.done == {1, 2, 3} and exchange.stages.current == "consistency")
        here.services.clock.advance(61.0)  # type: ignore[attr-defined]
        here.services.presence.expect(here.kits)
        end = await leading
        await others
        closings = (await here.services.store.history("run", 1)).closings
        (closed,) = [one for one in closings if one.stage == "consistency"]
        assert closed.gone["answered"] == [1, 2, 3]
        assert list(closed.gone["gone"]) == ["4"]
        assert end.total is not None
        assert end.total.examples == 85, "its update is in the sum"


async def test_a_stage_does_not_end_over_a_message_on_its_way_to_the_disk(
    federation: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the client would be told that it is in, and the others that it is not."""
    real, writing, go_on = Store.add_receipt, asyncio.Event(), asyncio.Event()

    async def slowly(self: Store, run: str, exchange: int, step: str, client: int, *rest: Any) -> None:
        if (step, client) == ("consistency", 4):
            writing.set()
            await go_on.wait()
        await real(self, run, exchange, step, client, *rest)

    monkeypatch.setattr(Store, "add_receipt", slowly)
    async with rig(federation, tmp_path) as here:
        leading, exchange = await begun(here)
        working = asyncio.gather(*(here.client(number) for number in here.kits))
        await writing.wait()
        await until(lambda: exchange.clients.done == {1, 2, 3})
        here.services.clock.advance(61.0)  # type: ignore[attr-defined]
        here.services.presence.expect(here.kits)
        await until(lambda: not exchange.stages.takes_messages)
        assert exchange.stages.current == "consistency"
        go_on.set()
        end = await leading
        await working
        assert end.total is not None
        (closed,) = [
            one for one in (await here.services.store.history("run", 1)).closings if one.stage == "consistency"
        ]
        assert closed.gone["answered"] == [1, 2, 3, 4]
        assert closed.gone["gone"] == {}


@pytest.mark.parametrize("then", ["again", "abandoned"])
async def test_an_exchange_that_is_put_down_is_busy_until_it_is_taken_up(
    federation: FederationFolder, tmp_path: Path, then: str
) -> None:
    async with rig(federation, tmp_path) as here:
        leading, exchange = await begun(here)
        steps = {number: mortal.Party(here, number) for number in here.kits}
        await asyncio.gather(*(steps[number].advertise() for number in (1, 2)))
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        with pytest.raises(Rejection) as refused:
            exchange.cohort_for(1)
        assert refused.value.kind is ProblemKind.BUSY
        assert exchange.task_for(3) is None
        if then == "abandoned":
            await exchange.abandon("cancelled by the operator")
            await exchange.abandon("said again")
            with pytest.raises(RoundFailed, match="cancelled"):
                await result_of(await here.lead(None), here.services.objects.fetch)
            return
        leading = asyncio.create_task(here.lead(None))
        await asyncio.gather(*(steps[number].advertise() for number in (3, 4)))
        for step in ("share", "upload", "sign", "unmask"):
            await asyncio.gather(*(getattr(one, step)() for one in steps.values()))
        end = await leading
        assert end.total is not None
        assert end.total.examples == 85


async def test_what_does_not_fit_together_fails_the_attempt_and_no_more(
    federation: FederationFolder, tmp_path: Path
) -> None:
    async with rig(federation, tmp_path) as here:
        leading, _ = await begun(here)
        parties = [mortal.Party(here, number) for number in here.kits]
        for step in ("advertise", "share", "upload"):
            await asyncio.gather(*(getattr(one, step)() for one in parties))
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        await here.services.objects.remove("runs/run/exchanges/1")
        end = await here.lead(None)
        assert end.failure is not None
        assert end.failure.kind == DamagedAtRest.__name__


async def deals_garbage(party: mortal.Party, victim: int) -> None:
    """R1 of a cheat, whose victim cannot open what was sealed for it."""
    rig, session = party.rig, party.session
    await party.advertise()
    told = await rig.ask(lambda exchange: exchange.cohort_for(party.number))
    honest = session.share_keys(secagg_codec.cohort_from_wire(told, party.cohort))
    spoilt = {**honest.shares, victim: bytes(len(honest.shares[victim]))}
    made = sign_again(session, replace(honest, shares=spoilt))
    await rig.send("key-shares", party.number, secagg_codec.key_shares_to_wire(made))


async def complains(party: mortal.Party, dealer: int) -> None:
    """A victim leaves with its proof."""
    rig, session = party.rig, party.session
    await party.advertise()
    await party.share()
    told = await rig.ask(lambda exchange: exchange.delivery_for(party.number))
    delivery = secagg_codec.delivery_from_wire(told, party.cohort)
    with pytest.raises(ProtocolViolation):
        session.receive_shares(delivery)
    shown = await rig.ask(lambda exchange: exchange.dealing_for(party.number, dealer))
    complaint = session.complain(delivery, secagg_codec.dealing_from_wire(dealer, shown))
    said = WithdrawIn(
        reason=WithdrawalReason.PROTOCOL_VIOLATION,
        check="share-unsealing",
        complaint=secagg_codec.complaint_to_wire(complaint),
    )
    await rig.send("withdrawal", party.number, said)


@pytest.mark.parametrize("writes", [None, 1, 2])
async def test_whoever_cheated_is_named_after_a_restart_too(
    federation: FederationFolder, tmp_path: Path, writes: int | None
) -> None:
    async with rig(federation, tmp_path) as here:
        leading = asyncio.create_task(here.lead(writes))
        await until(lambda: bool(here.lives))
        working = asyncio.gather(
            deals_garbage(mortal.Party(here, 2), 3),
            complains(mortal.Party(here, 3), 2),
            here.client(1, "upload"),
            here.client(4, "sign"),
            return_exceptions=True,  # the exchange is over for those that come later
        )
        end = await leading
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        assert end.blamed == {2: Fault.SEALED_GARBAGE}
        assert end.failure is not None
        assert "excluded for protocol violations: client-2: sealed-garbage" in end.failure.reason
        assert here.witness.equivocations == []
