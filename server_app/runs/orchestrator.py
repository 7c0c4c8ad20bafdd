"""Leads one run: answers its ServerApp, gathers a cohort for each exchange, tries again if one fails."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from fedcore.codec import AnyEncoding, release_of
from fedcore.config import JobSettings, planned_rounds
from fedcore.errors import BudgetSpent, ConfigurationError, RoundFailed, RunFailed, WorkerDied
from fedcore.events import ExchangeDone, ExchangeFailed, ExchangeStarted, PrivacyTerms, RunStarted
from fedcore.exchange import EncodingPlan, ExchangeRequest, make_task
from fedcore.privacy import PrivacyBudget
from fedcore.state import Layout, ModelState, sha256_file
from fedcore.system.concurrency import guarded
from fedcore.wire import ModelRef, Scalar, Task, is_training
from server_app.exchanges.context import ExchangeContext, ExchangeResult
from server_app.exchanges.exchange import Exchange
from server_app.exchanges.plain import PlainExchange
from server_app.exchanges.secure import CONSISTENCY, SecureExchange
from server_app.runs.app_messages import (
    Broken,
    BudgetReached,
    ExchangeAsked,
    ExchangeRefused,
    Finished,
    FromApp,
    Nodes,
    NodesAsked,
    Replies,
    Start,
)
from server_app.runs.app_process import AppConnection
from server_app.runs.cohort import CohortSelection
from server_app.runs.event_log import EventLog
from server_app.services import Services

T = TypeVar("T")
MODEL_FILE: Final = "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run that is about to start. folder: holds its app, and takes its files."""

    run: str
    app: str
    app_sha256: str
    folder: Path
    run_config: Mapping[str, Scalar]
    settings: JobSettings


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
        *,
        event_log: EventLog,
        show: Callable[[Exchange], None],
    ) -> None:
        self._services = services
        self._plan = plan
        self._event_log = event_log
        self._show = show
        self._encodings = EncodingPlan(plan.settings)
        self._account = PrivacyBudget(self._encodings.privacy)
        self._stopped = ""
        self._work = plan.folder / "work"
        self._count = 0
        self._leftovers: list[Path] = []
        self._gathering = CohortSelection(
            settings=plan.settings,
            app_sha256=plan.app_sha256,
            presence=services.presence,
            names=services.names,
            event_log=event_log,
            clock=services.clock,
            grace_seconds=services.settings.grace_seconds,
        )

    async def lead(self, app: AppConnection) -> RunEnd:
        """Answer the app until it ends; its final model. Raises FedcoreError."""
        plan = self._plan
        self._note_start()
        start = Start(
            app=str(plan.folder / "app"),
            folder=str(self._work),
            run=plan.run,
            run_config=dict(plan.run_config),
            aggregation=plan.settings.aggregation,
        )
        await app.send(start)
        while True:
            message = await app.receive()
            match message:
                case Finished(model=model):
                    return RunEnd(model=await self._keep_model(model), stopped=self._stopped)
                case Broken(reason=reason):
                    raise RunFailed(reason)
                case NodesAsked() | ExchangeAsked():
                    await app.send(await _unless_ended(app, self._answer(message)))

    async def _answer(self, message: FromApp) -> Nodes | Replies | ExchangeRefused | BudgetReached:
        try:
            if isinstance(message, ExchangeAsked):
                return await self._exchange(message)
            return Nodes(nodes=await self._gathering.nodes())
        except RoundFailed as error:
            return ExchangeRefused(reason=str(error))
        except BudgetSpent as error:
            self._stopped = str(error)
            return BudgetReached(reason=self._stopped)

    # --- exchanges ------------------------------------------------------------------------------

    async def _exchange(self, asked: ExchangeAsked) -> Replies:
        """All attempts at one exchange."""
        if self._account.withholds(is_training(asked.message_type)):
            return Replies(replies=[])
        await self._clean()
        model = self._inside(asked.model) if asked.model else None
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
        reference = await asyncio.to_thread(_reference, model) if model else None
        try:
            result = await self._attempts(request, model, reference)
        finally:
            if model:
                self._leftovers.append(model)
        return Replies(replies=list(result.replies))

    async def _attempts(
        self, request: ExchangeRequest, model: Path | None, reference: ModelRef | None
    ) -> ExchangeResult:
        last = self._plan.settings.max_attempts
        for attempt in range(1, last + 1):
            cohort = await self._gathering.cohort(request.nodes, attempt)
            self._count += 1
            exchange = self._make(request, cohort, attempt, model, reference)
            try:
                return await self._carry_out(exchange)
            except RoundFailed as error:
                if CONSISTENCY in exchange.usage.stage_seconds:  # the survivors were named: their sum may be known
                    self._account.spend(release_of(self._encoding_in(exchange)))
                again = attempt < last and exchange.common_reason() is None
                self._note_failure(exchange, str(error), again)
                if not again:
                    raise RoundFailed(_final_reason(exchange, error)) from error
        raise RunFailed("max-attempts must be at least 1")

    def _make(
        self,
        request: ExchangeRequest,
        cohort: list[int],
        attempt: int,
        model: Path | None,
        reference: ModelRef | None,
    ) -> Exchange:
        plan, services = self._plan, self._services
        secure = plan.settings.aggregation == "secure"
        encoding = self._encoding(request, len(cohort)) if secure else None
        self._account.admit(release_of(encoding))
        task = make_task(
            request,
            settings=plan.settings,
            run=plan.run,
            exchange=self._count,
            attempt=attempt,
            cohort=cohort,
            app_sha256=plan.app_sha256,
            run_config=plan.run_config,
            model=reference,
            encoding=encoding,
        )
        folder = plan.folder / "exchanges" / str(self._count)
        folder.mkdir(parents=True)
        self._leftovers.append(folder)
        context = self._context(task, folder, model)
        if not secure:
            return PlainExchange(context)
        return SecureExchange(
            context,
            federation=services.roster.federation,
            roster=services.roster.keys,
            roster_hash=services.roster.hash(),
            randomness=services.randomness,
        )

    def _context(self, task: Task, folder: Path, model: Path | None) -> ExchangeContext:
        services = self._services
        return ExchangeContext(
            task=task,
            settings=self._plan.settings,
            names=services.names,
            folder=folder,
            model=model,
            presence=services.presence,
            store=services.store,
            spool=services.spool,
            event_log=self._event_log,
            bell=services.client_bell,
            clock=services.clock,
            threads=services.threads,
            upload_slack_bytes=services.settings.upload_slack_bytes,
            grace_seconds=services.settings.grace_seconds,
        )

    def _encoding(self, request: ExchangeRequest, n: int) -> AnyEncoding:
        return self._encodings.encoding(_layout(request), n)

    def _encoding_in(self, exchange: Exchange) -> AnyEncoding | None:
        return exchange.encoding if isinstance(exchange, SecureExchange) else None

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
        if isinstance(exchange, SecureExchange) and exchange.decoded is not None:
            self._encodings.learn(exchange.encoding.layout, exchange.decoded.statistics)
        self._account.spend(release_of(self._encoding_in(exchange)))
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
        names = self._services.names
        self._event_log.add(
            ExchangeDone(
                exchange=exchange.task.exchange,
                server_round=exchange.task.server_round,
                message_type=exchange.task.message_type,
                survivors=self._names(result.survivors),
                examples=result.examples,
                metrics=dict(result.metrics),
                clipped=result.clipped,
                seconds=round(seconds, 4),
                stage_seconds=dict(exchange.usage.stage_seconds),
                bytes_up=exchange.usage.up(names),
                bytes_down=exchange.usage.down(names),
                epsilon_spent=self._account.epsilon_spent,
            )
        )

    def _note_failure(self, exchange: Exchange, reason: str, retry: bool) -> None:
        task = exchange.task
        self._event_log.add(
            ExchangeFailed(exchange=task.exchange, server_round=task.server_round, reason=reason, retry=retry)
        )

    def _names(self, clients: frozenset[int]) -> list[str]:
        return [self._services.names[client] for client in sorted(clients)]

    # --- files ----------------------------------------------------------------------------------

    async def _clean(self) -> None:
        """Remove the files of earlier exchanges: the app has mapped what it still needs."""
        gone, self._leftovers = self._leftovers, []
        await asyncio.to_thread(_remove, gone)

    def _inside(self, path: str) -> Path:
        """The path of a file that the app made, which must lie in the run's work folder."""
        resolved = Path(path).resolve()
        if resolved.parent != self._work.resolve() or not resolved.is_file():
            raise WorkerDied("the ServerApp's process named a file outside its folder")
        return resolved

    async def _keep_model(self, path: str | None) -> ModelRef | None:
        await self._clean()
        if path is None:
            return None
        target = self._plan.folder / MODEL_FILE
        self._inside(path).replace(target)
        return await asyncio.to_thread(_reference, target)


