"""Leads one run: answers the requests of its ServerApp, out of the journal while that can, then by exchanges."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from fedcore.errors import BudgetSpent, DamagedAtRest, RoundFailed, RunFailed
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.run.plain import NODE_UNAVAILABLE, PlainReply, Question, reply_error
from fedcore.run.settings import planned_rounds
from fedcore.state import ModelState
from fedcore.system.concurrency import end, guarded
from fedcore.system.plain_json import to_plain
from fedcore.wire.events import PrivacyTerms, RunStarted, StatisticsFound, Warned
from fedcore.wire.tasks import ModelRef, is_query, is_training
from server_app.exchanges.context import ExchangeResult
from server_app.exchanges.outcome import check_files, result_of
from server_app.runs.app.messages import (
    Broken,
    BudgetReached,
    ExchangeAsked,
    ExchangeRefused,
    Finished,
    Found,
    FromApp,
    Nodes,
    NodesAsked,
    PlainAsked,
    PlainReplies,
    Replies,
    Start,
    Waits,
)
from server_app.runs.app.process import AppConnection
from server_app.runs.exchanges.buffered import BufferedExchanges
from server_app.runs.exchanges.grouped import GroupedExchanges
from server_app.runs.exchanges.plain import PlainExchanges, PlainStep
from server_app.runs.exchanges.secure import SecureExchanges, SecureRequest
from server_app.runs.files.downloads import ModelDownloads, Sent
from server_app.runs.files.run_files import reference
from server_app.runs.journal import Journal, KeptAnswer, as_kept
from server_app.runs.plan import QUESTION
from server_app.runs.run_context import RunContext

T = TypeVar("T")
Request = NodesAsked | ExchangeAsked | PlainAsked
Answer = Nodes | Replies | PlainReplies | ExchangeRefused | BudgetReached

_TICK_SECONDS: Final = 0.5
_WARNED_AFTER: Final = 6
"""A part of app-seconds: how long an app may be silent without a word about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run ended that has not failed. stopped: why before the end of its ServerApp; empty if it was not."""

    model: ModelRef | None
    stopped: str = ""


@dataclass(frozen=True, slots=True)
class _TakenOver:
    """A file that the app handed over: its path, and its reference for clients."""

    path: Path
    reference: ModelRef


class RunOrchestrator:
    """Leads a run to its model, in one life of its ServerApp."""

    def __init__(self, run: RunContext, journal: Journal) -> None:
        self._run = run
        self._journal = journal
        self._stopped = ""
        self._evaluated: tuple[int, Path] | None = None
        self._secure = SecureExchanges(run)
        self._grouped = GroupedExchanges(run, self._secure)
        self._buffered = BufferedExchanges(run, self._secure)
        self._plain = PlainExchanges(run)
        self._downloads = ModelDownloads(run.files, run.plan.settings.download_bits)

    async def lead(self, app: AppConnection) -> RunEnd:
        """Answer the app until it ends; its final model. Raises FedcoreError."""
        run = self._run
        self._note_start()
        await app.send(await self._start())
        while True:
            message = await self._listen(app)
            match message:
                case Found(figures=figures):
                    await run.take_figures(figures, self._evaluated)
                case Waits(nodes=nodes, setting=setting):
                    run.event_log.add(Warned(line=run.clients.waiting(nodes, setting)))
                case Finished(model=model, statistics=found):
                    run.warn_unjudged()
                    if found is not None and run.plan.question is not None:
                        run.event_log.add(StatisticsFound(statistics=found))
                    return RunEnd(model=await run.files.keep_model(model, run.facts("final")), stopped=self._stopped)
                case Broken(reason=reason):
                    raise RunFailed(reason)
                case NodesAsked() | ExchangeAsked() | PlainAsked():
                    await app.send(await _unless_ended(app, self._answer(message)))

    async def _start(self) -> Start:
        plan, files = self._run.plan, self._run.files
        initial = await files.initial(plan.initial_sha256) if plan.initial_sha256 else None
        return Start(
            app=str(files.app),
            folder=str(files.work),
            run=plan.run,
            run_config=dict(plan.run_config),
            aggregation=plan.settings.aggregation,
            groups=plan.settings.groups,
            least_groups=plan.settings.least_groups,
            buffered=plan.settings.buffered,
            question=None if plan.question is None else to_plain(QUESTION, plan.question),
            initial=None if initial is None else str(initial),
            noised=plan.settings.private,
            compressed=plan.settings.compresses,
            members=self._members,
        )

    @property
    def _members(self) -> int:
        return len(self._run.clients.members)

    async def _listen(self, app: AppConnection) -> FromApp:
        """What the app says next; RunFailed where it says nothing for longer than app-seconds."""
        clock, most = self._run.services.clock, self._run.plan.settings.app_seconds
        heard, since, warned = asyncio.ensure_future(app.receive()), clock(), False
        try:
            while not heard.done():
                await asyncio.wait({heard}, timeout=_TICK_SECONDS)
                silent = clock() - since
                if heard.done():
                    break
                if silent >= most:
                    raise RunFailed(
                        f"the ServerApp asked for nothing for {most:g} s (app-seconds): it hangs, or computes for "
                        "longer; raise app-seconds where that is meant"
                    )
                if silent >= most / _WARNED_AFTER and not warned:
                    warned = True
                    line = f"the ServerApp has asked for nothing for {silent:.0f} s; after {most:g} s the run fails"
                    self._run.event_log.add(Warned(line=line))
            return heard.result()
        finally:
            await end(heard)

    # --- answers --------------------------------------------------------------------------------

    async def _answer(self, message: Request) -> Answer:
        if not isinstance(message, NodesAsked):
            self._run.warn_unjudged()
        files = await self._take_over(message)
        sent = await self._sent(message, files)
        if isinstance(message, ExchangeAsked) and sent is not None and not is_training(message.message_type):
            self._evaluated = message.server_round, sent.path
        kept = await self._journal.begin(as_kept(message, {name: file.reference for name, file in files.items()}))
        if kept is None:
            kept = await self._find(message, files, sent)
            await self._journal.answer(kept)
        return await self._delivered(kept)

    async def _take_over(self, message: Request) -> dict[str, _TakenOver]:
        """The files that a request names, by the names that it has for them; those of the last one are removed."""
        if isinstance(message, NodesAsked):
            return {}
        files = self._run.files
        await files.clean()
        names = [message.model] if isinstance(message, ExchangeAsked) else [one.content for one in message.questions]
        taken = {}
        for name in filter(None, dict.fromkeys(names)):
            path = files.from_app(name)
            files.leave(path)
            taken[name] = _TakenOver(path, await reference(path))
        return taken

    async def _sent(self, message: Request, files: Mapping[str, _TakenOver]) -> Sent | None:
        """What clients get of the model of a secure exchange, also of one that was answered before."""
        if not isinstance(message, ExchangeAsked) or message.model is None:
            return None
        return await self._downloads.send(files[message.model].path, files[message.model].reference)

    async def _find(self, message: Request, files: Mapping[str, _TakenOver], sent: Sent | None) -> KeptAnswer:
        """Do what the app asks for."""
        try:
            if isinstance(message, ExchangeAsked):
                return await self._secure_exchange(message, files.get(message.model or ""), sent)
            if isinstance(message, PlainAsked):
                return await self._plain_exchange(message, files)
            return KeptAnswer(nodes=await self._run.clients.nodes())
        except RoundFailed as error:
            return KeptAnswer(refused=str(error))
        except BudgetSpent as error:
            return KeptAnswer(spent=str(error))

    async def _secure_exchange(self, asked: ExchangeAsked, model: _TakenOver | None, sent: Sent | None) -> KeptAnswer:
        """All attempts at one exchange."""
        budget = self._run.state.budget
        if budget.withholds(is_training(asked.message_type) or is_query(asked.message_type)):
            return KeptAnswer(withheld=True)
        for message_type, nodes in asked.ahead.items():
            if not budget.withholds(is_training(message_type)):
                self._run.clients.check(nodes, message_type)
        if model is not None:
            await self._run.checkpoint(model.path, model.reference.sha256)
        request = ExchangeRequest(
            message_type=asked.message_type,
            nodes=tuple(asked.nodes),
            server_round=asked.server_round,
            model=await asyncio.to_thread(ModelState.open, model.path) if model else None,
            arrays_key=asked.arrays_key,
            configs=asked.configs,
            weight_key=asked.weight_key,
            timeout=asked.timeout,
        )
        secure = SecureRequest(step=self._journal.number, request=request, sent=sent)
        if self._run.plan.settings.buffered and is_training(asked.message_type):
            return KeptAnswer(exchange=await self._buffered.exchange(secure, self._journal.trained))
        if self._run.plan.settings.groups > 1 and is_training(asked.message_type):
            return KeptAnswer(groups=await self._grouped.exchange(secure))
        return KeptAnswer(exchange=await self._secure.exchange(secure))

    async def _plain_exchange(self, asked: PlainAsked, files: Mapping[str, _TakenOver]) -> KeptAnswer:
        questions = {
            one.node: Question(
                message_type=one.message_type,
                head=one.head,
                content=files[one.content].path,
                reference=files[one.content].reference,
            )
            for one in asked.questions
        }
        request = PlainStep(step=self._journal.number, asked=asked, questions=questions)
        number, absent = await self._plain.exchange(request)
        return KeptAnswer(exchange=number, absent=absent)

    async def _delivered(self, kept: KeptAnswer) -> Answer:
        """An answer as the app gets it, with files that it can read."""
        if kept.nodes is not None:
            return Nodes(nodes=kept.nodes, members=self._members)
        if kept.refused is not None:
            return ExchangeRefused(reason=kept.refused)
        if kept.spent is not None:
            self._stopped = kept.spent
            return BudgetReached(reason=kept.spent)
        if kept.groups is not None:
            results = [await self._result(number) for number in kept.groups]
            return Replies(replies=[await self._reply(reply) for result in results for reply in result.replies])
        if kept.exchange is None:
            return Replies(replies=[])
        run, result = self._run, await self._result(kept.exchange)
        if run.plan.settings.aggregation == "secure":
            return Replies(replies=[await self._reply(reply) for reply in result.replies])
        absent = map(self._not_there, kept.absent)
        return PlainReplies(replies=[*[await self._plain_reply(reply) for reply in result.plain], *absent])

    async def _result(self, exchange: int) -> ExchangeResult:
        services = self._run.services
        row = await services.store.exchange(self._run.plan.run, exchange)
        if row is None or row.result is None:
            raise RunFailed(f"the journal names exchange {exchange}, of which nothing is kept")
        end = ExchangeOutcome.from_json(row.result)
        if exchange not in self._run.led:
            try:
                await check_files(end, services.objects, exchange)
            except DamagedAtRest as error:
                services.metrics.storage_failed(error)
                raise RunFailed(f"the run cannot go on from where it was: {error}") from error
        return await result_of(end, services.objects.fetch)

    async def _reply(self, reply: ExchangeReply) -> ExchangeReply:
        path = reply.state.path if isinstance(reply.state, ModelState) else reply.state
        return reply if path is None else replace(reply, state=await self._run.files.hand_over(path))

    async def _plain_reply(self, reply: PlainReply) -> PlainReply:
        if not isinstance(reply.content, Path):
            return reply
        return replace(reply, content=await self._run.files.hand_over(reply.content))

    def _not_there(self, client: int) -> PlainReply:
        name = self._run.services.names.get(client, f"node {client}")
        return PlainReply.failed(client, reply_error(NODE_UNAVAILABLE, f"{name} is not connected"))

    def _note_start(self) -> None:
        plan, state = self._run.plan, self._run.state
        self._run.event_log.add(
            RunStarted(
                app=plan.app,
                aggregation=plan.settings.aggregation,
                rounds=planned_rounds(plan.run_config),
                privacy=PrivacyTerms.of(state.encodings.privacy),
            )
        )


async def _unless_ended(app: AppConnection, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; WorkerDied as soon as the app is gone, since nobody waits for it then."""

    async def gone() -> NoReturn:
        raise await app.ended()

    return await guarded(work, gone())
