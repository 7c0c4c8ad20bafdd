"""Asynchronous training: validate the task, train in the background, keep the update until the server requests it.

If the training fails, the failure stays on this machine, unless the policy reports failures: the client then says that
it is ready, and adds nothing to its sum. A refusal that follows from the task alone is reported, as in an exchange.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from client_app.agent.presence import AgentPresence
from client_app.exchange.client import Client
from client_app.exchange.contribution import show_end, show_nothing, tells_failures
from client_app.exchange.models import open_canonical
from client_app.exchange.roster import catch_up
from client_app.exchange.withdrawal import withdrawal_for
from client_app.ranks.messages import LocalAnswer
from client_app.records.aggregated_rounds import AggregatedRounds
from client_app.records.pending_update import work_status
from fedcore.errors import AppError, FedcoreError
from fedcore.federation.admission.admit import admit_work
from fedcore.state import sha256_file
from fedcore.system.concurrency import end, guarded, in_thread
from fedcore.wire.presence import WorkIn, WorkState
from fedcore.wire.tasks import Task, Version


@dataclass(slots=True)
class BackgroundTraining:
    """The one training in the background of an agent."""

    presence: AgentPresence
    last: tuple[str, int] = field(default=("", 0), init=False)
    """The run and the version of the last training."""
    run_ended: bool = field(default=False, init=False)
    """Whether its run has ended, as the server says."""
    _training: asyncio.Task[None] | None = field(default=None, init=False)

    async def begin(self, task: Task) -> None:
        """Train for a later sum; this replaces the training before."""
        assert task.version is not None  # noqa: S101 - the task of a piece of work
        client = self.presence.client
        before, self.last = client.pending.status_message(), (task.run, task.version.number)
        await self.stop()
        if before is not None:
            what = "stopped training" if before.state is WorkState.TRAINING else "discarded the update trained"
            client.output.info("work", f"{what} on version {before.version.number}: superseded by newer work")
        try:
            self.presence.client = await catch_up(client, task.roster)
        except FedcoreError as error:  # the check of the roster fails too, and the server learns of it
            client.output.warning("work", str(error))
        self._training = asyncio.create_task(self._train(task))

    async def end(self) -> None:
        """Stop the training for a run that has ended."""
        client = self.presence.client
        if client.pending.training is not None:
            await self.stop()
            client.output.info("work", f"stopped training: run {self.last[0]} has ended")
            if not client.eligibility.holds:
                self.presence.heartbeat_due.set()

    async def stop(self) -> None:
        """Stop what trains."""
        training, self._training = self._training, None
        if training is not None:
            await end(training)

    async def _train(self, task: Task) -> None:
        self.presence.note_idle(task)
        try:
            status = await do_work(task, self.presence.client)
        finally:
            self.presence.note_idle()
        if status.state is WorkState.GIVEN_UP and status.withdrawal is None:
            # A server that has started again does not know yet whom it asked; it may ask for the same version again.
            self.last = ("", 0)
        client = self.presence.client
        if not client.eligibility.holds:
            self.presence.heartbeat_due.set()
        with contextlib.suppress(FedcoreError):  # the next join repeats it
            await client.transport.send("PUT", "/v1/work", status)


async def do_work(task: Task, client: Client) -> WorkIn:
    """Train for a task and save the update in `client.pending`; returns the message for the server."""
    try:
        client.eligibility.check()
        client.ledger.work(task, client.agreed)
        version = admit_work(task, client.participant(task.run))
        await client.trace_first_model(task)  # of later ones the transcript tells when the update is summed
        client.pending.begin(task)
        await _fetch(task, version, client)
    except (FedcoreError, OSError) as error:
        return _give_up(task, client, error)
    except BaseException:
        client.pending.discard()
        raise
    started = client.clock()
    answer: LocalAnswer | None = None
    try:
        answer = await _train(task, client)
        client.output.info(
            "work",
            f"{answer.examples} examples on version {version.number}; ready for a sum",
            seconds=round(client.clock() - started, 3),
        )
    except Exception as error:
        # Of any type: an unforeseen error may depend on the data as well.
        if tells_failures(task, client.kit.policy):
            return _give_up(task, client, error)
        show_nothing(client.output, error)
    except BaseException:
        client.pending.discard()
        raise
    await in_thread(client.pending.save, answer)
    return work_status(task, WorkState.READY)


def _give_up(task: Task, client: Client, error: Exception) -> WorkIn:
    client.pending.discard()
    if isinstance(error, FedcoreError | OSError):
        show_end(client.output, error)
    else:
        show_nothing(client.output, error)
    return work_status(task, WorkState.GIVEN_UP).model_copy(update={"withdrawal": withdrawal_for(error)})


async def _fetch(task: Task, version: Version, client: Client) -> None:
    """Get the model of the version, from the server or the exchange before; raises ProtocolViolation."""
    assert task.model is not None  # noqa: S101 - checked
    base, sha256 = client.pending.base, task.model.sha256
    last = client.state_dir / "models" / f"{sha256}.safetensors"
    if last.exists() and await in_thread(sha256_file, last) == sha256:
        os.link(last, base)
    else:
        path = f"/v1/runs/{quote(task.run, safe='')}/versions/{version.number}/model"
        await client.transport.download(path, base, size=task.model.size, sha256=sha256)
    await in_thread(open_canonical, base)


async def _train(task: Task, client: Client) -> LocalAnswer:
    """Run the app when the ranks are free; raises NotEligible once the machine may not train."""
    rounds = AggregatedRounds(client.state_dir)
    rounds.begin(task)

    async def run(local: Path) -> LocalAnswer:
        async with client.pending.ranks:
            return await client.work.run(task, client.pending.base, local, aggregated_round=rounds.last(task.run))

    answer = await guarded(run(client.pending.local), client.eligibility.lost())
    if not answer.trained:
        raise AppError("the worker returned no model, although one was requested")
    return answer
