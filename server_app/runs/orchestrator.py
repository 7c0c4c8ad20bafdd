"""Leads one run: answers its ServerApp, gathers a cohort for each exchange, tries again if one fails."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from fedcore.admission.refusals import refused_by_all, refused_by_some
from fedcore.attempts import Attempts, attempt_ended, final_reason
from fedcore.codec import release_of
from fedcore.config import planned_rounds
from fedcore.errors import BudgetSpent, RoundFailed, RunFailed, UpdateTooLarge, WorkerDied
from fedcore.events import ExchangeDone, ExchangeStarted, PrivacyTerms, RunStarted, StatisticsFound
from fedcore.exchange import EncodingPlan, ExchangeRequest, failures_for, make_task
from fedcore.federation import Roster
from fedcore.plain_json import to_plain
from fedcore.privacy import PrivacyBudget
from fedcore.state import Layout, ModelState
from fedcore.system.concurrency import guarded
from fedcore.wire import ModelRef, WithdrawalReason, is_query, is_training
from server_app.exchanges.context import ExchangeContext, ExchangeResult
from server_app.exchanges.exchange import Exchange
from server_app.exchanges.secure import UNMASK, SecureExchange
from server_app.runs.app_messages import (
    Broken,
    BudgetReached,
    ExchangeAsked,
    ExchangeRefused,
    Finished,
    FromApp,
    Nodes,
    NodesAsked,
    PlainAsked,
    PlainReplies,
    Replies,
    Start,
)
from server_app.runs.app_process import AppConnection
from server_app.runs.cohort import CohortSelection
from server_app.runs.event_log import EventLog
from server_app.runs.plain_exchanges import PlainExchanges
from server_app.runs.plan import QUESTION, RunPlan
from server_app.runs.run_files import RunFiles, reference
from server_app.services import Services

T = TypeVar("T")
_REFUSALS: Final = (WithdrawalReason.POLICY, WithdrawalReason.PROTOCOL_VIOLATION, WithdrawalReason.APP_MISMATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run ended that has not failed. stopped: why before the end of its ServerApp; empty where it was not."""

    model: ModelRef | None
    stopped: str = ""


