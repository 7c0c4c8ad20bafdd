"""The plain exchanges of one run: a message for each client, and tried again where a quorum was set and not met."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedcore.errors import RoundFailed
from fedcore.events import ExchangeDone, ExchangeFailed, ExchangeStarted
from fedcore.plain_exchange import NODE_UNAVAILABLE, PlainReply, Question, plain_task, reply_error
from fedcore.wire import Task
from server_app.exchanges.context import ExchangeContext, ExchangeResult
from server_app.exchanges.exchange import Exchange
from server_app.exchanges.plain import PlainExchange
from server_app.runs.app_messages import PlainAsked, PlainReplies
from server_app.runs.cohort import CohortSelection
from server_app.runs.event_log import EventLog
from server_app.runs.plan import RunPlan
from server_app.runs.run_files import RunFiles, reference
from server_app.services import Services


class PlainExchanges:
    """Carries them out, one after the other.

    show: makes each of them known to the routes. explain: why the last attempt failed, as the run's operator reads it.
    """

    def __init__(
        self,
        services: Services,
        plan: RunPlan,
        files: RunFiles,
        clients: CohortSelection,
        *,
        event_log: EventLog,
        show: Callable[[Exchange], None],
        explain: Callable[[Exchange, RoundFailed], str],
    ) -> None:
        self._services = services
        self._plan = plan
        self._files = files
        self._clients = clients
        self._event_log = event_log
        self._show = show
        self._explain = explain
        self._count = 0

    async def exchange(self, asked: PlainAsked) -> PlainReplies:
        """All attempts at one exchange; raises RoundFailed."""
        await self._files.clean()
        questions = await self._questions(asked)
        for attempt in range(1, self._plan.settings.max_attempts + 1):
            kind = asked.questions[0].message_type
            cohort = await self._clients.cohort(tuple(questions), attempt, message_type=kind)
            self._count += 1
            with self._services.roster.held() as roster:
                exchange = self._make(asked, questions, cohort, attempt, roster.version)
                try:
                    result = await self._carry_out(exchange, asked.model)
                except RoundFailed as error:
                    self._retry_or_raise(exchange, error)
                    continue
            absent = sorted(questions.keys() - set(cohort))
            return PlainReplies(replies=[*result.plain, *map(self._not_there, absent)])
        raise AssertionError("the last attempt returns or raises")

    async def _questions(self, asked: PlainAsked) -> dict[int, Question]:
        """Take over the files that the app made; several clients may be sent the same one."""
        paths = {name: self._files.from_app(name) for name in {one.content for one in asked.questions}}
        for path in paths.values():
            self._files.leave(path)
        references = {name: await reference(path) for name, path in paths.items()}
        return {
            one.node: Question(
                message_type=one.message_type,
                head=one.head,
                content=paths[one.content],
                reference=references[one.content],
            )
            for one in asked.questions
        }

    def _make(
        self, asked: PlainAsked, questions: Mapping[int, Question], cohort: Sequence[int], attempt: int, roster: int
    ) -> PlainExchange:
        plan = self._plan
        task = plain_task(
            settings=plan.settings,
            run=plan.run,
            exchange=self._count,
            attempt=attempt,
            server_round=asked.server_round,
            message_type=asked.questions[0].message_type,
            cohort=cohort,
            app_sha256=plan.app_sha256,
            run_config=plan.run_config,
            weight_key=asked.weight_key,
            timeout=asked.timeout,
            roster=roster,
        )
        context = ExchangeContext(
            services=self._services,
            task=task,
            settings=plan.settings,
            folder=self._files.exchange_folder(task.exchange),
            model=None,
            event_log=self._event_log,
        )
        return PlainExchange(context, questions, timeout=asked.timeout)

    async def _carry_out(self, exchange: PlainExchange, model: str | None) -> ExchangeResult:
        task = exchange.task
        started = ExchangeStarted(
            exchange=task.exchange,
            server_round=task.server_round,
            message_type=task.message_type,
            attempt=task.attempt,
            cohort=self._names(task.cohort),
            quorum=task.quorum,
            field_bits=None,
            aggregation="plain",
            model=model,
            content=exchange.common_content,
        )
        self._event_log.add(started)
        start = self._services.clock()
        self._show(exchange)
        result = await exchange.run()
        self._note_success(exchange, task, result, self._services.clock() - start)
        return result

    def _note_success(self, exchange: PlainExchange, task: Task, result: ExchangeResult, seconds: float) -> None:
        done = ExchangeDone(
            exchange=task.exchange,
            server_round=task.server_round,
            message_type=task.message_type,
            aggregation="plain",
            survivors=self._names(sorted(result.survivors)),
            examples=result.examples,
            metrics=dict(result.metrics),
            seconds=round(seconds, 4),
            stage_seconds=dict(exchange.usage.stage_seconds),
            bytes_up=self._by_name(exchange.usage.up),
            bytes_down=self._by_name(exchange.usage.down),
        )
        self._event_log.add(done)

    def _retry_or_raise(self, exchange: PlainExchange, error: RoundFailed) -> None:
        task = exchange.task
        again = task.attempt < self._plan.settings.max_attempts and exchange.clients.common_reason() is None
        failed = ExchangeFailed(exchange=task.exchange, server_round=task.server_round, reason=str(error), retry=again)
        self._event_log.add(failed)
        if not again:
            raise RoundFailed(self._explain(exchange, error)) from error

    def _not_there(self, client: int) -> PlainReply:
        name = self._services.names.get(client, f"node {client}")
        return PlainReply.failed(client, reply_error(NODE_UNAVAILABLE, f"{name} is not connected"))

    def _names(self, clients: Sequence[int]) -> list[str]:
        return [self._services.names[client] for client in clients]

    def _by_name(self, counts: Mapping[int, int]) -> dict[str, int]:
        return {self._services.names[client]: count for client, count in sorted(counts.items())}
