"""The plain exchanges of one run: a message for each client, and tried again where a quorum was set and not met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedcore.errors import RoundFailed
from fedcore.run.engine.attempts import Attempt, run_attempts
from fedcore.run.engine.events import exchange_done
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.run.plain import OutgoingMessage, plain_task
from fedcore.run.retries import Attempts
from fedcore.wire.tasks import StoredTask, Task, is_training
from server_app.exchanges.context import ExchangeContext, ExchangeResult
from server_app.exchanges.outcome import result_of
from server_app.exchanges.plain import PlainExchange
from server_app.runs.app.messages import PlainExchangeCall
from server_app.runs.exchanges.slow_lines import Sizes
from server_app.runs.run_context import RunContext
from server_app.storage.tables import ExchangeRow


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStep:
    """One exchange that the ServerApp asks for. step: of the journal. messages: with their files."""

    step: int
    call: PlainExchangeCall
    messages: Mapping[int, OutgoingMessage]


class PlainExchanges:
    """Carries them out, one after the other."""

    def __init__(self, run: RunContext) -> None:
        self._run = run

    async def exchange(self, request: PlainStep) -> tuple[int, list[int]]:
        """All attempts at one exchange: its number, and who was not there. Raises RoundFailed."""
        runner = _PlainRunner(self._run, self, request)
        task, end = await run_attempts(runner, Attempts.plain(self._run.plan.settings))
        await self._note_success(task, end)
        return task.exchange, sorted(request.messages.keys() - set(task.cohort))

    async def attempt(
        self, request: PlainStep, attempt: Attempt, row: ExchangeRow | None
    ) -> tuple[Task, ExchangeOutcome]:
        """A new attempt; if there is a row for it, the outcome of that one."""
        services = self._run.services
        if row is None:
            await self._run.pause(attempt)
            kind = request.call.questions[0].message_type
            model = max(message.reference.size for message in request.messages.values())
            sizes = Sizes(down=model, up=model if is_training(kind) else 0)
            cohort = await self._run.clients.cohort(
                tuple(request.messages), attempt.number, message_type=kind, sizes=sizes
            )
            with services.roster.hold() as roster:
                task = self._task(request, cohort, attempt.number, roster.version)
                await self._run.check_memory(model)
                return task, await self._lead(request, task, None)
        task = StoredTask.model_validate(row.task)
        if row.result is not None:
            return task, ExchangeOutcome.from_json(row.result)
        with services.roster.hold(task.roster):
            return task, await self._lead(request, task, row)

    def _task(self, request: PlainStep, cohort: Sequence[int], attempt: int, roster: int) -> Task:
        run, call = self._run, request.call
        return plain_task(
            settings=run.plan.settings,
            run=run.plan.run,
            exchange=run.next_exchange(),
            attempt=attempt,
            server_round=call.server_round,
            message_type=call.questions[0].message_type,
            cohort=cohort,
            app_sha256=run.plan.app_sha256,
            run_config=run.plan.run_config,
            weight_key=call.weight_key,
            timeout=call.timeout,
            roster=roster,
        )

    async def _lead(self, request: PlainStep, task: Task, row: ExchangeRow | None) -> ExchangeOutcome:
        run, call = self._run, request.call
        context = ExchangeContext(
            services=run.services,
            task=task,
            settings=run.plan.settings,
            model=None,
            add_event=run.event_log.add,
            step=request.step,
        )
        exchange = PlainExchange(context, request.messages, timeout=call.timeout)
        run.note_start(task, model=call.model, content=exchange.common_content)
        return await run.lead(exchange, row)

    async def _note_success(self, task: Task, end: ExchangeOutcome) -> None:
        result: ExchangeResult = await result_of(end, self._run.services.objects.fetch)
        done = exchange_done(
            task,
            end.survivors,
            self._run.name,
            usages=[end.usage],
            examples=result.examples,
            metrics=result.metrics,
            seconds=round(end.usage.seconds, 4),
        )
        self._run.event_log.add(done)


class _PlainRunner:
    """Carries out the attempts at one exchange, as `AttemptRunner`."""

    def __init__(self, run: RunContext, exchanges: PlainExchanges, request: PlainStep) -> None:
        self._run = run
        self._exchanges = exchanges
        self._request = request
        self._past = run.past_of(request.step)

    async def attempt(self, attempt: Attempt) -> tuple[Task, ExchangeOutcome]:
        return await self._exchanges.attempt(self._request, attempt, next(self._past, None))

    async def close(self, task: Task, end: ExchangeOutcome) -> None:
        await self._run.close(task, end)

    def failed(self, task: Task, end: ExchangeOutcome, error: RoundFailed, *, again: bool) -> str:
        self._run.note_failure(task, str(error), end.usage, retry=again)
        return self._run.explain(task, end, error)
