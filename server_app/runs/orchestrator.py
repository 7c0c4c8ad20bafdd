"""Leads one run: replies to its ServerApp from the journal as far as that goes, then by exchanges."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from fedcore.data.questions import question_to_plain
from fedcore.errors import BudgetSpent, DamagedAtRest, RoundFailed, RunFailed
from fedcore.run.engine.journal import Journal, RequestDiffers
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.run.exchange import ExchangeReply
from fedcore.run.plain import NODE_UNAVAILABLE, OutgoingMessage, PlainReply, reply_error
from fedcore.run.settings import planned_rounds
from fedcore.state import ModelState
from fedcore.system.concurrency import end, guarded
from fedcore.wire.events import PrivacyTerms, RunStarted, StatisticsFound, Warned
from fedcore.wire.tasks import ModelRef, StoredTask, is_training
from server_app.exchanges.context import ExchangeResult
from server_app.exchanges.outcome import check_files, make_mean_again, result_of
from server_app.runs.app.messages import (
    AppCall,
    AppEnd,
    AppFailure,
    AppReply,
    BudgetReached,
    ExchangeCall,
    ExchangeRefused,
    FiguresReport,
    FromApp,
    Nodes,
    NodesCall,
    PlainExchangeCall,
    PlainReplies,
    Replies,
    Room,
    RoomCall,
    Start,
    WaitReport,
)
from server_app.runs.app.process import AppConnection
from server_app.runs.exchanges.buffered import BufferedExchanges
from server_app.runs.exchanges.grouped import GroupedExchanges
from server_app.runs.exchanges.plain import PlainExchanges, PlainStep
from server_app.runs.exchanges.secure import SecureExchanges, SecureRequest
from server_app.runs.files.downloads import ModelDownloads, SentModel
from server_app.runs.files.run_files import reference
from server_app.runs.journal import JournaledReply, RunInterrupted, record_of
from server_app.runs.run_context import RunContext

T = TypeVar("T")

_TICK_SECONDS: Final = 0.5
_WARNING_PART: Final = 6
"""The part of app-seconds for which an app may be silent without a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run ended that has not failed.

    stopped
        Why before the end of its ServerApp; empty if it was not.
    """

    model: ModelRef | None
    stopped: str = ""


@dataclass(frozen=True, slots=True)
class _AppFile:
    """A file that the app wrote.

    reference
        How clients are to know it.
    """

    path: Path
    reference: ModelRef


class RunOrchestrator:
    """Leads a run to its model, over one start of its ServerApp."""

    def __init__(self, run: RunContext, journal: Journal) -> None:
        self._run = run
        self._journal = journal
        self._stopped = ""
        self._means: dict[str, str] = {}
        """SHA-256 of the last mean that the app was given -> its object's key."""
        self._last_means: dict[str, str | None] = {}
        """Key of each mean of the last reply that had any -> that of the sum, if it is kept."""
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
                case FiguresReport(figures=figures):
                    await run.take_figures(figures, self._evaluated)
                case WaitReport(nodes=nodes, setting=setting):
                    run.event_log.add(Warned(line=run.clients.waiting(nodes, setting)))
                case RoomCall(layout=layout, nodes=nodes):
                    await run.check_disk(layout, nodes)
                    await app.send(Room())
                case AppEnd(model=model, statistics=statistics):
                    run.warn_unjudged()
                    if statistics is not None and run.plan.question is not None:
                        run.event_log.add(StatisticsFound(statistics=statistics))
                    final = await run.files.keep_model(model, run.facts("final"), self._means)
                    return RunEnd(model=final, stopped=self._stopped)
                case AppFailure(reason=reason):
                    raise RunFailed(reason)
                case NodesCall() | ExchangeCall() | PlainExchangeCall():
                    await app.send(await _unless_ended(app, self._answer(message)))

    async def _start(self) -> Start:
        plan, files = self._run.plan, self._run.files
        initial = await files.initial(plan.initial_sha256) if plan.initial_sha256 else None
        return Start.of(
            plan.settings,
            app=str(files.app),
            folder=str(files.work),
            run=plan.run,
            run_config=dict(plan.run_config),
            aggregation=plan.settings.aggregation,
            question=None if plan.question is None else question_to_plain(plan.question),
            initial=None if initial is None else str(initial),
            known_statistics=None if plan.known_statistics is None else dict(plan.known_statistics),
            members=self._members,
        )

    @property
    def _members(self) -> int:
        return len(self._run.clients.members)

    async def _listen(self, app: AppConnection) -> FromApp:
        """The next message of the app; RunFailed if there is none for longer than app-seconds."""
        clock, most = self._run.services.clock, self._run.plan.settings.app_seconds
        message, since, warned = asyncio.ensure_future(app.receive()), clock(), False
        try:
            while not message.done():
                await asyncio.wait({message}, timeout=_TICK_SECONDS)
                silent = clock() - since
                if message.done():
                    break
                if silent >= most:
                    raise RunFailed(
                        f"the ServerApp asked for nothing for {most:g} s (app-seconds): it hangs, or computes for "
                        "longer; raise app-seconds if that is meant"
                    )
                if silent >= most / _WARNING_PART and not warned:
                    warned = True
                    line = f"the ServerApp has asked for nothing for {silent:.0f} s; after {most:g} s the run fails"
                    self._run.event_log.add(Warned(line=line))
            return message.result()
        finally:
            await end(message)

    # --- replies --------------------------------------------------------------------------------

    async def _answer(self, call: AppCall) -> AppReply:
        if not isinstance(call, NodesCall):
            self._run.warn_unjudged()
        files = await self._take_files(call)
        sent = await self._send_model(call, files)
        if isinstance(call, ExchangeCall) and sent is not None and not is_training(call.message_type):
            self._evaluated = call.server_round, sent.path
        try:
            journaled = await self._journal.begin(record_of(call, {path: one.reference for path, one in files.items()}))
        except RequestDiffers as error:
            raise RunInterrupted(f"{error}. The run's last model is kept: begin another run with it") from error
        if journaled is not None:
            return await self._message(JournaledReply.model_validate(journaled), sent)
        reply = await self._carry_out(call, files, sent)
        await self._journal.answer(reply.model_dump(mode="json", exclude_defaults=True))
        return await self._message(reply, sent)

    async def _take_files(self, call: AppCall) -> dict[str, _AppFile]:
        """The files that a call names, by the paths that it has for them; those of the last call are removed."""
        if isinstance(call, NodesCall):
            return {}
        files = self._run.files
        await files.clean()
        names = [call.model] if isinstance(call, ExchangeCall) else [one.content for one in call.questions]
        app_files = {}
        for name in filter(None, dict.fromkeys(names)):
            path = files.from_app(name)
            files.leave(path)
            announced = await reference(path)
            await files.share_mean(path, announced.sha256, self._means)
            app_files[name] = _AppFile(path, announced)
        return app_files

    async def _send_model(self, call: AppCall, files: Mapping[str, _AppFile]) -> SentModel | None:
        """What clients get of the model of a secure exchange, also if the journal has the reply."""
        if not isinstance(call, ExchangeCall) or call.model is None:
            return None
        return await self._downloads.send(files[call.model].path, files[call.model].reference)

    async def _carry_out(self, call: AppCall, files: Mapping[str, _AppFile], sent: SentModel | None) -> JournaledReply:
        """Do what the app asks for."""
        try:
            match call:
                case ExchangeCall():
                    return await self._secure_exchange(call, files.get(call.model or ""), sent)
                case PlainExchangeCall():
                    return await self._plain_exchange(call, files)
                case NodesCall():
                    return JournaledReply(nodes=await self._run.clients.nodes())
        except RoundFailed as error:
            return JournaledReply(refused=str(error))
        except BudgetSpent as error:
            return JournaledReply(spent=str(error))

    async def _secure_exchange(
        self, call: ExchangeCall, model: _AppFile | None, sent: SentModel | None
    ) -> JournaledReply:
        """All attempts at one exchange."""
        if not self._run.state.admits(call.message_type, call.ahead, self._run.clients.check):
            return JournaledReply(withheld=True)
        if model is None:
            return await self._sum(call, model, sent)
        # Reading the whole of a model takes as long as its clients have nothing to do.
        checkpoint = asyncio.create_task(self._run.checkpoint(model.path, model.reference.sha256))
        try:
            return await self._sum(call, model, sent)
        finally:
            await checkpoint

    async def _sum(self, call: ExchangeCall, model: _AppFile | None, sent: SentModel | None) -> JournaledReply:
        settings, trains = self._run.plan.settings, is_training(call.message_type)
        state = await asyncio.to_thread(ModelState.open, model.path) if model else None
        request = call.request(state)
        request = replace(request, nodes=await self._run.clients.evaluators(request.nodes, request.message_type))
        slow = self._run.clients.slow_lines.slow
        if state is not None and not await self._run.has_room_to_spare(state.layout, len(request.nodes)):
            slow = _none_of  # each gets the whole model
        if sent is not None and not settings.buffered:
            sent = await self._downloads.for_clients(sent, request.nodes, slow)
        secure = SecureRequest(step=self._journal.number, exchange=request, sent=sent)
        if settings.buffered and trains:
            return JournaledReply(exchange=await self._buffered.exchange(secure, self._journal.trained))
        if settings.groups > 1 and trains:
            return JournaledReply(groups=await self._grouped.exchange(secure))
        if trains and sent is not None and slow(request.nodes):
            secure = replace(secure, change=await self._downloads.change_file(sent))
        return JournaledReply(exchange=await self._secure.exchange(secure))

    async def _plain_exchange(self, call: PlainExchangeCall, files: Mapping[str, _AppFile]) -> JournaledReply:
        messages = {
            one.node: OutgoingMessage(
                message_type=one.message_type,
                head=one.head,
                content=files[one.content].path,
                reference=files[one.content].reference,
            )
            for one in call.questions
        }
        request = PlainStep(step=self._journal.number, call=call, messages=messages)
        number, absent = await self._plain.exchange(request)
        return JournaledReply(exchange=number, absent=absent)

    async def _message(self, reply: JournaledReply, sent: SentModel | None) -> AppReply:
        """A reply as the app gets it, with files that it can read."""
        if reply.nodes is not None:
            return Nodes(nodes=reply.nodes, members=self._members)
        if reply.refused is not None:
            return ExchangeRefused(reason=reply.refused)
        if reply.spent is not None:
            self._stopped = reply.spent
            return BudgetReached(reason=reply.spent)
        if reply.exchange is not None and self._run.plan.settings.aggregation == "plain":
            replies = (await self._result(reply.exchange, sent)).plain
            absent = map(self._absent, reply.absent)
            return PlainReplies(replies=[*[await self._plain_reply(one) for one in replies], *absent])
        exchanges = reply.groups or ([reply.exchange] if reply.exchange is not None else [])
        before, self._last_means = self._last_means, {}
        results = [await self._result(number, sent) for number in exchanges]
        message = Replies(replies=[await self._reply(one) for result in results for one in result.replies])
        await self._remove_means(before)
        return message

    async def _remove_means(self, before: dict[str, str | None]) -> None:
        """Once there are newer means, remove those of the reply before that can be made again from their sums."""
        if not self._last_means:
            self._last_means = before
            return
        for mean, words in before.items():
            if words is not None:
                await self._run.services.objects.remove(mean)

    async def _result(self, exchange: int, sent: SentModel | None) -> ExchangeResult:
        services = self._run.services
        row = await services.store.exchange(self._run.plan.run, exchange)
        if row is None or row.result is None:
            raise RunFailed(f"the journal names exchange {exchange}, of which the database has no result")
        end = ExchangeOutcome.from_json(row.result)
        if end.total is not None and end.total.mean is not None:
            self._means = {end.total.mean_sha256: end.total.mean}
            self._last_means[end.total.mean] = end.total.words
            self._downloads.note_mean(end.total.mean_sha256)
        if exchange not in self._run.led:
            try:
                if sent is not None:
                    task = StoredTask.model_validate(row.task)
                    await make_mean_again(end, task, sent.base or sent.path, services)
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

    def _absent(self, client: int) -> PlainReply:
        name = self._run.services.names.get(client, f"node {client}")
        return PlainReply.failed(client, reply_error(NODE_UNAVAILABLE, f"{name} is not connected"))

    def _note_start(self) -> None:
        plan, state = self._run.plan, self._run.state
        self._run.event_log.add(
            RunStarted(
                app=plan.app,
                aggregation=plan.settings.aggregation,
                rounds=planned_rounds(plan.run_config) if plan.question is None else None,
                privacy=PrivacyTerms.of(state.encodings.privacy),
            )
        )


async def _unless_ended(app: AppConnection, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; WorkerDied as soon as the app has ended, since nobody waits for it then."""

    async def end_of_app() -> NoReturn:
        raise await app.ended()

    return await guarded(work, end_of_app())


def _none_of(clients: Collection[int]) -> frozenset[int]:
    return frozenset()
