"""Real clients without processes: the agent, its exchanges and its transport, over local work that takes no time.

Client i adds 4**(i-1) steps to every element, so that the digits of a sum, to the base of four, say whose updates are
in it and how often. What each of them is told and what the server accepts of it is written down.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from client_app.agent.agent import Agent, Pauses
from client_app.exchange import update_encoder
from client_app.exchange.client import Client
from client_app.exchange.models import prepare_state_dir
from client_app.http.errors import tls_context
from client_app.http.http_transport import HttpTransport, signer
from client_app.output import Output
from client_app.ranks.messages import LocalAnswer
from client_app.records.ledger import Ledger
from client_app.records.pending_update import PendingUpdate
from client_app.records.result_cache import ResultCache
from client_app.records.transcript import ClientTranscript
from fedcore.federation import ClientKit
from fedcore.federation.admission.app_agreement import AppAgreement
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.flower.clientside import ClientRunner
from fedcore.flower.records import load_records
from fedcore.state import ModelState
from fedcore.wire.tasks import Task

STEP: Final = 1e-3
"""What the first client adds; the first scale of an exchange holds that of the fifth."""
PLACES: Final = 8
"""Of digits: with more clients than these, some share one."""
CODEC: Final = update_encoder.__name__
PAUSES: Final = Pauses(first=0.05, longest=0.5, refusal=0.2, farewell=1.0)
TOLD: Final = {"cohort": "advertised", "advertisement": "advertised", "key-shares": "sharers", "survivors": "survivors"}
"""The last part of a path -> the set in its answer: U1, U2 and U3."""

Place = tuple[str, int]
"""A run and the number of an exchange."""


@dataclass(slots=True)
class Log:
    """What all clients saw. told: U1, U2, U3 of an exchange, as each client was shown them."""

    told: dict[tuple[Place, str], dict[int, set[str]]] = field(default_factory=dict)
    accepted: set[tuple[Place, int]] = field(default_factory=set)
    """Whose manifest the server has accepted."""
    models: dict[tuple[str, int], bytes] = field(default_factory=dict)
    """Run and round -> the values of the model that the round starts from."""
    trainings: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Run and client -> how often the client has trained."""
    times: list[float] = field(default_factory=list)
    """When messages were accepted, in seconds of the monotonic clock."""

    @property
    def last_message(self) -> float:
        """When a message was accepted last; 0 before the first."""
        return self.times[-1] if self.times else 0.0

    def longest_silence(self, since: float) -> float:
        """The longest time without an accepted message from a moment on until now, in seconds."""
        moments = [since, *(one for one in self.times if one > since), time.monotonic()]
        return max(after - before for before, after in pairwise(moments))

    def note(self, client: int, method: str, target: str, answer: bytes | None) -> None:
        """One request that was answered well."""
        parts = target.partition("?")[0].split("/")
        if method == "PUT":
            self.times.append(time.monotonic())
        if len(parts) < 7 or parts[4] != "exchanges":
            return
        place, step = (parts[3], int(parts[5])), parts[6]
        if step == "manifest":
            self.accepted.add((place, client))
        elif step in TOLD and len(parts) == 7 and answer:
            kind = TOLD[step]
            shown = str(json.loads(answer)[kind])
            self.told.setdefault((place, kind), {}).setdefault(client, set()).add(shown)


class RecordingTransport(HttpTransport):
    """Tells the log of every control message that was answered."""

    log: Log
    client: int

    async def _exchange(self, method: str, target: str, body: bytes, *rest: Any, **more: Any) -> bytes | None:
        answer = await super()._exchange(method, target, body, *rest, **more)
        self.log.note(self.client, method, target, answer)
        return answer


@dataclass(slots=True)
class Digits:
    """The local work, and the randomness that belongs to it.

    The codec rounds by draws that follow from the client and the model, so that a run gives the same bits again,
    whatever happened to its server; the keys of the protocol are drawn as always.
    """

    client: int
    log: Log
    app: FlowerApp
    seconds: Callable[[], float] = lambda: random.uniform(0.0, 0.2)
    _seed: str = ""
    _draws: int = 0
    _runner: ClientRunner = field(init=False)
    """For plain messages, which the app itself answers."""

    def __post_init__(self) -> None:
        node = {"number": (self.client - 1) % PLACES + 1, "seconds": 0.0}
        self._runner = ClientRunner(app=self.app, client_id=self.client, node_config=node)

    async def run(self, task: Task, model: Path | None, out: Path, *, aggregated_round: int = 0) -> LocalAnswer:
        """Add this client's digit."""
        assert model is not None, "the app has a model"
        self.log.trainings[task.run, self.client] += 1
        await asyncio.sleep(self.seconds())
        if task.aggregation == "plain":
            return self._answer(task, model, out)  # in no thread: Flower knows one node a process
        state = ModelState.open(model)
        self.log.models[task.run, task.server_round] = state["digits"].tobytes()
        self._seed, self._draws = f"{self.client} {task.model_sha256}", 0
        step = np.float32(STEP * 4 ** ((self.client - 1) % PLACES))
        ModelState.from_arrays({"digits": np.asarray(state["digits"]) + step}).save(out)
        return LocalAnswer(examples=1, metrics={}, trained=True)

    def _answer(self, task: Task, content: Path, out: Path) -> LocalAnswer:
        """What a rank does with a plain message."""
        digits = load_records(content).array_records["arrays"]["digits"].numpy()
        self.log.models[task.run, task.server_round] = digits.astype(np.float32).tobytes()  # some strategies widen it
        answer = self._runner.answer(task, content, out)
        return LocalAnswer(
            examples=answer.examples or 0, metrics=dict(answer.metrics), trained=answer.error is None,
            error=answer.error,
        )  # fmt: skip

    def randomness(self, size: int) -> bytes:
        """Bytes for any caller; the codec asks through the agent's update encoder."""
        here = inspect.currentframe()
        caller = here and here.f_back
        if caller is None or caller.f_globals["__name__"] != CODEC:
            return os.urandom(size)
        self._draws += 1
        return hashlib.shake_256(f"{self._seed} {self._draws}".encode()).digest(size)


async def serve_client(folder: Path, app: Path, log: Log) -> None:
    """One client of a federation, until it is cancelled; its state folder lies in its kit, as usual."""
    kit = ClientKit.load(folder)
    loaded = FlowerApp.load(app)
    work = Digits(kit.client_id, log, loaded)
    state = prepare_state_dir(folder / "state")
    transport = RecordingTransport(urls=kit.servers, tls=tls_context(kit.ca_file), sign=signer(kit))
    transport.log, transport.client = log, kit.client_id
    with (
        (folder / "log").open("a", encoding="utf-8") as said,
        Ledger(state) as ledger,
        ClientTranscript(state, kit.roster) as transcript,
        ResultCache(state) as results,
    ):
        async with transport:
            client = Client(
                kit=kit,
                app_sha256=AppBundle.from_folder(app).sha256,
                agreed=AppAgreement.of(loaded),
                transport=transport,
                work=work,
                ledger=ledger,
                transcript=transcript,
                state_dir=state,
                results=results,
                pending=PendingUpdate(state),
                output=Output(name=kit.name, stream=said),
                randomness=work.randomness,
            )
            await Agent(client, PAUSES).run()


@contextlib.asynccontextmanager
async def clients_of(folders: tuple[Path, ...], app: Path, log: Log) -> AsyncIterator[None]:
    """All clients of a federation, while the context lasts."""
    running = [asyncio.create_task(serve_client(folder, app, log)) for folder in folders]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