async def _unless_ended(app: AppConnection, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; WorkerDied as soon as the app is gone, since nobody waits for it then."""

    async def gone() -> NoReturn:
        await app.ended()
        raise WorkerDied("the ServerApp's process ended during an exchange")

    return await guarded(work, gone())


def _layout(request: ExchangeRequest) -> Layout | None:
    return request.model.layout if is_training(request.message_type) and request.model is not None else None


def _final_reason(exchange: Exchange, error: RoundFailed) -> str:
    common = exchange.common_reason()
    if common is None:
        return str(error)
    checks = {withdrawal.check for withdrawal in exchange.withdrawals.values()} - {""}
    detail = f" ({', '.join(sorted(checks))})" if checks else ""
    return f"every client withdrew: {common.value}{detail}; the clients' own logs say more"


def _reference(path: Path) -> ModelRef:
    return ModelRef(sha256=sha256_file(path), size=path.stat().st_size)


def _remove(paths: list[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def check_plan(plan: RunPlan, members: int) -> None:
    """Refuse a run that cannot work in this federation; raises ConfigurationError."""
    settings = plan.settings
    least = max(settings.min_clients, settings.quorum)
    if least > members:
        raise ConfigurationError(f"the run needs {least} clients (min-clients, quorum), the federation has {members}")
    if settings.aggregation == "plain":
        return
    if settings.min_clients < 2:
        raise ConfigurationError("min-clients must be at least 2 with secure aggregation: the sum of one is its update")
    if 0 < 2 * settings.quorum <= settings.min_clients:
        raise ConfigurationError(
            f"quorum must be more than half of min-clients ({settings.min_clients}): a server that "
            "lies could otherwise unmask single clients. Leave it at 0 for the safe default"
        )
    # Worst cases are computed now, not when the first clients have trained.
    EncodingPlan(settings).encoding(None, members)
