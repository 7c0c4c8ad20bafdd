"""Whole agents at work: real clients with ledgers, transcripts and policies, each behind a transport in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from client_app.agent.agent import Agent, Pauses
from client_app.exchange.client import Client
from client_app.exchange.models import prepare_state_dir
from client_app.output import Output
from client_app.records.ledger import Ledger
from client_app.records.pending_update import PendingUpdate
from client_app.records.result_cache import ResultCache
from client_app.records.transcript import ClientTranscript
from fedcore.federation import ClientKit
from fedcore.federation.admission.app_agreement import AppAgreement
from support.worlds.asks import APP

Value = TypeVar("Value")
AT_ONCE = Pauses(first=0.0, longest=0.0, refusal=0.0, farewell=500.0)


@dataclass(frozen=True, slots=True)
class Crew:
    """The agents, and what each client tells its owner."""

    agents: list[asyncio.Task[Any]]
    logs: Mapping[int, StringIO]

    async def until(self, work: Awaitable[Value]) -> Value:
        """The result of `work`, or the error that ends an agent before."""
        leading = asyncio.ensure_future(work)
        try:
            await asyncio.wait([leading, *self.agents], return_when=asyncio.FIRST_COMPLETED)
            for agent in self.agents:
                if agent.done():
                    agent.result()
            return await leading
        finally:
            leading.cancel()
            await asyncio.gather(leading, return_exceptions=True)


@asynccontextmanager
async def at_work(
    kits: Mapping[int, ClientKit],
    folder: Path,
    agreed: AppAgreement,
    parts: Callable[[int], Mapping[str, Any]],
    *,
    pauses: Pauses = AT_ONCE,
    results: Callable[[int, Path], ResultCache] = lambda number, folder: ResultCache(folder),
) -> AsyncIterator[Crew]:
    """Agents of these clients for as long as the block lasts, with their state in `folder`.

    parts: the fields of Client that only the caller knows, `transport` and `work` at least.
    """
    logs = {number: StringIO() for number in kits}
    agents: list[asyncio.Task[Any]] = []
    async with AsyncExitStack() as stack:
        for number, kit in kits.items():
            own = folder / str(number)
            ledger = stack.enter_context(Ledger(prepare_state_dir(own)))
            client = Client(
                kit=kit,
                app_sha256=APP,
                agreed=agreed,
                ledger=ledger,
                transcript=stack.enter_context(ClientTranscript(own, kit.roster)),
                state_dir=own,
                results=stack.enter_context(results(number, own)),
                pending=PendingUpdate(own),
                output=Output(name=kit.name, stream=logs[number]),
                **parts(number),
            )
            agents.append(asyncio.create_task(Agent(client, pauses, jitter=lambda: 0.0).run()))
        try:
            yield Crew(agents, logs)
        finally:
            for agent in agents:
                agent.cancel()
            await asyncio.gather(*agents, return_exceptions=True)
