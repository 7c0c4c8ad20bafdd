"""The server in the adversary's hands: it leads exchanges by the real ServerRound and keeps all that it can compute."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.codec import Decoded, Encoding, PrivateEncoding, decode
from fedcore.errors import ConfigurationError, FedcoreError, PeerError, Refused, RoundFailed
from fedcore.federation import ClientKit
from fedcore.federation.transcript import ExchangeRecord, SignedRecord, TranscriptOut, record_hash
from fedcore.run.exchange import encoding_of, round_parameters
from fedcore.secagg import Outcome, ServerRound, Verify, apply_masks, verifies
from fedcore.secagg.transitions import ServerStage
from fedcore.state import ModelState
from fedcore.wire import secagg_codec
from fedcore.wire.base import Message
from fedcore.wire.chunks import update_digest
from fedcore.wire.forms import our_version
from fedcore.wire.presence import JoinOut, WorkIn, WorkState
from fedcore.wire.secagg import AdvertisementIn, ConsistencyIn, KeySharesIn, UnmaskIn
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import ManifestIn, WithdrawIn
from support.worlds.asks import Ask, Desk
from support.worlds.data import substance

_ORDER = tuple(ServerStage)
_STAGES = {
    "advertisement": ServerStage.ADVERTISE,
    "key-shares": ServerStage.SHARE,
    "manifest": ServerStage.INPUT,
    "consistency": ServerStage.CONSISTENCY,
    "unmask": ServerStage.UNMASK,
}
_FOLLOWS = {"advertisement": "cohort", "key-shares": "key-shares", "consistency": "consistency"}
_OPENS = {
    "cohort": ServerStage.SHARE,
    "key-shares": ServerStage.INPUT,
    "survivors": ServerStage.CONSISTENCY,
    "consistency": ServerStage.UNMASK,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A sum that the adversary got: of which model and kind of message, over whom, and what it says.

    substance: of the model, "" without one. words: the unmasked sum, and without the masks of clients that failed where
    it opens. decoded: None where it cannot be read; `why` then says so. elements: all of the model.
    """

    task: Task
    substance: str
    survivors: tuple[int, ...]
    words: np.ndarray
    decoded: Decoded | None
    why: str = ""
    elements: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def noised(self) -> bool:
        return isinstance(encoding_of(self.task), PrivateEncoding)

    @property
    def failures(self) -> int:
        """How many of the survivors contributed nothing; one word of the sum, whatever the rest says."""
        encoding = encoding_of(self.task)
        return int(self.words[encoding.sections["failed"]][0]) if isinstance(encoding, Encoding) else 0


