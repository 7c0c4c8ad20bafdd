"""Live streams for operators and viewers: the events of one run, and the federation once a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from fedcore.wire.operator import RunStatus
from fedcore.wire.problems import ProblemKind
from fedcore.wire.watch import Role
from server_app.http.audience import ForOperators
from server_app.http.event_stream import COMMENT, EVENT_STREAM, EventStream, StreamSlots
from server_app.http.problems import problem_responses
from server_app.members.sessions import LoginSession, LoginSessions
from server_app.routes.access import (
    After,
    AnyLeadership,
    AnyQueue,
    AnyServices,
    AnySessions,
    RunId,
    guarded_request,
    of_app,
)
from server_app.runs.leadership import Leadership
from server_app.runs.queue import RunQueue
from server_app.services import Services
from server_app.views.overview_feed import PAUSE_SECONDS, OverviewFeed
from server_app.views.run_views import RunView, newest

COMMENT_SECONDS: Final = 15.0
BATCH_SECONDS: Final = 0.2
"""Between two pieces of a stream: the progress of a stage goes out five times a second at most."""
LONGEST_SECONDS: Final = 3600.0
"""Of one stream; a browser opens the next one by itself."""

router = APIRouter(
    prefix="/v1",
    route_class=ForOperators,
    tags=["live"],
    responses=problem_responses(
        ProblemKind.UNAUTHORIZED, ProblemKind.MALFORMED, ProblemKind.BUSY, ProblemKind.TOO_MANY_STREAMS
    ),
)
_STREAM: Final[dict[int | str, dict[str, Any]]] = {200: {"content": {EVENT_STREAM: {}}, "description": "events"}}


@dataclass(slots=True)
class Watch:
    """One stream: who follows it, and how long it may go on.

    session
        Of the person who follows it; None for the operator's token.
    address
        Of the peer.
    until
        Its end, on the loop's clock.
    """

    services: Services
    leadership: Leadership
    sessions: LoginSessions
    session: LoginSession | None
    address: str
    until: float
    _sessions_ended: int = 0

    @property
    def role(self) -> Role:
        """What who follows it may see."""
        return self.session.role if self.session is not None else Role.OPERATOR

    @property
    def seconds_left(self) -> float:
        """Until its time, or its session's, is up."""
        left = self.until - asyncio.get_running_loop().time()
        return left if self.session is None else min(left, self.sessions.seconds_left(self.session))

    async def goes_on(self) -> bool:
        """Whether it does: the server leads and does not stop, the session holds, and there is time left."""
        if self.services.run_bell.stopped or not self.leadership.leads or self.seconds_left <= 0:
            return False
        if self.session is not None and self._sessions_ended != self.sessions.ended:
            self._sessions_ended = self.sessions.ended
            return await self.sessions.holds(self.session)
        return True


async def watch_of(
    request: Request,
    services: AnyServices,
    leadership: AnyLeadership,
    sessions: AnySessions,
    seconds: Annotated[float, Query(ge=0, le=LONGEST_SECONDS, description="after which the stream ends")] = 3600.0,
) -> Watch:
    """The request as a stream."""
    known = guarded_request(request)
    until = asyncio.get_running_loop().time() + seconds
    return Watch(services, leadership, sessions, known.session, known.address, until, sessions.ended)


AnyWatch = Annotated[Watch, Depends(watch_of)]


AnySlots = Annotated[StreamSlots, Depends(of_app("stream_slots", StreamSlots))]
AnyFeed = Annotated[OverviewFeed, Depends(of_app("feed", OverviewFeed))]
LastEvent = Annotated[str, Header(alias="Last-Event-ID", description="number of the last event, by a browser")]


@router.get(
    "/runs/{run}/live",
    status_code=200,
    response_class=EventStream,
    responses={
        **problem_responses(ProblemKind.NOT_FOUND),
        **_STREAM,
        204: {"description": "The run has ended, and there is nothing after that event; do not ask again"},
    },
)
async def live(
    run: RunId, watch: AnyWatch, queue: AnyQueue, slots: AnySlots, after: After = 0, last_event_id: LastEvent = ""
) -> Response:
    """The events of a run after number `after` as server-sent events, until the run has ended."""
    known = int(last_event_id[:9]) if last_event_id.isascii() and last_event_id.isdecimal() else after
    view = await queue.view(run)
    if view.ended and known >= view.seq and await _is_over(queue, run):
        return Response(status_code=204)

    async def over() -> bool:
        return view.ended and await _is_over(queue, run)

    return EventStream(_run_events(watch, view, known, over), slots.reserve(watch.role, watch.address))


@router.get("/live", status_code=200, response_class=EventStream, responses=_STREAM)
async def federation(watch: AnyWatch, feed: AnyFeed, slots: AnySlots) -> Response:
    """The first page of runs (`runs`) and the members (`clients`), and again when one of them changes."""
    return EventStream(_federation_events(watch, feed), slots.reserve(watch.role, watch.address))


async def _is_over(queue: RunQueue, run: str) -> bool:
    """Whether a run will have no more events, unless it is resumed."""
    return RunStatus((await queue.info(run)).status).final


async def _run_events(
    watch: Watch, view: RunView, known: int, over: Callable[[], Awaitable[bool]]
) -> AsyncIterator[bytes]:
    bell = watch.services.run_bell
    yield COMMENT
    while await watch.goes_on():
        rings = bell.rings
        await view.catch_up()
        if frames := await view.after(known):
            known = frames[-1].seq
            if text := newest(frames, watch.role):
                yield text
            await asyncio.sleep(min(BATCH_SECONDS, max(watch.seconds_left, 0.0)))
        elif await over():
            return
        elif bell.rings == rings:
            await bell.wait(min(COMMENT_SECONDS, watch.seconds_left))
            if bell.rings == rings:
                yield COMMENT


async def _federation_events(watch: Watch, feed: OverviewFeed) -> AsyncIterator[bytes]:
    previous: dict[str, str] = {}
    clock = asyncio.get_running_loop().time
    sent_at = clock()
    yield COMMENT
    while await watch.goes_on():
        current = await feed.poll(watch.role)
        changed = ((name, text) for name, text in current.items() if previous.get(name) != text)
        news = "".join(f"event: {name}\ndata: {text}\n\n" for name, text in changed)
        previous = current
        if news or clock() - sent_at >= COMMENT_SECONDS:
            sent_at = clock()
            yield news.encode() or COMMENT
        until = clock() + min(PAUSE_SECONDS, watch.seconds_left)
        while (left := until - clock()) > 0 and not watch.services.run_bell.stopped:
            await watch.services.run_bell.wait(left)  # it also rings when the server stops, or sessions end
