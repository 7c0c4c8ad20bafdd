"""The actions of the model in proofs/spin, carried out by real exchanges of two servers over one database.

Clients 0 and 1 of the model are 1 and 2 here; 3 and 4 make the quorum, and go as far as the model's stage. What the
servers write for the first two, and at the end of a stage, waits until its action is due. As soon as an action cannot
come any more, because the code does not do what the model with a fault does, all go on as they like; so they do after
the last action.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcore.errors import FedcoreError, LeaseLost
from fedcore.federation import FederationFolder
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.wire.problems import ProblemKind
from server_app.exchanges.exchange import Exchange
from server_app.rejection import Rejection
from server_app.runs.leadership import LEASE
from server_app.storage.store import Lease, Store

from .dying import Gone, Life
from .mortal import RUN, Party, Rig, rig
from .serverside import until

STAGES = ("", "advertise", "share", "input", "consistency", "unmask")
STEPS = ("", "advertise", "share", "upload", "sign", "unmask")
MESSAGES = ("", "advertisement", "key-shares", "manifest", "consistency", "unmask")
OF_THE_STAGE = ("add_exchange", "save_partial_sum", "close_stage", "end_exchange")
INPUT = 3
MODEL_CLIENTS = (1, 2)

Key = tuple[Any, ...]


class Diverged(Exception):
    """The next action of the model cannot happen in the code."""


@dataclass
class Turn:
    """A write that waits for its action, and then for the return to its caller."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    back: asyncio.Event = field(default_factory=asyncio.Event)
    failed: bool = False


