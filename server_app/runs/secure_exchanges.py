"""The secure exchanges of one run: attempts at a sum, until there is one or no other attempt can help."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedcore.attempts import Attempts, attempt_ended
from fedcore.codec import release_of
from fedcore.errors import RoundFailed
from fedcore.exchange import ExchangeRequest, failures_for, make_task
from fedcore.federation import Roster
from fedcore.state import Layout
from fedcore.wire import ModelRef, Task, is_training
from server_app.exchanges.context import ExchangeContext
from server_app.exchanges.ending import ExchangeEnd
from server_app.exchanges.secure import SecureExchange
from server_app.runs.reasons import explain
from server_app.runs.run_context import RunContext
from server_app.storage.tables import ExchangeRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureRequest:
    """One exchange that the ServerApp asks for. step: of the journal. model: the file; announced: what clients hear."""

    step: int
    request: ExchangeRequest
    model: Path | None
    announced: ModelRef | None


class SecureExchanges:
    """Carries them out, one after the other."""

    def __init__(self, run: RunContext) -> None:
        self._run = run

    async def exchange(self, asked: SecureRequest) -> int:
        """Attempts until one succeeds: its number. Raises RoundFailed where `Attempts` says that there is no other.

        One that somebody is blamed for does not count: whoever cheats is excluded, so it can end the run neither with
        one attempt nor, in company, with all of them.
        """
        run, attempts = self._run, Attempts(settings=self._run.plan.settings, has_room=self._has_room)
        past = run.past_of(asked.step)
        for attempt in itertools.count(1):
            task, end = await self._attempt(asked, attempts, attempt, next(past, None))
            await run.close_judged(task, end, asked.model)
            if end.failure is None:
                self._note_success(task, end)
                return task.exchange
            error = end.failure.error()
            again = attempts.go_on(error, task.cohort, end.survivors, free=bool(end.blamed)) and end.common is None
            run.event_log.add(
                attempt_ended(error, str(error), task.exchange, task.server_round, len(end.survivors), again=again)
            )
            if not again:
                raise RoundFailed(explain(error, end, run.plan.settings)) from error
        raise AssertionError("there is always another number")

    async def _attempt(
        self, asked: SecureRequest, attempts: Attempts, attempt: int, row: ExchangeRow | None
    ) -> tuple[Task, ExchangeEnd]:
        """A new attempt, or where there is a row for it, what came or comes of that one."""
        services = self._run.services
        if row is None:
            request = asked.request
            cohort = await self._run.clients.cohort(
                request.nodes, attempt, message_type=request.message_type, same=attempts.same
            )
            previous = await services.store.last_record()
            with services.roster.held() as roster:
                task = self._task(asked, roster, cohort, attempt, previous, attempts.whole)
                return task, await self._lead(asked, task, roster, None)
        task = Task.model_validate(row.task)
        if row.result is not None:
            self._run.note_start(task, model=task.model.sha256 if task.model else None)
            return task, ExchangeEnd.from_json(row.result)
        with services.roster.held(task.roster) as roster:
            return task, await self._lead(asked, task, roster, row)

    async def _lead(self, asked: SecureRequest, task: Task, roster: Roster, row: ExchangeRow | None) -> ExchangeEnd:
        run = self._run
        context = ExchangeContext(
            services=run.services,
            task=task,
            settings=run.plan.settings,
            model=asked.model,
            event_log=run.event_log,
            step=asked.step,
            enough=run.clients.enough(asked.request.nodes, task.message_type),
        )
        exchange = SecureExchange(
            context,
            federation=roster.federation,
            roster=roster.keys,
            roster_hash=roster.hash(),
            randomness=run.services.randomness,
        )
        self._run.note_start(task, model=task.model.sha256 if task.model else None)
        return await run.lead(exchange, row)

    def _task(
        self, asked: SecureRequest, roster: Roster, cohort: Sequence[int], attempt: int, previous: str, whole: bool
    ) -> Task:
        """Announce an attempt; raises BudgetSpent."""
        run, request = self._run, asked.request
        members, kind = len(roster.members), request.message_type
        encoding = run.state.encodings.encoding(kind, _layout(request), len(cohort), members, whole=whole)
        run.state.budget.admit(release_of(encoding))
        return make_task(
            request,
            settings=run.plan.settings,
            run=run.plan.run,
            exchange=run.state.next_exchange(),
            attempt=attempt,
            cohort=cohort,
            app_sha256=run.plan.app_sha256,
            run_config=run.plan.run_config,
            model=asked.announced,
            encoding=encoding,
            least_cohort=run.services.min_cohort,
            roster=roster.version,
            members=members,
            whole=whole,
            previous=previous,
        )

    def _has_room(self, failures: int, n: int) -> bool:
        """Whether a sum over a whole cohort of `n` may hold so many clients that contribute nothing."""
        least, members = self._run.services.min_cohort, len(self._run.services.roster.members)
        return failures <= failures_for(self._run.plan.settings, n, least, members, whole=True)

    def _note_success(self, task: Task, end: ExchangeEnd) -> None:
        total = end.total
        assert total is not None  # noqa: S101 - a secure exchange without a failure has a sum
        self._run.note_done(
            task,
            end,
            examples=total.examples,
            metrics=dict(total.metrics),
            clipped=sum(total.statistics.clipped),
            lost_norm=total.lost_norm,
            failures=total.failures,
            metrics_agree=total.names is not None,
            epsilon_spent=self._run.state.budget.epsilon_spent,
        )


def _layout(request: ExchangeRequest) -> Layout | None:
    return request.model.layout if is_training(request.message_type) and request.model is not None else None
