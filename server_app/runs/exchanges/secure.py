"""The secure exchanges of one run: attempts at a sum, until there is one or no other attempt can help."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedcore.codec import AnyEncoding, release_of
from fedcore.errors import RoundFailed
from fedcore.federation import Roster
from fedcore.run.engine.events import sums_done
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.run.exchange import ExchangeRequest, make_task
from fedcore.run.groups import GroupMembership
from fedcore.run.quorum import failures_for
from fedcore.run.retries import Attempts
from fedcore.state import Layout
from fedcore.wire.control import Buffer, KeptTask, ModelRef, Task, is_training
from server_app.exchanges.context import ExchangeContext
from server_app.exchanges.secure import SecureExchange
from server_app.runs.files.downloads import Sent
from server_app.runs.run_context import RunContext
from server_app.storage.tables import ExchangeRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureRequest:
    """One exchange that the ServerApp asks for. step: of the journal. sent: the model, as clients get it."""

    step: int
    request: ExchangeRequest
    sent: Sent | None

    @property
    def model(self) -> Path | None:
        """The file that clients train from."""
        return self.sent.path if self.sent is not None else None

    @property
    def announced(self) -> ModelRef | None:
        """What clients hear of it."""
        return self.sent.reference if self.sent is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Whose updates, made before, a buffered exchange sums. whole: whether all of these clients have to survive."""

    cohort: Sequence[int]
    buffer: Buffer
    whole: bool = False


def announce(
    run: RunContext,
    asked: SecureRequest,
    roster: Roster,
    *,
    cohort: Sequence[int],
    attempt: int,
    previous: str,
    encoding: AnyEncoding | None,
    whole: bool = False,
    part: GroupMembership | None = None,
    buffer: Buffer | None = None,
) -> Task:
    """The task of the run's next exchange, as in `make_task`; with no encoding that of a draw. part: of a draw."""
    plan = run.plan
    return make_task(
        asked.request,
        settings=plan.settings,
        run=plan.run,
        exchange=run.next_exchange(),
        attempt=attempt,
        cohort=cohort,
        app_sha256=plan.app_sha256,
        run_config=plan.run_config,
        model=asked.announced,
        encoding=encoding,
        least_cohort=run.services.min_cohort,
        roster=roster.version,
        members=len(roster.members),
        whole=whole,
        previous=previous,
        buffer=buffer,
        cut=part.cut if part else None,
        group=part.group if part else None,
        places=part.places if part else None,
    )