class Room:
    """One exchange. Who is in `drops` is declared lost in that stage, whatever it sends.

    models: what each client is sent. checks: what those that left said that they had refused, for all to see.
    """

    def __init__(
        self, task: Task, models: Mapping[int, Path], kit: ClientKit, drops: Mapping[int, str], *, model: Path
    ) -> None:
        self.task = task
        self.models = models
        self.model = model
        self.checks: dict[int, str] = {}
        self.release: Release | None = None
        self._drops = drops
        self._absent: set[int] = set()
        self._moved = asyncio.Event()
        self._vectors: dict[int, np.ndarray] = {}
        self._signatures: dict[int, bytes] = {}
        lies = any(path != model for path in models.values())
        self._round = _round(task, kit, verify=(lambda *_: True) if lies else verifies)
        self._kit = kit
        self._named: Outcome | None = None
        self._opened = False

    @property
    def over(self) -> bool:
        if self._round is None:
            return self._absent.issuperset(self.task.cohort)
        return self._round.stage in (ServerStage.DONE, ServerStage.FAILED)

    async def ended(self) -> None:
        while not self.over:
            await self._moved.wait()

    def leave(self, client: int) -> None:
        """The client says no more in this exchange."""
        self._absent.add(client)
        if self._round is not None and not self.over and client in self._round.missing:
            self._round.drop(client)
            self._advance()
        self._wake()

    def part(self, client: int, index: int, body: bytes) -> None:
        assert index == 0, "the models of these tests have one part"
        self._vectors[client] = np.frombuffer(body, "<u8").copy()

    async def put(self, client: int, step: str, body: bytes) -> Message | None:
        """Take a step, and answer with what it leads to."""
        round_ = self._check(client)
        if self._drops.get(client) == _STAGES[step]:
            self.leave(client)
            self._check(client)
        try:
            self._take(round_, client, step, body)
        except PeerError as error:
            self.leave(client)
            raise Refused(409, "protocol-violation", str(error)) from None
        self._advance()
        return await self.get(client, _FOLLOWS[step]) if step in _FOLLOWS else None

    async def get(self, client: int, route: str) -> Message:
        """What a stage tells, once it has begun."""
        while _ORDER.index(self._check(client).stage) < _ORDER.index(_OPENS[route]):
            await self._moved.wait()
        cohort, round_ = self.task.cohort, self._check(client)
        match route:
            case "cohort":
                return secagg_codec.cohort_to_wire(round_.advertised(client), cohort)
            case "key-shares":
                return secagg_codec.delivery_to_wire(round_.delivery(client), cohort)
            case "survivors":
                return secagg_codec.survivors_to_wire(round_.survivors(), cohort)
        return secagg_codec.signatures_to_wire(round_.signatures())

    def _check(self, client: int) -> ServerRound:
        if client in self._absent:
            raise Refused(409, "stale-step", "this client was declared dropped")
        if self._round is None or self._round.stage is ServerStage.FAILED:
            raise Refused(409, "round-failed", "the exchange has ended")
        return self._round

    def _take(self, round_: ServerRound, client: int, step: str, body: bytes) -> None:
        """A client's message to the real state machine, which checks it."""
        match step:
            case "advertisement":
                advertisement = AdvertisementIn.model_validate_json(body)
                round_.receive_advertisement(secagg_codec.advertisement_from_wire(client, advertisement))
            case "key-shares":
                shares = KeySharesIn.model_validate_json(body)
                round_.receive_shares(secagg_codec.key_shares_from_wire(client, shares, *round_.receivers(client)))
            case "manifest":
                manifest = ManifestIn.model_validate_json(body)
                digest = hashlib.sha256(self._vectors[client].tobytes()).digest()
                assert manifest.digest == update_digest(self._vectors[client].nbytes, [digest]).hex()
                round_.receive_input(client, digest)
            case "consistency":
                signature = ConsistencyIn.model_validate_json(body)
                round_.receive_consistency(secagg_codec.consistency_from_wire(client, signature))
                self._signatures[client] = signature.signature
            case "unmask":
                shown = UnmaskIn.model_validate_json(body)
                round_.receive_unmask(secagg_codec.unmask_from_wire(client, shown, *round_.owners(client)))

    def _advance(self) -> None:
        round_ = self._round
        while round_ is not None and not self.over:
            for client in self._absent & set(round_.missing):
                round_.drop(client)
            if round_.missing:
                break
            try:
                round_.close_stage()
            except RoundFailed:
                break
            if round_.stage is ServerStage.CONSISTENCY:
                self._named = round_.outcome()
            self._opened = self._opened or round_.stage is ServerStage.UNMASK
            if round_.stage is ServerStage.DONE:
                self.release = self._sum(round_)
        self._wake()

    def record(self) -> tuple[str, SignedRecord] | None:
        """The transcript's entry and its hash, once survivors were named."""
        if self._round is None or self._named is None:
            return None
        outcome, complete = self._named, self._opened
        kit, task = self._kit, self.task
        record = ExchangeRecord.of(task, federation=kit.federation, roster_hash=kit.roster.hash(), outcome=outcome)
        signed = SignedRecord(record=record, complete=complete, signatures=self._signatures)
        return record_hash(outcome, complete=complete), signed

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def _sum(self, round_: ServerRound) -> Release:
        survivors = round_.survivors().survivors
        words = np.sum([self._vectors[client] for client in survivors], axis=0, dtype=np.uint64)
        apply_masks(words, round_.mask_terms())
        encoding = encoding_of(self.task)
        decoded, why = None, ""
        try:
            base = ModelState.open(self.model) if encoding.layout else None
            decoded = decode(encoding, words, survivors=len(survivors), base=base, sums=self.task.queries)
        except FedcoreError as error:
            why = str(error)
        state = ModelState.open(self.model)
        return Release(
            task=self.task,
            substance=substance(state) if self.task.subject_model else "",
            survivors=survivors,
            words=words,
            decoded=decoded,
            why=why,
            elements=np.concatenate([np.ravel(value).astype(float) for value in state.values()]),
        )


def _round(task: Task, kit: ClientKit, *, verify: Verify) -> ServerRound | None:
    """None for parameters under which no client can take part. verify: a server that lies takes any signature."""
    digest = bytes.fromhex(task.model.sha256) if task.model else None
    try:
        parameters = round_parameters(task, federation=kit.federation, roster_hash=kit.roster.hash(), model_hash=digest)
    except ConfigurationError:
        return None
    return ServerRound(parameters=parameters, roster=kit.roster.keys, verify=verify)


