"""Server processes that die after a number of writes, over one database and one object store; and clients that go on.

A `Life` is what one process holds: services of its own, and the exchange that it leads. Client i has 4**(i - 1)
examples, so the digits of the sum say whose update is in it, and how often.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from fedcore.codec import CodecSettings, encode, first_encoding
from fedcore.errors import RoundFailed
from fedcore.federation import ClientKit, FederationFolder, ServerKit
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.run.exchange import encoding_of, round_parameters
from fedcore.run.plain import OutgoingMessage
from fedcore.run.settings import JobSettings
from fedcore.secagg import ClientSession
from fedcore.state import ModelState, sha256_file
from fedcore.wire import secagg_codec
from fedcore.wire.base import Message
from fedcore.wire.chunks import PART_BYTES, update_digest
from fedcore.wire.problems import ProblemKind
from fedcore.wire.tasks import ModelRef, Protection, Task
from fedcore.wire.uploads import ManifestIn, WithdrawalReason, WithdrawIn
from server_app.exchanges.context import ExchangeContext
from server_app.exchanges.exchange import Exchange
from server_app.exchanges.plain import PlainExchange
from server_app.exchanges.secure import SecureExchange
from server_app.polling import Bell
from server_app.rejection import Rejection
from server_app.runs.event_log import EventLog
from server_app.services import Services
from server_app.storage.blobs import Body

from .dying import Dying, Gone, Life, Witness
from .encodings import encoding_to_json
from .messages import head
from .services import Clock, lenient, open_services

T = TypeVar("T")
RUN = "run"
COMMITS = ("add_exchange", "close_stage", "add_receipt", "save_partial_sum", "end_exchange")
WRITES = (*COMMITS, "put", "remove", "cut")


@dataclass
class Rig:
    """Lives that follow each other, and what their clients were told."""

    services: Services
    kits: dict[int, ClientKit]
    model: Path
    aggregation: str = "secure"
    settings: JobSettings = field(default_factory=lambda: JobSettings(w_max=100))
    witness: Witness = field(default_factory=Witness)
    lives: list[Life] = field(default_factory=list)
    logs: list[EventLog] = field(default_factory=list)
    over: bool = False
    task: Task = field(init=False)

    def __post_init__(self) -> None:
        state, secure = ModelState.open(self.model), self.aggregation == "secure"
        self.task = Task(
            run=RUN,
            exchange=1,
            attempt=1,
            server_round=1,
            message_type="train",
            aggregation="secure" if secure else "plain",
            app_sha256="ab" * 32,
            run_config={},
            settings=self.settings.for_clients(),
            arrays_key="arrays",
            configs={},
            weight_key="num-examples",
            model=ModelRef(sha256=sha256_file(self.model), size=self.model.stat().st_size) if secure else None,
            cohort=sorted(self.kits),
            quorum=3 if secure else 1,
            protection=Protection(degree=3, threshold=3, corrupt=0, agreement="x25519") if secure else None,
            encoding=encoding_to_json(first_encoding(CodecSettings(w_max=100), state.layout, 4)) if secure else None,
            roster=1,
            seconds=3600.0,
        )

    def make(self, life: Life) -> Exchange:
        """The exchange as a process has it."""
        store = Dying(self.services.store, life, writes=WRITES, counted=COMMITS, look=self.look)
        counted = ("put", "cut") if life.puts else ()
        objects = Dying(self.services.objects, life, writes=WRITES, counted=counted, look=self.look)
        return self.exchange_over(store, objects)

    def exchange_over(self, store: Any, objects: Any) -> Exchange:
        """The exchange as a process has it that writes to these."""
        services = replace(self.services, store=store, objects=objects, client_bell=Bell())
        log = EventLog(
            store=self.services.store, run=RUN, clock=services.clock, wall=services.wall, bell=services.run_bell
        )
        self.logs.append(log)
        context = ExchangeContext(
            services=services, task=self.task, settings=self.settings, model=self.model, add_event=log.add
        )
        if self.aggregation == "plain":
            reference = ModelRef(sha256="ab" * 32, size=1)
            message = OutgoingMessage(message_type="train", head=head(1), content=self.model, reference=reference)
            return PlainExchange(context, dict.fromkeys(self.kits, message))
        roster = self.kits[1].roster
        return SecureExchange(context, federation="testing", roster=roster.keys, roster_hash=roster.hash())

    def look(self) -> None:
        """Of the process that leads."""
        self.witness.look(self.lives[-1].exchange)

    async def lead(self, writes: int | None, *, puts: bool = False) -> ExchangeOutcome:
        """Processes that die after `writes` writes each, until one finds the end of the exchange on the disk."""
        self.over = False
        end = await self._lead(writes, puts=puts)
        self.over = True
        return end

    async def _lead(self, writes: int | None, *, puts: bool) -> ExchangeOutcome:
        while True:
            for life in self.lives:
                await life.settle()
            life = Life(writes, puts)
            self.lives.append(life)
            row = await self.services.store.exchange(RUN, 1)
            if row is not None and row.result is not None:
                return ExchangeOutcome.from_json(row.result)
            exchange = self.make(life)
            try:
                if row is not None:
                    await life.ask(exchange.restore(await self.services.store.history(RUN, 1)))
                life.exchange = exchange
                await life.ask(exchange.run())
            except Gone:
                continue
            except RoundFailed:  # the end says so too
                pass
            finally:
                self.look()
            assert exchange.end is not None
            return exchange.end

    async def ask(self, question: Callable[[Any], Any]) -> Any:
        """An answer that is not None, by whichever process lives; once nobody leads, that the exchange has ended."""
        while True:
            life = self.lives[-1]
            if self.over and (life.exchange is None or life.dead.is_set()):
                raise Rejection(ProblemKind.ROUND_FAILED, "exchange 1 has ended")
            try:
                if life.exchange is not None and not life.dead.is_set():
                    answer = question(life.exchange)
                    answer = await life.ask(answer) if asyncio.iscoroutine(answer) else answer
                    if answer is not None:
                        return answer
            except Gone:
                pass
            except Rejection as refused:
                if refused.kind is not ProblemKind.BUSY:
                    raise
            await asyncio.sleep(0.002)

    async def send(self, step: str, client: int, body: Message) -> None:
        """A control message, until it is acknowledged."""
        digest = hashlib.sha256(body.model_dump_json().encode()).digest()

        async def put(exchange: Any) -> bool:
            if step == "withdrawal":
                await exchange.withdraw(client, body, digest)
            else:
                await exchange.take_step(client, step, body, digest)
            return True

        await self.ask(put)

    async def upload(self, client: int, content: bytes, **said: Any) -> None:
        """An update, whose parts come again where the process that had them is gone."""
        parts = [content[start : start + PART_BYTES] for start in range(0, len(content), PART_BYTES)]
        digest = update_digest(len(content), (hashlib.sha256(part).digest() for part in parts)).hex()
        manifest = ManifestIn(digest=digest, size=len(content), **said)
        told = hashlib.sha256(manifest.model_dump_json().encode()).digest()

        async def put(exchange: Exchange) -> bool:
            try:
                await exchange.take_manifest(client, manifest, told)
            except Rejection as refused:
                if refused.kind is not ProblemKind.PARTS_MISSING:
                    raise
                for index, part in enumerate(parts):
                    body = Body(chunks=_chunks(part), size=len(part), sha256=hashlib.sha256(part).digest())
                    await exchange.take_part(client, index, body)
                await exchange.take_manifest(client, manifest, told)
            return True

        await self.ask(put)

    async def client(self, number: int, leaves_before: str = "") -> None:
        """All that one client does; what it never had to do again counts as done once."""
        steps = Party(self, number)
        for step in (steps.advertise, steps.share, steps.upload, steps.sign, steps.unmask):
            if step.__name__ == leaves_before:
                await self.send("withdrawal", number, WithdrawIn(reason=WithdrawalReason.STOPPED))
                return
            await step()

    async def plain_client(self, number: int) -> None:
        """One client of a plain exchange."""
        await self.upload(number, bytes([number]) * 1000, examples=4 ** (number - 1), values={"loss": float(number)})


class Party:
    """A client with a real session, which is never made again."""

    def __init__(self, rig: Rig, number: int) -> None:
        kit, task = rig.kits[number], rig.task
        self.rig, self.number, self.cohort = rig, number, task.cohort
        assert task.model is not None
        parameters = round_parameters(
            task, federation="testing", roster_hash=kit.roster.hash(), model_hash=bytes.fromhex(task.model.sha256)
        )
        self.session = ClientSession(
            parameters=parameters,
            client_id=number,
            identity=kit.identity,
            roster=kit.roster.keys,
            min_cohort=2,
            min_threshold=2,
        )

    async def advertise(self) -> None:
        await self.rig.send("advertisement", self.number, secagg_codec.advertisement_to_wire(self.session.advertise()))

    async def share(self) -> None:
        told = await self.rig.ask(lambda exchange: exchange.cohort_for(self.number))
        made = self.session.share_keys(secagg_codec.cohort_from_wire(told, self.cohort))
        await self.rig.send("key-shares", self.number, secagg_codec.key_shares_to_wire(made))

    async def upload(self) -> None:
        told = await self.rig.ask(lambda exchange: exchange.delivery_for(self.number))
        self.session.receive_shares(secagg_codec.delivery_from_wire(told, self.cohort))
        base = ModelState.open(self.rig.model)
        local = ModelState.from_arrays({name: value + np.float32(self.number / 8) for name, value in base.items()})
        words = encode(
            encoding_of(self.rig.task),
            base=base,
            local=local,
            examples=4 ** (self.number - 1),
            metrics={"loss": float(self.number)},
            randomness=random.Random(self.number).randbytes,
        ).words
        self.session.mask(words)
        await self.rig.upload(self.number, words.tobytes())

    async def sign(self) -> None:
        told = await self.rig.ask(lambda exchange: exchange.survivors_for(self.number))
        made = self.session.sign_survivors(secagg_codec.survivors_from_wire(told, self.cohort))
        await self.rig.send("consistency", self.number, secagg_codec.consistency_to_wire(made))

    async def unmask(self) -> None:
        told = await self.rig.ask(lambda exchange: exchange.signatures_for(self.number))
        made = self.session.unmask(secagg_codec.signatures_from_wire(told))
        await self.rig.send("unmask", self.number, secagg_codec.unmask_to_wire(made))


@asynccontextmanager
async def rig(federation: FederationFolder, folder: Path, *, database: str = "", **changes: Any) -> AsyncIterator[Rig]:
    """An object store, four clients, and a database: SQLite, or the PostgreSQL at a URL. Their time stands still."""
    kit = ServerKit.load(federation.server)
    values = np.random.default_rng(1).normal(size=(20, 60)).astype(np.float32)
    ModelState.from_arrays({"bias": values[0].copy(), "weight": values}).save(folder / "model")
    kits = {one.client_id: one for one in map(ClientKit.load, federation.clients)}
    randomness = random.Random(0).randbytes
    async with open_services(
        kit, lenient(folder, database=database), Clock(), new_id=_no_id, randomness=randomness
    ) as services:
        await services.store.add_run(
            run=RUN, aggregation="secure", app="tiny", app_sha256="a" * 64, run_config={}, settings={}
        )
        services.presence.expect(kits)
        made = Rig(services=services, kits=kits, model=folder / "model", **changes)
        try:
            yield made
        finally:
            for log in made.logs:
                await log.close()


def _no_id() -> NoReturn:
    raise AssertionError("an exchange makes no runs")


async def _chunks(part: bytes) -> AsyncIterator[bytes]:
    yield part