class RunOrchestrator:
    """Leads a run to its model.

    show: told about every exchange, so that the routes find it.
    """

    def __init__(
        self,
        services: Services,
        plan: RunPlan,
        files: RunFiles,
        *,
        event_log: EventLog,
        show: Callable[[Exchange], None],
    ) -> None:
        self._services = services
        self._plan = plan
        self._event_log = event_log
        self._show = show
        self._files = files
        self._encodings = EncodingPlan(plan.settings, services.min_cohort)
        self._budget = PrivacyBudget(self._encodings.privacy)
        self._stopped = ""
        self._count = 0
        self._clients = CohortSelection(services, plan, event_log)
        self._plain = PlainExchanges(
            services, plan, files, self._clients, event_log=event_log, show=show, explain=self._final_reason
        )

    async def lead(self, app: AppConnection) -> RunEnd:
        """Answer the app until it ends; its final model. Raises FedcoreError."""
        plan = self._plan
        self._note_start()
        start = Start(
            app=str(plan.folder / "app"),
            folder=str(self._files.work),
            run=plan.run,
            run_config=dict(plan.run_config),
            aggregation=plan.settings.aggregation,
            question=None if plan.question is None else to_plain(QUESTION, plan.question),
        )
        await app.send(start)
        while True:
            message = await app.receive()
            match message:
                case Finished(model=model, statistics=found):
                    if found is not None and plan.question is not None:
                        self._event_log.add(StatisticsFound(statistics=found))
                    return RunEnd(model=await self._files.keep_model(model), stopped=self._stopped)
                case Broken(reason=reason):
                    raise RunFailed(reason)
                case NodesAsked() | ExchangeAsked() | PlainAsked():
                    await app.send(await _unless_ended(app, self._answer(message)))

    async def _answer(self, message: FromApp) -> Nodes | Replies | PlainReplies | ExchangeRefused | BudgetReached:
        try:
            if isinstance(message, ExchangeAsked):
                return await self._exchange(message)
            if isinstance(message, PlainAsked):
                return await self._plain.exchange(message)
            return Nodes(nodes=await self._clients.nodes())
        except RoundFailed as error:
            return ExchangeRefused(reason=str(error))
        except BudgetSpent as error:
            self._stopped = str(error)
            return BudgetReached(reason=self._stopped)

    # --- exchanges ------------------------------------------------------------------------------

    async def _exchange(self, asked: ExchangeAsked) -> Replies:
        """All attempts at one exchange."""
        if self._budget.withholds(is_training(asked.message_type) or is_query(asked.message_type)):
            return Replies(replies=[])
        for message_type, nodes in asked.ahead.items():
            if not self._budget.withholds(is_training(message_type)):
                self._clients.check(nodes, message_type)
        await self._files.clean()
        model = self._files.from_app(asked.model) if asked.model else None
        state = await asyncio.to_thread(ModelState.open, model) if model else None
        request = ExchangeRequest(
            message_type=asked.message_type,
            nodes=tuple(asked.nodes),
            server_round=asked.server_round,
            model=state,
            arrays_key=asked.arrays_key,
            configs=asked.configs,
            weight_key=asked.weight_key,
            timeout=asked.timeout,
        )
        try:
            result = await self._attempts(request, model, await reference(model) if model else None)
        finally:
            if model:
                self._files.leave(model)
        return Replies(replies=list(result.replies))

    async def _attempts(
        self, request: ExchangeRequest, model: Path | None, announced: ModelRef | None
    ) -> ExchangeResult:
        """Attempts until one succeeds, or `Attempts` says that there is no other.

        One that somebody is blamed for does not count: whoever cheats is excluded, so it can end the run neither with
        one attempt nor, in company, with all of them.
        """
        attempts = Attempts(settings=self._plan.settings, has_room=self._has_room)
        for attempt in itertools.count(1):
            kind = request.message_type
            cohort = await self._clients.cohort(request.nodes, attempt, message_type=kind, same=attempts.same)
            self._count += 1
            previous = await self._services.store.last_record()
            with self._services.roster.held() as roster:
                exchange = self._make(request, roster, cohort, attempt, model, announced, previous, attempts.whole)
                try:
                    return await self._carry_out(exchange)
                except RoundFailed as error:
                    encoding = exchange.task.encoding
                    if UNMASK in exchange.usage.stage_seconds:  # shares were asked for: the sum may be known
                        self._budget.spend(release_of(encoding))
                    if isinstance(error, UpdateTooLarge) and encoding is not None:
                        self._encodings.learn_overflow(request.message_type, encoding, error.statistics)
                    again = attempts.go_on(error, cohort, exchange.survivors, free=bool(exchange.blamed))
                    again = again and exchange.clients.common_reason() is None
                    self._note_failure(exchange, error, again)
                    if not again:
                        raise RoundFailed(self._final_reason(exchange, error)) from error
                finally:
                    self._clients.exclude(exchange.blamed)
        raise AssertionError("there is always another number")

    def _make(
        self,
        request: ExchangeRequest,
        roster: Roster,
        cohort: list[int],
        attempt: int,
        model: Path | None,
        announced: ModelRef | None,
        previous: str,
        whole: bool,
    ) -> Exchange:
        plan, services = self._plan, self._services
        members, layout = len(roster.members), _layout(request)
        encoding = self._encodings.encoding(request.message_type, layout, len(cohort), members, whole=whole)
        self._budget.admit(release_of(encoding))
        task = make_task(
            request,
            settings=plan.settings,
            run=plan.run,
            exchange=self._count,
            attempt=attempt,
            cohort=cohort,
            app_sha256=plan.app_sha256,
            run_config=plan.run_config,
            model=announced,
            encoding=encoding,
            least_cohort=services.min_cohort,
            roster=roster.version,
            members=members,
            whole=whole,
            previous=previous,
        )
        context = ExchangeContext(
            services=services,
            task=task,
            settings=plan.settings,
            folder=self._files.exchange_folder(task.exchange),
            model=model,
            event_log=self._event_log,
        )
        return SecureExchange(
            context,
            federation=roster.federation,
            roster=roster.keys,
            roster_hash=roster.hash(),
            randomness=services.randomness,
        )

    def _has_room(self, failures: int, n: int) -> bool:
        """Whether a sum over a whole cohort of `n` may hold so many clients that contribute nothing."""
        least, members = self._services.min_cohort, len(self._services.roster.members)
        return failures <= failures_for(self._plan.settings, n, least, members, whole=True)

    async def _carry_out(self, exchange: Exchange) -> ExchangeResult:
        task = exchange.task
        encoding = task.encoding
        self._event_log.add(
            ExchangeStarted(
                exchange=task.exchange,
                server_round=task.server_round,
                message_type=task.message_type,
                attempt=task.attempt,
                cohort=self._names(frozenset(task.cohort)),
                quorum=task.quorum,
                field_bits=encoding.field_bits if encoding and encoding.layout else None,
                aggregation=task.aggregation,
                model=task.model.sha256 if task.model else None,
            )
        )
        start = self._services.clock()
        self._show(exchange)
        result = await exchange.run()
        if encoding is not None and result.decoded is not None:
            self._encodings.learn(task.message_type, encoding, result.decoded)
        self._budget.spend(release_of(encoding))
        self._note_success(exchange, result, self._services.clock() - start)
        return result

    # --- the record -----------------------------------------------------------------------------

    def _note_start(self) -> None:
        self._event_log.add(
            RunStarted(
                app=self._plan.app,
                aggregation=self._plan.settings.aggregation,
                rounds=planned_rounds(self._plan.run_config),
                privacy=PrivacyTerms.of(self._encodings.privacy),
            )
        )

    def _note_success(self, exchange: Exchange, result: ExchangeResult, seconds: float) -> None:
        usage, decoded = exchange.usage, result.decoded
        self._event_log.add(
            ExchangeDone(
                exchange=exchange.task.exchange,
                server_round=exchange.task.server_round,
                message_type=exchange.task.message_type,
                aggregation=exchange.task.aggregation,
                survivors=self._names(result.survivors),
                examples=result.examples,
                metrics=dict(result.metrics),
                clipped=sum(decoded.statistics.clipped) if decoded else 0,
                lost_norm=decoded.lost_norm if decoded else 0.0,
                failures=decoded.failures if decoded else 0,
                metrics_agree=decoded is None or decoded.names is not None,
                seconds=round(seconds, 4),
                stage_seconds=dict(usage.stage_seconds),
                bytes_up=self._by_name(usage.up),
                bytes_down=self._by_name(usage.down),
                epsilon_spent=self._budget.epsilon_spent,
            )
        )

    def _note_failure(self, exchange: Exchange, error: RoundFailed, retry: bool) -> None:
        number, server_round = exchange.task.exchange, exchange.task.server_round
        self._event_log.add(
            attempt_ended(error, str(error), number, server_round, len(exchange.survivors), again=retry)
        )

    def _final_reason(self, exchange: Exchange, error: RoundFailed) -> str:
        withdrawals, common = exchange.clients.withdrawals.values(), exchange.clients.common_reason()
        reason = final_reason(error, self._plan.settings)
        if reason != str(error):
            return reason
        if common is None:
            return "; ".join(filter(None, (reason, refused_by_some(withdrawals))))
        if common in _REFUSALS:
            return refused_by_all(withdrawals)
        checks = {withdrawal.why for withdrawal in withdrawals} - {""}
        detail = f" ({', '.join(sorted(checks))})" if checks else ""
        return f"every client withdrew: {common.value}{detail}; the clients' own logs say more"

    def _names(self, clients: frozenset[int]) -> list[str]:
        return [self._services.names[client] for client in sorted(clients)]

    def _by_name(self, counts: Mapping[int, int]) -> dict[str, int]:
        return {self._services.names[client]: count for client, count in sorted(counts.items())}


async def _unless_ended(app: AppConnection, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; WorkerDied as soon as the app is gone, since nobody waits for it then."""

    async def gone() -> NoReturn:
        await app.ended()
        raise WorkerDied("the ServerApp's process ended during an exchange")

    return await guarded(work, gone())


def _layout(request: ExchangeRequest) -> Layout | None:
    return request.model.layout if is_training(request.message_type) and request.model is not None else None
