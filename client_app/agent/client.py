"""A client of a federation, as its exchanges and its work for later sums need it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from client_app.agent.eligibility import Eligibility
from client_app.agent.pending_update import HeldUpdate
from client_app.agent.result_cache import KeptAnswer
from client_app.http.transport import Transport
from client_app.output import Output
from client_app.ranks.messages import LocalAnswer
from client_app.records.ledger import Ledger
from client_app.records.transcript import Transcript
from fedcore.federation import ClientKit
from fedcore.federation.admission.admit import Participant
from fedcore.federation.admission.agreed import AppAgreement
from fedcore.federation.eligibility import EligibilityRules
from fedcore.secagg import Randomness
from fedcore.system.tracing import Traces
from fedcore.wire.control import Task

OTHERS_SECONDS: Final = 900.0
"""How much longer than its own training time a client waits for the rest of an exchange."""


class LocalWork(Protocol):
    """Who runs the ClientApp: `client_app.ranks.group.RankGroup`."""

    async def run(self, task: Task, model: Path | None, out: Path, *, counted: int = 0) -> LocalAnswer:
        """Run one task for at most `task.seconds`; the new model goes to `out`. counted: as in `ClientRunner`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """What an exchange needs of its client.

    app_sha256: the app that the owner agreed to. agreed: what its pyproject.toml says. state_dir: where models lie
    while they are needed. kept: what the local work gave last. held: what waits for a sum, of a buffered run.
    randomness: for the protocol and the stochastic rounding. threads: for masking. gpu_uploads: whether a GPU may round
    and mask. clock: monotonic seconds. sleep: waits that many of them. eligibility: whether the owner lets the machine
    train now. traces: where the spans of its work go.
    """

    kit: ClientKit
    app_sha256: str
    agreed: AppAgreement
    transport: Transport
    work: LocalWork
    ledger: Ledger
    transcript: Transcript
    state_dir: Path
    kept: KeptAnswer
    held: HeldUpdate
    output: Output
    randomness: Randomness = os.urandom
    threads: int = 1
    gpu_uploads: bool = True
    others_seconds: float = OTHERS_SECONDS
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    eligibility: Eligibility = field(default_factory=lambda: Eligibility.of(EligibilityRules()))
    traces: Traces = field(default_factory=Traces)

    def participant(self, run: str) -> Participant:
        """This client as admission sees it when it is asked something of a run."""
        return Participant(
            owner=self.kit,
            history=self.ledger,
            app_sha256=self.app_sha256,
            agreed=self.agreed,
            start=self.held.start(run),
        )