class Adversary:
    """Leads the exchanges that `asks` describe, one after the other; a `support.worlds.memory_transport.Listener`."""

    def __init__(self, kits: Mapping[int, ClientKit], folder: Path) -> None:
        self._kit = next(iter(kits.values()))
        self._desk = Desk(folder, len(kits))
        self._tasks: dict[int, asyncio.Queue[Task]] = {client: asyncio.Queue() for client in kits}
        self._idle = {client: asyncio.Event() for client in kits}
        self._room: Room | None = None
        self._records: list[SignedRecord] = []
        self._head = ""
        self._works: dict[int, asyncio.Future[WorkIn]] = {}
        self._work_models: dict[int, Path] = {}
        self.refusals: list[dict[int, str]] = []
        """For each exchange, and each piece of work, who refused it and by which check."""

    async def lead(self, asks: Sequence[Ask]) -> list[Release | None]:
        """What each exchange gave."""
        releases = []
        for ask in asks:
            task = self._desk.task(ask).model_copy(update={"previous": self._head, **ask.task})
            asked = [client for client in task.cohort if client in self._tasks]
            await self._all_idle(asked)
            tasks = self._desk.tasks(ask, task)
            models = {client: self._desk.model_of(own) for client, own in tasks.items()}
            self._room = room = Room(task, models, self._kit, ask.drops, model=self._desk.model_of(task))
            for client in asked:
                self._idle[client].clear()
                self._tasks[client].put_nowait(tasks[client])
            await room.ended()
            await self._all_idle(asked)
            releases.append(room.release)
            self.refusals.append(room.checks)
            if (entry := room.record()) is not None:
                self._head = entry[0]
                self._records.append(entry[1])
        return releases

    async def hand_out(self, ask: Ask, versions: Mapping[int, tuple[int, ModelState]]) -> bool:
        """Let clients train for a later sum of the ask's run: client -> number and model. Whether all of them did."""
        await self._all_idle([*versions])
        for client, (number, state) in versions.items():
            task = self._desk.work(ask, number, state)
            self._works[client] = asyncio.get_running_loop().create_future()
            self._work_models[client] = self._desk.model_of(task)
            self._tasks[client].put_nowait(task)
        reports = dict(zip(versions, await asyncio.gather(*(self._works[client] for client in versions)), strict=True))
        refused = {client: report.withdrawal.check for client, report in reports.items() if report.withdrawal}
        self.refusals.append(refused)
        return all(report.state is WorkState.READY for report in reports.values())

    async def answer(
        self, client: int, method: str, path: str, body: bytes, query: Mapping[str, Any]
    ) -> Message | Path | None:
        if path == "/v1/task":
            return await self._next_task(client)
        if path == "/v1/join":
            kit = self._kit
            return JoinOut(
                federation=kit.federation,
                name=f"client-{client}",
                version=our_version(),
                heartbeat_seconds=60.0,
                roster=kit.roster.version,
                roster_sha256=kit.roster.hash().hex(),
            )
        if path == "/v1/heartbeat":
            return None
        if path == "/v1/transcript":
            return self._after(query["after"])
        if path == "/v1/work":
            self._works[client].set_result(WorkIn.model_validate_json(body))
            return None
        if path.split("/")[-3:-2] == ["versions"]:
            return self._work_models[client]
        room = self._room
        assert room is not None
        route = path.rsplit("/", 1)[-1]
        if "/update/parts/" in path:
            room.part(client, int(route), body)
            return None
        if route == "withdrawal":
            if check := WithdrawIn.model_validate_json(body).check:
                room.checks[client] = check
            room.leave(client)
            return None
        if route == "model":
            return room.models[client]
        return await (room.put(client, route, body) if method == "PUT" else room.get(client, route))

    def _after(self, known: str) -> TranscriptOut:
        hashes = [signed.record.task["previous"] for signed in self._records] + [self._head]
        return TranscriptOut(records=self._records[hashes.index(known) :], more=False)

    async def _next_task(self, client: int) -> Task:
        """A client that asks for a task has done with the one before, with a word or without."""
        if self._room is not None and client in self._room.task.cohort:
            self._room.leave(client)
        self._idle[client].set()
        return await self._tasks[client].get()

    async def _all_idle(self, clients: Sequence[int]) -> None:
        for client in clients:
            await self._idle[client].wait()
