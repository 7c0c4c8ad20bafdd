"""A client of a federation: what its exchanges and its background training need."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from client_app.exchange.eligibility import Eligibility
from client_app.exchange.first_model import FirstModels, NoFirstModels
from client_app.http.transport import Transport
from client_app.output import Output
from client_app.ranks.messages import LocalAnswer
from client_app.records.ledger import Ledger
from client_app.records.pending_update import PendingUpdate
from client_app.records.result_cache import ResultCache
from client_app.records.transcript import ClientTranscript
from fedcore.federation import ClientKit
from fedcore.federation.admission.admit import Participant
from fedcore.federation.admission.app_agreement import AppAgreement
from fedcore.federation.admission.first_model import (
    NO_APP_MODEL,
    check_first_model,
    needs_app,
    untraced_models,
)
from fedcore.federation.admission.releases import counts_near_models
from fedcore.federation.eligibility import EligibilityRules
from fedcore.secagg import Randomness
from fedcore.state import ModelState, Sketcher
from fedcore.state.sketch import SEED_BYTES
from fedcore.system.concurrency import in_thread
from fedcore.system.tracing import Traces
from fedcore.wire.tasks import Task

OTHERS_SECONDS: Final = 4 * 3600.0
"""How much longer than its own training time a client waits for the rest of an exchange, slow lines included."""


class LocalWork(Protocol):
    """Runs the ClientApp; `client_app.ranks.group.RankGroup` implements it."""

    async def run(self, task: Task, model: Path | None, out: Path, *, aggregated_round: int = 0) -> LocalAnswer:
        """Run one task for at most `task.seconds`.

        Args:
            task: what the server asks for.
            model: the file of the model, or of the message of a plain exchange.
            out: the file that the new model goes to.
            aggregated_round: the last round whose update was aggregated, 0 for none.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """What an exchange needs of its client."""

    kit: ClientKit
    app_sha256: str
    """The app that the owner agreed to."""
    agreed: AppAgreement
    """What the app's pyproject.toml says."""
    transport: Transport
    work: LocalWork
    ledger: Ledger
    transcript: ClientTranscript
    state_dir: Path
    """Where models lie while they are needed."""
    results: ResultCache
    pending: PendingUpdate
    output: Output
    first_models: FirstModels = field(default_factory=NoFirstModels)
    randomness: Randomness = os.urandom
    """For the protocol and the stochastic rounding."""
    sketcher: Sketcher = field(default_factory=lambda: Sketcher(os.urandom(SEED_BYTES)))
    """By whose sketches this client tells how far models are from each other."""
    threads: int = 1
    """For masking."""
    trains_here: bool = True
    """Whether all ranks are on this machine."""
    gpu_uploads: bool = True
    """Whether a GPU may round and mask."""
    others_seconds: float = OTHERS_SECONDS
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    eligibility: Eligibility = field(default_factory=lambda: Eligibility.of(EligibilityRules()))
    traces: Traces = field(default_factory=Traces)

    async def trace_first_model(self, task: Task) -> None:
        """Refuse a run that began with a model that this client cannot trace; raises ProtocolViolation."""
        policy = self.kit.policy
        if not policy.traces_models:
            return
        last = await self.first_models.last_models(task.run)
        untraced = await in_thread(untraced_models, task, policy, self.transcript.chain, last)
        app = NO_APP_MODEL
        if needs_app(policy, untraced):
            app = await self.first_models.of(task, self.app_sha256, sorted(self.kit.roster.keys))
        check_first_model(untraced, policy, app)
        await self.first_models.note(task)

    def know_model(self, task: Task, model: ModelState | None) -> None:
        """Note the model of a sum, for the sums of nearly the same one; the first time it is read once."""
        known = self.ledger.models
        if model is None or not counts_near_models(task, self.kit.policy):
            return
        is_new = not known.book.knows(task.subject_model, self.sketcher.name)
        if is_new or not known.is_last(task.run, task.message_type, task.subject_model):
            self.ledger.add_model(task, self.sketcher.sketch(model) if is_new else None)

    def participant(self, run: str) -> Participant:
        """This client as admission checks it for a task of a run."""
        return Participant(
            owner=self.kit,
            history=self.ledger,
            app_sha256=self.app_sha256,
            agreed=self.agreed,
            models=self.ledger.models,
            start=self.pending.base_version(run),
        )