class Process:
    """One server process: a database connection and lease of its own, and the exchange that it leads."""

    def __init__(self, replay: Replay, store: Store, lease: Lease) -> None:
        self.replay, self.store, self.lease = replay, store, lease
        self.life = Life(None, puts=False)
        self.turns: dict[Key, Turn] = {}
        self.held: dict[tuple[str, int], Turn] = {}
        """Writes for clients, "put_vector" or "add_receipt", that have not returned."""
        self.exchange: Exchange | None = None
        self.task: asyncio.Task[Any] | None = None

    @property
    def serves(self) -> bool:
        return self.exchange is not None and not self.life.dead.is_set()

    def lead(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.task = asyncio.create_task(exchange.run())

    async def in_turn(self, key: Key, write: Callable[[], Awaitable[Any]]) -> Any:
        """A write when its turn comes; never, in a process that is dead by then."""
        turn = Turn()
        if not self.replay.free.is_set():
            self.turns[key] = turn
            await _first(turn.go, self.replay.free, self.life.dead)
        if self.life.dead.is_set():
            raise asyncio.CancelledError
        try:
            result = await write()
            await self.replay.note(self, key)
        except BaseException:
            turn.failed = True
            raise
        finally:
            turn.done.set()
            self.turns.pop(key, None)
        if turn.go.is_set():
            await _first(turn.back, self.replay.free, self.life.dead)
        if self.life.dead.is_set():
            raise asyncio.CancelledError
        return result

    def cease(self) -> None:
        self.life.dead.set()
        if self.task is not None:
            self.task.cancel()

    async def die(self) -> None:
        self.cease()
        if self.task is not None:
            await asyncio.gather(self.task, return_exceptions=True)


async def _first(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()


class GatedStore:
    """A store whose writes for an exchange come in turn."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.process.store, name)
        if name not in (*OF_THE_STAGE, "add_receipt"):
            return method

        async def write(*arguments: Any, **named: Any) -> Any:
            if name == "add_receipt" and arguments[3] not in MODEL_CLIENTS:
                return await method(*arguments, **named)
            key = (name, arguments[2], arguments[3]) if name == "add_receipt" else (name,)
            return await self.process.in_turn(key, lambda: method(*arguments, **named))

        return write


class GatedObjects:
    """Objects of which the vectors of the model's clients come in turn."""

    def __init__(self, process: Process, inner: Any) -> None:
        self._process, self._inner = process, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(self, path: Path, key: str) -> None:
        client = int(key.rpartition("/")[2]) if "/updates/" in key else 0
        if client in MODEL_CLIENTS:
            await self._process.in_turn(("put_vector", client), lambda: self._inner.put(path, key))
        else:
            await self._inner.put(path, key)


class Line:
    """What a client reaches: the server that the model says, or any that answers."""

    send, upload = Rig.send, Rig.upload

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.server: Process | None = None
        self.kits, self.task, self.model = replay.rig.kits, replay.rig.task, replay.rig.model

    async def ask(self, question: Callable[[Any], Any]) -> Any:
        while True:
            anyone = self.server is None or self.replay.free.is_set()
            for process in reversed(self.replay.processes) if anyone else [self.server]:
                if process is None or not process.serves:
                    continue
                with suppress(Gone):
                    try:
                        answer = question(process.exchange)
                        answer = await process.life.ask(answer) if asyncio.iscoroutine(answer) else answer
                        if answer is not None:
                            return answer
                    except Rejection as refused:
                        if refused.kind is not ProblemKind.BUSY:
                            raise
                    except LeaseLost:
                        process.cease()
            await asyncio.sleep(0.002)


class Replay:
    """Carries out actions, and says what of the model's promises did not hold."""

    def __init__(self, here: Rig) -> None:
        self.rig = here
        self.processes: list[Process] = []
        self.servers: dict[int, Process] = {}
        self.free = asyncio.Event()
        self.reached = 1
        self.lines = {client: Line(self) for client in here.kits}
        self.parties = {client: Party(line, client) for client, line in self.lines.items()}  # type: ignore[arg-type]
        self.steps: dict[tuple[int, int], asyncio.Task[None]] = {}
        self.acknowledged: set[int] = set()
        self.trespasses: list[Key] = []
        self.ends: list[Any] = []
        self._work: list[asyncio.Task[Any]] = []

    async def note(self, process: Process, key: Key) -> None:
        """Of a committed write: whether its process led, and how the exchange ended by it."""
        lease = await process.store.lease(LEASE)
        if lease is None or lease[0].generation != process.lease.generation:
            self.trespasses.append(key)
        row = await process.store.exchange(RUN, 1)
        if row is not None and row.result is not None and row.result not in self.ends:
            self.ends.append(row.result)
        self.rig.witness.look(process.exchange)

    # --- clients --------------------------------------------------------------------------------

    def step(self, client: int, step: int) -> asyncio.Task[None]:
        """One step of a client, begun if it is not under way."""
        if (client, step) not in self.steps:
            self.steps[client, step] = asyncio.create_task(self._step(client, step))
        return self.steps[client, step]

    async def _step(self, client: int, step: int) -> None:
        with suppress(FedcoreError, Rejection):  # it left, or the exchange has ended
            await getattr(self.parties[client], STEPS[step])()
            if step == INPUT:
                self.acknowledged.add(client)

    async def _follow(self, client: int) -> None:
        """All steps of a client that does what is due."""
        for step in range(1, len(STEPS)):
            if client in MODEL_CLIENTS:
                await self.free.wait()
            else:
                await until(lambda step=step: self.reached >= step or self.free.is_set())  # type: ignore[misc]
            await self.step(client, step)

    # --- actions --------------------------------------------------------------------------------

    async def play(self, actions: list[str]) -> None:
        """All actions, as far as they can come, and then whatever comes."""
        self._work = [asyncio.create_task(self._follow(client)) for client in self.parties]
        for number, text in enumerate(actions):
            server, action, *rest = text.split()
            follows = actions[number + 1 : number + 2]
            stays = follows in ([f"{server} kill"], [f"{server} cancel"])
            try:
                await self._act(int(server), action, [int(one) for one in rest], stays=stays)
            except Diverged:
                break
        self.free.set()
        for process in self.processes:
            for turn in process.turns.values():
                turn.back.set()
        await self._finish()

    async def _act(self, server: int, action: str, rest: list[int], *, stays: bool) -> None:
        if action == "take_lease":
            await self._start(server)
            return
        process = self.servers[server]
        match action, rest:
            case "start_run", _:
                await self._try(process, ("start_run",), process.store.start_run(RUN))
            case "open_step", _:
                await self._try(process, ("open_step",), process.store.open_step(RUN, 1, bytes(32), {}))
            case "add_exchange", _:
                process.lead(self._exchange(process))
                await self._write(process, ("add_exchange",), stays=stays)
            case "history", _:
                await self._restore(process)
            case "send", [step, client]:
                self._toward(process, client + 1, step)
            case "parts", [client]:
                self._toward(process, client + 1, INPUT)
            case "put_vector", [client]:
                await self._write(process, ("put_vector", client + 1), stays=True, of=self.step(client + 1, INPUT))
            case "add_receipt", [step, client]:
                key = ("add_receipt", MESSAGES[step], client + 1)
                await self._write(process, key, stays=True, of=self.step(client + 1, step))
            case (("acknowledge" | "repeat"), [step, client]):
                self._release(process, ("add_receipt", client + 1))
                self._toward(process, client + 1, step)
                await asyncio.wait({self.step(client + 1, step)})
            case "admit", [client]:
                self._release(process, ("put_vector", client + 1))
                key = ("add_receipt", MESSAGES[INPUT], client + 1)
                await self._until(process, lambda: key in process.turns, self.step(client + 1, INPUT))
            case "late", [client]:
                self._release(process, ("put_vector", client + 1))
            case "fold", [client]:
                self._release(process, ("add_receipt", client + 1))
            case "take", [client]:
                await asyncio.wait({self.step(client + 1, INPUT)})
            case "drop", [client]:
                assert process.exchange is not None
                process.exchange.give_up(client + 1, "its time is up")
            case "close", _:
                assert process.exchange is not None
                self._release(process, *(("add_receipt", client) for client in MODEL_CLIENTS))
                self.reached = max(self.reached, STAGES.index(process.exchange.stages.current))
                for client in self.lines.keys() - MODEL_CLIENTS:
                    self.lines[client].server = process
                await self._until(process, lambda: any(key[0] in OF_THE_STAGE for key in process.turns))
            case (("save_partial_sum" | "close_stage" | "end_exchange"), _):
                await self._write(process, (action,), stays=stays)
            case "begin", [stage]:
                await self._until(process, lambda: process.exchange.stages.current == STAGES[stage])  # type: ignore[union-attr]
                self.rig.witness.look(process.exchange)
            case "disclose", _:
                await self._until(process, lambda: ("close_stage",) in process.turns)
            case "kill", _:
                await self._settle(process)
                await process.die()
            case "cancel", _:
                await self._cancel(process)
            case _:
                assert action in ("stale", "ended", "exchange"), action

    async def _start(self, server: int) -> Process:
        store = await Store.open(self.rig.services.settings.database_file)
        holder = str(len(self.processes))
        lease = await store.take_lease(LEASE, holder=holder, url="", seconds=-1.0)
        assert lease is not None
        store.fence(lease)
        process = self.servers[server] = Process(self, store, lease)
        self.processes.append(process)
        return process

    def _exchange(self, process: Process) -> Exchange:
        return self.rig.exchange_over(GatedStore(process), GatedObjects(process, self.rig.services.objects))

    async def _restore(self, process: Process) -> None:
        exchange = self._exchange(process)
        await exchange.restore(await process.store.history(RUN, 1))
        process.lead(exchange)

    def _toward(self, process: Process, client: int, step: int) -> None:
        self.lines[client].server = process
        self.step(client, step)

    async def _try(self, process: Process, key: Key, write: Awaitable[Any]) -> None:
        try:
            await write
        except LeaseLost:
            raise Diverged from None
        await self.note(process, key)

    async def _until(self, process: Process, condition: Callable[[], bool], of: Any = None) -> None:
        over = [one for one in (process.task, of) if one is not None]
        await until(lambda: condition() or any(one.done() for one in over))
        if not condition():
            raise Diverged

    async def _write(self, process: Process, key: Key, *, stays: bool, of: Any = None) -> None:
        """Let a write commit, and return to its caller unless what comes next ends that."""
        await self._until(process, lambda: key in process.turns, of)
        turn = process.turns[key]
        turn.go.set()
        await turn.done.wait()
        if not stays:
            turn.back.set()
        elif key[0] in ("put_vector", "add_receipt"):
            process.held[key[0], key[-1]] = turn
        if turn.failed:
            raise Diverged

    def _release(self, process: Process, *writes: tuple[str, int]) -> None:
        for write in writes:
            if (turn := process.held.pop(write, None)) is not None:
                turn.back.set()

    async def _settle(self, process: Process) -> None:
        """Until a process that is about to die comes no further without a write."""
        for _ in range(100):
            await asyncio.sleep(0)
        self.rig.witness.look(process.exchange)

    async def _cancel(self, process: Process) -> None:
        assert process.task is not None
        assert process.exchange is not None
        process.task.cancel()
        await asyncio.gather(process.task, return_exceptions=True)
        process.task = asyncio.create_task(process.exchange.abandon("cancelled"))

    # --- the end --------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Servers follow each other until the exchange has ended."""
        while True:
            leading = [one.task for one in self.processes if one.task is not None and not one.life.dead.is_set()]
            if leading:
                await asyncio.wait(leading, return_when=asyncio.FIRST_COMPLETED)
            row = await self.rig.services.store.exchange(RUN, 1)
            if row is not None and row.result is not None:
                break
            for one in self.processes:
                if one.task is None or one.task.done():
                    one.cease()
            if any(one.serves for one in self.processes):
                continue
            process = await self._start(len(self.processes))
            if row is None:
                process.lead(self._exchange(process))
            else:
                await self._restore(process)
        if row.result not in self.ends:
            self.ends.append(row.result)

    async def close(self) -> None:
        """End what is under way."""
        tasks = [*self._work, *self.steps.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for process in self.processes:
            await process.die()
            await process.store.close()

    def broken(self) -> set[str]:
        """The promises of the model that did not hold."""
        end = ExchangeOutcome.from_json(self.ends[-1])
        examples = end.total.examples if end.total is not None else 0
        digits = {client: examples // 4 ** (client - 1) % 4 for client in self.rig.kits}
        right = all(digits[client] == (client in end.survivors) for client in self.rig.kits)
        verdicts = {
            "two leaders write": bool(self.trespasses),
            "clients hear of two sets": bool(self.rig.witness.equivocations),
            "an exchange ends twice": len(self.ends) > 1,
            "the sum is not that of the survivors": end.failure is not None or not right,
            "an acknowledged update is lost": end.failure is None and not self.acknowledged <= set(end.survivors),
        }
        return {promise for promise, is_broken in verdicts.items() if is_broken}


@asynccontextmanager
async def replay(federation: FederationFolder, folder: Path) -> AsyncIterator[Replay]:
    """Over a new database and object store in `folder`."""
    async with rig(federation, folder) as here:
        made = Replay(here)
        try:
            yield made
        finally:
            await made.close()