class SecureExchanges:
    """Carries them out: one after the other, but for the groups of a draw.

    led: numbers of those whose sum may still come, in whatever stage they are.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self.led: set[int] = {row.exchange for row in run.past if row.result is None}

    async def exchange(self, asked: SecureRequest) -> int:
        """Attempts until one succeeds: its number. Raises RoundFailed where `Attempts` says that there is no other.

        One that somebody is blamed for does not count: whoever cheats is excluded, so it can end the run neither with
        one attempt nor, in company, with all of them.
        """
        run, attempts = self._run, self.attempts()
        past = run.past_of(asked.step)
        for attempt in itertools.count(1):
            task, end = await self.attempt(asked, attempts, attempt, next(past, None))
            await run.close_judged(task, end, asked.model)
            if end.failure is None:
                self.note_success(task, end)
                return task.exchange
            error = end.failure.error()
            again = run.goes_on(attempts, task, end, error)
            run.note_attempt(task, end, error, again=again)
            if not again:
                raise RoundFailed(run.explain(task, end, error)) from error
        raise AssertionError("there is always another number")

    def attempts(self) -> Attempts:
        """The attempts at one sum, of which there was none yet."""
        return Attempts(settings=self._run.plan.settings, has_room=self._has_room)

    async def attempt(
        self,
        asked: SecureRequest,
        attempts: Attempts,
        attempt: int,
        row: ExchangeRow | None,
        part: GroupMembership | None = None,
        chosen: Chosen | None = None,
    ) -> tuple[Task, ExchangeOutcome]:
        """A new attempt, or where there is a row for it, what came or comes of that one. chosen: of a buffered run.

        Raises RoundFailed where too few clients are there, or left of the group `part`, and BudgetSpent.
        """
        services = self._run.services
        if row is None:
            await self._run.pause(attempts)
            if chosen is None:
                cohort, whole = await self._cohort(asked.request, attempts, attempt, part), attempts.whole
            else:
                cohort, whole = chosen.cohort, chosen.whole
                await self._run.clients.come_back(cohort, len(cohort))
            previous = await self.head()
            with services.roster.held() as roster:
                buffer = chosen.buffer if chosen else None
                task = self._task(asked, roster, cohort, attempt, previous, whole, part, buffer)
                return task, await self._lead(asked, task, roster, None)
        task = KeptTask.model_validate(row.task)
        if part is not None:
            task = task.model_copy(update={"places": list(part.places)})
        if row.result is not None:
            self._run.note_start(task, model=task.model.sha256 if task.model else None)
            return task, ExchangeOutcome.from_json(row.result)
        with services.roster.held(task.roster) as roster:
            return task, await self._lead(asked, task, roster, row)

    async def head(self) -> str:
        """The head of the transcript, at which an exchange is opened."""
        run = self._run.plan.run
        return await self._run.services.store.last_record(led=[(run, number) for number in self.led])

    async def _cohort(
        self, request: ExchangeRequest, attempts: Attempts, attempt: int, part: GroupMembership | None
    ) -> Sequence[int]:
        clients = self._run.clients
        if part is None:
            return await clients.cohort(request.nodes, attempt, message_type=request.message_type, same=attempts.same)
        left = attempts.same or clients.without_cheats(part.members)
        if len(left) < part.cut.least:
            raise RoundFailed(f"{len(left)} members of the group may be asked again, it needs {part.cut.least}")
        if not await clients.come_back(left, part.cut.least):
            seconds = self._run.plan.settings.join_seconds
            raise RoundFailed(f"fewer than {part.cut.least} members of the group are connected after {seconds:g} s")
        return left

    async def _lead(self, asked: SecureRequest, task: Task, roster: Roster, row: ExchangeRow | None) -> ExchangeOutcome:
        run = self._run
        context = ExchangeContext(
            services=run.services,
            task=task,
            settings=run.plan.settings,
            model=asked.model,
            difference=asked.sent.difference if asked.sent is not None else None,
            base=asked.sent.base if asked.sent is not None else None,
            event_log=run.event_log,
            step=asked.step,
            enough=0 if task.group or task.buffer else run.clients.enough(asked.request.nodes, task.message_type),
        )
        exchange = SecureExchange(
            context,
            federation=roster.federation,
            roster=roster.keys,
            roster_hash=roster.hash(),
            randomness=run.services.randomness,
        )
        self._run.note_start(task, model=task.model.sha256 if task.model else None)
        self.led.add(task.exchange)
        try:
            return await run.lead(exchange, row)
        finally:
            self.led.discard(task.exchange)

    def _task(
        self,
        asked: SecureRequest,
        roster: Roster,
        cohort: Sequence[int],
        attempt: int,
        previous: str,
        whole: bool,
        part: GroupMembership | None,
        buffer: Buffer | None,
    ) -> Task:
        """Announce an attempt; raises BudgetSpent."""
        run, request = self._run, asked.request
        members, kind = len(roster.members), request.message_type
        model = asked.announced.sha256 if asked.announced else ""
        encoding = run.state.encodings.encoding(kind, _layout(request), len(cohort), members, whole=whole, model=model)
        run.state.budget.admit(release_of(encoding))
        return announce(
            run,
            asked,
            roster,
            cohort=cohort,
            attempt=attempt,
            previous=previous,
            encoding=encoding,
            whole=whole,
            part=part,
            buffer=buffer,
        )

    def _has_room(self, failures: int, n: int) -> bool:
        """Whether a sum over a whole cohort of `n` may hold so many clients that contribute nothing."""
        least, members = self._run.services.min_cohort, len(self._run.services.roster.members)
        return failures <= failures_for(self._run.plan.settings, n, least, members, whole=True)

    def note_success(self, task: Task, end: ExchangeOutcome) -> None:
        """Say what came of an exchange that gave its sum."""
        run = self._run
        spent = run.state.budget.epsilon_spent
        run.event_log.add(sums_done(task, [(task, end)], run.name, epsilon_spent=spent))


def _layout(request: ExchangeRequest) -> Layout | None:
    return request.model.layout if is_training(request.message_type) and request.model is not None else None
